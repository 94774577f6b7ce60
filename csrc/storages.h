// What may write to the memory of a tensor, and how a write is noticed.
//
// torch calls a hook of a storage before it hands out a pointer to write through: to an operator, to NumPy, to
// DLPack, to whoever asks for data_ptr(). `StorageWatch` sets that hook, so that a look at two words tells
// whether the memory can have changed, through whichever alias. What holds a pointer from before cannot be
// seen that way: such memory is `open`, and only its content tells.
#pragma once

#include <torch/csrc/autograd/python_variable.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace lampwork {

namespace py = pybind11;

// All of this needs the GIL, but for what torch itself calls.

// Whether every write to a storage's memory passes the hook, but for those through pointers from before.
bool writes_are_seen(const c10::StorageImpl& storage);

// Sets the hook of a storage.
void see_writes(c10::StorageImpl* storage);

// A reference to a storage that is known to write nothing.
class HeldStorage {
 public:
  // `references`: how many there are to count, beginning with this one.
  explicit HeldStorage(at::Storage storage, int64_t references = 1);
  HeldStorage(HeldStorage&& other) noexcept = default;
  HeldStorage& operator=(HeldStorage&& other) = delete;
  ~HeldStorage();
  const at::Storage& storage() const { return storage_; }

 private:
  at::Storage storage_;
  int64_t references_;
};

// Notes that a Python tensor, which outlives this, holds a storage: writes through it pass the hook.
class KnownHolder {
 public:
  KnownHolder() = default;
  KnownHolder(const c10::StorageImpl* storage, PyObject* tensor);
  KnownHolder(KnownHolder&& other) noexcept
      : storage_(std::exchange(other.storage_, nullptr)), tensor_(other.tensor_) {}
  KnownHolder& operator=(KnownHolder&& other) noexcept {
    std::swap(storage_, other.storage_);
    std::swap(tensor_, other.tensor_);
    return *this;
  }
  ~KnownHolder();

 private:
  const c10::StorageImpl* storage_ = nullptr;
  PyObject* tensor_ = nullptr;
};

// The memory of all tensors that Python knows of, collected when first asked for.
class TensorMemory {
 public:
  // Whether a tensor of another storage shares memory with this one.
  bool meets(const c10::StorageImpl& storage);

 private:
  void collect();

  struct Range {
    const c10::StorageImpl* storage;
    const char* begin;
    const char* end;
  };
  std::optional<std::vector<Range>> ranges_;
};

class StorageWatch {
 public:
  StorageWatch() = default;
  // Watches from now on. The storage must outlive this. `memory`: as it is now.
  StorageWatch(c10::StorageImpl* storage, TensorMemory& memory);

  // Whether nothing can have been written since the watch began, unless the memory is open. Never throws.
  bool quiet() const {
    return !storage_.moved() && (whole_.storage == nullptr || !whole_.moved());
  }
  // Whether somebody else may hold a pointer to the memory: another process, NumPy, a DLPack consumer, an
  // alias of unknown kind. Looks at the references that there are now.
  bool open() const;

 private:
  struct One {
    c10::StorageImpl* storage = nullptr;
    uint32_t mark = 0;
    void start(c10::StorageImpl* watched);
    bool moved() const;
  };
  One storage_;
  One whole_;  // what the storage is a slice of
  bool open_for_good_ = false;
};

}  // namespace lampwork
