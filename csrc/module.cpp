// The module lampwork._C, and its type Executable.
#include "autograd.h"
#include "code_pages.h"
#include "device_kernel.h"
#include "driver.h"
#include "entry.h"
#include "frames.h"
#include "holds.h"
#include "machine_code.h"
#include "norms.h"
#include "profile.h"
#include "replay.h"
#include "rows.h"
#include "trained.h"
#include "weight_files.h"

#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>

#include <malloc.h>

#include <algorithm>

namespace lampwork {

namespace {

ExecutableObject* as_executable(PyObject* self) { return reinterpret_cast<ExecutableObject*>(self); }

bool same_items(const py::tuple& a, const py::tuple& b) {
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(), [](py::handle x, py::handle y) { return x.is(y); });
}

PyObject* program_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"program", "bound", "share", nullptr};
  PyObject* program = nullptr;
  PyObject *bound = nullptr, *share = Py_None;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|OO", const_cast<char**>(names), &program, &bound, &share))
    return nullptr;
  HANDLE_TH_ERRORS
  py::tuple tensors = bound == nullptr ? py::tuple() : py::tuple(py::reinterpret_borrow<py::object>(bound));
  std::unique_ptr<Executable> executable;
  if (share != Py_None) {
    if (Py_TYPE(share) != &ExecutableType) throw_type_error("share must be a lampwork._C.Executable");
    const auto theirs = py::reinterpret_borrow<py::tuple>(as_executable(share)->bound);
    if (bound != nullptr && !same_items(tensors, theirs)) {
      throw_value_error("programs that share constants must have the same bound tensors");
    }
    tensors = theirs;
    executable = std::make_unique<Executable>(program, *as_executable(share)->executable);
  } else {
    for (const py::handle tensor : tensors) {
      if (!THPVariable_Check(tensor.ptr())) throw_type_error("bound tensors must be tensors");
    }
    executable = std::make_unique<Executable>(program, tensors.ptr());
  }
  PyObject* self = type->tp_alloc(type, 0);
  if (self == nullptr) return nullptr;
  as_executable(self)->executable = executable.release();
  as_executable(self)->bound = tensors.inc_ref().ptr();
  as_executable(self)->program = Py_NewRef(program);
  return self;
  END_HANDLE_TH_ERRORS
}

int program_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(as_executable(self)->bound);
  Py_VISIT(as_executable(self)->program);
  return 0;
}

void program_dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  delete as_executable(self)->executable;
  Py_CLEAR(as_executable(self)->bound);
  Py_CLEAR(as_executable(self)->program);
  Py_TYPE(self)->tp_free(self);
}

