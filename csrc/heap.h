// Memory that programs of training steps take and give back while they run: what forward saves, what backward makes of
// it, and gradients lie in each other's place.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "fork_mutex.h"

namespace lampwork {

// Best fit over address space that is reserved in large pieces, on huge pages. What was touched once stays resident, so
// that the next step has no page faults, until `trim`. Thread-safe.
class Heap : public std::enable_shared_from_this<Heap> {
 public:
  // The one of the process. It lives as long as a program or a block does. Needs the GIL.
  static std::shared_ptr<Heap> shared();
  Heap() = default;
  Heap(const Heap&) = delete;
  ~Heap();
  // 64-aligned memory, whose deleter gives it back here. Throws c10::OutOfMemoryError.
  c10::DataPtr allocate(size_t bytes);
  // Gives the pages that no block needs back to the system.
  void trim();
  // Bytes of living blocks.
  size_t used();

 private:
  struct Block;
  static void release(void* context) noexcept;
  void reserve(size_t bytes);
  void insert(char* memory, size_t bytes);
  void erase(std::map<char*, size_t>::iterator block);

  ForkMutex mutex_;
  std::map<char*, size_t> free_;                // by address
  std::set<std::pair<size_t, char*>> by_size_;  // the same blocks
  std::vector<std::pair<char*, size_t>> reserved_;
  size_t used_ = 0;
};

}  // namespace lampwork
