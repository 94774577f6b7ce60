#include "holds.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <unordered_map>
#include <vector>

#include "blocks.h"
#include "errors.h"
#include "fork_mutex.h"
#include "program.h"
#include "storages.h"

namespace lampwork {

namespace {

constexpr const char* kHoldsName = "lampwork._C.holds";

// How a tensor is held.
enum class Way : char { kNot = 0, kContent = 1, kCopyNow = 2, kWhetherWritten = 3 };

using Memory = c10::intrusive_ptr<c10::StorageImpl>;

// What became of what a tensor held.
struct Fate {
  bool written = false;
  bool lost = false;
  Memory copy;   // of the tensor's bytes
  Memory whole;  // all that the storage had
};

struct Held : Fate {
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
    storage_bytes = storage.storage().nbytes();
    data = memory();
    lost = data == nullptr;
    is_here = tensor.is_cpu();
    if (is_here) return;
    counter = tensor.unsafeGetTensorImpl()->version_counter();
    version = counter.enabled() ? counter.current_version() : 0;
    if (way == Way::kCopyNow && !lost) copy_there(tensor);
  }

  // Where the tensor's bytes lie today; nullptr if the storage is too small for them.
  const char* memory() const {
    const c10::StorageImpl* impl = storage.storage().unsafeGetStorageImpl();
    const auto* start = static_cast<const char*>(impl->data());
    return start == nullptr || begin + bytes > impl->nbytes() ? nullptr : start + begin;
  }

  // Without the GIL. Never throws: what cannot be copied is lost.
  void copy_now() noexcept {
    if (lost) return;
    try {
      c10::Allocator* allocator = c10::GetCPUAllocator();
      c10::DataPtr copied = allocator->allocate(bytes);
      std::memcpy(copied.get(), data, bytes);
      copy = c10::make_intrusive<c10::StorageImpl>(
          c10::StorageImpl::use_byte_size_t(), bytes, std::move(copied), allocator, /*resizable=*/false);
    } catch (...) {
      lost = true;
    }
  }

  // On its device, behind what is queued there. What cannot be copied is lost, if it is written.
  void copy_there(const at::Tensor& tensor) noexcept {
    try {
      const c10::impl::ExcludeDispatchKeyGuard below(c10::autograd_dispatch_keyset);
      at::Tensor made = at::empty_strided(sizes, strides, tensor.options());
      copied_there = made.copy_(tensor);
    } catch (...) {
    }
  }

  // Whether a tensor of another device was written: writes to memory are not seen there, those that torch counts are.
  bool is_written_there() const { return counter.enabled() && counter.current_version() != version; }

  // What the tensor held; needs no copy if only its storage was replaced.
  at::Tensor content(const Fate& fate) const {
    if (copied_there.defined()) return copied_there;
    const c10::Device device = storage.storage().device();
    at::Tensor result = at::empty({0}, at::TensorOptions().dtype(dtype).device(device));
    const bool whole = fate.whole != nullptr;
    const at::Storage source = whole ? at::Storage(fate.whole) : fate.copy ? at::Storage(fate.copy) : storage.storage();
    result.unsafeGetTensorImpl()->set_storage_keep_dtype(source);
    result.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, whole || !fate.copy ? offset : 0);
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
  size_t storage_bytes = 0;
  const char* data = nullptr;  // the tensor's bytes, as long as it is in the table
  bool is_here = true;         // on the CPU; of others:
  c10::VariableVersion counter{c10::VariableVersion::DISABLED};
  uint32_t version = 0;
  at::Tensor copied_there;
};

// What is held in memory that may be written or freed. Never destroyed: a hook may run at any time. `mutex` also
// protects the fates of what is, or was, in the table.
struct Table {
  ForkMutex mutex;
  struct Items {
    std::vector<Held*> held;
    const void* context = nullptr;  // of the deleter that keeps the memory
  };
  using Map = std::unordered_map<const c10::StorageImpl*, Items>;
  Map items;
  std::unordered_map<const void*, const c10::StorageImpl*> owners;  // by `context`
  std::atomic<size_t> count{0};