PyObject* run_program(PyObject* self, PyObject* inputs, PyObject* scalars, bool consumes) {
  HANDLE_TH_ERRORS
  const py::object items =
      py::reinterpret_steal<py::object>(PySequence_Fast(inputs, "run expects a list of tensors"));
  if (!items) return nullptr;
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(items.ptr());
  Executable& executable = *as_executable(self)->executable;
  const size_t n_all = executable.n_inputs() + executable.n_bound();
  if (static_cast<size_t>(count) != executable.n_inputs() && static_cast<size_t>(count) != n_all) {
    return PyErr_Format(PyExc_TypeError, "the program takes %zu inputs, got %zd", executable.n_inputs(),
                        count);
  }
  const Py_ssize_t n_scalars = scalars == nullptr ? 0 : PyTuple_GET_SIZE(scalars);
  if (static_cast<size_t>(n_scalars) != executable.n_scalars()) {
    return PyErr_Format(PyExc_TypeError, "the program takes %zu scalars, got %zd", executable.n_scalars(),
                        n_scalars);
  }
  c10::SmallVector<int64_t, 8> numbers;
  for (Py_ssize_t i = 0; i < n_scalars; ++i) {
    const long long number = PyLong_AsLongLong(PyTuple_GET_ITEM(scalars, i));
    if (number == -1 && PyErr_Occurred() != nullptr) return nullptr;
    numbers.push_back(number);
  }
  // A list may be changed by other threads while the program runs: hold the tensors.
  c10::SmallVector<at::Tensor, 8> tensors;
  for (Py_ssize_t i = 0; i < static_cast<Py_ssize_t>(executable.n_inputs()); ++i) {
    PyObject* item = PySequence_Fast_GET_ITEM(items.ptr(), i);
    if (!THPVariable_Check(item)) return PyErr_Format(PyExc_TypeError, "input %zd is not a tensor", i);
    tensors.push_back(THPVariable_Unpack(item));
    // Wrappers of transforms, nested and sparse tensors: kernels would read at no address.
    if (!tensors.back().has_storage()) {
      return PyErr_Format(PyExc_TypeError, "input %zd is a tensor without memory of its own", i);
    }
  }
  c10::SmallVector<const at::Tensor*, 8> pointers;
  for (const at::Tensor& tensor : tensors) pointers.push_back(&tensor);
  c10::SmallVector<at::Tensor, 4> outputs;
  if (consumes && PyList_SetSlice(inputs, 0, count, nullptr) != 0) return nullptr;
  bool wrote_outside = false;
  try {
    executable.run(pointers.data(), numbers.data(), outputs, wrote_outside, consumes ? tensors.data() : nullptr);
  } catch (const RunFailure& failure) {
    raise_runtime_failure(failure.what());
    return nullptr;
  } catch (const StaleBoundTensor& stale) {
    raise_runtime_failure(stale.what());
    return nullptr;
  } catch (...) {
    aten_failed() = true;
    throw;
  }
  py::list results(outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    PyObject* wrapped = THPVariable_Wrap(std::move(outputs[i]));
    if (wrapped == nullptr) return nullptr;
    PyList_SET_ITEM(results.ptr(), static_cast<Py_ssize_t>(i), wrapped);
  }
  return results.release().ptr();
  END_HANDLE_TH_ERRORS
}

PyObject* program_run(PyObject* self, PyObject* args) {
  PyObject *inputs, *scalars = nullptr;
  if (!PyArg_ParseTuple(args, "O|O!:run", &inputs, &PyTuple_Type, &scalars)) return nullptr;
  return run_program(self, inputs, scalars, false);
}

// Takes the tensors out of the list, so that each lives to its last use only, unless others hold it.
PyObject* program_consume(PyObject* self, PyObject* inputs) {
  if (!PyList_Check(inputs)) return PyErr_Format(PyExc_TypeError, "consume expects a list of tensors");
  return run_program(self, inputs, nullptr, true);
}

PyObject* program_generation(PyObject* self, PyObject*) {
  HANDLE_TH_ERRORS
  try {
    return PyLong_FromUnsignedLongLong(as_executable(self)->executable->generation());
  } catch (const RunFailure& failure) {
    raise_runtime_failure(failure.what());
  } catch (const StaleBoundTensor& stale) {
    raise_runtime_failure(stale.what());
  } catch (...) {
    aten_failed() = true;
    throw;
  }
  return nullptr;
  END_HANDLE_TH_ERRORS
}

