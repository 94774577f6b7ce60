// Elements of one tensor put or added to another at places from data: lampwork::index_add, scatter_add, scatter_reduce,
// scatter_value and index_put.
//
// They are ATen's operators of the same names, by two loops: over rows, each with a place of its own, and over elements.
// Whatever lands on one element lands in the order of the index, as ATen has it on one thread, on any number of threads:
// these share columns or the rows that are written. What the loops do not cover, an index out of range among it, is a
// call of ATen.
#include "vectors.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>
#include <type_traits>
#include <vector>

#pragma GCC optimize("O3")

namespace lampwork {

namespace {

constexpr int64_t kGrain = 1 << 15;  // elements that are worth a thread
constexpr int64_t kWide = 16;        // elements of a row that is worth a look at its place by every thread

enum class Op { kPut, kAdd, kMul, kMax, kMin };

template <typename T>
inline __attribute__((always_inline)) bool is_nan(T value) {
  if constexpr (std::is_floating_point_v<T>) return value != value;
  return false;
}

template <Op kOp, typename T>
inline __attribute__((always_inline)) T combined(T old, T value) {
  if constexpr (kOp == Op::kPut) return value;
  if constexpr (kOp == Op::kAdd) return old + value;
  if constexpr (kOp == Op::kMul) return old * value;
  // Two choices, for which no compiler makes a branch.
  const T extreme = kOp == Op::kMax ? (old < value ? value : old) : (value < old ? value : old);
  return is_nan(value) ? value : extreme;
}

// `outer` blocks of `size` rows of `width` elements are written; `count` rows of a block have a place in it.
struct Shape {
  int64_t outer, size, count, width;
};

// Writes to rows from `first` up to `last` of each block; `place` has `count` rows.
template <Op kOp, typename T>
LAMPWORK_CLONES void write_rows(T* __restrict__ out, const int64_t* __restrict__ place, const T* __restrict__ source,
                                const Shape& shape, int64_t first, int64_t last) {
  for (int64_t block = 0; block < shape.outer; ++block) {
    T* rows = out + block * shape.size * shape.width;
    for (int64_t row = 0; row < shape.count; ++row, source += shape.width) {
      if (place[row] < first || place[row] >= last) continue;
      T* to = rows + place[row] * shape.width;
      for (int64_t i = 0; i < shape.width; ++i) to[i] = combined<kOp>(to[i], source[i]);
    }
  }
}

// The same for blocks from `begin` up to `end` where every element has a place of its own. kOne: `source` is one value
// for all. kNarrow: rows are single elements.
template <Op kOp, bool kOne, bool kNarrow, typename T>
LAMPWORK_CLONES void write_elements(T* __restrict__ out, const int64_t* __restrict__ place,
                                    const T* __restrict__ source, const Shape& shape, int64_t begin, int64_t end) {
  const int64_t width = kNarrow ? 1 : shape.width, read = shape.count * width;
  for (int64_t block = begin; block < end; ++block) {
    T* rows = out + block * shape.size * width;
    for (int64_t row = 0; row < shape.count; ++row) {
      const int64_t from = block * read + row * width;
      for (int64_t i = 0; i < width; ++i) {
        T& to = rows[place[from + i] * width + i];
        to = combined<kOp>(to, source[kOne ? 0 : from + i]);
      }
    }
  }
}

LAMPWORK_CLONES bool all_within(const int64_t* __restrict__ place, int64_t count, int64_t size) {
  bool within = true;
  for (int64_t i = 0; i < count; ++i) within &= static_cast<uint64_t>(place[i]) < static_cast<uint64_t>(size);
  return within;
}

bool all_within(const at::Tensor& place, int64_t size) {
  return all_within(place.const_data_ptr<int64_t>(), place.numel(), size);
}

bool computes(at::ScalarType dtype) { return dtype == at::kFloat || dtype == at::kDouble || dtype == at::kLong; }

// work(zero) for the number type of a tensor that `computes`.
template <typename Work>
void for_dtype(at::ScalarType dtype, const Work& work) {
  if (dtype == at::kFloat) return work(float{});
  if (dtype == at::kDouble) return work(double{});
  work(int64_t{});
}

// A copy, row-major; of one element that is everywhere, a fill.
at::Tensor copied(const at::Tensor& x) {
  at::Tensor out = at::empty(x.sizes(), x.options());
  const auto strides = x.strides();
  if (std::all_of(strides.begin(), strides.end(), [](int64_t stride) { return stride == 0; })) {
    return out.fill_(x.as_strided({}, {}));
  }
  if (!x.is_contiguous()) return out.copy_(x);
  const auto* from = static_cast<const char*>(x.const_data_ptr());
  auto* to = static_cast<char*>(out.mutable_data_ptr());
  at::parallel_for(0, static_cast<int64_t>(x.nbytes()), kGrain * sizeof(float), [&](int64_t begin, int64_t end) {
    std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin));
  });
  return out;
}

