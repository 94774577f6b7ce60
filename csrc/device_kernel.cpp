#include "device_kernel.h"

#include <c10/core/Allocator.h>
#include <torch/csrc/Exceptions.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

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
constexpr int kClusterLaunch = 120;
constexpr int kLargeClusterAllowed = 14;
constexpr unsigned kPortableCluster = 8;  // blocks of a cluster that every card with clusters allows
constexpr int kClusterDimension = 4;
constexpr int kPtx = 1;

std::string name_of(int device) { return "cuda:" + std::to_string(device); }

// What the driver's assembler writes where it fails, and the options that have it do so.
struct ErrorLog {
  static constexpr unsigned kOptions = 2;
  ErrorLog() = default;
  ErrorLog(const ErrorLog&) = delete;

  std::string text = std::string(8192, '\0');
  int options[kOptions] = {kErrorLog, kErrorLogBytes};
  void* values[kOptions] = {text.data(), reinterpret_cast<void*>(text.size() - 1)};
};

// A launch in clusters of blocks.
struct ClusterLaunch {
  ClusterLaunch(const LaunchShape& shape, unsigned blocks, CUstream stream)
      : config{{blocks, 1, 1}, {shape.block[0], shape.block[1], 1}, shape.shared, stream, &cluster, 1} {
    cluster.id = kClusterDimension;
    cluster.dimensions[0] = shape.cluster;
    cluster.dimensions[1] = cluster.dimensions[2] = 1;
  }
  ClusterLaunch(const ClusterLaunch&) = delete;

  LaunchAttribute cluster{};
  LaunchConfig config;
};

}  // namespace

// What went wrong, to be told once the GIL is held again.
struct DeviceKernel::Failure {
  enum class Step { Context, Module, Function, Attribute, Threads, Shared, Cluster, Room } step = Step::Context;
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
    loaded = load_on(driver, device, image_.c_str(), failure);
    if (loaded != nullptr) make_fit(driver, *loaded, shape, failure);
  }
  if (failure.error != kSuccess) explain(driver, device, shape, failure);
  return *loaded;
}

bool DeviceKernel::load_binary(int device, const std::string& binary) {
  const Driver& driver = Driver::get();
  Failure failure;
  const ReleaseGil no_gil(true);
  const std::lock_guard<std::mutex> lock(mutex_);
  return load_on(driver, device, binary.c_str(), failure) != nullptr;
}

std::string DeviceKernel::assemble(int device, std::string& reason) const {
  const Driver& driver = Driver::get();
  if (driver.create_link == nullptr || driver.add_to_link == nullptr || driver.complete_link == nullptr ||
      driver.destroy_link == nullptr) {
    reason = "the CUDA driver has no linker";
    return {};
  }
  const ReleaseGil no_gil(true);  // the driver's assembler takes milliseconds
  CUcontext context = nullptr;
  CUresult error = driver.context(device, &context);
  if (error != kSuccess) {
    reason = driver.describe(error);
    return {};
  }
  const DriverScope scope(driver, context);
  ErrorLog log;
  CUlinkState link = nullptr;
  void* binary = nullptr;  // of the link
  size_t bytes = 0;
  error = driver.create_link(ErrorLog::kOptions, log.options, log.values, &link);
  if (error == kSuccess) {
    error = driver.add_to_link(link, kPtx, const_cast<char*>(image_.c_str()), image_.size() + 1, name_.c_str(), 0,
                               nullptr, nullptr);
  }
  if (error == kSuccess) error = driver.complete_link(link, &binary, &bytes);
  std::string made;
  if (error == kSuccess && bytes > 0) {
    made.assign(static_cast<const char*>(binary), bytes);
  } else {
    reason = driver.describe(error) + "\n" + log.text.c_str();
  }
  if (link != nullptr) driver.destroy_link(link);
  return made;
}