PyObject* program_adopt(PyObject* self, PyObject* args) {
  PyObject *known, *places, *rest = Py_None;
  if (!PyArg_ParseTuple(args, "O!O!|O:adopt", &PyTuple_Type, &known, &PyTuple_Type, &places, &rest)) return nullptr;
  HANDLE_TH_ERRORS
  std::vector<at::Tensor> tensors;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(known); ++i) {
    PyObject* item = PyTuple_GET_ITEM(known, i);
    if (!THPVariable_Check(item)) return PyErr_Format(PyExc_TypeError, "constant %zd is not a tensor", i);
    tensors.push_back(THPVariable_Unpack(item));
  }
  std::vector<int64_t> numbers;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(places); ++i) {
    const long long number = PyLong_AsLongLong(PyTuple_GET_ITEM(places, i));
    if (number == -1 && PyErr_Occurred() != nullptr) return nullptr;
    numbers.push_back(number);
  }
  try {
    as_executable(self)->executable->adopt(rest, std::move(tensors), std::move(numbers));
  } catch (const StaleBoundTensor& stale) {
    raise_runtime_failure(stale.what());
    return nullptr;
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* program_call(PyObject* self, PyObject* args, PyObject* kwargs) {
  if (kwargs != nullptr && PyDict_GET_SIZE(kwargs) != 0) {
    PyErr_SetString(PyExc_TypeError, "a program takes no keyword arguments");
    return nullptr;
  }
  return program_run(self, args);
}

PyObject* program_stats(PyObject* self, void*) {
  const Executable& executable = *as_executable(self)->executable;
  return Py_BuildValue("{s:K,s:K,s:n}", "runs", static_cast<unsigned long long>(executable.runs()),
                       "constant_refreshes",
                       static_cast<unsigned long long>(executable.constant_refreshes()), "arena_bytes",
                       static_cast<Py_ssize_t>(executable.arena_bytes()));
}

PyObject* program_of(PyObject* self, void*) { return Py_NewRef(as_executable(self)->program); }

PyObject* program_bound(PyObject* self, void*) { return Py_NewRef(as_executable(self)->bound); }

PyMethodDef program_methods[] = {
    {"run", program_run, METH_VARARGS,
     "run(inputs, scalars=()) -> list of output tensors. The bound tensors may follow the inputs; they are "
     "ignored. "
     "Raises RuntimeFailure if a kernel failed or a bound tensor changed its "
     "metadata, and what ATen raises."},
    {"consume", program_consume, METH_O,
     "consume(inputs): run, with the tensors taken out of the list: each is dropped after its last use."},
    {"generation", program_generation, METH_NOARGS,
     "generation() -> int: compute the constants again if a bound tensor has changed, as run does. While the number is "
     "the same, bound tensors and constants lie where they lay."},
    {"adopt", program_adopt, METH_VARARGS,
     "adopt(known, places, rest=None): take constants that were computed before, of the bound tensors as they are, which "
     "nobody has written to since. places: for each constant its number in `known`, or -1: the next output of `rest`, a "
     "program whose inputs are the bound tensors and then `known`. Before the first run."},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef program_getset[] = {
    {"stats", program_stats, nullptr, "Counters: runs, constant_refreshes, arena_bytes.", nullptr},
    {"bound", program_bound, nullptr, "The bound tensors, a tuple.", nullptr},
    {"program", program_of, nullptr, "What it was made of.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyObject* module_stats(PyObject*, PyObject*) {
  const RuntimeStats& stats = runtime_stats();
  const auto count = [](uint64_t value) { return static_cast<unsigned long long>(value); };
  return Py_BuildValue("{s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K}", "calls", count(stats.calls), "compiled_calls",
                       count(stats.compiled_calls), "partial_calls", count(stats.partial_calls), "misses",
                       count(stats.misses), "failures", count(stats.failures), "constant_refreshes",
                       count(stats.constant_refreshes), "specializations", count(stats.specializations),
                       "compiled_backwards", count(stats.compiled_backwards));
}

PyObject* module_skip_entries(PyObject*, PyObject* value) {
  const int truth = PyObject_IsTrue(value);
  if (truth < 0) return nullptr;
  skip_entries().store(truth != 0, std::memory_order_relaxed);
  Py_RETURN_NONE;
}

// Calls the first item of a tuple with the others.
PyObject* call_items(PyObject* call) {
  return PyObject_Vectorcall(PyTuple_GET_ITEM(call, 0), &PyTuple_GET_ITEM(call, 1), PyTuple_GET_SIZE(call) - 1,
                             nullptr);
}

// In C++, so that the frames of continuations lie right above the program's: tracebacks and the stacklevel of
// warnings see no frame between.
PyObject* module_drive(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count < 2 || !PyType_Check(args[0]) ||
      !PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(args[0]), &PyTuple_Type)) {
    PyErr_SetString(PyExc_TypeError, "drive expects a subclass of tuple, a continuation and its arguments");
    return nullptr;
  }
  PyObject* next = PyObject_Vectorcall(args[1], args + 2, count - 2, nullptr);
  while (next != nullptr) {
    if (!PyTuple_CheckExact(next) || PyTuple_GET_SIZE(next) < 1) {
      PyErr_SetString(PyExc_TypeError, "a continuation must return a tuple that begins with a callable");
      Py_DECREF(next);
      return nullptr;
    }
    PyObject* result = call_items(next);
    Py_DECREF(next);
    if (result == nullptr || Py_TYPE(result) != reinterpret_cast<PyTypeObject*>(args[0])) return result;
    next = call_items(result);
    Py_DECREF(result);
  }
  return nullptr;
}

PyObject* module_strictly_equal(PyObject*, PyObject* args) {
  PyObject* a;
  PyObject* b;
  if (!PyArg_ParseTuple(args, "OO:strictly_equal", &a, &b)) return nullptr;
  const int same = strictly_equal(a, b);
  return same < 0 ? nullptr : PyBool_FromLong(same);
}

PyObject* module_in_weight_file(PyObject*, PyObject* tensor) {
  if (!THPVariable_Check(tensor)) {
    PyErr_SetString(PyExc_TypeError, "in_weight_file expects a tensor");
    return nullptr;
  }
  return PyBool_FromLong(in_weight_file(THPVariable_Unpack(tensor)));
}

PyObject* module_part_of(PyObject*, PyObject* args) {
  PyObject *buffer, *dtype, *shape;
  long long begin;
  if (!PyArg_ParseTuple(args, "OLOO!:part_of", &buffer, &begin, &dtype, &PyTuple_Type, &shape)) return nullptr;
  HANDLE_TH_ERRORS
  if (!THPDtype_Check(dtype)) return PyErr_Format(PyExc_TypeError, "part_of expects a dtype");
  std::vector<int64_t> sizes;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(shape); ++i) {
    const long long size = PyLong_AsLongLong(PyTuple_GET_ITEM(shape, i));
    if (size == -1 && PyErr_Occurred() != nullptr) return nullptr;
    sizes.push_back(size);
  }
  return THPVariable_Wrap(part_of(buffer, begin, reinterpret_cast<THPDtype*>(dtype)->scalar_type, sizes));
  END_HANDLE_TH_ERRORS
}

