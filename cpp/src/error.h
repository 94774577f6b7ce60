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

[[noreturn]] inline void fail(lw_status status, const std::string& message) { throw Error(status, message); }
[[noreturn]] inline void damaged(const std::string& message) {
  fail(LW_FORMAT, "the artifact is damaged: " + message + ". Fetch or export the file again");
}

}  // namespace lampwork::runtime
