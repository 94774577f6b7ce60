#include "json.h"

#include <set>
#include <vector>

namespace lampwork::runtime {

namespace {

constexpr int kMostNesting = 200;

}  // namespace

Json parse_json(std::string_view text, const std::string& what) {
  std::vector<std::set<std::string>> keys;
  const auto look = [&](int depth, Json::parse_event_t event, Json& parsed) {
    switch (event) {
      case Json::parse_event_t::object_start:
        keys.emplace_back();
        [[fallthrough]];
      case Json::parse_event_t::array_start:
        if (depth > kMostNesting) damaged(what + " is nested more than " + std::to_string(kMostNesting) + " deep");
        break;
      case Json::parse_event_t::key:
        if (!keys.back().insert(parsed.get<std::string>()).second)
          damaged(what + " has '" + parsed.get<std::string>() + "' twice");
        break;
      case Json::parse_event_t::object_end:
        keys.pop_back();
        break;
      default:
        break;
    }
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), look);
  } catch (const Json::exception& error) {
    damaged(what + " is no JSON: " + error.what());
  }
}

const Json* optional_member(const Json& object, const char* name, const std::string& what) {
  if (!object.is_object()) damaged(what + " is no object");
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

const Json& member(const Json& object, const char* name, const std::string& what) {
  const Json* found = optional_member(object, name, what);
  if (found == nullptr) damaged(what + " has no '" + name + "'");
  return *found;
}

const Json& list_of(const Json& json, const std::string& what) {
  if (!json.is_array()) damaged(what + " is no list");
  return json;
}

std::string text_of(const Json& json, const std::string& what) {
  if (!json.is_string()) damaged(what + " is no text");
  return json.get<std::string>();
}

bool truth_of(const Json& json, const std::string& what) {
  if (!json.is_boolean()) damaged(what + " is neither true nor false");
  return json.get<bool>();
}

int64_t integer_of(const Json& json, const std::string& what, int64_t least, int64_t most) {
  if (!json.is_number_integer()) damaged(what + " is no integer");
  const bool too_large = json.is_number_unsigned() &&
                         json.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  const int64_t value = too_large ? std::numeric_limits<int64_t>::max() : json.get<int64_t>();
  if (too_large || value < least || value > most) {
    damaged(what + " is " + json.dump() + ", but between " + std::to_string(least) + " and " + std::to_string(most) +
            " was expected");
  }
  return value;
}

}  // namespace lampwork::runtime
