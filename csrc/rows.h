// One kernel over the rows of a table of tensors: how an optimizer updates all of its parameters at once.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/python_headers.h>

#include <vector>

namespace lampwork {

// Whether a tensor is strided memory of this process and nothing else: no subclass, no lazy negation, no tangent.
bool is_plain(const at::Tensor& tensor);

// A tensor's memory, asked for as one does to write: whoever watches it notices.
char* memory_to_write(const at::Tensor& tensor);

struct Range {
  const char* begin;
  const char* end;
  bool is_written;
};

// Whether memory that is written to belongs to two tensors.
bool overlap(std::vector<Range>& ranges);

extern PyMethodDef row_methods[];

}  // namespace lampwork
