#include "memory.h"

#include "error.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <string>

namespace lampwork::runtime {

namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kMostBytes = size_t{1} << 46;
constexpr size_t kMostIdle = 8;

}  // namespace

Block::Block(size_t bytes) : data_(nullptr), bytes_(bytes) {
  const bool is_huge = bytes >= kHugePage;
  const size_t rounded = (std::max<size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  void* memory = nullptr;
  if (bytes > kMostBytes || posix_memalign(&memory, is_huge ? kHugePage : kAlignment, rounded) != 0)
    fail(LW_MEMORY, "there is no memory for " + std::to_string(bytes) + " bytes");
  // Advice only: without it the memory works just as well, with more page faults.
  if (is_huge) (void)madvise(memory, rounded, MADV_HUGEPAGE);
  data_ = static_cast<char*>(memory);
}

Block::~Block() { std::free(data_); }

std::unique_ptr<Block> Arenas::take(size_t bytes) {
  size_t wanted = bytes;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto smaller = [](const auto& a, const auto& b) { return a->bytes() < b->bytes(); };
    std::sort(idle_.begin(), idle_.end(), smaller);
    for (auto at = idle_.begin(); at != idle_.end(); ++at) {
      if ((*at)->bytes() < bytes) continue;
      std::unique_ptr<Block> found = std::move(*at);
      idle_.erase(at);
      return found;
    }
    if (!idle_.empty()) {
      // The largest is outgrown. Sizes that grow from call to call, as a decoder's do, are not to cost an arena each.
      wanted = std::max(bytes, idle_.back()->bytes() + idle_.back()->bytes() / 2);
      idle_.pop_back();
    }
  }
  return std::make_unique<Block>(wanted);
}

void Arenas::give(std::unique_ptr<Block> arena) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (idle_.size() < kMostIdle) idle_.push_back(std::move(arena));
}

}  // namespace lampwork::runtime