PyObject* module_drop_code_pages(PyObject*, PyObject* address) {
  void* inside = PyLong_AsVoidPtr(address);
  if (inside == nullptr && PyErr_Occurred()) return nullptr;
  int64_t dropped;
  Py_BEGIN_ALLOW_THREADS;
  dropped = drop_code_pages(inside);
  Py_END_ALLOW_THREADS;
  return PyLong_FromLongLong(dropped);
}

PyObject* module_operator_failed(PyObject*, PyObject*) {
  aten_failed() = true;
  Py_RETURN_NONE;
}

PyObject* module_trim_memory(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  Heap::shared()->trim();
#ifdef __GLIBC__
  malloc_trim(0);
#endif
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* module_heap_bytes(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  return PyLong_FromSize_t(Heap::shared()->used());
  END_HANDLE_TH_ERRORS
}

PyMethodDef module_methods[] = {{"strictly_equal", module_strictly_equal, METH_VARARGS,
                                 "strictly_equal(a, b): whether nothing but identity tells two values apart."},
                                {"operator_failed", module_operator_failed, METH_NOARGS,
                                 "Say that the exception about to be raised is an operator's, and nothing was done."},
                                {"in_weight_file", module_in_weight_file, METH_O,
                                 "in_weight_file(tensor): whether its memory is a file that release_weights made."},
                                {"part_of", module_part_of, METH_VARARGS,
                                 "part_of(buffer, begin, dtype, shape): a tensor over the bytes of a buffer from `begin` "
                                 "on, which the caller gives away: nothing else writes to them."},
                                {"drop_code_pages", module_drop_code_pages, METH_O,
                                 "drop_code_pages(address): have the system take back what it can read again from the "
                                 "file of the library that the address is in; the bytes."},
                                {"trim_memory", module_trim_memory, METH_NOARGS,
                                 "trim_memory(): gives memory that nobody uses back to the system."},
                                {"heap_bytes", module_heap_bytes, METH_NOARGS,
                                 "heap_bytes(): of the living tensors in memory of training steps."},
                                {"stats", module_stats, METH_NOARGS, "Counters of this process."},
                                {"skip_entries", module_skip_entries, METH_O,
                                 "skip_entries(yes): whether all calls go straight to on_miss, process-wide."},
                                {"drive", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(module_drive)),
                                 METH_FASTCALL,
                                 "drive(pending, continuation, *args): calls the continuation, which returns what to "
                                 "call next and with what; if that returns a `pending`, a tuple of a continuation "
                                 "and its arguments, goes on with it, else returns the result."},
                                {nullptr, nullptr, 0, nullptr}};

