// Memory for arenas and results: aligned, on huge pages where large, and reused, so that page faults do not
// recur.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace lampwork {

// 64-aligned memory; from 2 MiB on aligned to and advised for huge pages. Throws c10::Error if there is none.
void* allocate_block(size_t bytes);
void free_block(void* block) noexcept;

// Results smaller than this come from malloc, whose per-thread cache is fastest for them.
constexpr size_t kPooledBytes = size_t{32} << 10;

// 64-aligned memory of fewer than kPooledBytes bytes. (posix_memalign does not use malloc's per-thread
// cache.)
c10::DataPtr allocate_small(size_t bytes);

// Keeps the blocks of dead results of one program for its next calls. Thread-safe; blocks may outlive it.
class BlockPool : public std::enable_shared_from_this<BlockPool> {
 public:
  BlockPool();
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  // A DataPtr whose deleter gives the block back here.
  c10::DataPtr allocate(size_t bytes);

 private:
  struct Block {
    void* memory;
    size_t bytes;
    std::weak_ptr<BlockPool> pool;
  };
  static void release(void* context) noexcept;

  static constexpr size_t kMaxIdle = 4;
  std::mutex mutex_;
  std::vector<Block*> idle_;
};

}  // namespace lampwork
