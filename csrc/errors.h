// Python errors raised from code that reads Python data.
#pragma once

#include <torch/csrc/Exceptions.h>

#include <string>

namespace lampwork {

// Need the GIL; the error is set, and HANDLE_TH_ERRORS hands it on.
[[noreturn]] inline void throw_value_error(const std::string& message) {
  PyErr_SetString(PyExc_ValueError, message.c_str());
  throw python_error();
}

[[noreturn]] inline void throw_type_error(const std::string& message) {
  PyErr_SetString(PyExc_TypeError, message.c_str());
  throw python_error();
}

}  // namespace lampwork
