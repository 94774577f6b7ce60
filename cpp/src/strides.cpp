#include "strides.h"

#include "error.h"

#include <algorithm>

namespace lampwork::runtime {

std::vector<int64_t> contiguous_strides(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size());
  int64_t step = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = step;
    if (__builtin_mul_overflow(step, std::max<int64_t>(shape[i], 1), &step)) step = 0;  // such a tensor has no memory
  }
  return strides;
}

bool span(lw_dtype dtype, const int64_t* shape, const int64_t* strides, size_t ndim, int64_t& bytes) {
  if (std::find(shape, shape + ndim, 0) != shape + ndim) {
    bytes = 0;
    return true;
  }
  int64_t elements = 1;
  for (size_t i = 0; i < ndim; ++i) {
    int64_t reach = 0;
    if (__builtin_mul_overflow(shape[i] - 1, strides[i], &reach) || __builtin_add_overflow(elements, reach, &elements)) return false;
  }
  return !__builtin_mul_overflow(elements, static_cast<int64_t>(size_of(dtype)), &bytes);
}

int64_t spanned_bytes(lw_dtype dtype, const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
  int64_t bytes = 0;
  if (!span(dtype, shape.data(), strides.data(), shape.size(), bytes)) damaged("a value has more bytes than int64 counts");
  return bytes;
}

bool same_layout(const int64_t* shape, size_t ndim, const int64_t* one, const int64_t* other) {
  for (size_t i = 0; i < ndim; ++i) {
    if (shape[i] == 0) return true;
  }
  for (size_t i = 0; i < ndim; ++i) {
    if (shape[i] != 1 && one[i] != other[i]) return false;
  }
  return true;
}

bool overlaps(const int64_t* shape, const int64_t* strides, size_t ndim) {
  std::vector<std::pair<int64_t, int64_t>> steps;
  for (size_t i = 0; i < ndim; ++i) {
    if (shape[i] == 0) return false;
    if (shape[i] > 1) steps.emplace_back(strides[i], shape[i]);
  }
  std::sort(steps.begin(), steps.end());
  int64_t reached = 0;
  for (const auto& [stride, size] : steps) {
    if (stride <= reached) return true;
    reached += (size - 1) * stride;
  }
  return false;
}

bool is_aligned(const char* data, lw_dtype dtype) {
  return reinterpret_cast<uintptr_t>(data) % std::min<size_t>(size_of(dtype), 8) == 0;
}

}  // namespace lampwork::runtime
