// Memory for arenas and results: aligned, on huge pages where large, and reused, so that page faults do not
// recur.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "fork_mutex.h"

namespace lampwork {

// 64-aligned memory; from 2 MiB on aligned to and advised for huge pages. Throws c10::Error if there is none.
void* allocate_block(size_t bytes);
void free_block(void* block) noexcept;

// Results smaller than this come from malloc, whose per-thread cache is fastest for them.
constexpr size_t kPooledBytes = size_t{32} << 10;

// 64-aligned memory of fewer than kPooledBytes bytes. (posix_memalign does not use malloc's per-thread
// cache.)
c10::DataPtr allocate_small(size_t bytes);

// Whether it is memory of allocate_small or of a BlockPool, or else malloc's.
bool is_block(const c10::DataPtr& data);

// A block for the intermediate values of a running call.
class Arena {
 public:
  Arena() = default;
  explicit Arena(size_t bytes) : memory_(static_cast<char*>(allocate_block(bytes))), bytes_(bytes) {}
  Arena(Arena&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Arena& operator=(Arena&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Arena() {
    if (memory_ != nullptr) free_block(memory_);
  }
  char* memory() const { return memory_; }
  size_t bytes() const { return bytes_; }

 private:
  char* memory_ = nullptr;
  size_t bytes_ = 0;
};

// Idle arenas of programs that take turns, so that a program for each of many sizes does not mean as many
// arenas. Thread-safe.
class ArenaPool {
 public:
  // One of at least `bytes` bytes.
  Arena take(size_t bytes);
  void give(Arena arena);

 private:
  static constexpr size_t kMaxIdle = 8;
  ForkMutex mutex_;
  std::vector<Arena> idle_;
};

// Keeps the blocks of dead results of a program, or of some that take turns, for the next calls. Thread-safe;
// blocks may outlive it.
class BlockPool : public std::enable_shared_from_this<BlockPool> {
 public:
  BlockPool();
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  // A DataPtr whose deleter gives the block back here.
  c10::DataPtr allocate(size_t bytes);
  // The next blocks, of so many bytes by `shared_bytes`, will live about as long as each other: they share huge pages,
  // so that the ends of blocks do not lie on small ones, each with a page fault of its own. A block that outlives its
  // neighbours keeps at most kSharedBytes.
  void expect(size_t bytes);
  // What a block of that many bytes takes of shared memory; 0 if it is one by itself.
  static size_t shared_bytes(size_t bytes);
  // Whether some pool allocated it.
  static bool owns(const c10::DataPtr& data) { return data.get_deleter() == &BlockPool::release; }
  // Their deleter.
  static void release(void* context) noexcept;

 private:
  struct Block {
    void* memory;
    size_t bytes;
    std::weak_ptr<BlockPool> pool;
    std::shared_ptr<void> shared;  // the memory that it is a piece of, if it is no block by itself
  };
  // Memory that is handed out piece by piece.
  struct Shared {
    std::shared_ptr<void> memory;
    size_t used = 0;
    size_t bytes = 0;
    size_t expected = 0;  // bytes yet to be handed out, from this memory and from what follows it
  };

  static constexpr size_t kMaxIdle = 4;
  static constexpr size_t kSharedBytes = size_t{32} << 20;
  // A piece of shared memory, or nullptr if the block is to be one by itself.
  Block* share(size_t bytes);

  ForkMutex mutex_;
  std::vector<Block*> idle_;  // the one idle for longest first
  Shared shared_;
};

}  // namespace lampwork
