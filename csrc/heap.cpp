#include "heap.h"

#include <c10/util/Exception.h>

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>

namespace lampwork {

namespace {

constexpr size_t kHeapAlignment = 64;
constexpr size_t kPage = 4096;
constexpr size_t kHeapHugePage = size_t{2} << 20;
constexpr size_t kReserved = size_t{1} << 30;  // of address space, which costs nothing by itself

size_t round_up_bytes(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

char* map_pages(size_t bytes) {
  void* memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<char*>(memory);
}

}  // namespace

struct Heap::Block {
  std::shared_ptr<Heap> heap;
  char* memory;
  size_t bytes;
};

std::shared_ptr<Heap> Heap::shared() {
  static std::weak_ptr<Heap> known;  // the GIL guards it
  std::shared_ptr<Heap> heap = known.lock();
  if (heap == nullptr) known = heap = std::make_shared<Heap>();
  return heap;
}

Heap::~Heap() {
  for (const auto& [memory, bytes] : reserved_) munmap(memory, bytes);
}

c10::DataPtr Heap::allocate(size_t bytes) {
  const size_t need = round_up_bytes(std::max<size_t>(bytes, 1), kHeapAlignment);
  auto block = std::make_unique<Block>();
  {
    const std::lock_guard<ForkMutex> lock(mutex_);
    auto found = by_size_.lower_bound({need, nullptr});
    if (found == by_size_.end()) {
      reserve(need);
      found = by_size_.lower_bound({need, nullptr});
    }
    const auto [size, memory] = *found;
    erase(free_.find(memory));
    if (size > need) insert(memory + need, size - need);
    used_ += need;
    block->memory = memory;
  }
  block->heap = shared_from_this();
  block->bytes = need;
  void* memory = block->memory;
  return {memory, block.release(), &Heap::release, c10::Device(c10::DeviceType::CPU)};
}

void Heap::release(void* context) noexcept {
  const std::unique_ptr<Block> block(static_cast<Block*>(context));
  Heap& heap = *block->heap;
  const std::lock_guard<ForkMutex> lock(heap.mutex_);
  heap.used_ -= block->bytes;
  heap.insert(block->memory, block->bytes);
}

void Heap::trim() {
  const std::lock_guard<ForkMutex> lock(mutex_);
  for (const auto& [memory, bytes] : free_) {
    const auto begin = reinterpret_cast<uintptr_t>(memory);
    const size_t skipped = round_up_bytes(begin, kPage) - begin;
    if (bytes < skipped + kPage) continue;
    (void)madvise(memory + skipped, (bytes - skipped) / kPage * kPage, MADV_DONTNEED);
  }
}

size_t Heap::used() {
  const std::lock_guard<ForkMutex> lock(mutex_);
  return used_;
}

void Heap::reserve(size_t bytes) {
  size_t size = std::max(round_up_bytes(bytes, kHeapHugePage), kReserved);
  char* memory = map_pages(size);
  if (memory == nullptr) memory = map_pages(size = round_up_bytes(bytes, kHeapHugePage));
  TORCH_CHECK_WITH(OutOfMemoryError, memory != nullptr, "lampwork: cannot allocate ", size, " bytes");
  (void)madvise(memory, size, MADV_HUGEPAGE);  // advice only
  reserved_.emplace_back(memory, size);
  insert(memory, size);
}

// With the free blocks that it touches.
void Heap::insert(char* memory, size_t bytes) {
  auto next = free_.lower_bound(memory);
  if (next != free_.end() && memory + bytes == next->first) {
    bytes += next->second;
    const auto merged = next++;
    erase(merged);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == memory) {
      memory = before->first;
      bytes += before->second;
      erase(before);
    }
  }
  free_.emplace(memory, bytes);
  by_size_.emplace(bytes, memory);
}

void Heap::erase(std::map<char*, size_t>::iterator block) {
  by_size_.erase({block->second, block->first});
  free_.erase(block);
}

}  // namespace lampwork
