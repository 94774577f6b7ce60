// What the memory of tensors held at one moment: for autograd, which runs a region again when backward comes.
//
// Nothing is copied unless it must be: the hook that torch calls before it hands out a pointer to write through
// (storages.h) copies what somebody holds. Memory that others may write to without the hook is copied at once.
#pragma once

#include <Python.h>

#include <c10/core/StorageImpl.h>

namespace lampwork {

// Copies what is held of a storage that is about to be written. Any thread, with or without the GIL.
void copy_held(const c10::StorageImpl* storage) noexcept;

extern PyMethodDef hold_methods[];

}  // namespace lampwork
