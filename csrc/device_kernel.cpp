#include "device_kernel.h"

#include <torch/csrc/Exceptions.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "errors.h"
#include "program.h"

namespace lampwork {

namespace {

// cuda.h's numbers.
constexpr CUresult kOutOfMemory = 2;
constexpr CUresult kNoBinaryForDevice = 209;
constexpr CUresult kInvalidPtx = 218;
constexpr CUresult kUnsupportedPtxVersion = 222;
constexpr CUresult kNotFound = 500;
constexpr int kErrorLog = 5;
constexpr int kErrorLogBytes = 6;
constexpr int kMaxThreads = 0;
constexpr int kStaticShared = 1;
constexpr int kLocalBytes = 3;
constexpr int kRegisters = 4;
constexpr int kMaxDynamicShared = 8;
constexpr int kCapabilityMajor = 75;
constexpr int kCapabilityMinor = 76;
constexpr int kMaxSharedOptIn = 97;

std::string name_of(int device) { return "cuda:" + std::to_string(device); }

}  // namespace

// What went wrong, to be told once the GIL is held again.
struct DeviceKernel::Failure {
  enum class Step { Context, Module, Function, Attribute, Threads, Shared } step = Step::Context;
  CUresult error = kSuccess;
  std::string log;  // of the driver's assembler
  int limit = 0;

