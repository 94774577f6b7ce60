// The Python type of machine code in memory; what loads it is shared with the runtime without Python.
#pragma once

#include <torch/csrc/python_headers.h>

#include "../cpp/src/machine_code.h"

namespace lampwork {

extern PyTypeObject MachineCodeType;

}  // namespace lampwork
