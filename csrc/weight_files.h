// Weights in files: those that lampwork/runtime/packed_weights.py made, and parts of artifacts.
#pragma once

#include <pybind11/pybind11.h>

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace lampwork {

// Whether a tensor's memory is the mapping of such a file.
bool in_weight_file(const at::Tensor& tensor);

// Have the system drop what has been read of the file. Pages that were written to are swapped out at most, never lost.
void page_out(const at::Tensor& tensor);

// A tensor over the bytes of a buffer of Python's from `begin` on, which the caller gives away: nothing but the tensor's
// storage gives access to them. It keeps the buffer. Needs the GIL. Throws a ValueError if there are too few bytes, and
// what becomes a Python error.
at::Tensor part_of(pybind11::handle buffer, int64_t begin, at::ScalarType dtype, at::IntArrayRef shape);

// Whether it is memory of such a tensor.
bool is_part(const c10::DataPtr& data);

}  // namespace lampwork
