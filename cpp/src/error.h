// What fails in the runtime: a status of the C interface, and a message that says what to do.
#pragma once

#include "lampwork/lampwork.h"

#include "text.h"

#include <stdexcept>
#include <string>

namespace lampwork::runtime {

struct Error : std::runtime_error {
  Error(lw_status status, const std::string& message) : std::runtime_error(shortened(message)), status(status) {}
  lw_status status;
};

// LW_FORMAT. `cause`: what is wrong in the file, whichever it is.
struct Damaged : Error {
  explicit Damaged(const std::string& cause)
      : Error(LW_FORMAT, "the artifact is damaged: " + cause + ". Fetch or export the file again"), cause(cause) {}
  std::string cause;
};

[[noreturn]] inline void fail(lw_status status, const std::string& message) { throw Error(status, message); }
[[noreturn]] inline void damaged(const std::string& cause) { throw Damaged(cause); }

}  // namespace lampwork::runtime
