// Python data read: the errors that it raises, and what its names stand for.
#pragma once

#include <torch/csrc/Exceptions.h>

#include <string>
#include <unordered_map>

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

// What each name that Python says stands for.
template <class Form>
using Forms = std::unordered_map<std::string, Form>;

template <class Form>
const Form& form_of(const Forms<Form>& forms, const char* what, const std::string& name) {
  const auto found = forms.find(name);
  if (found == forms.end()) throw_value_error("unknown " + std::string(what) + " '" + name + "'");
  return found->second;
}

}  // namespace lampwork
