// Bound tensors, which are the same objects on every call, and the constants computed from them. Programs
// that compute the same for different sizes share one Bindings.
#pragma once

#include "program.h"

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

// What one bound tensor looked like when the constants were computed.
struct Snapshot {
  at::TensorImpl* impl;
  at::StorageImpl* storage;
  const void* storage_data;
  c10::VariableVersion version_counter;
  uint32_t version;
  bool feeds_constants;
  uint64_t fingerprint;
};

// The values of the bound and constant tensors that a call runs with; replaced as a whole.
struct BoundState {
  std::vector<Snapshot> snapshots;
  std::vector<at::Storage> storages;  // keeps the addresses compared in `snapshots` from being reused
  std::vector<char*> bound_data;
  std::vector<at::Tensor> constants;
  std::vector<char*> constant_data;
};

class Bindings {
 public:
  // `constants`: the program (lampwork.runtime.program.Program) that computes the constants from the bound
  // tensors, or None. Needs the GIL, as do all methods.
  Bindings(py::handle constants, std::vector<at::Tensor> bound);

  // Throws a ValueError unless `code`, whose constants `constants` computes, can run with these.
  void require_fit(const Code& code, py::handle constants) const;

  // Whether the state is up to date. Never throws.
  bool is_current() const;
  // Whether the bound tensors still have the metadata that they had at first.
  bool fits() const;
  // Brings the state up to date; computes the constants anew if a tensor that feeds them has changed. Throws
  // StaleBoundTensor, and what running the program of the constants throws.
  void refresh();

  void compare_requires_grad() { compares_requires_grad_ = true; }
  bool has_constants() const { return constants_ != nullptr; }
  const std::vector<at::Tensor>& tensors() const { return bound_; }
  const std::shared_ptr<const BoundState>& state() const { return state_; }
  uint64_t refreshes() const { return refreshes_; }

 private:
  void compute_constants(BoundState& state);

  py::object program_;  // what `constants_` was read from
  std::unique_ptr<const Code> constants_;
  std::vector<at::Tensor> bound_;
  std::vector<BoundMetadata> metadata_;
  std::vector<bool> feeds_constants_;
  bool compares_requires_grad_ = false;
  std::shared_ptr<const BoundState> state_;
  std::shared_ptr<BlockPool> blocks_;
  uint64_t refreshes_ = 0;
};

}  // namespace lampwork
