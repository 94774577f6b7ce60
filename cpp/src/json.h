// JSON that may be damaged: whatever is taken from it is checked first.
#pragma once

#include "error.h"

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace lampwork::runtime {

inline constexpr int64_t kMostCount = int64_t{1} << 31;

class Json {
 public:
  using List = std::vector<Json>;
  using Members = std::vector<std::pair<std::string, Json>>;  // in the order of the text

  Json() = default;
  template <class T>
  explicit Json(T value) : value_(std::move(value)) {}

  // Parses a whole text. Keys that come twice in one object are refused, as is nesting that would exhaust the stack of
  // those who read it. Numbers without a fraction that int64 does not hold are floats. Throws LW_FORMAT; `what` names the
  // text.
  static Json parse(std::string_view text, const std::string& what);

  bool is_null() const { return value_.index() == 0; }
  const bool* boolean() const { return std::get_if<bool>(&value_); }
  const int64_t* integer() const { return std::get_if<int64_t>(&value_); }
  const double* real() const { return std::get_if<double>(&value_); }
  const std::string* text() const { return std::get_if<std::string>(&value_); }
  const List* list() const { return std::get_if<List>(&value_); }
  const Members* members() const { return std::get_if<Members>(&value_); }
  // A member of an object; nullptr if it is not there, or if this is no object.
  const Json* find(std::string_view name) const;
  // For messages: the value, or what kind it is of.
  std::string shown() const;
  bool operator==(const Json& other) const = default;

 private:
  std::variant<std::monostate, bool, int64_t, double, std::string, List, Members> value_;
};

// These throw LW_FORMAT; `what` names what is read.

// A member of an object.
const Json& member(const Json& object, const char* name, const std::string& what);
// The same, or nullptr if it is not there or null.
const Json* optional_member(const Json& object, const char* name, const std::string& what);
const Json::Members& members_of(const Json& json, const std::string& what);
const Json::List& list_of(const Json& json, const std::string& what);
const Json::List& pair_of(const Json& json, const std::string& what);
const std::string& text_of(const Json& json, const std::string& what);
bool truth_of(const Json& json, const std::string& what);
int64_t integer_of(const Json& json, const std::string& what, int64_t least = std::numeric_limits<int64_t>::min(),
                   int64_t most = std::numeric_limits<int64_t>::max());

}  // namespace lampwork::runtime
