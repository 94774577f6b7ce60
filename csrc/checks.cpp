// What single guards compare: global state, tensors, values.
#include "guards.h"

#include <ATen/Context.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/autocast_mode.h>
#include <c10/core/AutogradState.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/TensorOptions.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>

#include <cmath>
#include <cstring>
#include <initializer_list>

namespace lampwork {

namespace {

at::ScalarType scalar_type(py::handle dtype) {
  if (!THPDtype_Check(dtype.ptr())) throw_value_error("expected a torch.dtype");
  return reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type;
}

int equal_doubles(double a, double b) {
  return (a == b || (std::isnan(a) && std::isnan(b))) && std::signbit(a) == std::signbit(b) ? 1 : 0;
}

// == of a class of C, whatever a subclass of it says.
int natively_equal(const PyTypeObject& base, PyObject* a, PyObject* b) {
  const py::object answer = py::reinterpret_steal<py::object>(base.tp_richcompare(a, b, Py_EQ));
  if (!answer) return -1;
  return answer.ptr() == Py_True ? 1 : 0;
}

// Item by item, in the order in which the class of C gives them.
int equal_items(const PyTypeObject& base, PyObject* a, PyObject* b) {
  const py::object in_a = py::reinterpret_steal<py::object>(base.tp_iter(a));
  const py::object in_b = py::reinterpret_steal<py::object>(base.tp_iter(b));
  if (!in_a || !in_b) return -1;
  while (true) {
    const py::object x = py::reinterpret_steal<py::object>(PyIter_Next(in_a.ptr()));
    const py::object y = py::reinterpret_steal<py::object>(PyIter_Next(in_b.ptr()));
    if (PyErr_Occurred() != nullptr) return -1;
    if (!x || !y) return !x && !y ? 1 : 0;
    const int same = strictly_equal(x.ptr(), y.ptr());
    if (same != 1) return same;
  }
}

int equal_attributes(PyObject* a, PyObject* b, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const py::object x = py::reinterpret_steal<py::object>(PyObject_GetAttrString(a, name));
    const py::object y = py::reinterpret_steal<py::object>(PyObject_GetAttrString(b, name));
    if (!x || !y) return -1;
    const int same = strictly_equal(x.ptr(), y.ptr());
    if (same != 1) return same;
  }
  return 1;
}

// What is equal may still be told apart by what it prints: Decimal("1.0") and Decimal("1.00"), one moment in two zones.
int equal_texts(PyObject* a, PyObject* b) {
  const py::object x = py::reinterpret_steal<py::object>(PyObject_Repr(a));
  const py::object y = py::reinterpret_steal<py::object>(PyObject_Repr(b));
  if (!x || !y) return -1;
  return natively_equal(PyUnicode_Type, x.ptr(), y.ptr());
}

// Whether a class says in Python what its objects are equal to: the program's code, which no guard may run.
bool compares_in_python(PyTypeObject* type) {
  static PyObject* const name = PyUnicode_InternFromString("__eq__");
  PyObject* found = _PyType_Lookup(type, name);
  return found == nullptr || PyFunction_Check(found);
}

bool is_of_torch(PyTypeObject* type) { return std::strncmp(type->tp_name, "torch.", 6) == 0; }

// What torch includes in a thread's dispatch while something looks at, or replaces, the operators that run.
constexpr c10::DispatchKeySet kOperatorModes({
    c10::DispatchKey::Python,
    c10::DispatchKey::Tracer,
    c10::DispatchKey::Functionalize,
    c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
    c10::DispatchKey::FuncTorchDynamicLayerBackMode,
    c10::DispatchKey::FuncTorchVmapMode,
});

}  // namespace

bool is_tensor(PyObject* object) {
  return THPVariable_CheckExact(object) ||
         PyType_IsSubtype(Py_TYPE(object), reinterpret_cast<PyTypeObject*>(THPVariableClass));
}

// --- global state ------------------------------------------------------------------------------------------

