#include "reading.h"

#include "entry.h"
#include "rows.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/python_variable.h>

namespace lampwork {

namespace {

// OptimizerNames in dicts of optimizers, interned as those of attributes are.
struct OptimizerNames {
  PyObject* groups = PyUnicode_InternFromString("param_groups");
  PyObject* states = PyUnicode_InternFromString("state");
  PyObject* defaults = PyUnicode_InternFromString("defaults");
  PyObject* differentiable = PyUnicode_InternFromString("differentiable");
  PyObject* before = PyUnicode_InternFromString("_optimizer_step_pre_hooks");
  PyObject* after = PyUnicode_InternFromString("_optimizer_step_post_hooks");
  PyObject* step = PyUnicode_InternFromString("step");
  PyObject* zero_grad = PyUnicode_InternFromString("zero_grad");
  PyObject* grad_scale = PyUnicode_InternFromString("grad_scale");
  PyObject* found_inf = PyUnicode_InternFromString("found_inf");
  PyObject* parameters = PyUnicode_InternFromString("params");
  PyObject* parameter_names = PyUnicode_InternFromString("param_names");
};

// What a value is, so that no two sequences of values look alike.
enum Kind : int64_t { kScalar, kFloat, kTuple, kTensor, kOpaque };

const OptimizerNames& names() {
  static const OptimizerNames interned;
  return interned;
}

// Keys that come out of a file are not interned.
bool is_name(PyObject* key, PyObject* name) {
  return key == name || (PyUnicode_CheckExact(key) && PyUnicode_Compare(key, name) == 0);
}

bool is_empty_dict(PyObject* value) { return PyDict_Check(value) && PyDict_GET_SIZE(value) == 0; }

// Whether there are hooks of all optimizers.
bool has_global_hooks() {
  static PyObject *before = nullptr, *after = nullptr;
  if (after == nullptr) {
    const py::module_ module = py::module_::import("torch.optim.optimizer");
    before = py::object(module.attr("_global_optimizer_pre_hooks")).release().ptr();
    after = py::object(module.attr("_global_optimizer_post_hooks")).release().ptr();
  }
  return !is_empty_dict(before) || !is_empty_dict(after);
}

// Modes, transforms, tracing and profilers would see the operators of a step, and kernels are none.
bool is_step_watched() {
  constexpr c10::DispatchKeySet watching(
      {c10::DispatchKey::Python, c10::DispatchKey::Tracer, c10::DispatchKey::Functionalize,
       c10::DispatchKey::FuncTorchDynamicLayerFrontMode, c10::DispatchKey::FuncTorchDynamicLayerBackMode,
       c10::DispatchKey::FuncTorchVmapMode});
  return c10::impl::TorchDispatchModeTLS::stack_len() > 0 || at::impl::PythonTorchFunctionTLS::stack_len() > 0 ||
         c10::impl::tls_local_dispatch_key_set().included_.has_any(watching) || at::hasCallbacks();
}

}  // namespace

bool Reading::read(PyObject* optimizer) {
  clear();
  if (skip_entries().load(std::memory_order_relaxed) || is_step_watched() || has_global_hooks()) return false;
  if (!read_attributes(optimizer) || groups_ == nullptr || states_ == nullptr) return false;
  const Py_ssize_t count = PyList_GET_SIZE(groups_);
  facts.push_back(count);
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (!read_group(i, PyList_GET_ITEM(groups_, i))) return false;
  }
  return read_states();
}

void Reading::clear() {
  objects.clear();
  facts.clear();
  floats.clear();
  places.clear();
  tensors.clear();
  parameters_.clear();
  groups_ = states_ = nullptr;
}

bool Reading::read_attributes(PyObject* optimizer) {
  PyTypeObject* type = Py_TYPE(optimizer);
  // The tag stands for the class and its bases with all their attributes; a class without one has just changed.
  if (type->tp_version_tag == 0) return false;
  objects.push_back(reinterpret_cast<PyObject*>(type));
  facts.push_back(type->tp_version_tag);
  const py::object attributes = py::reinterpret_steal<py::object>(PyObject_GenericGetDict(optimizer, nullptr));
  if (!attributes) {
    PyErr_Clear();
    return false;
  }
  PyObject *key, *value;
  Py_ssize_t place = 0;
  while (PyDict_Next(attributes.ptr(), &place, &key, &value) != 0) {
    if (!read_attribute(type, key, value)) return false;
  }
  return true;
}