  // Notes an error, if it is one.
  bool failed(Step at, CUresult result) {
    if (result == kSuccess) return false;
    step = at;
    error = result;
    return true;
  }
};

DeviceKernel::DeviceKernel(std::string image, std::string name, size_t buffers, size_t sizes)
    : image_(std::move(image)), name_(std::move(name)), buffers_(buffers), sizes_(sizes) {}

DeviceKernel::~DeviceKernel() {
  if (loaded_.empty() || Driver::is_forked()) return;
  const Driver& driver = Driver::opened();
  for (const auto& [device, loaded] : loaded_) {
    if (loaded.captured.load()) continue;
    const DriverScope scope(driver, loaded.context);
    driver.unload_module(loaded.module);  // fails where the process ends, and the driver has
  }
}

DeviceKernel::Loaded& DeviceKernel::load(int device, const LaunchShape& shape) {
  const Driver& driver = Driver::get();
  Failure failure;
  Loaded* loaded = nullptr;
  {
    const ReleaseGil no_gil(true);  // the driver's assembler takes milliseconds
    const std::lock_guard<std::mutex> lock(mutex_);
    loaded = load_on(driver, device, failure);
    if (loaded != nullptr) make_fit(driver, *loaded, shape, failure);
  }
  if (failure.error != kSuccess) explain(driver, device, shape, failure);
  return *loaded;
}

DeviceKernel::Loaded* DeviceKernel::load_on(const Driver& driver, int device, Failure& failure) {
  using Step = Failure::Step;
  const auto known = loaded_.find(device);
  if (known != loaded_.end()) return &known->second;
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  int threads = 0, fixed = 0;
  if (failure.failed(Step::Context, driver.context(device, &context))) return nullptr;
  const DriverScope scope(driver, context);
  std::string log(8192, '\0');
  int options[] = {kErrorLog, kErrorLogBytes};
  void* values[] = {log.data(), reinterpret_cast<void*>(log.size() - 1)};
  if (failure.failed(Step::Module, driver.load_module(&module, image_.c_str(), 2, options, values))) {
    failure.log = log.c_str();
    return nullptr;
  }
  if (failure.failed(Step::Function, driver.get_function(&function, module, name_.c_str())) ||
      failure.failed(Step::Attribute, driver.function_attribute(&threads, kMaxThreads, function)) ||
      failure.failed(Step::Attribute, driver.function_attribute(&fixed, kStaticShared, function))) {
    driver.unload_module(module);
    return nullptr;
  }
  Loaded& loaded = loaded_.try_emplace(device).first->second;
  loaded.context = context;
  loaded.module = module;
  loaded.function = function;
  loaded.threads = threads;
  loaded.shared = std::max(0, (48 << 10) - fixed);
  return &loaded;
}

void DeviceKernel::make_fit(const Driver& driver, Loaded& loaded, const LaunchShape& shape, Failure& failure) {
  using Step = Failure::Step;
  constexpr CUresult kInvalidValue = 1;
  if (int64_t{shape.block[0]} * shape.block[1] > loaded.threads) {
    failure.limit = loaded.threads;
    failure.failed(Step::Threads, kInvalidValue);
    return;
  }
  const auto shared = static_cast<int>(shape.shared);
  if (shared <= loaded.shared) return;
  const DriverScope scope(driver, loaded.context);
  if (failure.failed(Step::Shared, driver.set_function_attribute(loaded.function, kMaxDynamicShared, shared))) return;
  loaded.shared = shared;
}

void DeviceKernel::explain(const Driver& driver, int device, const LaunchShape& shape, const Failure& failure) const {
  using Step = Failure::Step;
  const std::string kernel = "kernel '" + name_ + "'";
  const std::string error = driver.describe(failure.error);
  const auto attribute = [&](int number) {
    CUdevice found = 0;
    int value = 0;
    if (driver.device(&found, device) == kSuccess) driver.device_attribute(&value, number, found);
    return value;
  };
  if (failure.step == Step::Threads) {
    throw_driver_error(kernel + " needs so many registers that a block has at most " + std::to_string(failure.limit) +
                           " threads on " + name_of(device) + ", not " +
                           std::to_string(shape.block[0] * shape.block[1]),
                       "Report this, with the program that was compiled.");
  }
  if (failure.step == Step::Shared) {
    throw_driver_error(kernel + " needs " + std::to_string(shape.shared) +
                           " bytes of shared memory; a block has at most " +
                           std::to_string(attribute(kMaxSharedOptIn)) + " on " + name_of(device) + ": " + error,
                       "Report this, with the program that was compiled.");
  }
  if (failure.error == kOutOfMemory) {
    throw_driver_error("there is no memory on " + name_of(device) + " to load " + kernel,
                       "Free memory of the card: `torch.cuda.empty_cache()` gives back what torch keeps.");
  }
  if (failure.step == Step::Context) {
    throw_driver_error(name_of(device) + " cannot be used: " + error, "See whether `nvidia-smi` finds the card.");
  }
  if (failure.error == kUnsupportedPtxVersion) {
    int version = 0;
    driver.version(&version);
    throw_driver_error("the CUDA driver, which serves CUDA " + std::to_string(version / 1000) + "." +
                           std::to_string(version % 1000 / 10) + ", is too old for the PTX of " + kernel,
                       "Install a newer driver.");
  }
  if (failure.error == kNoBinaryForDevice) {
    throw_driver_error(kernel + " was compiled for another card than " + name_of(device) + ", of compute capability " +
                           std::to_string(attribute(kCapabilityMajor)) + "." +
                           std::to_string(attribute(kCapabilityMinor)),
                       "Compile the function again, with its tensors on this card.");
  }
  if (failure.error == kInvalidPtx) {
    throw_driver_error("the driver's assembler refused " + kernel + ":\n" + failure.log,
                       "Report this, with the program that was compiled.");
  }
  if (failure.step == Step::Function && failure.error == kNotFound) {
    throw_driver_error("the image of " + kernel + " has no function of that name", "");
  }
  throw_driver_error(kernel + " could not be loaded on " + name_of(device) + ": " + error +
                         (failure.log.empty() ? "" : "\n" + failure.log),
                     "");
}

CUresult DeviceKernel::launch(Loaded& kernel, const LaunchShape& shape, int64_t extent, CUstream stream, bool captures,
                              void** parameters) {
  if (captures) kernel.captured.store(true, std::memory_order_relaxed);
  const int64_t blocks = std::min<int64_t>((extent - 1) / shape.per_block + 1, std::numeric_limits<int32_t>::max());
  return Driver::opened().launch(kernel.function, static_cast<unsigned>(blocks), 1, 1, shape.block[0], shape.block[1],
                                 1, shape.shared, stream, parameters, nullptr);
}

// --- the Python type ---------------------------------------------------------------------------------------

namespace {

DeviceKernel& as_kernel(PyObject* self) { return *reinterpret_cast<DeviceKernelObject*>(self)->kernel; }

PyObject* kernel_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"image", "name", "buffers", "sizes", nullptr};
  PyObject* image = nullptr;
  const char* name = nullptr;
  Py_ssize_t buffers = 0, sizes = 0;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "Ssnn", const_cast<char**>(names), &image, &name, &buffers, &sizes)) {
    return nullptr;
  }
  HANDLE_TH_ERRORS
  if (buffers < 0 || sizes < 0) throw_value_error("a kernel has no negative number of parameters");
  auto kernel = std::make_unique<DeviceKernel>(
      std::string(PyBytes_AS_STRING(image), static_cast<size_t>(PyBytes_GET_SIZE(image))), name,
      static_cast<size_t>(buffers), static_cast<size_t>(sizes));
  PyObject* self = type->tp_alloc(type, 0);
  if (self == nullptr) return nullptr;
  reinterpret_cast<DeviceKernelObject*>(self)->kernel = kernel.release();
  return self;
  END_HANDLE_TH_ERRORS
}