// What users switch on and off of torch's kernels and checks, a bit each: lampwork.capture.model.region.GlobalState
// has the same in `backends`.
static uint32_t process_switches() {
  const at::Context& context = at::globalContext();
  const auto in_bf16 = [&](at::Float32Op op) -> uint32_t {
    return context.float32Precision(at::Float32Backend::MKLDNN, op) == at::Float32Precision::BF16;
  };
  const bool in_tf32 =
      context.float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL) == at::Float32Precision::TF32;
  return static_cast<uint32_t>(context.userEnabledFlashSDP()) | context.userEnabledMemEfficientSDP() << 1 |
         context.userEnabledMathSDP() << 2 | context.userEnabledMkldnn() << 3 |
         context.deterministicAlgorithmsWarnOnly() << 4 | at::autocast::is_autocast_cache_enabled() << 5 |
         in_bf16(at::Float32Op::MATMUL) << 6 | in_bf16(at::Float32Op::CONV) << 7 | static_cast<uint32_t>(in_tf32) << 8;
}

GlobalState GlobalState::from_python(py::handle state) {
  return {
      state.attr("grad_enabled").cast<bool>(),       state.attr("inference_mode").cast<bool>(),
      state.attr("autocast_cpu").cast<bool>(),       scalar_type(state.attr("autocast_dtype")),
      scalar_type(state.attr("default_dtype")),      state.attr("deterministic").cast<bool>(),
      at::impl::PythonTorchFunctionTLS::stack_len(), process_switches(),
  };
}

bool GlobalState::matches() const { return mismatch() == nullptr; }

const char* GlobalState::mismatch() const {
  const c10::AutogradState& autograd = c10::AutogradState::get_tls_state();
  if (autograd.get_grad_mode() != grad_enabled) return "grad_enabled";
  if (autograd.get_inference_mode() != inference_mode) return "inference_mode";
  const c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  // As at::autocast::is_autocast_enabled(at::kCPU) has it.
  if (keys.excluded_.has(c10::DispatchKey::AutocastCPU) == autocast_cpu) return "autocast_cpu";
  if (autocast_cpu && at::autocast::get_autocast_dtype(at::kCPU) != autocast_dtype) return "autocast_dtype";
  if (c10::get_default_dtype_as_scalartype() != default_dtype) return "default_dtype";
  if (at::globalContext().deterministicAlgorithms() != deterministic) return "deterministic";
  if (process_switches() != switches) return "backends";
  if (at::impl::PythonTorchFunctionTLS::stack_len() != function_modes) return "function_modes";
  // Dispatch modes, transforms of torch.func, tracing: they act on operators, and a program's kernels are none.
  if (keys.included_.has_any(kOperatorModes)) return "dispatch_modes";
  return nullptr;
}

// --- tensors -----------------------------------------------------------------------------------------------

TensorCheck TensorCheck::from_python(py::handle guard) {
  TensorCheck check;
  const py::object type = guard.attr("type");
  if (!PyType_Check(type.ptr())) throw_value_error("TensorGuard.type is not a type");
  check.type = reinterpret_cast<PyTypeObject*>(type.ptr());
  check.dtype = scalar_type(guard.attr("dtype"));
  const py::object device = guard.attr("device");
  if (!THPDevice_Check(device.ptr())) throw_value_error("TensorGuard.device is not a torch.device");
  check.device = reinterpret_cast<THPDevice*>(device.ptr())->device;
  const auto read = [&](const char* name, c10::SmallVector<int64_t, 5>& into) {
    for (const py::handle size : guard.attr(name)) {
      into.push_back(size.is_none() ? kAny : size.cast<int64_t>());
    }
  };
  read("sizes", check.sizes);
  read("strides", check.strides);
  check.requires_grad = guard.attr("requires_grad").cast<bool>();
  check.check_keys = THPVariable_CheckTypeExact(check.type);
  const c10::DispatchKeySet dense(c10::computeDispatchKey(check.dtype, c10::kStrided, check.device));
  // As the constructor of TensorImpl makes them.
  const c10::BackendComponent backend = dense.highestBackendKey();
  check.inference_keys = dense | c10::getAutocastRelatedKeySetFromBackend(backend);
  check.keys = check.inference_keys | c10::getAutogradRelatedKeySetFromBackend(backend);
  return check;
}

