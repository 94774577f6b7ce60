// The CUDA driver, opened when it is first needed: there is no link to CUDA, so one build serves machines with and
// without cards.
//
// What is declared here is what cuda.h says of the functions that are used; it has been stable since CUDA 4.0.
#pragma once

#include <torch/csrc/python_headers.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace lampwork {

struct CUctx_st;
struct CUmod_st;
struct CUfunc_st;
struct CUlinkState_st;
using CUcontext = CUctx_st*;
using CUmodule = CUmod_st*;
using CUfunction = CUfunc_st*;
using CUlinkState = CUlinkState_st*;
using CUstream = void*;
using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUresult = int;

constexpr CUresult kSuccess = 0;

// CUlaunchAttribute, of which only a cluster's dimensions are used.
struct alignas(8) LaunchAttribute {
  int id;
  alignas(8) unsigned dimensions[3];
  char room[64 - sizeof(unsigned[3])];
};
static_assert(sizeof(LaunchAttribute) == 72);

// CUlaunchConfig.
struct LaunchConfig {
  unsigned grid[3];
  unsigned block[3];
  unsigned shared;
  CUstream stream;
  LaunchAttribute* attributes;
  unsigned count;
};

// The functions of the driver, by name as the library exports them.
#define LAMPWORK_DRIVER_FUNCTIONS(F)                                                                            \
  F(init, "cuInit", (unsigned flags))                                                                           \
  F(version, "cuDriverGetVersion", (int* version))                                                              \
  F(error_name, "cuGetErrorName", (CUresult error, const char** name))                                          \
  F(error_text, "cuGetErrorString", (CUresult error, const char** text))                                        \
  F(device, "cuDeviceGet", (CUdevice * device, int number))                                                     \
  F(device_attribute, "cuDeviceGetAttribute", (int* value, int attribute, CUdevice device))                     \
  F(retain_context, "cuDevicePrimaryCtxRetain", (CUcontext * context, CUdevice device))                         \
  F(get_context, "cuCtxGetCurrent", (CUcontext * context))                                                      \
  F(set_context, "cuCtxSetCurrent", (CUcontext context))                                                        \
  F(context_device, "cuCtxGetDevice", (CUdevice * device))                                                      \
  F(push_context, "cuCtxPushCurrent_v2", (CUcontext context))                                                   \
  F(pop_context, "cuCtxPopCurrent_v2", (CUcontext * context))                                                   \
  F(exchange_capture_mode, "cuThreadExchangeStreamCaptureMode", (int* mode))                                    \
  F(is_capturing, "cuStreamIsCapturing", (CUstream stream, int* status))                                        \
  F(load_module, "cuModuleLoadDataEx",                                                                          \
    (CUmodule * module, const void* image, unsigned count, int* options, void** values))                        \
  F(unload_module, "cuModuleUnload", (CUmodule module))                                                         \
  F(get_function, "cuModuleGetFunction", (CUfunction * function, CUmodule module, const char* name))            \
  F(function_attribute, "cuFuncGetAttribute", (int* value, int attribute, CUfunction function))                 \
  F(set_function_attribute, "cuFuncSetAttribute", (CUfunction function, int attribute, int value))              \
  F(launch, "cuLaunchKernel",                                                                                   \
    (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, \
     unsigned block_z, unsigned shared, CUstream stream, void** parameters, void** extra))                      \
  F(set_words, "cuMemsetD32Async", (CUdeviceptr memory, unsigned value, size_t count, CUstream stream))

// Those that older drivers lack: null then.
#define LAMPWORK_NEWER_DRIVER_FUNCTIONS(F)                                                                      \
  F(launch_config, "cuLaunchKernelEx",                                                                          \
    (const LaunchConfig* config, CUfunction function, void** parameters, void** extra))                         \
  F(active_clusters, "cuOccupancyMaxActiveClusters", (int* count, CUfunction function, const LaunchConfig* config)) \
  F(stream_id, "cuStreamGetId", (CUstream stream, unsigned long long* id))                                      \
  F(create_link, "cuLinkCreate_v2", (unsigned count, int* options, void** values, CUlinkState* link))           \
  F(add_to_link, "cuLinkAddData_v2",                                                                            \
    (CUlinkState link, int type, void* data, size_t bytes, const char* name, unsigned count, int* options,      \
     void** values))                                                                                            \
  F(complete_link, "cuLinkComplete", (CUlinkState link, void** image, size_t* bytes))                           \
  F(destroy_link, "cuLinkDestroy", (CUlinkState link))

class Driver {
 public:
  // The driver, initialized. Needs the GIL. Throws python_error: DriverError where there is none, or none that works;
  // RuntimeError in a process that was forked from one which used it.
  static const Driver& get();
  // The same, after a `get` that returned. Throws c10::Error in a forked process. Without the GIL.
  static const Driver& opened();
  // Whether this process was forked from one that used the driver: contexts do not survive that.
  static bool is_forked() noexcept;

  // The context that torch uses a device by, which is kept for good. Needs no GIL.
  CUresult context(int device, CUcontext* context) const;

  // Name and text of an error.
  std::string describe(CUresult error) const;

#define LAMPWORK_DECLARE(member, name, parameters) CUresult(*member) parameters = nullptr;
  LAMPWORK_DRIVER_FUNCTIONS(LAMPWORK_DECLARE)
  LAMPWORK_NEWER_DRIVER_FUNCTIONS(LAMPWORK_DECLARE)
#undef LAMPWORK_DECLARE

 private:
  Driver() = default;
  void open();
};

// A context is current, and what is not allowed while a stream of any thread is captured is allowed, as long as this
// lives: modules may be loaded and unloaded then.
class DriverScope {
 public:
  DriverScope(const Driver& driver, CUcontext context);
  ~DriverScope();
  DriverScope(const DriverScope&) = delete;

 private:
  const Driver& driver_;
  int mode_;
  bool pushed_;
};

// Raises lampwork.errors.DriverError. Needs the GIL.
[[noreturn]] void throw_driver_error(const std::string& cause, const std::string& fix);

// The stream that this thread launches kernels of programs without a device on: what tests run on a driver that stands
// in for a card's.
extern thread_local CUstream bare_stream;

extern PyMethodDef driver_methods[];

}  // namespace lampwork
