// Reading JSON that may be damaged: whatever is taken from it is checked first.
#pragma once

#include "error.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

namespace lampwork::runtime {

using Json = nlohmann::json;

inline constexpr int64_t kMostCount = int64_t{1} << 31;

// Parses a whole text. Keys that come twice in one object are refused, as is nesting that would exhaust the stack of
// those who read it. `what` names the text in errors, which are LW_FORMAT here and below.
Json parse_json(std::string_view text, const std::string& what);

// A member of an object. `what` names the object.
const Json& member(const Json& object, const char* name, const std::string& what);
// The same, or nullptr if it is not there or null.
const Json* optional_member(const Json& object, const char* name, const std::string& what);
const Json& list_of(const Json& json, const std::string& what);
std::string text_of(const Json& json, const std::string& what);
bool truth_of(const Json& json, const std::string& what);
int64_t integer_of(const Json& json, const std::string& what, int64_t least = std::numeric_limits<int64_t>::min(),
                   int64_t most = std::numeric_limits<int64_t>::max());

}  // namespace lampwork::runtime
