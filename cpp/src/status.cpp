#include "lampwork/lampwork.h"

extern "C" {

const char* lw_status_name(lw_status status) {
  static const char* const names[] = {"LW_OK",     "LW_ARGUMENT", "LW_FILE",    "LW_FORMAT",     "LW_VERSION", "LW_TRUST", "LW_TARGET",
                                      "LW_INPUT", "LW_WEIGHTS",  "LW_NEEDS_ATEN", "LW_MEMORY", "LW_KERNEL", "LW_INTERNAL"};
  const auto at = static_cast<size_t>(status);
  return at < sizeof names / sizeof *names ? names[at] : "no status";
}

}  // extern "C"
