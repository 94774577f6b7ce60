// The functions of the C library that kernels may call. Machine code of a file reaches nothing else by name.
#pragma once

#include <string>

namespace lampwork::runtime {

// The address of an allowed function, or nullptr.
void* c_library(const std::string& name);

}  // namespace lampwork::runtime