  void add(const c10::StorageImpl* storage, Held* item, const void* context) {
    Items& found = items[storage];
    found.held.push_back(item);
    found.context = context;
    if (context != nullptr) owners[context] = storage;
    ++count;
  }

  void drop(Map::iterator found) {
    count -= found->second.held.size();
    owners.erase(found->second.context);
    items.erase(found);
  }

  void remove(const c10::StorageImpl* storage, const Held* item) {
    const auto found = items.find(storage);
    if (found == items.end()) return;
    std::vector<Held*>& held = found->second.held;
    const auto place = std::find(held.begin(), held.end(), item);
    if (place == held.end()) return;
    held.erase(place);
    --count;
    if (held.empty()) drop(found);
  }
};

Table& table() {
  static auto* all = new Table();
  return *all;
}

// --- memory that is freed ------------------------------------------------------------------------------------

bool keep(void* context, c10::DeleterFnPtr deleter) noexcept;

// Deletes as `original` does, unless somebody holds what is there.
template <c10::DeleterFnPtr (*original)()>
void keep_or_delete(void* context) {
  if (!keep(context, original())) original()(context);
}

c10::DeleterFnPtr of_torch() {
  static const c10::DeleterFnPtr deleter = c10::GetCPUAllocator()->raw_deleter();
  return deleter;
}
c10::DeleterFnPtr of_malloc() { return &std::free; }
c10::DeleterFnPtr of_blocks() { return &BlockPool::release; }

struct KeepingDeleter {
  c10::DeleterFnPtr (*original)();
  c10::DeleterFnPtr keeping;
};
constexpr std::array<KeepingDeleter, 3> kDeleters = {{{&of_torch, &keep_or_delete<&of_torch>},
                                                      {&of_malloc, &keep_or_delete<&of_malloc>},
                                                      {&of_blocks, &keep_or_delete<&of_blocks>}}};

// Has the memory of a storage kept, when the storage gives it up while somebody holds it. False if that cannot be had.
bool keep_when_freed(c10::StorageImpl* storage) {
  if (!storage->resizable()) return true;
  c10::DataPtr& data = storage->_mutable_data_ptr_no_checks();
  if (is_kept_when_freed(data)) return true;
  return std::any_of(kDeleters.begin(), kDeleters.end(), [&](const KeepingDeleter& one) {
    const c10::DeleterFnPtr original = one.original();
    return original != nullptr && data.compare_exchange_deleter(original, one.keeping);
  });
}

// Takes the memory over if somebody holds it.
bool keep(void* context, c10::DeleterFnPtr deleter) noexcept {
  if (table().count.load(std::memory_order_acquire) == 0) return false;
  const std::lock_guard<ForkMutex> lock(table().mutex);
  const auto owner = table().owners.find(context);
  if (owner == table().owners.end()) return false;
  const auto found = table().items.find(owner->second);
  const std::vector<Held*>& held = found->second.held;
  Memory whole;
  const bool wanted = std::any_of(held.begin(), held.end(), [](const Held* item) { return item->way == Way::kContent; });
  if (wanted) {
    try {
      const Held& any = *held.front();
      const size_t bytes = any.storage_bytes;
      c10::DataPtr data(const_cast<char*>(any.data - any.begin), c10::Device(c10::kCPU));
      whole = c10::make_intrusive<c10::StorageImpl>(
          c10::StorageImpl::use_byte_size_t(), bytes, std::move(data), nullptr, /*resizable=*/false);
      // Only now, when nothing can be thrown any more, it has what it must delete.
      void* start = whole->_mutable_data_ptr_no_checks().get();
      whole->set_data_ptr_noswap(c10::DataPtr(start, context, deleter, c10::Device(c10::kCPU)));
    } catch (...) {
    }
  }
  for (Held* item : held) {
    item->written = true;
    if (item->way != Way::kContent) continue;
    item->whole = whole;
    item->lost = !whole;
  }
  table().drop(found);
  return whole != nullptr;
}

}  // namespace

