// The norm of many tensors in one pass, and their scaling by it: how gradients are clipped.
#pragma once

#include <torch/csrc/python_headers.h>

namespace lampwork {

extern PyMethodDef norm_methods[];

}  // namespace lampwork