bool Reading::read_attribute(PyTypeObject* type, PyObject* key, PyObject* value) {
  const OptimizerNames& known = names();
  if (!PyUnicode_CheckExact(key)) return false;
  objects.push_back(key);
  if (key == known.groups) return PyList_CheckExact(groups_ = value);
  if (key == known.states) return PyDict_Check(states_ = value);
  if (key == known.before || key == known.after) return is_empty_dict(value);
  if (key == known.defaults) {
    PyObject* differentiable = PyDict_Check(value) ? PyDict_GetItem(value, known.differentiable) : nullptr;
    return differentiable != nullptr && read_scalar(differentiable);
  }
  if (read_scalar(value)) return true;
  facts.push_back(kOpaque);
  if (key == known.step || key == known.zero_grad) return true;
  // Anything else is what a step does not look at, or stands in front of what it does.
  return key != known.grad_scale && key != known.found_inf && _PyType_Lookup(type, key) == nullptr;
}

bool Reading::read_group(Py_ssize_t number, PyObject* group) {
  if (!PyDict_CheckExact(group)) return false;
  PyObject *key, *value, *parameters = nullptr;
  Py_ssize_t place = 0;
  facts.push_back(PyDict_GET_SIZE(group));
  while (PyDict_Next(group, &place, &key, &value) != 0) {
    if (!PyUnicode_CheckExact(key)) return false;
    objects.push_back(key);
    if (is_name(key, names().parameters)) {
      parameters = value;
    } else if (PyTuple_CheckExact(value)) {
      facts.push_back(kTuple);
      facts.push_back(PyTuple_GET_SIZE(value));
      for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); ++i) {
        if (!read_option(number, key, PyTuple_GET_ITEM(value, i), i)) return false;
      }
    } else if (!read_option(number, key, value, -1) && !is_name(key, names().parameter_names)) {
      return false;
    }
  }
  return parameters != nullptr && read_parameters(parameters);
}

bool Reading::read_option(Py_ssize_t number, PyObject* key, PyObject* value, Py_ssize_t place) {
  if (!PyFloat_CheckExact(value)) return read_scalar(value);
  facts.push_back(kFloat);
  floats.push_back(PyFloat_AS_DOUBLE(value));
  places.push_back({number, key, place});
  return true;
}

bool Reading::read_parameters(PyObject* list) {
  if (!PyList_CheckExact(list)) return false;
  facts.push_back(PyList_GET_SIZE(list));
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
    PyObject* object = PyList_GET_ITEM(list, i);
    if (!THPVariable_CheckExact(object)) return false;
    const at::Tensor& parameter = THPVariable_Unpack(object);
    const at::Tensor& grad = parameter.grad();
    facts.push_back(grad.defined());
    if (!read_tensor(parameter, nullptr) || (grad.defined() && !read_tensor(grad, &parameter))) return false;
    parameters_.push_back(object);
  }
  return true;
}

bool Reading::read_states() {
  PyObject *parameter, *state, *key, *value;
  Py_ssize_t place = 0;
  size_t next = 0;  // states are made in the order of the parameters
  while (PyDict_Next(states_, &place, &parameter, &state) != 0) {
    while (next < parameters_.size() && parameters_[next] != parameter) ++next;
    if (next == parameters_.size() || !PyDict_CheckExact(state)) return false;
    facts.push_back(static_cast<int64_t>(next));
    facts.push_back(PyDict_GET_SIZE(state));
    Py_ssize_t item = 0;
    while (PyDict_Next(state, &item, &key, &value) != 0) {
      if (!PyUnicode_CheckExact(key)) return false;
      objects.push_back(key);
      const bool is_read = THPVariable_CheckExact(value)
                               ? read_tensor(THPVariable_Unpack(value), &THPVariable_Unpack(parameter))
                               : read_scalar(value);
      if (!is_read) return false;
    }
  }
  return true;
}

// What is immutable and refers to nothing, so that whoever keeps a reading may keep it.
bool Reading::read_scalar(PyObject* value) {
  const bool is_scalar = value == Py_None || PyBool_Check(value) || PyLong_CheckExact(value) ||
                         PyFloat_CheckExact(value) || PyUnicode_CheckExact(value);
  if (!is_scalar) return false;
  facts.push_back(kScalar);
  objects.push_back(value);
  return true;
}

bool Reading::read_tensor(const at::Tensor& tensor, const at::Tensor* parameter) {
  if (!is_plain_anywhere(tensor) || !has_memory(tensor, tensor.nbytes())) return false;
  facts.push_back(kTensor);
  facts.push_back(tensor.is_cpu() ? -1 : tensor.device().index());
  facts.push_back(static_cast<int64_t>(tensor.scalar_type()));
  if (parameter == nullptr) {
    facts.push_back(tensor.is_non_overlapping_and_dense());
    facts.push_back(tensor.dim());
    for (const int64_t size : tensor.sizes()) facts.push_back(size);
    for (const int64_t stride : tensor.strides()) facts.push_back(stride);
  } else {
    facts.push_back(laid_out_alike(*parameter, tensor));
    facts.push_back(tensor.numel());
  }
  tensors.push_back(&tensor);
  return true;
}

}  // namespace lampwork