bool TensorCheck::matches(PyObject* object) const {
  if (Py_TYPE(object) != type) return false;
  const at::Tensor& tensor = THPVariable_Unpack(object);
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (impl == nullptr || c10::typeMetaToScalarType(impl->dtype()) != dtype) return false;
  const c10::DispatchKeySet has = impl->key_set();
  if (check_keys && has != keys && has != inference_keys) return false;
  // The keys hold the device's type; its index matters for those that have several.
  if ((!check_keys || device.index() >= 0 || device.type() != c10::kCPU) && impl->device() != device)
    return false;
  const auto now_sizes = impl->sizes();
  const auto now_strides = impl->strides();
  if (now_sizes.size() != sizes.size()) return false;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] != now_sizes[i] && sizes[i] != kAny) return false;
    if (strides[i] != now_strides[i] && strides[i] != kAny) return false;
  }
  if (impl->requires_grad() != requires_grad) return false;
  // A dual tensor has a tangent, which a program would lose.
  return impl->autograd_meta() == nullptr || !impl->_fw_grad(0, tensor).defined();
}

// --- equality ----------------------------------------------------------------------------------------------

int strictly_equal(PyObject* a, PyObject* b) {
  if (Py_TYPE(a) != Py_TYPE(b)) return 0;
  if (a == b) return 1;
  if (PyUnicode_Check(a)) return natively_equal(PyUnicode_Type, a, b);
  if (PyLong_Check(a)) return natively_equal(PyLong_Type, a, b);
  if (PyFloat_Check(a)) return equal_doubles(PyFloat_AS_DOUBLE(a), PyFloat_AS_DOUBLE(b));
  if (PyComplex_Check(a)) {
    const Py_complex x = reinterpret_cast<PyComplexObject*>(a)->cval;
    const Py_complex y = reinterpret_cast<PyComplexObject*>(b)->cval;
    return equal_doubles(x.real, y.real) == 1 && equal_doubles(x.imag, y.imag) == 1 ? 1 : 0;
  }
  if (PyBytes_Check(a)) return natively_equal(PyBytes_Type, a, b);
  if (PyTuple_Check(a) || PyList_Check(a)) {
    const Py_ssize_t size = PySequence_Fast_GET_SIZE(a);
    if (PySequence_Fast_GET_SIZE(b) != size) return 0;
    for (Py_ssize_t i = 0; i < size; ++i) {
      if (i >= PySequence_Fast_GET_SIZE(a) || i >= PySequence_Fast_GET_SIZE(b)) return 0;
      const int same = strictly_equal(PySequence_Fast_GET_ITEM(a, i), PySequence_Fast_GET_ITEM(b, i));
      if (same != 1) return same;
    }
    return 1;
  }
  if (PySlice_Check(a) || PyRange_Check(a)) return equal_attributes(a, b, {"start", "stop", "step"});
  if (PyAnySet_Check(a)) return equal_items(PyFrozenSet_Check(a) ? PyFrozenSet_Type : PySet_Type, a, b);
  if (PyDict_CheckExact(a)) {
    if (PyDict_GET_SIZE(a) != PyDict_GET_SIZE(b)) return 0;
    Py_ssize_t at_a = 0, at_b = 0;
    PyObject *key_a, *value_a, *key_b, *value_b;
    while (PyDict_Next(a, &at_a, &key_a, &value_a) && PyDict_Next(b, &at_b, &key_b, &value_b)) {
      int same = strictly_equal(key_a, key_b);
      if (same == 1) same = strictly_equal(value_a, value_b);
      if (same != 1) return same;
    }
    return 1;
  }
  // == of tensors is no truth value; identity was compared above.
  if (is_tensor(a) || compares_in_python(Py_TYPE(a))) return 0;
  const int same = PyObject_RichCompareBool(a, b, Py_EQ);
  return same != 1 || is_of_torch(Py_TYPE(a)) ? same : equal_texts(a, b);
}

}  // namespace lampwork
