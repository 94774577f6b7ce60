#include "holds.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/GradMode.h>

#include <atomic>
#include <cstring>
#include <unordered_map>
#include <vector>

#include "errors.h"
#include "fork_mutex.h"
#include "storages.h"

namespace lampwork {

namespace {

constexpr const char* kHoldsName = "lampwork._C.holds";

// How a tensor is held.
enum class Way : char { kNot = 0, kContent = 1, kCopyNow = 2, kWhetherWritten = 3 };

struct Held {
  Held(const at::Tensor& tensor, Way how)
      : storage(tensor.storage()),
        sizes(tensor.sizes().vec()),
        strides(tensor.strides().vec()),
        offset(tensor.storage_offset()),
        dtype(tensor.dtype()),
        way(how) {
    int64_t last = 0;
    for (size_t i = 0; i < sizes.size(); ++i) last += (sizes[i] - 1) * strides[i];
    const auto item = static_cast<size_t>(tensor.element_size());
    begin = static_cast<size_t>(offset) * item;
    bytes = static_cast<size_t>(last + 1) * item;
  }

  const char* memory() const { return static_cast<const char*>(storage.storage().unsafeGetStorageImpl()->data()) + begin; }

  // Without the GIL. Never throws: what cannot be copied is lost.
  void copy_from(const char* memory) noexcept {
    try {
      c10::Allocator* allocator = c10::GetCPUAllocator();
      c10::DataPtr data = allocator->allocate(bytes);
      std::memcpy(data.get(), memory, bytes);
      copy = c10::make_intrusive<c10::StorageImpl>(
          c10::StorageImpl::use_byte_size_t(), bytes, std::move(data), allocator, /*resizable=*/false);
    } catch (...) {
      lost = true;
    }
  }

  // What the tensor held; needs no copy if only its storage was replaced.
  at::Tensor content() const {
    at::Tensor result = at::empty({0}, at::TensorOptions().dtype(dtype));
    const at::Storage source = copy ? at::Storage(copy) : storage.storage();
    result.unsafeGetTensorImpl()->set_storage_keep_dtype(source);
    result.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, copy ? 0 : offset);
    return result;
  }

  HeldStorage storage;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  int64_t offset;
  caffe2::TypeMeta dtype;
  Way way;
  size_t begin = 0;
  size_t bytes = 0;
  bool written = false;
  bool lost = false;
  c10::intrusive_ptr<c10::StorageImpl> copy;
};

// Never destroyed: a hook may run at any time.
struct Table {
  ForkMutex mutex;
  std::unordered_map<const c10::StorageImpl*, std::vector<Held*>> items;
  std::atomic<size_t> count{0};
};

Table& table() {
  static auto* all = new Table();
  return *all;
}

struct Holds {
  Holds() = default;
  Holds(const Holds&) = delete;
  ~Holds() {
    const std::lock_guard<ForkMutex> lock(table().mutex);
    for (const auto& [number, item] : items) remove(item.get());
  }

  void add(size_t number, const at::Tensor& tensor, Way way) {
    auto item = std::make_unique<Held>(tensor, way);
    c10::StorageImpl* storage = item->storage.storage().unsafeGetStorageImpl();
    if (way == Way::kContent && !writes_are_seen(*storage)) item->way = Way::kCopyNow;
    if (item->way == Way::kCopyNow) {
      item->copy_from(item->memory());
      items.emplace_back(number, std::move(item));
      return;
    }
    {
      const std::lock_guard<ForkMutex> lock(table().mutex);
      table().items[storage].push_back(item.get());
      ++table().count;
    }
    items.emplace_back(number, std::move(item));
    see_writes(storage);
  }

  std::vector<std::pair<size_t, std::unique_ptr<Held>>> items;

