// lampwork::searchsorted and lampwork::bucketize: binary searches for many values side by side.
//
// Every value takes the steps that ATen's search takes, so results are the same where boundaries are not sorted or nan,
// too; but a step is taken by a block of values at once, without branches.
#include "vectors.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <bit>
#include <limits>

#pragma GCC optimize("O3")

namespace lampwork {

namespace {

constexpr int kBlock = 128;      // values that take their steps together
constexpr int64_t kFew = 16;      // bounds that are compared with all values
constexpr int64_t kGrain = 1024;  // values that are worth a thread

// found[i]: how many of the sorted `bounds` go before values[i]: less than it, or, with kRight, not greater.
template <bool kRight, typename T, typename Out>
LAMPWORK_CLONES void search(const T* __restrict__ bounds, int32_t size, const T* __restrict__ values,
                            Out* __restrict__ found, int64_t count) {
  const int steps = std::bit_width(static_cast<uint32_t>(size));
  for (int64_t from = 0; from < count; from += kBlock) {
    const int block = static_cast<int>(std::min<int64_t>(kBlock, count - from));
    const T* value = values + from;
    int32_t first[kBlock], last[kBlock];
    std::fill_n(first, kBlock, 0);
    std::fill_n(last, kBlock, size);
    for (int step = 0; step < steps; ++step) {
      for (int i = 0; i < block; ++i) {
        const int32_t middle = first[i] + ((last[i] - first[i]) >> 1);
        const T bound = bounds[std::min(middle, size - 1)];
        const bool before = kRight ? !(bound > value[i]) : !(bound >= value[i]);
        const bool open = first[i] < last[i];
        last[i] = open & !before ? middle : last[i];
        first[i] = open & before ? middle + 1 : first[i];
      }
    }
    for (int i = 0; i < block; ++i) found[from + i] = first[i];
  }
}

// The same for few bounds: of sorted ones it is a number of comparisons. False, and nothing is done, if they are not.
template <bool kRight, typename T, typename Out>
LAMPWORK_CLONES bool count_before(const T* __restrict__ bounds, int32_t size, const T* __restrict__ values,
                                  Out* __restrict__ found, int64_t count) {
  for (int32_t i = 0; i < size; ++i) {
    if (!(bounds[std::max(i - 1, 0)] <= bounds[i])) return false;
  }
  for (int64_t from = 0; from < count; from += kBlock) {
    const int block = static_cast<int>(std::min<int64_t>(kBlock, count - from));
    const T* value = values + from;
    int32_t before[kBlock];
    std::fill_n(before, kBlock, 0);
    for (int32_t bound = 0; bound < size; ++bound) {
      for (int i = 0; i < block; ++i) {
        before[i] += kRight ? !(bounds[bound] > value[i]) : !(bounds[bound] >= value[i]);
      }
    }
    for (int i = 0; i < block; ++i) found[from + i] = before[i];
  }
  return true;
}

// bounds: [size], or [rows, size] for values of [rows, count].
template <bool kRight, typename T, typename Out>
void search_rows(const at::Tensor& bounds, const at::Tensor& values, const at::Tensor& found) {
  const auto* bound = bounds.const_data_ptr<T>();
  const auto* value = values.const_data_ptr<T>();
  auto* out = found.mutable_data_ptr<Out>();
  const int64_t size = bounds.size(-1);
  const int64_t count = bounds.dim() == 1 ? values.numel() : values.size(-1);
  at::parallel_for(0, values.numel(), kGrain, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t row = begin / count, until = std::min(end, (row + 1) * count);
      const auto search_all = [&](const auto& work) {
        return work(bound + row * size, static_cast<int32_t>(size), value + begin, out + begin, until - begin);
      };
      if (size > kFew || !search_all(count_before<kRight, T, Out>)) search_all(search<kRight, T, Out>);
      begin = until;
    }
  });
}

template <typename T, typename Out>
void search_rows(const at::Tensor& bounds, const at::Tensor& values, const at::Tensor& found, bool right) {
  right ? search_rows<true, T, Out>(bounds, values, found) : search_rows<false, T, Out>(bounds, values, found);
}

bool fits(const at::Tensor& bounds, const at::Tensor& values) {
  const auto dtype = bounds.scalar_type();
  const bool known = dtype == at::kFloat || dtype == at::kDouble || dtype == at::kLong || dtype == at::kInt;
  const bool rows = bounds.dim() == 1 || (bounds.dim() == values.dim() &&
                                          bounds.sizes().slice(0, bounds.dim() - 1) ==
                                              values.sizes().slice(0, values.dim() - 1));
  return known && values.scalar_type() == dtype && bounds.dim() > 0 && rows && bounds.numel() > 0 &&
         values.numel() > 0 && bounds.size(-1) < std::numeric_limits<int32_t>::max();
}

at::Tensor searchsorted(const at::Tensor& given, const at::Tensor& self, bool out_int32, bool right) {
  if (!fits(given, self)) return at::searchsorted(given, self, out_int32, right).contiguous();
  const at::Tensor bounds = given.contiguous(), values = self.contiguous();
  const at::Tensor found = at::empty(values.sizes(), values.options().dtype(out_int32 ? at::kInt : at::kLong));
  AT_DISPATCH_ALL_TYPES(values.scalar_type(), "searchsorted", [&] {
    if constexpr (sizeof(scalar_t) >= 4) {
      out_int32 ? search_rows<scalar_t, int32_t>(bounds, values, found, right)
                : search_rows<scalar_t, int64_t>(bounds, values, found, right);
    }
  });
  return found;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(lampwork, m) {
  m.def("searchsorted(Tensor sorted_sequence, Tensor self, bool out_int32, bool right) -> Tensor",
        TORCH_FN(searchsorted));
}

}  // namespace lampwork
