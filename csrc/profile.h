// Our own profiler: times of spans (spans.h) and of operators of ATen, in all threads.
#pragma once

#include <torch/csrc/python_headers.h>

namespace lampwork {

extern PyMethodDef profile_methods[];

}  // namespace lampwork
