// lampwork::embedding_bag: sums, means and maxima of the rows of a table that each bag of indices names.
//
// Rows are added in the order of the bag, from zero, as ATen adds them. Of a maximum the first row counts as it is, then
// what is larger: a nan stays only where it comes first. What is not covered here is a call of ATen.
#include "vectors.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>

#pragma GCC optimize("O3")

namespace lampwork {

namespace {

enum Mode : int64_t { kSum, kMean, kMax };

constexpr int64_t kColumns = 64;      // columns that are added at a time
constexpr int64_t kAhead = 8;         // rows that are fetched ahead
constexpr int64_t kGrain = 1 << 14;   // elements that are worth a thread

struct Bags {
  const float* table;
  const int64_t* rows;
  int64_t width, padding;
};

template <int kMode, int64_t kCount>
inline __attribute__((always_inline)) void fill(const Bags& bags, int64_t first, int64_t last, int64_t column,
                                                int64_t count, float* __restrict__ out) {
  const int64_t columns = kCount == 0 ? count : kCount;
  float found[kCount == 0 ? kColumns : kCount] = {};
  int64_t held = 0;
  for (int64_t i = first; i < last; ++i) {
    if (i + kAhead < last) __builtin_prefetch(bags.table + bags.rows[i + kAhead] * bags.width + column);
    if (bags.rows[i] == bags.padding) continue;
    const float* __restrict__ row = bags.table + bags.rows[i] * bags.width + column;
    for (int64_t c = 0; c < columns; ++c) {
      if constexpr (kMode == kMax) {
        found[c] = held == 0 || row[c] > found[c] ? row[c] : found[c];
      } else {
        found[c] += row[c];
      }
    }
    ++held;
  }
  const float size = kMode == kMean ? static_cast<float>(std::max<int64_t>(held, 1)) : 1;
  for (int64_t c = 0; c < columns; ++c) out[c] = kMode == kMean ? found[c] / size : found[c];
}

template <int kMode>
LAMPWORK_CLONES void fill_bag(const Bags& bags, int64_t first, int64_t last, float* out) {
  int64_t column = 0;
  for (; column + kColumns <= bags.width; column += kColumns) {
    fill<kMode, kColumns>(bags, first, last, column, kColumns, out + column);
  }
  if (column + 16 == bags.width) {
    fill<kMode, 16>(bags, first, last, column, 16, out + column);
  } else if (column + 32 == bags.width) {
    fill<kMode, 32>(bags, first, last, column, 32, out + column);
  } else if (column < bags.width) {
    fill<kMode, 0>(bags, first, last, column, bags.width - column, out + column);
  }
}

void fill_bag(int64_t mode, const Bags& bags, int64_t first, int64_t last, float* out) {
  if (mode == kMax) return fill_bag<kMax>(bags, first, last, out);
  if (mode == kMean) return fill_bag<kMean>(bags, first, last, out);
  fill_bag<kSum>(bags, first, last, out);
}

LAMPWORK_CLONES bool all_within(const int64_t* __restrict__ rows, int64_t count, int64_t size) {
  bool within = true;
  for (int64_t i = 0; i < count; ++i) within &= static_cast<uint64_t>(rows[i]) < static_cast<uint64_t>(size);
  return within;
}

bool are_bags(const at::Tensor& starts, int64_t count, bool has_end) {
  const auto* start = starts.const_data_ptr<int64_t>();
  return starts.numel() > (has_end ? 1 : 0) && start[0] == 0 && std::is_sorted(start, start + starts.numel()) &&
         start[starts.numel() - 1] <= count;
}

bool is_contiguous_of(const at::Tensor& x, at::ScalarType dtype) { return x.scalar_type() == dtype && x.is_contiguous(); }

at::Tensor embedding_bag(const at::Tensor& weight, const at::Tensor& indices, const at::Tensor& offsets, int64_t mode,
                         bool include_last_offset, int64_t padding_idx) {
  // ATen's plain sums are generated for the machine.
  const bool fits = (mode != kSum || padding_idx >= 0) && is_contiguous_of(weight, at::kFloat) && is_contiguous_of(indices, at::kLong) && is_contiguous_of(offsets, at::kLong) &&
                    weight.dim() == 2 && indices.dim() == 1 &&
                    are_bags(offsets, indices.numel(), include_last_offset) &&
                    all_within(indices.const_data_ptr<int64_t>(), indices.numel(), weight.size(0));
  if (!fits) {
    return std::get<0>(at::_embedding_bag_forward_only(weight, indices, offsets, false, mode, false, {},
                                                       include_last_offset, padding_idx));
  }
  const int64_t count = offsets.numel() - (include_last_offset ? 1 : 0), width = weight.size(1);
  const at::Tensor out = at::empty({count, width}, weight.options());
  const Bags bags{weight.const_data_ptr<float>(), indices.const_data_ptr<int64_t>(), width, padding_idx};
  const auto* start = offsets.const_data_ptr<int64_t>();
  auto* to = out.mutable_data_ptr<float>();
  const int64_t each = std::max<int64_t>(1, indices.numel() * width / count);
  at::parallel_for(0, count, std::max<int64_t>(1, kGrain / each), [&](int64_t begin, int64_t end) {
    for (int64_t bag = begin; bag < end; ++bag) {
      const int64_t last = bag + 1 < offsets.numel() ? start[bag + 1] : indices.numel();
      fill_bag(mode, bags, start[bag], last, to + bag * width);
    }
  });
  return out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(lampwork, m) {
  m.def(
      "embedding_bag(Tensor weight, Tensor indices, Tensor offsets, int mode, bool include_last_offset, "
      "int padding_idx) -> Tensor",
      TORCH_FN(embedding_bag));
}

}  // namespace lampwork
