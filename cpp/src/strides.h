// How tensors lie in memory.
#pragma once

#include "dtype.h"

#include <vector>

namespace lampwork::runtime {

// Those of an array in C's order.
std::vector<int64_t> contiguous_strides(const std::vector<int64_t>& shape);

// Bytes from the first to past the last element. False, and no result, if there are more than int64 counts.
bool span(lw_dtype dtype, const int64_t* shape, const int64_t* strides, size_t ndim, int64_t& bytes);
// The same; LW_FORMAT if there are more than int64 counts.
int64_t spanned_bytes(lw_dtype dtype, const std::vector<int64_t>& shape, const std::vector<int64_t>& strides);

// Whether two layouts of a shape are the same, where it makes a difference.
bool same_layout(const int64_t* shape, size_t ndim, const int64_t* one, const int64_t* other);

// Whether two elements are in one place, or may be, as far as sizes from the innermost outwards tell. The tensor has a span.
bool overlaps(const int64_t* shape, const int64_t* strides, size_t ndim);

bool is_aligned(const char* data, lw_dtype dtype);

}  // namespace lampwork::runtime
