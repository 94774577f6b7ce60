// What the memory of tensors held at one moment: for autograd, which runs a region again when backward comes.
//
// Nothing is copied unless it must be: the hook that torch calls before it hands out a pointer to write through
// (storages.h) copies what somebody holds. Memory that others may write to without the hook is copied at once. Where a
// storage gives up its memory for other (`untyped_storage().resize_()`, which calls no hook), its deleter keeps it.
#pragma once

#include <Python.h>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/ArrayRef.h>

#include <memory>

namespace lampwork {

// Copies what is held of a storage that is about to be written. Any thread, with or without the GIL.
void copy_held(const c10::StorageImpl* storage) noexcept;

// Whether it is a storage's own memory, with the deleter that keeps what somebody holds.
bool is_kept_when_freed(const c10::DataPtr& data);

// What the memory of some tensors held. All of it needs the GIL.
class Holds;
struct DeleteHolds {
  void operator()(Holds* holds) const;
};
using HoldsPointer = std::unique_ptr<Holds, DeleteHolds>;

using TensorPointers = c10::ArrayRef<const at::Tensor*>;

// Holds tensors, each in the way of its byte (see `hold_methods`).
HoldsPointer hold_memory(TensorPointers tensors, const char* how);
// Whether `changed` would find any of the tensors.
bool is_any_changed(const Holds& holds, TensorPointers tensors);
// A new reference to what Python's `changed` takes, or nullptr with an error set.
PyObject* to_python(HoldsPointer holds);

extern PyMethodDef hold_methods[];

}  // namespace lampwork
