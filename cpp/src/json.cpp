#include "json.h"

#include <algorithm>
#include <charconv>
#include <cstring>

namespace lampwork::runtime {

namespace {

constexpr int kMostNesting = 200;

class Parser {
 public:
  Parser(std::string_view text, const std::string& what) : text_(text), what_(what) {}

  Json whole() {
    Json value = this->value(0);
    skip_spaces();
    if (at_ != text_.size()) refuse("something follows its end");
    return value;
  }

 private:
  [[noreturn]] void refuse(const char* why) const { damaged(what_ + " is no JSON at byte " + std::to_string(at_) + ": " + why); }

  void skip_spaces() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r')) ++at_;
  }
  bool takes(char wanted) {
    if (at_ >= text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }
  void need(char wanted) {
    skip_spaces();
    if (!takes(wanted)) refuse((std::string("'") + wanted + "' was expected").c_str());
  }

  Json value(int depth) {
    if (depth > kMostNesting) refuse("it is nested too deep");
    skip_spaces();
    if (at_ >= text_.size()) refuse("it is cut off");
    switch (text_[at_]) {
      case '{':
        return object(depth);
      case '[':
        return list(depth);
      case '"':
        return Json(string());
      case 't':
        return word("true", Json(true));
      case 'f':
        return word("false", Json(false));
      case 'n':
        return word("null", Json());
      default:
        return number();
    }
  }

  Json word(std::string_view word, Json value) {
    if (text_.substr(at_, word.size()) != word) refuse("there is no such word");
    at_ += word.size();
    return value;
  }

  Json object(int depth) {
    ++at_;
    Json::Members members;
    skip_spaces();
    if (takes('}')) return Json(std::move(members));
    do {
      skip_spaces();
      std::string key = string();
      need(':');
      members.emplace_back(std::move(key), value(depth + 1));
      skip_spaces();
    } while (takes(','));
    need('}');
    std::vector<std::string_view> keys;
    for (const auto& [key, value] : members) keys.push_back(key);
    std::sort(keys.begin(), keys.end());
    if (std::adjacent_find(keys.begin(), keys.end()) != keys.end()) refuse("an object has a key twice");
    return Json(std::move(members));
  }

  Json list(int depth) {
    ++at_;
    Json::List items;
    skip_spaces();
    if (takes(']')) return Json(std::move(items));
    do {
      items.push_back(value(depth + 1));
      skip_spaces();
    } while (takes(','));
    need(']');
    return Json(std::move(items));
  }

  std::string string() {
    if (!takes('"')) refuse("a text was expected");
    std::string found;
    for (;;) {
      const size_t begin = at_;
      while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\\' && static_cast<unsigned char>(text_[at_]) >= 0x20) ++at_;
      found.append(text_, begin, at_ - begin);
      if (at_ >= text_.size()) refuse("a text is cut off");
      if (takes('"')) return found;
      if (!takes('\\')) refuse("a text has a control character");
      escape(found);
    }
  }

  void escape(std::string& found) {
    static constexpr char kNames[] = "\"\\/bfnrt", kMeant[] = "\"\\/\b\f\n\r\t";
    if (takes('u')) {
      uint32_t point = unit();
      if (point >= 0xD800 && point < 0xDC00 && text_.substr(at_, 2) == "\\u") {
        const size_t before = at_;
        at_ += 2;
        const uint32_t low = unit();
        if (low >= 0xDC00 && low < 0xE000) {
          point = 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00);
        } else {
          at_ = before;
        }
      }
      encode(point, found);
      return;
    }
    const char* name = at_ < text_.size() && text_[at_] != '\0' ? std::strchr(kNames, text_[at_]) : nullptr;
    if (name == nullptr) refuse("a text has an escape that there is not");
    found += kMeant[name - kNames];
    ++at_;
  }

  uint32_t unit() {
    uint32_t value = 0;
    const std::string_view digits = text_.substr(std::min(at_, text_.size()), 4);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    if (error != std::errc() || digits.size() != 4 || end != digits.data() + 4) refuse("an escape needs four digits");
    at_ += 4;
    return value;
  }