Shape shape_of(const at::Tensor& x, int64_t dim, int64_t count) {
  Shape shape{1, x.size(dim), count, 1};
  for (int64_t i = 0; i < dim; ++i) shape.outer *= x.size(i);
  for (int64_t i = dim + 1; i < x.dim(); ++i) shape.width *= x.size(i);
  return shape;
}

template <Op kOp, bool kOne>
void elements_into(const at::Tensor& out, int64_t dim, const at::Tensor& place, const at::Tensor& source) {
  const Shape shape = shape_of(out, dim, place.size(dim));
  for_dtype(out.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    auto* to = out.mutable_data_ptr<T>();
    const auto* from = source.const_data_ptr<T>();
    const auto* places = place.const_data_ptr<int64_t>();
    const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, shape.count * shape.width));
    at::parallel_for(0, shape.outer, grain, [&](int64_t begin, int64_t end) {
      if (shape.width == 1) {
        write_elements<kOp, kOne, true>(to, places, from, shape, begin, end);
      } else {
        write_elements<kOp, kOne, false>(to, places, from, shape, begin, end);
      }
    });
  });
}

template <Op kOp>
void rows_into(const at::Tensor& out, int64_t dim, const at::Tensor& place, const at::Tensor& source) {
  const Shape shape = shape_of(out, dim, place.numel());
  if (shape.outer == 1 && shape.width == 1) {
    return elements_into<kOp, false>(out.view({-1}), 0, place, source);
  }
  for_dtype(out.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    auto* to = out.mutable_data_ptr<T>();
    const auto* from = source.const_data_ptr<T>();
    const int64_t each = source.numel() >= kGrain && shape.width >= kWide ? 1 : shape.size;
    at::parallel_for(0, shape.size, std::max(each, shape.size / at::get_num_threads()), [&](int64_t first, int64_t last) {
      write_rows<kOp>(to, place.const_data_ptr<int64_t>(), from, shape, first, last);
    });
  });
}

// --- index_add, index_put ---------------------------------------------------------------------------------------------

at::Tensor index_add(const at::Tensor& x, int64_t dim, const at::Tensor& index, const at::Tensor& source) {
  const bool fits = computes(x.scalar_type()) && x.dim() > 0 && index.dim() == 1 && index.scalar_type() == at::kLong &&
                    source.dim() == x.dim() && source.scalar_type() == x.scalar_type() && source.numel() > 0;
  if (!fits) return at::index_add(x, dim, index, source).contiguous();
  const at::Tensor place = index.contiguous();
  if (!all_within(place, x.size(dim))) return at::index_add(x, dim, index, source);
  const at::Tensor out = copied(x);
  rows_into<Op::kAdd>(out, dim, place, source.contiguous());
  return out;
}

// places[i] = places[i] * size + given[i], those below zero counted from the end; whether all are in range.
LAMPWORK_CLONES bool add_places(int64_t* __restrict__ places, const int64_t* __restrict__ given, int64_t count,
                                int64_t size) {
  bool within = true;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t each = given[i] < 0 ? given[i] + size : given[i];
    within &= static_cast<uint64_t>(each) < static_cast<uint64_t>(size);
    places[i] = places[i] * size + each;
  }
  return within;
}

// x.expand(shape).contiguous(), without the calls where it is so already.
at::Tensor spread(const at::Tensor& x, at::IntArrayRef shape) {
  return (x.sizes() == shape ? x : x.expand(shape)).contiguous();
}

// Where in the first dimensions of x, taken as one, the indices point; none where one is out of range.
std::optional<at::Tensor> places(const at::Tensor& x, at::TensorList indices, at::IntArrayRef shape) {
  const at::Tensor found = at::empty(shape, at::kLong);
  auto* to = found.mutable_data_ptr<int64_t>();
  std::fill_n(to, found.numel(), 0);
  for (size_t dim = 0; dim < indices.size(); ++dim) {
    const at::Tensor index = spread(indices[dim], shape);
    if (!add_places(to, index.const_data_ptr<int64_t>(), found.numel(), x.size(static_cast<int64_t>(dim)))) {
      return std::nullopt;
    }
  }
  return found.dim() == 1 ? found : found.view({-1});
}

at::Tensor index_put(const at::Tensor& x, at::TensorList indices, const at::Tensor& values, bool accumulate) {
  const auto aten = [&] {
    c10::List<std::optional<at::Tensor>> given;
    for (const at::Tensor& index : indices) given.push_back(index);
    return at::index_put(x, given, values, accumulate).contiguous();
  };
  bool fits = computes(x.scalar_type()) && values.scalar_type() == x.scalar_type() && x.numel() > 0;
  for (const at::Tensor& index : indices) fits &= index.scalar_type() == at::kLong && index.numel() > 0;
  if (!fits) return aten();
  const at::Tensor first = indices.size() == 1 ? indices[0] : at::broadcast_tensors(indices)[0];
  const std::optional<at::Tensor> place = places(x, indices, first.sizes());
  if (!place) return aten();
  const auto dims = static_cast<int64_t>(indices.size());
  std::vector<int64_t> sizes = first.sizes().vec();
  for (int64_t dim = dims; dim < x.dim(); ++dim) sizes.push_back(x.size(dim));
  const at::Tensor source = spread(values, sizes);
  const at::Tensor out = copied(x), flat = dims == 1 ? out : out.flatten(0, dims - 1);
  accumulate ? rows_into<Op::kAdd>(flat, 0, *place, source) : rows_into<Op::kPut>(flat, 0, *place, source);
  return out;
}

