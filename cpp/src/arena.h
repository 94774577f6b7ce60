// Offsets in one block of memory for values that live at different times.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

namespace lampwork::runtime {

inline constexpr int64_t kAlignment = 64;  // a cache line, and the widest vector

struct Placement {
  std::unordered_map<int32_t, int64_t> offsets;
  int64_t bytes = 0;
};

// memory: (whether it is taken or given back, value), in the order of the steps; what is not given back stays to the end.
// nbytes: of each value by its number. LW_FORMAT if something is taken twice, or given back before it is taken.
Placement place_in_arena(const std::vector<std::pair<bool, int32_t>>& memory, const std::vector<int64_t>& nbytes);

}  // namespace lampwork::runtime
