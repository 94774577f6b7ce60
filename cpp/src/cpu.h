// What the CPU that this runs on can do, by the names that Linux has for it.
#pragma once

#include <string>

namespace lampwork::runtime {

// "x86_64" or "aarch64".
const char* machine();
// Whether the CPU has it, and the system lets programs use it.
bool cpu_has(const std::string& flag);
// Asks the system for what programs do not have from their start: the tile registers of AMX. True if this process may use
// them.
bool permit(const std::string& flag);

}  // namespace lampwork::runtime