DeviceKernel::Loaded* DeviceKernel::load_on(const Driver& driver, int device, const char* image, Failure& failure) {
  using Step = Failure::Step;
  const auto known = loaded_.find(device);
  if (known != loaded_.end()) return &known->second;
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  int threads = 0, fixed = 0;
  if (failure.failed(Step::Context, driver.context(device, &context))) return nullptr;
  const DriverScope scope(driver, context);
  ErrorLog log;
  if (failure.failed(Step::Module, driver.load_module(&module, image, ErrorLog::kOptions, log.options, log.values))) {
    failure.log = log.text.c_str();
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
  const DriverScope scope(driver, loaded.context);
  const auto shared = static_cast<int>(shape.shared);
  if (shared > loaded.shared) {
    if (failure.failed(Step::Shared, driver.set_function_attribute(loaded.function, kMaxDynamicShared, shared))) return;
    loaded.shared = shared;
  }
  if (shape.cluster > 1) make_fit_cluster(driver, loaded, shape, failure);
}

void DeviceKernel::make_fit_cluster(const Driver& driver, Loaded& loaded, const LaunchShape& shape, Failure& failure) {
  using Step = Failure::Step;
  constexpr CUresult kNotSupported = 801;
  CUdevice device = 0;
  int has_clusters = 0, room = 0;
  if (driver.launch_config == nullptr || driver.active_clusters == nullptr) {
    failure.failed(Step::Cluster, kNotSupported);
    return;
  }
  if (failure.failed(Step::Attribute, driver.context_device(&device)) ||
      failure.failed(Step::Attribute, driver.device_attribute(&has_clusters, kClusterLaunch, device))) {
    return;
  }
  if (has_clusters == 0) {
    failure.failed(Step::Cluster, kNotSupported);
    return;
  }
  if (shape.cluster > kPortableCluster &&
      failure.failed(Step::Room, driver.set_function_attribute(loaded.function, kLargeClusterAllowed, 1))) {
    return;
  }
  const ClusterLaunch launch(shape, shape.cluster, nullptr);
  if (failure.failed(Step::Room, driver.active_clusters(&room, loaded.function, &launch.config))) return;
  if (room == 0) failure.failed(Step::Room, kNotSupported);
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
  const auto capability = [&] {
    return std::to_string(attribute(kCapabilityMajor)) + "." + std::to_string(attribute(kCapabilityMinor));
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
  if (failure.step == Step::Cluster && (driver.launch_config == nullptr || driver.active_clusters == nullptr)) {
    throw_driver_error("the CUDA driver is too old to launch " + kernel + ", whose blocks work in clusters",
                       "Install a driver of CUDA 11.8 or later.");
  }
  if (failure.step == Step::Cluster || failure.step == Step::Room) {
    const std::string blocks = std::to_string(shape.cluster) + " blocks";
    throw_driver_error(failure.step == Step::Cluster
                           ? name_of(device) + ", of compute capability " + capability() + ", has no clusters, of " +
                                 blocks + " of " + kernel
                           : name_of(device) + " has no room for a cluster of " + blocks + " of " + kernel + ": " +
                                 error,
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
                           capability(),
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
  const int64_t most = std::numeric_limits<int32_t>::max() / shape.cluster;
  const int64_t clusters = std::min<int64_t>((extent - 1) / shape.per_block + 1, most);
  const auto blocks = static_cast<unsigned>(clusters * shape.cluster);
  const Driver& driver = Driver::opened();
  if (shape.cluster > 1) {
    const ClusterLaunch launch(shape, blocks, stream);
    return driver.launch_config(&launch.config, kernel.function, parameters, nullptr);
  }
  return driver.launch(kernel.function, blocks, 1, 1, shape.block[0], shape.block[1], 1, shape.shared, stream,
                       parameters, nullptr);
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

PyObject* kernel_assemble(PyObject* self, PyObject* args) {
  int device = 0;
  if (!PyArg_ParseTuple(args, "i:assemble", &device)) return nullptr;
  HANDLE_TH_ERRORS
  std::string reason;
  const std::string binary = as_kernel(self).assemble(device, reason);
  if (binary.empty()) return PyUnicode_DecodeUTF8(reason.data(), static_cast<Py_ssize_t>(reason.size()), "replace");
  return PyBytes_FromStringAndSize(binary.data(), static_cast<Py_ssize_t>(binary.size()));
  END_HANDLE_TH_ERRORS
}

PyObject* kernel_load_binary(PyObject* self, PyObject* args) {
  int device = 0;
  PyObject* binary = nullptr;
  if (!PyArg_ParseTuple(args, "iS:load_binary", &device, &binary)) return nullptr;
  HANDLE_TH_ERRORS
  const std::string image(PyBytes_AS_STRING(binary), static_cast<size_t>(PyBytes_GET_SIZE(binary)));
  return PyBool_FromLong(as_kernel(self).load_binary(device, image));
  END_HANDLE_TH_ERRORS
}

PyObject* kernel_time_launches(PyObject* self, PyObject* args) {
  int device = 0;
  unsigned long long stream = 0;
  Py_ssize_t count = 0, bytes = 0;
  if (!PyArg_ParseTuple(args, "iKn|n:time_launches", &device, &stream, &count, &bytes)) return nullptr;
  HANDLE_TH_ERRORS
  DeviceKernel& kernel = as_kernel(self);
  const LaunchShape shape{{1, 1}, 1, 0};
  DeviceKernel::Loaded& loaded = kernel.load(device, shape);
  std::vector<int64_t> words(kernel.buffers() + kernel.sizes() + 1, 0);
  std::vector<void*> parameters;
  for (int64_t& word : words) parameters.push_back(&word);
  c10::Allocator* allocator = bytes > 0 ? c10::GetAllocator(c10::kCUDA) : nullptr;
  const Driver& driver = Driver::get();
  CUcontext context = nullptr;
  if (driver.get_context(&context) == kSuccess && context == nullptr) driver.set_context(loaded.context);
  const auto start = std::chrono::steady_clock::now();
  CUresult error = kSuccess;
  for (Py_ssize_t i = 0; i < count && error == kSuccess; ++i) {
    c10::DataPtr memory;
    if (allocator != nullptr) memory = allocator->allocate(static_cast<size_t>(bytes));
    error = DeviceKernel::launch(loaded, shape, 1, reinterpret_cast<CUstream>(stream), false, parameters.data());
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  if (error != kSuccess) {
    throw_driver_error("kernel '" + kernel.name() + "' could not be launched: " + driver.describe(error), "");
  }
  return PyFloat_FromDouble(took.count());
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
    {"assemble", kernel_assemble, METH_VARARGS,
     "assemble(device) -> bytes | str: its PTX as a cubin for that card, or why the driver does not make one."},
    {"load_binary", kernel_load_binary, METH_VARARGS,
     "load_binary(device, binary) -> bool: load it from such a cubin, if it is not loaded yet; whether it is now."},
    {"time_launches", kernel_time_launches, METH_VARARGS,
     "time_launches(device, stream, count, bytes=0) -> float: seconds of the host for so many launches of one thread, "
     "with zeros for parameters; with `bytes`, also for taking as many from torch's allocator each time, and giving "
     "them back. Raises DriverError."},
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
              "parameters, of 8 bytes each, are pointers to `buffers` buffers, `sizes` ints, the range of its "
              "parallel loop, and the address of its counters, if a launch gives it some. It is loaded on a card by the CUDA driver when a Program for that card is made, and "
              "unloaded when this object goes, unless a CUDA graph may launch it.",
    .tp_methods = kernel_methods,
    .tp_getset = kernel_getset,
    .tp_new = kernel_new,
};

}  // namespace lampwork
