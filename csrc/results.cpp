#include "results.h"

#include <c10/core/InferenceMode.h>

namespace lampwork {

namespace {

// Whether a weak reference to a Python object exists.
bool is_observed(PyObject* object) {
  const Py_ssize_t offset = Py_TYPE(object)->tp_weaklistoffset;
  if (offset <= 0) return false;
  return *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + offset) != nullptr;
}

// Whether a tensor's Python object is as a new one is, and referred to by the tensor alone.
bool is_unseen(PyObject* object) {
  if (Py_REFCNT(object) != 1 || Py_TYPE(object) != reinterpret_cast<PyTypeObject*>(THPVariableClass)) return false;
  PyObject** attributes = _PyObject_GetDictPtr(object);
  if (attributes != nullptr && *attributes != nullptr && PyDict_GET_SIZE(*attributes) > 0) return false;
  const auto* variable = reinterpret_cast<THPVariable*>(object);
  return variable->backward_hooks == nullptr && variable->post_accumulate_grad_hooks == nullptr && !is_observed(object);
}

}  // namespace

// Whether a tensor is what `allocate` made for `value`, and can be reached from here alone.
bool KeptResults::is_free(const Kept& kept, const Value& value) {
  const at::Tensor& tensor = kept.tensor;
  if (!tensor.defined()) return false;
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  PyObject* object = impl->pyobj_slot()->load_pyobj();
  // The Python object holds one reference, and is held by the tensor.
  if (tensor.use_count() != (object == nullptr ? 1 : 2) || tensor.weak_use_count() != 1) return false;
  if (object != nullptr && !is_unseen(object)) return false;
  if (impl->autograd_meta() != nullptr || impl->storage_offset() != 0) return false;
  if (impl->key_set() != kept.keys || impl->is_inference() != c10::InferenceMode::is_enabled() ||
       c10::typeMetaToScalarType(impl->dtype()) != value.dtype ||
      impl->sizes() != at::IntArrayRef(value.shape) || impl->strides() != at::IntArrayRef(value.strides)) {
    return false;
  }
  const c10::Storage& storage = impl->unsafe_storage();
  c10::StorageImpl* memory = storage.unsafeGetStorageImpl();
  // NumPy's and DLPack's arrays leave a storage that cannot be resized, or hold a reference.
  return storage.use_count() == 1 && memory->resizable() && memory->nbytes() == static_cast<size_t>(value.nbytes) &&
         is_block(memory->_mutable_data_ptr_no_checks());
}

void KeptResults::lend(const Code& code, std::vector<at::Tensor>& lent) {
  lent.resize(code.fresh.size());
  if (kept_.size() != code.fresh.size()) kept_.resize(code.fresh.size());
  for (size_t i = 0; i < kept_.size(); ++i) {
    for (Kept& kept : kept_[i]) {
      if (!is_free(kept, code.values[code.fresh[i]])) continue;
      const c10::VariableVersion& counter = kept.tensor.unsafeGetTensorImpl()->version_counter();
      if (counter.enabled()) c10::VariableVersion(counter).set_version(0);
      lent[i] = std::move(kept.tensor);
      break;
    }
  }
}

void KeptResults::keep(const Code& code, const std::vector<at::Tensor>& made) {
  if (kept_.size() != code.fresh.size()) return;
  for (size_t i = 0; i < kept_.size(); ++i) {
    // Those of other devices are the business of torch's allocator, and of streams.
    if (!made[i].is_cpu()) continue;
    // The one before the last goes.
    auto& places = kept_[i];
    Kept& place = places[0].tensor.defined() ? places[1] : places[0];
    if (place.tensor.defined()) places[0] = std::move(place);
    place = Kept{made[i], made[i].key_set()};
  }
}

}  // namespace lampwork
