// Regions that are trained, without Python on the way: the twin of lampwork.runtime.native, which describes them.
//
// A call runs the forward program, notes what backward must look at (versions, memory), and gives the results nodes.
// A node's backward runs its program if it is asked for what the program gives, and nothing was written since. For
// anything else it makes a lampwork.runtime.tape.Tape of what the call kept, and hands over to it for good.
#pragma once

#include <Python.h>

namespace lampwork {

extern PyTypeObject TrainedType;

}  // namespace lampwork
