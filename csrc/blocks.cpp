#include "blocks.h"

#include <c10/util/Exception.h>

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>

namespace lampwork {

namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kHugePage = size_t{2} << 20;

size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

void* allocate_block(size_t bytes) {
  const bool huge = bytes >= kHugePage;
  const size_t alignment = huge ? kHugePage : kAlignment;
  const size_t rounded = round_up(bytes == 0 ? 1 : bytes, huge ? 4096 : kAlignment);
  void* memory = nullptr;
  const int error = posix_memalign(&memory, alignment, rounded);
  TORCH_CHECK_WITH(OutOfMemoryError, error == 0, "lampwork: cannot allocate ", rounded, " bytes");
  // Advice only: without it the memory works just as well, with more page faults.
  if (huge) (void)madvise(memory, rounded, MADV_HUGEPAGE);
  return memory;
}

void free_block(void* block) noexcept { std::free(block); }

c10::DataPtr allocate_small(size_t bytes) {
  void* memory = std::malloc(bytes + kAlignment);
  TORCH_CHECK_WITH(OutOfMemoryError, memory != nullptr, "lampwork: cannot allocate ", bytes, " bytes");
  auto* aligned = reinterpret_cast<void*>(round_up(reinterpret_cast<size_t>(memory), kAlignment));
  return {aligned, memory, &std::free, c10::Device(c10::DeviceType::CPU)};
}

bool is_block(const c10::DataPtr& data) { return data.get_deleter() == &std::free || BlockPool::owns(data); }

Arena ArenaPool::take(size_t bytes) {
  size_t wanted = bytes;
  {
    std::lock_guard<ForkMutex> lock(mutex_);
    std::sort(idle_.begin(), idle_.end(),
              [](const Arena& a, const Arena& b) { return a.bytes() < b.bytes(); });
    for (auto arena = idle_.begin(); arena != idle_.end(); ++arena) {
      if (arena->bytes() < bytes) continue;
      Arena found = std::move(*arena);
      idle_.erase(arena);
      return found;
    }
    if (!idle_.empty()) {
      // The largest is outgrown. Its successor has room to spare: sizes that grow from call to call, as a
      // decoder's do, are not to cost an arena each.
      wanted = std::max(bytes, idle_.back().bytes() + idle_.back().bytes() / 2);
      idle_.pop_back();
    }
  }
  return Arena(wanted);
}

void ArenaPool::give(Arena arena) {
  std::lock_guard<ForkMutex> lock(mutex_);
  if (idle_.size() < kMaxIdle) idle_.push_back(std::move(arena));
}

BlockPool::BlockPool() { idle_.reserve(kMaxIdle + 1); }

BlockPool::~BlockPool() {
  for (Block* block : idle_) {
    free_block(block->memory);
    delete block;
  }
}

c10::DataPtr BlockPool::allocate(size_t bytes) {
  Block* block = nullptr;
  {
    std::lock_guard<ForkMutex> lock(mutex_);
    block = share(bytes);
    for (size_t i = 0; block == nullptr && i < idle_.size(); ++i) {
      if (idle_[i]->bytes == bytes) {
        block = idle_[i];
        idle_.erase(idle_.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
  }
  if (block == nullptr) {
    void* memory = allocate_block(bytes);
    block = new Block{memory, bytes, weak_from_this(), nullptr};
  }
  return {block->memory, block, &BlockPool::release, c10::Device(c10::DeviceType::CPU)};
}

void BlockPool::expect(size_t bytes) {
  std::lock_guard<ForkMutex> lock(mutex_);
  shared_ = Shared{};
  shared_.expected = bytes;
}

size_t BlockPool::shared_bytes(size_t bytes) {
  return bytes < kPooledBytes || bytes > kSharedBytes / 2 ? 0 : round_up(bytes, kAlignment);
}

BlockPool::Block* BlockPool::share(size_t bytes) {
  const size_t taken = shared_bytes(bytes);
  if (taken == 0 || taken > shared_.expected) return nullptr;
  if (taken > shared_.bytes - shared_.used) {
    const size_t whole = std::min(shared_.expected, kSharedBytes);
    shared_.memory = std::shared_ptr<void>(allocate_block(whole), &free_block);
    shared_.used = 0;
    shared_.bytes = whole;
  }
  char* memory = static_cast<char*>(shared_.memory.get()) + shared_.used;
  shared_.used += taken;
  shared_.expected -= taken;
  return new Block{memory, bytes, weak_from_this(), shared_.memory};
}

void BlockPool::release(void* context) noexcept {
  auto* block = static_cast<Block*>(context);
  if (block->shared != nullptr) {
    delete block;
    return;
  }
  if (auto pool = block->pool.lock()) {
    std::lock_guard<ForkMutex> lock(pool->mutex_);
    // The size that was idle for longest makes room: with changing sizes it may never come again.
    pool->idle_.push_back(block);
    if (pool->idle_.size() <= kMaxIdle) return;
    block = pool->idle_.front();
    pool->idle_.erase(pool->idle_.begin());
  }
  free_block(block->memory);
  delete block;
}

}  // namespace lampwork
