// Kernels that run on a card: images of modules, which the CUDA driver loads.
#pragma once

#include <torch/csrc/python_headers.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "driver.h"

namespace lampwork {

// How often a kernel runs at once, and with how much memory: lampwork.runtime.program.Launch.
struct LaunchShape {
  std::array<unsigned, 2> block;
  int64_t per_block;      // iterations of the parallel loop that a cluster of blocks takes in one stride
  unsigned shared;        // bytes
  unsigned cluster = 1;   // blocks of a cluster
  unsigned counters = 0;  // words that its blocks count in, whose address is a parameter after the extent
};

class DeviceKernel {
 public:
  // A kernel on one device.
  struct Loaded {
    CUcontext context = nullptr;
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    int threads = 0;                    // of a block, at most
    int shared = 0;                     // dynamic bytes that a launch may ask for
    std::atomic<bool> captured{false};  // a graph may hold launches: the module stays
  };

  // `image`: PTX or a cubin with the kernel `name`, of so many buffers, and as many sizes before the extent.
  DeviceKernel(std::string image, std::string name, size_t buffers, size_t sizes);
  // Unloads it, as far as the driver still lives.
  ~DeviceKernel();
  DeviceKernel(const DeviceKernel&) = delete;

  const std::string& name() const { return name_; }
  size_t buffers() const { return buffers_; }
  size_t sizes() const { return sizes_; }

  // The kernel on a device, which is loaded once, fit to be launched in this shape. It lives as long as this object.
  // Needs the GIL. Throws python_error.
  Loaded& load(int device, const LaunchShape& shape);
  Loaded& load(int device) { return load(device, {{1, 1}, 1, 0}); }

  // Makes a cubin of the image, which is PTX, for a device; "" where the driver does not, and why it does not. Needs the
  // GIL. Throws python_error.
  std::string assemble(int device, std::string& reason) const;
  // Loads a cubin that was made of the image, unless the kernel is loaded already. Whether it is loaded now: the driver
  // refuses what is no cubin for the device, or lacks the function. Needs the GIL. Throws python_error.
  bool load_binary(int device, const std::string& binary);

  // Queues a launch over [0, extent), extent > 0: `parameters` points to each of the kernel's parameters. Thread-safe;
  // needs no GIL, and the device's context. `captures`: whether the stream is captured into a graph.
  static CUresult launch(Loaded& kernel, const LaunchShape& shape, int64_t extent, CUstream stream, bool captures,
                         void** parameters);

 private:
  struct Failure;
  Loaded* load_on(const Driver& driver, int device, const char* image, Failure& failure);
  void make_fit(const Driver& driver, Loaded& loaded, const LaunchShape& shape, Failure& failure);
  static void make_fit_cluster(const Driver& driver, Loaded& loaded, const LaunchShape& shape, Failure& failure);
  void explain(const Driver& driver, int device, const LaunchShape& shape, const Failure& failure) const;

  const std::string image_;
  const std::string name_;
  const size_t buffers_;
  const size_t sizes_;
  std::mutex mutex_;
  std::map<int, Loaded> loaded_;  // by device
};

struct DeviceKernelObject {
  PyObject_HEAD
  DeviceKernel* kernel;
};

extern PyTypeObject DeviceKernelType;

}  // namespace lampwork
