// Weights in files that lampwork/runtime/packed_weights.py made.
#pragma once

#include <ATen/core/Tensor.h>

namespace lampwork {

// Whether a tensor's memory is the mapping of such a file.
bool in_weight_file(const at::Tensor& tensor);

// Have the system drop what has been read of the file. Pages that were written to are swapped out at most, never lost.
void page_out(const at::Tensor& tensor);

}  // namespace lampwork
