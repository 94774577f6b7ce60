#include "device_rows.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>

#include "errors.h"
#include "program.h"

namespace lampwork {

RowsOnCard::RowsOnCard(PyObject* code) {
  PyObject* kernel = nullptr;
  long long threads = 0, tile = 0;
  if (!PyArg_ParseTuple(code, "O!LL:rows", &DeviceKernelType, &kernel, &threads, &tile)) throw python_error();
  if (threads < 1 || tile < 1) throw_value_error("a block has threads, and takes elements");
  kernel_ = reinterpret_cast<DeviceKernelObject*>(kernel)->kernel;
  shape_.block[0] = static_cast<unsigned>(threads);
  tile_ = tile;
}

void RowsOnCard::load(int device) {
  device_ = std::nullopt;
  if (device >= 0) device_ = c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device));
  loaded_ = &kernel_->load(std::max(device, 0), shape_);
}

CUstream RowsOnCard::stream() const {
  if (!device_) return nullptr;
  const c10::impl::VirtualGuardImpl device(device_->type());
  return device.getStreamNativeHandle(device.getStream(*device_));
}

bool RowsOnCard::is_captured() const {
  const CUstream current = stream();
  int status = 0;
  return current != nullptr && Driver::opened().is_capturing(current, &status) == kSuccess && status != 0;
}

void RowsOnCard::launch(const std::vector<void*>& buffers, const std::vector<int64_t>& ends, size_t columns,
                        const std::vector<int64_t>& sizes) const {
  const Driver& driver = Driver::opened();
  const c10::OptionalDeviceGuard on_device(device_);
  const CUstream queue = stream();
  // A thread in which nothing has been done on the device has none of its contexts.
  CUcontext context = nullptr;
  if (driver.get_context(&context) == kSuccess && context == nullptr) driver.set_context(loaded_->context);
  const bool captures = is_captured();

  // The numbers; how many rows; of each row where its tiles end, its length, and its buffers.
  std::array<int64_t, kTableWords> table{};
  const size_t head = sizes.size() + 1, each = columns + 2;
  if (head + each > kTableWords) throw RunFailure("a row of kernel '" + kernel_->name() + "' has too many columns");
  const size_t most = (kTableWords - head) / each;
  std::copy(sizes.begin(), sizes.end(), table.begin());
  for (size_t row = 0; row < ends.size();) {
    size_t count = 0;
    int64_t tiles = 0;
    for (; row < ends.size() && count < most; ++row) {
      const int64_t length = ends[row] - (row == 0 ? 0 : ends[row - 1]);
      if (length == 0) continue;
      tiles += (length - 1) / tile_ + 1;
      int64_t* record = table.data() + head + count * each;
      record[0] = tiles;
      record[1] = length;
      for (size_t i = 0; i < columns; ++i) record[2 + i] = reinterpret_cast<int64_t>(buffers[row * columns + i]);
      ++count;
    }
    if (count == 0) return;
    table[head - 1] = static_cast<int64_t>(count);
    void* parameters[] = {table.data()};
    const CUresult error = DeviceKernel::launch(*loaded_, shape_, tiles, queue, captures, parameters);
    if (error != kSuccess) throw LaunchFailure(kernel_->name(), error);
  }
}

}  // namespace lampwork