class Holds {
 public:
  Holds() = default;
  Holds(const Holds&) = delete;
  ~Holds() {
    const std::lock_guard<ForkMutex> lock(table().mutex);
    for (const auto& [number, item] : items) table().remove(item->storage.storage().unsafeGetStorageImpl(), item.get());
  }

  void add(size_t number, const at::Tensor& tensor, Way way) {
    auto item = std::make_unique<Held>(tensor, way);
    if (!item->is_here) {
      items.emplace_back(number, std::move(item));
      return;
    }
    c10::StorageImpl* storage = item->storage.storage().unsafeGetStorageImpl();
    const bool kept = way != Way::kCopyNow && !item->lost && writes_are_seen(*storage) && keep_when_freed(storage);
    if (way == Way::kContent && !kept) item->way = Way::kCopyNow;
    if (item->way == Way::kCopyNow || item->lost) {
      if (item->way == Way::kCopyNow) item->copy_now();
      items.emplace_back(number, std::move(item));
      return;
    }
    {
      const std::lock_guard<ForkMutex> lock(table().mutex);
      table().add(storage, item.get(), kept && storage->resizable() ? storage->data_ptr().get_context() : nullptr);
    }
    items.emplace_back(number, std::move(item));
    see_writes(storage);
  }

  std::vector<std::pair<size_t, std::unique_ptr<Held>>> items;
};

namespace {

// Holds one of several tensors, if there is anything to hold.
void hold_one(Holds& holds, size_t number, const at::Tensor& tensor, char how) {
  const auto way = static_cast<Way>(how);
  const bool is_held = tensor.is_cpu() || tensor.is_cuda();
  if (way == Way::kNot || !tensor.has_storage() || !is_held || tensor.numel() == 0) return;
  holds.add(number, tensor, way);
}

PyObject* hold(PyObject*, PyObject* args) {
  PyObject *tensors, *how;
  if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &tensors, &PyBytes_Type, &how)) return nullptr;
  HANDLE_TH_ERRORS
  const Py_ssize_t count = PyList_GET_SIZE(tensors);
  if (PyBytes_GET_SIZE(how) != count) throw_value_error("hold expects one byte for each tensor");
  HoldsPointer holds(new Holds());
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* item = PyList_GET_ITEM(tensors, i);
    if (THPVariable_Check(item)) {
      hold_one(*holds, static_cast<size_t>(i), THPVariable_Unpack(item), PyBytes_AS_STRING(how)[i]);
    }
  }
  return to_python(std::move(holds));
  END_HANDLE_TH_ERRORS
}

Fate fate_of(const Held& item) {
  const std::lock_guard<ForkMutex> lock(table().mutex);
  return item;
}

// Whether the memory of a held tensor is not what it was. `now`: the tensor of today. Of what was copied the bytes are
// compared: many of torch's kernels ask for memory as if to write, and only read.
bool is_changed(const Held& item, const Fate& fate, const at::Tensor& now) {
  if (fate.lost || fate.whole || (fate.written && !fate.copy)) return true;
  const bool same = now.has_storage() && now.storage().unsafeGetStorageImpl() == item.storage.storage().unsafeGetStorageImpl() &&
                    now.storage_offset() == item.offset && now.sizes() == at::IntArrayRef(item.sizes) &&
                    now.strides() == at::IntArrayRef(item.strides);
  if (!same) return true;
  const char* memory = item.memory();
  if (!item.is_here) return memory != item.data || item.is_written_there();
  if (!fate.copy || memory == nullptr) return memory != item.data;
  return std::memcmp(fate.copy->data(), memory, item.bytes) != 0;
}

// Whether a tensor's storage is too small for it.
bool is_gone(const at::Tensor& tensor) {
  return tensor.has_storage() && !has_memory(tensor, spanned_bytes(tensor));
}