void kernel_dealloc(PyObject* self) {
  delete &as_kernel(self);
  Py_TYPE(self)->tp_free(self);
}

PyObject* kernel_load(PyObject* self, PyObject* args) {
  int device = 0;
  if (!PyArg_ParseTuple(args, "i:load", &device)) return nullptr;
  HANDLE_TH_ERRORS
  as_kernel(self).load(device);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

template <int attribute>
PyObject* kernel_attribute(PyObject* self, PyObject* args) {
  int device = 0;
  if (!PyArg_ParseTuple(args, "i", &device)) return nullptr;
  HANDLE_TH_ERRORS
  const DeviceKernel::Loaded& loaded = as_kernel(self).load(device);
  const Driver& driver = Driver::get();
  int value = 0;
  const CUresult error = driver.function_attribute(&value, attribute, loaded.function);
  if (error != kSuccess) throw_driver_error("cuFuncGetAttribute failed: " + driver.describe(error), "");
  return PyLong_FromLong(value);
  END_HANDLE_TH_ERRORS
}

PyObject* kernel_name(PyObject* self, void*) { return PyUnicode_FromString(as_kernel(self).name().c_str()); }

PyObject* kernel_repr(PyObject* self) {
  return PyUnicode_FromFormat("DeviceKernel('%s')", as_kernel(self).name().c_str());
}

PyMethodDef kernel_methods[] = {
    {"load", kernel_load, METH_VARARGS,
     "load(device): load it on the card of that number, if it is not yet. Raises DriverError."},
    {"registers", kernel_attribute<kRegisters>, METH_VARARGS,
     "registers(device) -> int: the registers of a thread. Raises DriverError."},
    {"shared", kernel_attribute<kStaticShared>, METH_VARARGS,
     "shared(device) -> int: bytes of shared memory of a block, without what a launch asks for. Raises DriverError."},
    {"spills", kernel_attribute<kLocalBytes>, METH_VARARGS,
     "spills(device) -> int: bytes of a thread that lie in memory for want of registers. Raises DriverError."},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef kernel_getset[] = {{"name", kernel_name, nullptr, "The function's name in the image.", nullptr},
                               {nullptr, nullptr, nullptr, nullptr, nullptr}};

}  // namespace

PyTypeObject DeviceKernelType = {
    .ob_base = PyVarObject_HEAD_INIT(nullptr, 0).tp_name = "lampwork._C.DeviceKernel",
    .tp_basicsize = sizeof(DeviceKernelObject),
    .tp_dealloc = kernel_dealloc,
    .tp_repr = kernel_repr,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "DeviceKernel(image, name, buffers, sizes): the kernel `name` of an image, which is PTX or a cubin. Its "
              "parameters, of 8 bytes each, are pointers to `buffers` buffers, `sizes` ints, and the range of its "
              "parallel loop. It is loaded on a card by the CUDA driver when a Program for that card is made, and "
              "unloaded when this object goes, unless a CUDA graph may launch it.",
    .tp_methods = kernel_methods,
    .tp_getset = kernel_getset,
    .tp_new = kernel_new,
};

}  // namespace lampwork