  static void encode(uint32_t point, std::string& found) {
    const auto put = [&found](uint32_t byte) { found += static_cast<char>(static_cast<unsigned char>(byte)); };
    if (point < 0x80) {
      put(point);
    } else if (point < 0x800) {
      put(0xC0 | point >> 6);
      put(0x80 | (point & 0x3F));
    } else if (point < 0x10000) {
      put(0xE0 | point >> 12);
      put(0x80 | (point >> 6 & 0x3F));
      put(0x80 | (point & 0x3F));
    } else {
      put(0xF0 | point >> 18);
      put(0x80 | (point >> 12 & 0x3F));
      put(0x80 | (point >> 6 & 0x3F));
      put(0x80 | (point & 0x3F));
    }
  }

  size_t digits() {
    const size_t begin = at_;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
    return at_ - begin;
  }

  Json number() {
    const size_t begin = at_;
    (void)takes('-');
    const size_t first = at_;
    const size_t whole = digits();
    if (whole == 0 || (whole > 1 && text_[first] == '0')) refuse("a value was expected");
    bool is_integer = true;
    if (takes('.')) {
      is_integer = false;
      if (digits() == 0) refuse("a number has no digits behind its point");
    }
    if (takes('e') || takes('E')) {
      is_integer = false;
      if (!takes('+')) (void)takes('-');
      if (digits() == 0) refuse("a number has no digits in its exponent");
    }
    const char* from = text_.data() + begin;
    const char* to = text_.data() + at_;
    if (int64_t value = 0; is_integer && std::from_chars(from, to, value).ec == std::errc()) return Json(value);
    double value = 0;
    if (std::from_chars(from, to, value).ec != std::errc()) refuse("a number is out of range");
    return Json(value);
  }

  std::string_view text_;
  const std::string& what_;
  size_t at_ = 0;
};

}  // namespace

Json Json::parse(std::string_view text, const std::string& what) { return Parser(text, what).whole(); }

const Json* Json::find(std::string_view name) const {
  if (const Members* all = members()) {
    for (const auto& [key, value] : *all) {
      if (key == name) return &value;
    }
  }
  return nullptr;
}

std::string Json::shown() const {
  if (is_null()) return "null";
  if (boolean() != nullptr) return *boolean() ? "true" : "false";
  if (integer() != nullptr) return std::to_string(*integer());
  if (real() != nullptr) return std::to_string(*real());
  if (text() != nullptr) return "'" + text()->substr(0, 80) + "'";
  return list() != nullptr ? "a list" : "an object";
}

const Json* optional_member(const Json& object, const char* name, const std::string& what) {
  if (object.members() == nullptr) damaged(what + " is " + object.shown() + ", and an object was expected");
  const Json* found = object.find(name);
  return found == nullptr || found->is_null() ? nullptr : found;
}

const Json& member(const Json& object, const char* name, const std::string& what) {
  const Json* found = optional_member(object, name, what);
  if (found == nullptr) damaged(what + " has no '" + name + "'");
  return *found;
}

const Json::Members& members_of(const Json& json, const std::string& what) {
  if (json.members() == nullptr) damaged(what + " is " + json.shown() + ", and an object was expected");
  return *json.members();
}

const Json::List& list_of(const Json& json, const std::string& what) {
  if (json.list() == nullptr) damaged(what + " is " + json.shown() + ", and a list was expected");
  return *json.list();
}

const Json::List& pair_of(const Json& json, const std::string& what) {
  const Json::List& items = list_of(json, what);
  if (items.size() != 2) damaged(what + " is a list of " + std::to_string(items.size()) + ", and a pair was expected");
  return items;
}

const std::string& text_of(const Json& json, const std::string& what) {
  if (json.text() == nullptr) damaged(what + " is " + json.shown() + ", and a text was expected");
  return *json.text();
}

bool truth_of(const Json& json, const std::string& what) {
  if (json.boolean() == nullptr) damaged(what + " is " + json.shown() + ", and true or false was expected");
  return *json.boolean();
}

int64_t integer_of(const Json& json, const std::string& what, int64_t least, int64_t most) {
  if (json.integer() == nullptr) damaged(what + " is " + json.shown() + ", and an integer was expected");
  if (*json.integer() < least || *json.integer() > most) {
    damaged(what + " is " + json.shown() + ", and a number from " + std::to_string(least) + " to " + std::to_string(most) +
            " was expected");
  }
  return *json.integer();
}

}  // namespace lampwork::runtime
