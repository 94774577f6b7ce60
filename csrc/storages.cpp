#include "storages.h"

#include "blocks.h"
#include "holds.h"
#include "weight_files.h"

#include <ATen/MapAllocator.h>
#include <ATen/ops/_lazy_clone_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/COW.h>
#include <torch/csrc/Storage.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>
#include <vector>

#if __has_include(<c10/core/StorageMaterializer.h>)
#define LAMPWORK_STORAGE_HOOK 1
#else
#define LAMPWORK_STORAGE_HOOK 0  // an older torch: all memory is open
#endif

namespace lampwork {

namespace {

// --- the hook ----------------------------------------------------------------------------------------------

// How often the hooks of storages have run, by a hash of their addresses: two that share a place only make each
// other look moved. Constant-initialized and never destroyed, so the hook may run at any time in any thread.
constexpr size_t kMarks = 4096;
std::array<std::atomic<uint32_t>, kMarks> marks;

std::atomic<uint32_t>& mark_of(const c10::StorageImpl* storage) {
  const uint64_t hash = reinterpret_cast<uintptr_t>(storage) * 0x9E3779B97F4A7C15ULL;
  return marks[hash >> (64 - 12)];
}

#if LAMPWORK_STORAGE_HOOK
// torch takes the hook off when it has run, so only the first write after a look pays for it.
void on_write(c10::StorageImpl* storage) noexcept {
  copy_held(storage);
  mark_of(storage).fetch_add(1, std::memory_order_acq_rel);
}

// torch refuses to make a lazy clone of a storage that has a hook. As a clone's memory is shared until the first
// write, which the storage then copies, it is open from here on.
at::Tensor lazy_clone(const at::Tensor& self) {
  if (self.has_storage()) {
    c10::StorageImpl* storage = self.storage().unsafeGetStorageImpl();
    if (storage->has_materializer() && !c10::impl::cow::is_cow_data_ptr(storage->data_ptr())) {
      storage->clear_materializer();
      on_write(storage);
    }
  }
  return at::native::_lazy_clone(self);
}
#endif

// --- whose memory it is ------------------------------------------------------------------------------------

// torch's own deleter of what `storage[begin:end]` gives, whose context is the storage that was sliced. It has no
// name, so it is read off a slice.
c10::DeleterFnPtr slice_deleter() {
  static const c10::DeleterFnPtr deleter = [] {
    const py::object storage = py::module_::import("torch").attr("UntypedStorage")(8);
    const py::object part = storage[py::slice(0, 4, 1)];
    return THPStorage_Unpack(part.ptr()).data_ptr().get_deleter();
  }();
  return deleter;
}

// A file mapped for this process alone: writes to it stay here.
bool mapped_privately(const c10::DataPtr& data) {
  const at::MapAllocator* mapped = at::MapAllocator::fromDataPtr(data);
  constexpr int kShared = at::ALLOCATOR_MAPPED_SHARED | at::ALLOCATOR_MAPPED_SHAREDMEM;
  return mapped != nullptr && (mapped->flags() & kShared) == 0;
}

// Whether only this storage gives access to its memory.
bool owns_memory(const c10::StorageImpl& storage) {
  const c10::DataPtr& data = storage.data_ptr();
  return (c10::impl::cow::has_simple_data_ptr(storage) && !c10::impl::cow::is_cow_data_ptr(data)) ||
         is_block(data) || is_part(data) || mapped_privately(data) || is_kept_when_freed(data);
}

c10::StorageImpl* sliced_from(const c10::StorageImpl& storage) {
  const c10::DataPtr& data = storage.data_ptr();
  return data.get_deleter() == slice_deleter() ? static_cast<c10::StorageImpl*>(data.get_context()) : nullptr;
}

// --- who holds it ------------------------------------------------------------------------------------------

struct Holders {
  int64_t held = 0;                // references of HeldStorage
  std::vector<PyObject*> tensors;  // KnownHolder; with repetitions
};

// Never destroyed: programs may be freed while the process ends.
std::unordered_map<const c10::StorageImpl*, Holders>& holders() {
  static auto* all = new std::unordered_map<const c10::StorageImpl*, Holders>();
  return *all;
}

void drop_if_empty(const c10::StorageImpl* storage) {
  const auto found = holders().find(storage);
  if (found != holders().end() && found->second.held == 0 && found->second.tensors.empty()) {
    holders().erase(found);
  }
}

#if LAMPWORK_STORAGE_HOOK
// Whether anything but its Python object, and autograd's node that gathers its gradients, refers to a tensor. A
// DLPack capsule does.
bool is_held_elsewhere(const at::Tensor& tensor) {
  const size_t count = tensor.use_count();
  if (count <= 1) return false;
  return count > 2 || torch::autograd::impl::try_get_grad_accumulator(tensor) == nullptr;
}

// Whether anything but known holders, and torch's Python object of the storage, refers to it.
bool has_unknown_holder(const c10::StorageImpl* storage) {
  auto known = static_cast<int64_t>(storage->pyobj_slot()->load_pyobj() != nullptr);
  const auto found = holders().find(storage);
  if (found != holders().end()) {
    std::vector<const c10::TensorImpl*> impls;
    for (PyObject* tensor : found->second.tensors) {
      const at::Tensor& known_tensor = THPVariable_Unpack(tensor);
      const c10::TensorImpl* impl = known_tensor.unsafeGetTensorImpl();
      if (impl->unsafe_storage().unsafeGetStorageImpl() != storage) continue;
      if (is_held_elsewhere(known_tensor)) return true;
      impls.push_back(impl);
    }
    std::sort(impls.begin(), impls.end());
    known += found->second.held + (std::unique(impls.begin(), impls.end()) - impls.begin());
  }
  return static_cast<int64_t>(c10::raw::intrusive_ptr::use_count(const_cast<c10::StorageImpl*>(storage))) > known;
}
#endif

}  // namespace

bool writes_are_seen(const c10::StorageImpl& storage) {
#if LAMPWORK_STORAGE_HOOK
  return owns_memory(storage);
#else
  return false;
#endif
}

void see_writes(c10::StorageImpl* storage) {
#if LAMPWORK_STORAGE_HOOK
  if (!storage->has_materializer()) storage->set_materializer(&on_write);
#endif
}

HeldStorage::HeldStorage(at::Storage storage, int64_t references)
    : storage_(std::move(storage)), references_(references) {
  if (storage_) holders()[storage_.unsafeGetStorageImpl()].held += references_;
}

HeldStorage::~HeldStorage() {
  if (!storage_) return;
  holders()[storage_.unsafeGetStorageImpl()].held -= references_;
  drop_if_empty(storage_.unsafeGetStorageImpl());
}

KnownHolder::KnownHolder(const c10::StorageImpl* storage, PyObject* tensor)
    : storage_(storage), tensor_(tensor) {
  if (storage_ != nullptr) holders()[storage_].tensors.push_back(tensor_);
}

KnownHolder::~KnownHolder() {
  if (storage_ == nullptr) return;
  std::vector<PyObject*>& tensors = holders()[storage_].tensors;
  tensors.erase(std::find(tensors.begin(), tensors.end(), tensor_));
  drop_if_empty(storage_);
}

void TensorMemory::collect() {
  ranges_.emplace();
  auto* tensor_type = reinterpret_cast<PyTypeObject*>(THPVariableClass);
  const py::list objects = py::module_::import("gc").attr("get_objects")();
  for (const py::handle object : objects) {
    if (!PyObject_TypeCheck(object.ptr(), tensor_type)) continue;
    const at::Tensor& tensor = THPVariable_Unpack(object.ptr());
    if (!tensor.defined() || !tensor.has_storage() || !tensor.is_cpu()) continue;
    c10::StorageImpl* storage = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
    if (storage == nullptr || storage->sym_nbytes().is_heap_allocated()) continue;
    const auto* begin = static_cast<const char*>(storage->_mutable_data_ptr_no_checks().get());
    if (begin != nullptr) ranges_->push_back({storage, begin, begin + storage->nbytes()});
  }
}

bool TensorMemory::meets(const c10::StorageImpl& storage) {
  if (!ranges_) collect();
  const auto* begin = static_cast<const char*>(storage.data());
  const auto* end = begin + storage.nbytes();
  return std::any_of(ranges_->begin(), ranges_->end(), [&](const Range& range) {
    return range.storage != &storage && range.begin < end && begin < range.end;
  });
}

void StorageWatch::One::start(c10::StorageImpl* watched) {
  storage = watched;
  see_writes(storage);
  // After the hook is set: a write between the two is one that `moved` finds.
  mark = mark_of(storage).load(std::memory_order_acquire);
}

bool StorageWatch::One::moved() const {
#if LAMPWORK_STORAGE_HOOK
  return !storage->has_materializer() || mark_of(storage).load(std::memory_order_acquire) != mark;
#else
  return false;
#endif
}

StorageWatch::StorageWatch(c10::StorageImpl* storage, TensorMemory& memory) {
  storage_.start(storage);
#if LAMPWORK_STORAGE_HOOK
  if (owns_memory(*storage)) return;
  c10::StorageImpl* whole = sliced_from(*storage);
  if (whole == nullptr || !owns_memory(*whole)) {
    open_for_good_ = true;
    return;
  }
  // Slices taken from now on touch what they are taken from; those that there are share memory or do not.
  whole_.start(whole);
  open_for_good_ = memory.meets(*storage);
#else
  open_for_good_ = true;
#endif
}

bool StorageWatch::open() const {
#if LAMPWORK_STORAGE_HOOK
  return open_for_good_ || has_unknown_holder(storage_.storage);
#else
  return true;
#endif
}

#if LAMPWORK_STORAGE_HOOK
TORCH_LIBRARY_IMPL(aten, CPU, m) { m.impl("_lazy_clone", TORCH_FN(lazy_clone)); }
#endif

}  // namespace lampwork
