// Machine code in memory: relocatable object code (ELF, of x86-64 or AArch64) loaded into this process.
//
// All sections lie in one block, with the stubs and addresses through which the code reaches what is outside. Parts of a
// module refer to each other by 32-bit distances, so a linker that maps its sections one by one fails (LLVM's ends the
// process) where the free memory near one of them is used up: programs that map many gigabytes come there.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace lampwork {

class MachineCode {
 public:
  // The address of a symbol that the module does not define, or nullptr.
  using Resolve = void* (*)(const std::string& name);

  // Throws std::runtime_error with what is wrong: it is
  // no object code of this machine, a symbol is missing, it uses what is not supported (common symbols, thread-local
  // ones), there is no memory.
  MachineCode(std::string_view object, Resolve resolve);
  ~MachineCode();
  MachineCode(const MachineCode&) = delete;

  // The addresses of the functions that the module exports.
  const std::map<std::string, uint64_t>& functions() const { return functions_; }
  size_t bytes() const { return bytes_; }

 private:
  char* block_ = nullptr;
  size_t bytes_ = 0;
  std::map<std::string, uint64_t> functions_;
};

}  // namespace lampwork
