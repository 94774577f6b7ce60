// Watching which Python functions begin.
#pragma once

#include <Python.h>

namespace lampwork {

extern PyMethodDef frame_methods[];

}  // namespace lampwork
