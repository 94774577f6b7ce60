// A hash of a tensor's memory, at the speed of memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lampwork {

// 64 bits that depend on every bit of `bytes` bytes, and on nothing else: not on the machine, the number of
// threads or the alignment. Uses torch's threads; does not need the GIL.
uint64_t hash_content(const char* data, size_t bytes);

}  // namespace lampwork