// --- scatter ----------------------------------------------------------------------------------------------------------

// Whether each element of x has `index.size(dim)` places, none out of range, and, where it is one, source as many values.
bool scatters(const at::Tensor& x, int64_t dim, const at::Tensor& index) {
  if (!computes(x.scalar_type()) || x.dim() == 0 || index.dim() != x.dim() || index.scalar_type() != at::kLong ||
      index.numel() == 0) {
    return false;
  }
  for (int64_t i = 0; i < x.dim(); ++i) {
    if (i != dim && index.size(i) != x.size(i)) return false;
  }
  return true;
}

// The part of source that an index has places for.
at::Tensor part(const at::Tensor& source, const at::Tensor& index) {
  at::Tensor found = source;
  for (int64_t i = 0; i < index.dim(); ++i) {
    if (found.size(i) != index.size(i)) found = found.narrow(i, 0, index.size(i));
  }
  return found.contiguous();
}

// The places of rows, if an index is the same along all dimensions but one.
std::optional<at::Tensor> rows_of(const at::Tensor& index, int64_t dim) {
  for (int64_t i = 0; i < index.dim(); ++i) {
    if (i != dim && index.size(i) != 1 && index.stride(i) != 0) return std::nullopt;
  }
  return index.as_strided({index.size(dim)}, {index.stride(dim)}).contiguous();
}

at::Tensor scatter_add(const at::Tensor& x, int64_t dim, const at::Tensor& index, const at::Tensor& source) {
  if (!scatters(x, dim, index) || source.scalar_type() != x.scalar_type()) {
    return at::scatter_add(x, dim, index, source).contiguous();
  }
  const std::optional<at::Tensor> rows = rows_of(index, dim);
  const at::Tensor place = rows ? *rows : index.contiguous();
  if (!all_within(place, x.size(dim))) return at::scatter_add(x, dim, index, source);
  const at::Tensor out = copied(x), values = part(source, index);
  if (rows) {
    rows_into<Op::kAdd>(out, dim, place, values);
  } else {
    elements_into<Op::kAdd, false>(out, dim, place, values);
  }
  return out;
}

at::Tensor scatter_value(const at::Tensor& x, int64_t dim, const at::Tensor& index, const at::Scalar& value) {
  if (!scatters(x, dim, index)) return at::scatter(x, dim, index, value).contiguous();
  const at::Tensor place = index.contiguous();
  if (!all_within(place, x.size(dim))) return at::scatter(x, dim, index, value);
  const at::Tensor out = copied(x);
  elements_into<Op::kPut, true>(out, dim, place, at::scalar_tensor(value, x.options()));
  return out;
}

at::Tensor scatter_reduce(const at::Tensor& x, int64_t dim, const at::Tensor& index, const at::Tensor& source,
                          c10::string_view reduce) {
  const std::string_view name{reduce.data(), reduce.size()};
  const bool known = name == "sum" || name == "prod" || name == "amax" || name == "amin";
  if (!known || !scatters(x, dim, index) || source.scalar_type() != x.scalar_type() ||
      (x.dim() > 1 && rows_of(index, dim))) {
    return at::scatter_reduce(x, dim, index, source, reduce).contiguous();
  }
  const at::Tensor place = index.contiguous();
  if (!all_within(place, x.size(dim))) return at::scatter_reduce(x, dim, index, source, reduce);
  const at::Tensor out = copied(x), values = part(source, index);
  if (name == "sum") elements_into<Op::kAdd, false>(out, dim, place, values);
  if (name == "prod") elements_into<Op::kMul, false>(out, dim, place, values);
  if (name == "amax") elements_into<Op::kMax, false>(out, dim, place, values);
  if (name == "amin") elements_into<Op::kMin, false>(out, dim, place, values);
  return out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(lampwork, m) {
  m.def("index_add(Tensor x, int dim, Tensor index, Tensor source) -> Tensor", TORCH_FN(index_add));
  m.def("index_put(Tensor x, Tensor[] indices, Tensor values, bool accumulate) -> Tensor", TORCH_FN(index_put));
  m.def("scatter_add(Tensor x, int dim, Tensor index, Tensor source) -> Tensor", TORCH_FN(scatter_add));
  m.def("scatter_value(Tensor x, int dim, Tensor index, Scalar value) -> Tensor", TORCH_FN(scatter_value));
  m.def("scatter_reduce(Tensor x, int dim, Tensor index, Tensor source, str reduce) -> Tensor",
        TORCH_FN(scatter_reduce));
}

}  // namespace lampwork