// Only one whose content nobody needs is gone without being held.
at::Tensor zeros_for(const at::Tensor& gone) {
  const c10::impl::ExcludeDispatchKeyGuard below(c10::autograd_dispatch_keyset);
  at::Tensor zeros = at::empty_strided(gone.sizes(), gone.strides(), gone.options());
  return zeros.zero_();
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
    const Fate fate = fate_of(*item);
    if (!is_changed(*item, fate, now)) continue;
    const bool is_lost = !item->is_here && item->is_written_there() && !item->copied_there.defined();
    const bool known = item->way != Way::kWhetherWritten && !fate.lost && !is_lost;
    found[py::int_(number)] =
        known ? py::reinterpret_steal<py::object>(THPVariable_Wrap(item->content(fate))) : py::object(py::none());
  }
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(tensors); ++i) {
    PyObject* now = PyList_GET_ITEM(tensors, i);
    if (!THPVariable_Check(now) || !is_gone(THPVariable_Unpack(now)) || found.contains(py::int_(i))) continue;
    found[py::int_(i)] = py::reinterpret_steal<py::object>(THPVariable_Wrap(zeros_for(THPVariable_Unpack(now))));
  }
  return found.release().ptr();
  END_HANDLE_TH_ERRORS
}

}  // namespace

void DeleteHolds::operator()(Holds* holds) const { delete holds; }

HoldsPointer hold_memory(TensorPointers tensors, const char* how) {
  HoldsPointer holds(new Holds());
  for (size_t i = 0; i < tensors.size(); ++i) hold_one(*holds, i, *tensors[i], how[i]);
  return holds;
}

bool is_any_changed(const Holds& holds, TensorPointers tensors) {
  const auto changed = [&](const auto& held) {
    return is_changed(*held.second, fate_of(*held.second), *tensors[held.first]);
  };
  return std::any_of(holds.items.begin(), holds.items.end(), changed) ||
         std::any_of(tensors.begin(), tensors.end(), [](const at::Tensor* tensor) { return is_gone(*tensor); });
}

PyObject* to_python(HoldsPointer holds) {
  PyObject* capsule = PyCapsule_New(holds.get(), kHoldsName, [](PyObject* self) {
    delete static_cast<Holds*>(PyCapsule_GetPointer(self, kHoldsName));
  });
  if (capsule != nullptr) holds.release();
  return capsule;
}

bool is_kept_when_freed(const c10::DataPtr& data) {
  const c10::DeleterFnPtr deleter = data.get_deleter();
  return std::any_of(kDeleters.begin(), kDeleters.end(), [=](const KeepingDeleter& one) { return one.keeping == deleter; });
}

void copy_held(const c10::StorageImpl* storage) noexcept {
  if (table().count.load(std::memory_order_acquire) == 0) return;
  const std::lock_guard<ForkMutex> lock(table().mutex);
  const auto found = table().items.find(storage);
  if (found == table().items.end()) return;
  std::vector<Held*> copied;
  for (Held* item : found->second.held) {
    item->written = true;
    if (item->way != Way::kContent) continue;
    const auto same = [&](const Held* other) { return other->begin == item->begin && other->bytes == item->bytes; };
    const auto other = std::find_if(copied.begin(), copied.end(), same);
    if (other != copied.end()) {
      item->copy = (*other)->copy;
      item->lost = (*other)->lost;
    } else {
      item->copy_now();
      copied.push_back(item);
    }
  }
  table().drop(found);
}

PyMethodDef hold_methods[] = {
    {"hold", hold, METH_VARARGS,
     "hold(tensors, how): what the memory of tensors holds now, for `changed`. The bytes of `how`: 0 not at all, 1 "
     "copied when it is written, 2 copied now, 3 only whether it is written. Of tensors on a CUDA device 1 is known as "
     "long as it is not written, and only writes that torch counts are seen."},
    {"changed", changed, METH_VARARGS,
     "changed(holds, tensors): {number: what it held, or None if that is not known} of those tensors whose memory is "
     "no longer what it was, and zeros for those that were not held and whose memory is gone. `tensors`: those that "
     "`hold` was given."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace lampwork
