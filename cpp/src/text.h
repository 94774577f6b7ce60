// Pieces of messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace lampwork::runtime {

inline std::string listed(const std::vector<std::string>& words, const char* between) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

inline std::string shown(const int64_t* sizes, size_t count) {
  std::string text = "(";
  for (size_t i = 0; i < count; ++i) text += (i == 0 ? "" : ", ") + std::to_string(sizes[i]);
  return text + ")";
}

// Its begin and its end, if it is longer than some 1,500 bytes: names that a file brings may be of any length.
inline std::string shortened(const std::string& text) {
  constexpr size_t kMost = 1600, kBegin = 800, kEnd = 400;  // room for a path before it
  if (text.size() <= kMost) return text;
  const auto is_inside = [&text](size_t at) { return (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80; };  // of UTF-8
  size_t first = kBegin, last = text.size() - kEnd;
  for (int i = 0; i < 3 && is_inside(first); ++i) --first;
  for (int i = 0; i < 3 && is_inside(last); ++i) ++last;
  return text.substr(0, first) + " ... " + text.substr(last);
}

}  // namespace lampwork::runtime
