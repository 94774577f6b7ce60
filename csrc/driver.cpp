#include "driver.h"

#include <c10/util/Exception.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <vector>

namespace lampwork {

namespace {

constexpr const char* kForked =
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start "
    "method";
constexpr int kRelaxedCapture = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED

std::atomic<bool> forked{false};
const Driver* driver = nullptr;  // once it is initialized; under the GIL

std::string path() {
  const char* chosen = std::getenv("LAMPWORK_CUDA_DRIVER");
  return chosen != nullptr && *chosen != '\0' ? chosen : "libcuda.so.1";
}

}  // namespace

thread_local CUstream bare_stream = nullptr;

void throw_driver_error(const std::string& cause, const std::string& fix) {
  const py::object type = py::module_::import("lampwork.errors").attr("DriverError");
  const py::object error = type(cause, py::arg("fix") = fix);
  PyErr_SetObject(type.ptr(), error.ptr());
  throw python_error();
}

bool Driver::is_forked() noexcept { return forked.load(std::memory_order_relaxed); }

const Driver& Driver::get() {
  if (is_forked()) {
    PyErr_SetString(PyExc_RuntimeError, kForked);
    throw python_error();
  }
  if (driver == nullptr) {
    std::unique_ptr<Driver> made(new Driver());
    made->open();
    driver = made.release();  // never deleted: kernels may outlive all else
  }
  return *driver;
}

const Driver& Driver::opened() {
  TORCH_CHECK(!is_forked(), kForked);
  return *driver;
}

void Driver::open() {
  void* library = dlopen(path().c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    throw_driver_error("the CUDA driver cannot be opened: " + std::string(reason != nullptr ? reason : path()),
                       "Install the driver of the card, or set LAMPWORK_CUDA_DRIVER to the path of its libcuda.so.1.");
  }
  const auto find = [&](const char* name) {
    void* found = dlsym(library, name);
    if (found == nullptr) {
      throw_driver_error("the CUDA driver " + path() + " has no function " + name, "Install a newer driver.");
    }
    return found;
  };
#define LAMPWORK_FIND(member, name, parameters) member = reinterpret_cast<CUresult(*) parameters>(find(name));
  LAMPWORK_DRIVER_FUNCTIONS(LAMPWORK_FIND)
#undef LAMPWORK_FIND
#define LAMPWORK_FIND(member, name, parameters) \
  member = reinterpret_cast<CUresult(*) parameters>(dlsym(library, name));
  LAMPWORK_NEWER_DRIVER_FUNCTIONS(LAMPWORK_FIND)
#undef LAMPWORK_FIND
  const CUresult error = init(0);
  if (error != kSuccess) {
    throw_driver_error("the CUDA driver " + path() + " does not work: " + describe(error),
                       "See whether `nvidia-smi` finds the card, and what CUDA_VISIBLE_DEVICES says.");
  }
  pthread_atfork(nullptr, nullptr, [] { forked.store(true); });
}

CUresult Driver::context(int number, CUcontext* context) const {
  static std::mutex mutex;
  static auto* known = new std::vector<CUcontext>();
  const std::lock_guard<std::mutex> lock(mutex);
  const auto place = static_cast<size_t>(number);
  if (place < known->size() && (*known)[place] != nullptr) {
    *context = (*known)[place];
    return kSuccess;
  }
  CUdevice found = 0;
  CUresult error = device(&found, number);
  if (error == kSuccess) error = retain_context(context, found);
  if (error != kSuccess) return error;
  if (place >= known->size()) known->resize(place + 1, nullptr);
  (*known)[place] = *context;
  return kSuccess;
}

std::string Driver::describe(CUresult error) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (error_name(error, &name) != kSuccess || name == nullptr) return "error " + std::to_string(error);
  if (error_text(error, &text) != kSuccess || text == nullptr) return name;
  return std::string(name) + " (" + text + ")";
}

DriverScope::DriverScope(const Driver& driver, CUcontext context) : driver_(driver), mode_(kRelaxedCapture) {
  driver_.exchange_capture_mode(&mode_);
  pushed_ = driver_.push_context(context) == kSuccess;
}

DriverScope::~DriverScope() {
  CUcontext popped = nullptr;
  if (pushed_) driver_.pop_context(&popped);
  driver_.exchange_capture_mode(&mode_);
}

namespace {

PyObject* driver_version(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  const Driver& driver = Driver::get();
  int version = 0;
  const CUresult error = driver.version(&version);
  if (error != kSuccess) throw_driver_error("the CUDA driver gives no version: " + driver.describe(error), "");
  return PyLong_FromLong(version);
  END_HANDLE_TH_ERRORS
}

PyObject* card_capability(PyObject*, PyObject* args) {
  constexpr int kMajor = 75, kMinor = 76;
  int number = 0;
  if (!PyArg_ParseTuple(args, "i:card_capability", &number)) return nullptr;
  HANDLE_TH_ERRORS
  const Driver& driver = Driver::get();
  CUdevice device = 0;
  int major = 0, minor = 0;
  CUresult error = driver.device(&device, number);
  if (error == kSuccess) error = driver.device_attribute(&major, kMajor, device);
  if (error == kSuccess) error = driver.device_attribute(&minor, kMinor, device);
  if (error != kSuccess) {
    throw_driver_error("cuda:" + std::to_string(number) + " cannot be used: " + driver.describe(error),
                       "See whether `nvidia-smi` finds the card.");
  }
  return PyLong_FromLong(10 * major + minor);
  END_HANDLE_TH_ERRORS
}

PyObject* use_bare_stream(PyObject*, PyObject* handle) {
  void* stream = PyLong_AsVoidPtr(handle);
  if (stream == nullptr && PyErr_Occurred()) return nullptr;
  bare_stream = stream;
  Py_RETURN_NONE;
}

}  // namespace

PyMethodDef driver_methods[] = {
    {"driver_version", driver_version, METH_NOARGS,
     "driver_version() -> int: the newest CUDA that the driver serves, 1000 * major + 10 * minor. Raises DriverError."},
    {"card_capability", card_capability, METH_VARARGS,
     "card_capability(device) -> int: its compute capability, 10 * major + minor. Raises DriverError."},
    {"use_bare_stream", use_bare_stream, METH_O,
     "use_bare_stream(handle): this thread launches kernels of programs without a device on this stream."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace lampwork