 private:
  static void remove(Held* item) {
    const auto found = table().items.find(item->storage.storage().unsafeGetStorageImpl());
    if (found == table().items.end()) return;
    auto& held = found->second;
    const auto place = std::find(held.begin(), held.end(), item);
    if (place == held.end()) return;
    held.erase(place);
    --table().count;
    if (held.empty()) table().items.erase(found);
  }
};

PyObject* hold(PyObject*, PyObject* args) {
  PyObject *tensors, *how;
  if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &tensors, &PyBytes_Type, &how)) return nullptr;
  HANDLE_TH_ERRORS
  const Py_ssize_t count = PyList_GET_SIZE(tensors);
  if (PyBytes_GET_SIZE(how) != count) throw_value_error("hold expects one byte for each tensor");
  auto holds = std::make_unique<Holds>();
  for (Py_ssize_t i = 0; i < count; ++i) {
    const auto way = static_cast<Way>(PyBytes_AS_STRING(how)[i]);
    PyObject* item = PyList_GET_ITEM(tensors, i);
    if (way == Way::kNot || !THPVariable_Check(item)) continue;
    const at::Tensor& tensor = THPVariable_Unpack(item);
    if (!tensor.has_storage() || !tensor.is_cpu() || tensor.numel() == 0) continue;
    holds->add(static_cast<size_t>(i), tensor, way);
  }
  PyObject* capsule = PyCapsule_New(holds.get(), kHoldsName, [](PyObject* self) {
    delete static_cast<Holds*>(PyCapsule_GetPointer(self, kHoldsName));
  });
  if (capsule != nullptr) holds.release();
  return capsule;
  END_HANDLE_TH_ERRORS
}

// Whether the memory of a held tensor is not what it was. `now`: the tensor of today.
bool is_changed(const Held& item, const at::Tensor& now) {
  if (item.written) return true;
  const bool same = now.has_storage() && now.storage().unsafeGetStorageImpl() == item.storage.storage().unsafeGetStorageImpl() &&
                    now.storage_offset() == item.offset;
  if (!same) return true;
  if (item.way != Way::kCopyNow || item.lost) return item.lost;
  return std::memcmp(item.copy->data(), item.memory(), item.bytes) != 0;
}

PyObject* changed(PyObject*, PyObject* args) {
  PyObject *capsule, *tensors;
  if (!PyArg_ParseTuple(args, "OO!", &capsule, &PyList_Type, &tensors)) return nullptr;
  HANDLE_TH_ERRORS
  const auto* holds = static_cast<Holds*>(PyCapsule_GetPointer(capsule, kHoldsName));
  if (holds == nullptr) return nullptr;
  py::dict found;
  for (const auto& [number, item] : holds->items) {
    if (static_cast<Py_ssize_t>(number) >= PyList_GET_SIZE(tensors)) throw_value_error("changed expects the tensors held");
    const at::Tensor& now = THPVariable_Unpack(PyList_GET_ITEM(tensors, static_cast<Py_ssize_t>(number)));
    if (!is_changed(*item, now)) continue;
    const bool known = item->way != Way::kWhetherWritten && !item->lost;
    found[py::int_(number)] =
        known ? py::reinterpret_steal<py::object>(THPVariable_Wrap(item->content())) : py::object(py::none());
  }
  return found.release().ptr();
  END_HANDLE_TH_ERRORS
}

}  // namespace

void copy_held(const c10::StorageImpl* storage) noexcept {
  if (table().count.load(std::memory_order_acquire) == 0) return;
  const std::lock_guard<ForkMutex> lock(table().mutex);
  const auto found = table().items.find(storage);
  if (found == table().items.end()) return;
  std::vector<Held*> copied;
  for (Held* item : found->second) {
    item->written = true;
    if (item->way != Way::kContent) continue;
    const auto same = [&](const Held* other) { return other->begin == item->begin && other->bytes == item->bytes; };
    const auto other = std::find_if(copied.begin(), copied.end(), same);
    if (other != copied.end()) {
      item->copy = (*other)->copy;
      item->lost = (*other)->lost;
    } else {
      item->copy_from(item->memory());
      copied.push_back(item);
    }
  }
  table().count -= found->second.size();
  table().items.erase(found);
}

PyMethodDef hold_methods[] = {
    {"hold", hold, METH_VARARGS,
     "hold(tensors, how): what the memory of tensors holds now, for `changed`. The bytes of `how`: 0 not at all, 1 "
     "copied when it is written, 2 copied now, 3 only whether it is written."},
    {"changed", changed, METH_VARARGS,
     "changed(holds, tensors): {number: what it held, or None if that is not known} of those tensors whose memory is "
     "no longer what it was. `tensors`: those that `hold` was given."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace lampwork
