// One kernel of a card over the rows of a table of tensors: launches that are given their part of the table as their one
// parameter, so nothing is copied to the card, and nothing has to stay where it is while a launch waits.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/python_headers.h>

#include <optional>
#include <vector>

#include "device_kernel.h"

namespace lampwork {

// The 8-byte words of a launch's parameter: 4 KB, which every card and driver takes.
constexpr size_t kTableWords = 512;

// lampwork.codegen.target.DeviceRows: how a kernel of lampwork.codegen.gpu.rows is launched.
class RowsOnCard {
 public:
  RowsOnCard() = default;
  // code: a (kernel, threads of a block, elements that a block takes) tuple. Owns nothing. Throws python_error.
  explicit RowsOnCard(PyObject* code);

  bool is_given() const { return kernel_ != nullptr; }

  // Loads the kernel on a card, by its number; -1: on the first one, for memory of this process. Needs the GIL, which it
  // may release meanwhile. Throws python_error.
  void load(int device);

  // Whether the current stream of the card is captured into a graph.
  bool is_captured() const;

  // Queues the launches: buffers row by row, `columns` to a row, whose elements end at `ends`. Without the GIL. Throws
  // RunFailure.
  void launch(const std::vector<void*>& buffers, const std::vector<int64_t>& ends, size_t columns,
              const std::vector<int64_t>& sizes) const;

 private:
  CUstream stream() const;

  DeviceKernel* kernel_ = nullptr;
  DeviceKernel::Loaded* loaded_ = nullptr;
  LaunchShape shape_{{1, 1}, 1, 0};
  int64_t tile_ = 1;
  std::optional<c10::Device> device_;  // not set for memory of this process
};

}  // namespace lampwork
