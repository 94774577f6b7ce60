// What the memory of tensors held at one moment: for autograd, which runs a region again when backward comes.
//
// Nothing is copied unless it must be: the hook that torch calls before it hands out a pointer to write through
// (storages.h) copies what somebody holds. Memory that others may write to without the hook is copied at once. Where a
// storage gives up its memory for other (`untyped_storage().resize_()`, which calls no hook), its deleter keeps it.
#pragma once

#include <Python.h>

#include <c10/core/StorageImpl.h>

namespace lampwork {

// Copies what is held of a storage that is about to be written. Any thread, with or without the GIL.
void copy_held(const c10::StorageImpl* storage) noexcept;

// Whether it is a storage's own memory, with the deleter that keeps what somebody holds.
bool is_kept_when_freed(const c10::DataPtr& data);

extern PyMethodDef hold_methods[];

}  // namespace lampwork
