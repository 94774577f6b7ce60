// The Python type of machine code in memory.
#include "machine_code.h"

#include <dlfcn.h>

#include <torch/csrc/Exceptions.h>

#include <memory>
#include <stdexcept>

namespace lampwork {

namespace {

struct MachineCodeObject {
  PyObject_HEAD
  MachineCode* code;
};

MachineCodeObject* as_machine_code(PyObject* self) { return reinterpret_cast<MachineCodeObject*>(self); }

void* in_process(const std::string& name) { return dlsym(RTLD_DEFAULT, name.c_str()); }

PyObject* machine_code_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"object_code", nullptr};
  PyObject* object_code = nullptr;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "S", const_cast<char**>(names), &object_code)) return nullptr;
  HANDLE_TH_ERRORS
  std::unique_ptr<MachineCode> code;
  try {
    code = std::make_unique<MachineCode>(
        std::string_view(PyBytes_AS_STRING(object_code), static_cast<size_t>(PyBytes_GET_SIZE(object_code))),
        in_process);
  } catch (const std::runtime_error& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
    return nullptr;
  }
  PyObject* self = type->tp_alloc(type, 0);
  if (self == nullptr) return nullptr;
  as_machine_code(self)->code = code.release();
  return self;
  END_HANDLE_TH_ERRORS
}

void machine_code_dealloc(PyObject* self) {
  delete as_machine_code(self)->code;
  Py_TYPE(self)->tp_free(self);
}

PyObject* machine_code_functions(PyObject* self, void*) {
  PyObject* functions = PyDict_New();
  if (functions == nullptr) return nullptr;
  for (const auto& [name, address] : as_machine_code(self)->code->functions()) {
    PyObject* number = PyLong_FromUnsignedLongLong(address);
    if (number == nullptr || PyDict_SetItemString(functions, name.c_str(), number) != 0) {
      Py_XDECREF(number);
      Py_DECREF(functions);
      return nullptr;
    }
    Py_DECREF(number);
  }
  return functions;
}

PyObject* machine_code_bytes(PyObject* self, void*) { return PyLong_FromSize_t(as_machine_code(self)->code->bytes()); }

PyGetSetDef machine_code_getset[] = {
    {"functions", machine_code_functions, nullptr, "The addresses of the functions, by name.", nullptr},
    {"bytes", machine_code_bytes, nullptr, "How much memory it takes.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

}  // namespace

PyTypeObject MachineCodeType = {
    .ob_base = PyVarObject_HEAD_INIT(nullptr, 0).tp_name = "lampwork._C.MachineCode",
    .tp_basicsize = sizeof(MachineCodeObject),
    .tp_dealloc = machine_code_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "MachineCode(object_code): relocatable object code (ELF), loaded. Undefined symbols are looked up "
              "in the process. The memory lives as long as this object. Raises ValueError.",
    .tp_getset = machine_code_getset,
    .tp_new = machine_code_new,
};

}  // namespace lampwork
