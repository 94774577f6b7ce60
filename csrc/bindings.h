// Bound tensors, which are the same objects on every call, and the constants computed from them. Programs
// that compute the same for different sizes share one Bindings.
#pragma once

#include "program.h"
#include "storages.h"

#include <chrono>
#include <optional>

namespace lampwork {

// A bound tensor no longer has the shape, strides or dtype that the program was made for.
struct StaleBoundTensor : std::exception {
  const char* what() const noexcept override {
    return "a bound tensor changed its shape, strides, dtype or device";
  }
};

// What a bound tensor must look like for a program or entry to fit.
struct BoundMetadata {
  explicit BoundMetadata(const at::Tensor& tensor);
  // Shape and strides only: what can change while the storage stays the same.
  bool same_shape(const c10::TensorImpl* impl) const {
    return impl->sizes() == at::IntArrayRef(sizes) && impl->strides() == at::IntArrayRef(strides);
  }
  bool fits(const c10::TensorImpl* impl, bool compare_requires_grad) const {
    return same_shape(impl) && c10::typeMetaToScalarType(impl->dtype()) == dtype && impl->key_set() == keys &&
           (!compare_requires_grad || impl->requires_grad() == requires_grad);
  }

  c10::SmallVector<int64_t, 5> sizes;
  c10::SmallVector<int64_t, 5> strides;
  at::ScalarType dtype;
  c10::DispatchKeySet keys;
  bool requires_grad;
};

// What one bound tensor looked like at the last look.
struct Seen {
  const c10::TensorImpl* impl = nullptr;
  const c10::StorageImpl* storage = nullptr;  // nullptr for what is opaque
  const void* storage_data = nullptr;
  int64_t storage_offset = 0;
  uint32_t version = 0;
  // The rest only for tensors that feed constants.
  StorageWatch watch;
  KnownHolder holder;
  // Until then its content is hashed on every call.
  std::chrono::steady_clock::time_point loud_until;
  bool loud = false;
  std::optional<uint64_t> content;  // its hash, if there was need of one

  // Whether it is the same memory of the same tensor.
  bool same_memory(const Seen& other) const {
    return impl == other.impl && storage == other.storage && storage_data == other.storage_data &&
           storage_offset == other.storage_offset;
  }
};

// The values of the bound and constant tensors that a call runs with; replaced as a whole.
struct BoundState {
  std::vector<HeldStorage> storages;  // also keeps the addresses that `Seen` has from being reused
  std::vector<char*> bound_data;
  std::vector<at::Tensor> constants;
  std::vector<HeldStorage> constant_storages;
  std::vector<char*> constant_data;
  // Of constants on a card: the stream that they were made on, and those of later calls. Under the GIL.
  mutable c10::SmallVector<c10::Stream, 2> streams;

  // Keeps torch's allocator from reusing the memory of constants before what is queued on `stream` is done.
  void use_on(c10::Stream stream) const;
};

class Bindings {
 public:
  // `constants`: the program (lampwork.runtime.program.Program) that computes the constants from the bound
  // tensors, or None. `bound`: a tuple of tensors, which must outlive this; only Python's references to them
  // are kept, so that torch.utils.swap_tensors can put others in their place. Needs the GIL, as do all methods.
  Bindings(py::handle constants, PyObject* bound);

  // Throws a ValueError unless `code`, whose constants `constants` computes, can run with these.
  void require_fit(const Code& code, py::handle constants) const;

  // Takes constants that were computed of the bound tensors as they are now, before the first refresh. Nobody has had a
  // pointer to write to those tensors through yet. `places`: for each constant its number in `known`, or -1: the next
  // output of `rest`, a program whose inputs are the bound tensors and then `known`; None where all are known.
  void adopt(py::handle rest, std::vector<at::Tensor> known, std::vector<int64_t> places);

  // Whether the state is known to be up to date. Never throws.
  bool is_current() const;
  // Whether the bound tensors still have the metadata that they had at first.
  bool fits() const;
  // Brings the state up to date; computes the constants anew if a tensor that feeds them has changed. Throws
  // StaleBoundTensor, MemoryGone, and what running the program of the constants throws.
  void refresh();

  void compare_requires_grad() { compares_requires_grad_ = true; }
  bool has_constants() const { return constants_ != nullptr; }
  const at::Tensor& tensor(size_t number) const {
    return THPVariable_Unpack(PyTuple_GET_ITEM(bound_, static_cast<Py_ssize_t>(number)));
  }
  const std::shared_ptr<const BoundState>& state() const { return state_; }
  uint64_t refreshes() const { return refreshes_; }
  // Another number for each state that there was.
  uint64_t generation() const { return generation_; }

 private:
  struct Look;
  struct Adopted;
  size_t size() const { return metadata_.size(); }
  // `untouched`: nobody is in the midst of writing to a bound tensor.
  Look look(bool untouched = false) const;
  std::shared_ptr<BoundState> make_state() const;
  void compute_constants(BoundState& state);
  void take_adopted(BoundState& state);
  // What `code` gives for the bound tensors, and then `further`.
  c10::SmallVector<at::Tensor, 8> evaluate(const Code& code, const std::vector<at::Tensor>& bound,
                                           const std::vector<at::Tensor>& further, BoundState& state);
  std::vector<at::Tensor> tensors() const;
  // Begins the watches of tensors on a card again: what computed the constants may have asked for them as if to write,
  // and their content cannot be compared.
  void watch_again(std::vector<Seen>& seen) const;

  py::object program_;  // what `constants_` was read from
  std::shared_ptr<const Code> constants_;
  PyObject* bound_;  // borrowed
  std::vector<BoundMetadata> metadata_;
  std::vector<bool> feeds_constants_;
  bool compares_requires_grad_ = false;
  std::vector<Seen> seen_;  // empty before the first refresh
  std::shared_ptr<const BoundState> state_;
  std::shared_ptr<const Adopted> adopted_;  // until the first refresh
  std::shared_ptr<BlockPool> blocks_;
  uint64_t refreshes_ = 0;
  uint64_t generation_ = 0;
};

}  // namespace lampwork
