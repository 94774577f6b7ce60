// Random numbers of a counter, by Philox4x32-10 (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, 2011): the
// operators that numerics="fast" records. random_key draws a key from torch's generator; random_words gives what a key
// has for each element of a tensor, which compiled code computes where it is read (codegen/llvm/philox.py).
#include "vectors.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <mutex>

#pragma GCC optimize("O3")

namespace lampwork {

namespace {

constexpr int64_t kWords = 4;      // of a counter
constexpr int64_t kCounters = 64;  // side by side
constexpr int64_t kRandomGrain = 1 << 14;

at::Tensor random_key() {
  auto generator = at::get_generator_or_default<at::CPUGeneratorImpl>(std::nullopt, at::detail::getDefaultCPUGenerator());
  const std::lock_guard<std::mutex> lock(generator->mutex_);
  return at::scalar_tensor(static_cast<int64_t>(generator->random64()), at::kLong);
}

// The words of counters from `first` on: words[i] for each of them, one after the other.
LAMPWORK_CLONES void draw(uint64_t key, uint64_t first, uint32_t part, uint32_t words[kWords][kCounters]) {
  for (int64_t i = 0; i < kCounters; ++i) {
    const uint64_t counter = first + static_cast<uint64_t>(i);
    uint32_t c0 = static_cast<uint32_t>(counter), c1 = static_cast<uint32_t>(counter >> 32), c2 = part, c3 = 0;
    uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
    for (int turn = 0; turn < 10; ++turn) {
      const uint64_t p0 = uint64_t{0xD2511F53} * c0, p1 = uint64_t{0xCD9E8D57} * c2;
      c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
      c1 = static_cast<uint32_t>(p1);
      c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
      c3 = static_cast<uint32_t>(p0);
      k0 += 0x9E3779B9;
      k1 += 0xBB67AE85;
    }
    words[0][i] = c0;
    words[1][i] = c1;
    words[2][i] = c2;
    words[3][i] = c3;
  }
}

at::Tensor random_words(const at::Tensor& key, at::IntArrayRef size, at::IntArrayRef stride, int64_t part) {
  at::Tensor words = at::empty(size, at::kInt);
  const auto count = words.numel();
  auto* out = words.mutable_data_ptr<int32_t>();
  const auto number = static_cast<uint64_t>(key.item<int64_t>());
  constexpr int64_t kBlock = kWords * kCounters;
  at::parallel_for(0, (count + kBlock - 1) / kBlock, kRandomGrain / kBlock, [&](int64_t begin, int64_t end) {
    uint32_t drawn[kWords][kCounters];
    for (int64_t block = begin; block < end; ++block) {
      draw(number, static_cast<uint64_t>(block * kCounters), static_cast<uint32_t>(part), drawn);
      const int64_t last = std::min(kBlock, count - block * kBlock);
      for (int64_t i = 0; i < last; ++i) {
        out[block * kBlock + i] = static_cast<int32_t>(drawn[i % kWords][i / kWords]);
      }
    }
  });
  return words.strides() == stride ? words : at::empty_strided(size, stride, at::kInt).copy_(words);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(lampwork, m) {
  m.def("random_key() -> Tensor", {at::Tag::nondeterministic_seeded});
  m.def("random_words(Tensor key, SymInt[] size, SymInt[] stride, int part) -> Tensor");
}

TORCH_LIBRARY_IMPL(lampwork, CompositeExplicitAutograd, m) {
  m.impl("random_key", TORCH_FN(random_key));
}

TORCH_LIBRARY_IMPL(lampwork, CPU, m) {
  m.impl("random_words", TORCH_FN(random_words));
}

}  // namespace lampwork
