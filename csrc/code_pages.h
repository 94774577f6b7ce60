// Code in memory that is only read, and that the system can read from its file again.
#pragma once

#include <cstdint>

namespace lampwork {

// Have the system take back the pages of the library that `inside` points into, of code and of constants: they are read
// from the library's file, or the system's copy of it, when they are next touched. Only pages that nothing has written
// to since they were mapped: in segments that are never writable, of a library whose code needs no relocation, and that
// the system knows as pages of a file (a debugger's breakpoints make a page one of the process). Returns the bytes.
//
// Other threads may run that code meanwhile.
int64_t drop_code_pages(const void* inside);

}  // namespace lampwork
