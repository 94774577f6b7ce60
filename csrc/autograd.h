// Autograd nodes of compiled regions.
//
// A `Segment` stands for a stretch of a region's graph between the tensors that the caller can hold. Its backward
// is Python's (lampwork.runtime.tape); this file gives it a place in torch's graph.
#pragma once

#include <Python.h>

namespace lampwork {

extern PyMethodDef autograd_methods[];

}  // namespace lampwork
