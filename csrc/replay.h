// Steps of optimizers that do what one before has done, without Python: the twin of lampwork/optimizers/replay.py.
#pragma once

#include <torch/csrc/python_headers.h>

namespace lampwork {

extern PyTypeObject ReplayType;
extern PyMethodDef replay_methods[];

}  // namespace lampwork
