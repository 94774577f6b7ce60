// One kernel over the rows of a table of tensors: how an optimizer updates all of its parameters at once.
#pragma once

#include <torch/csrc/python_headers.h>

namespace lampwork {

extern PyMethodDef row_methods[];

}  // namespace lampwork