PyModuleDef module_definition = {PyModuleDef_HEAD_INIT,
                                 "lampwork._C",
                                 "Lampwork's runtime.",
                                 -1,
                                 module_methods,
                                 nullptr,
                                 nullptr,
                                 nullptr,
                                 nullptr};

}  // namespace

PyTypeObject ExecutableType = {
    .ob_base = PyVarObject_HEAD_INIT(nullptr, 0).tp_name = "lampwork._C.Executable",
    .tp_basicsize = sizeof(ExecutableObject),
    .tp_dealloc = program_dealloc,
    .tp_call = program_call,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = 
        "Executable(program, bound=(), share=None): made of a lampwork.runtime.program.Program. "
        "With `share`, another Executable over the same bound tensors and constants, those and memory are one.",
    .tp_traverse = program_traverse,
    .tp_methods = program_methods,
    .tp_getset = program_getset,
    .tp_new = program_new,
};

RuntimeStats& runtime_stats() {
  static RuntimeStats stats;
  return stats;
}

bool& aten_failed() {
  static thread_local bool failed = false;
  return failed;
}

void raise_runtime_failure(const char* message) {
  const py::object module = py::reinterpret_steal<py::object>(PyImport_ImportModule("lampwork.errors"));
  if (!module) return;
  const py::object type =
      py::reinterpret_steal<py::object>(PyObject_GetAttrString(module.ptr(), "RuntimeFailure"));
  if (!type) return;
  const py::object error = py::reinterpret_steal<py::object>(PyObject_CallFunction(type.ptr(), "s", message));
  if (error) PyErr_SetObject(type.ptr(), error.ptr());
}

}  // namespace lampwork

PyMODINIT_FUNC PyInit__C() {
  using namespace lampwork;
  PyTypeObject* types[] = {&ExecutableType, &EntryType,   &InsteadType, &CompiledType,
                           &MachineCodeType, &TrainedType, &ReplayType,  &DeviceKernelType};
  PyObject* module = PyModule_Create(&module_definition);
  if (module == nullptr) return nullptr;
  for (PyTypeObject* type : types) {
    if (PyModule_AddType(module, type) != 0) {
      Py_DECREF(module);
      return nullptr;
    }
  }
  if (PyModule_AddFunctions(module, autograd_methods) != 0 || PyModule_AddFunctions(module, hold_methods) != 0 ||
      PyModule_AddFunctions(module, frame_methods) != 0 || PyModule_AddFunctions(module, row_methods) != 0 ||
      PyModule_AddFunctions(module, norm_methods) != 0 || PyModule_AddFunctions(module, replay_methods) != 0 ||
      PyModule_AddFunctions(module, driver_methods) != 0 || PyModule_AddFunctions(module, profile_methods) != 0) {
    Py_DECREF(module);
    return nullptr;
  }
  return module;
}
