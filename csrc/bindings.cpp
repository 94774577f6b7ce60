#include "bindings.h"

#include <c10/core/InferenceMode.h>

#include <malloc.h>

#include <cstring>

namespace lampwork {

namespace {

// Some bytes of the tensor's memory: catches most writes that no version counter tells of (through `p.data`).
uint64_t fingerprint(const char* data, size_t bytes, size_t samples) {
  uint64_t hash = 0;
  if (data == nullptr || bytes < sizeof(uint64_t)) {
    if (data != nullptr) std::memcpy(&hash, data, bytes);
    return hash;
  }
  const size_t words = bytes / sizeof(uint64_t);
  const size_t step = std::max<size_t>(words / samples, 1);
  for (size_t i = 0, word = step / 2; i < samples && word < words; ++i, word += step) {
    uint64_t sample = 0;
    std::memcpy(&sample, data + word * sizeof(uint64_t), sizeof(uint64_t));
    hash = (hash ^ sample) * 0x9E3779B97F4A7C15ULL;
  }
  return hash;
}

constexpr size_t kSamples = 4;
constexpr size_t kInferenceSamples = 64;  // inference tensors have no version counter at all

uint64_t fingerprint_of(const Snapshot& snapshot) {
  if (!snapshot.impl->is_cpu()) return 0;
  const bool versioned = snapshot.version_counter.enabled();
  return fingerprint(static_cast<const char*>(snapshot.storage_data), snapshot.storage->nbytes(),
                     versioned ? kSamples : kInferenceSamples);
}

[[noreturn]] void invalid(const std::string& what) { throw_value_error("invalid program: " + what); }

}  // namespace

BoundMetadata::BoundMetadata(const at::Tensor& tensor)
    : sizes(tensor.sizes().begin(), tensor.sizes().end()),
      strides(tensor.strides().begin(), tensor.strides().end()),
      dtype(tensor.scalar_type()),
      keys(tensor.key_set()),
      requires_grad(tensor.requires_grad()) {}

Bindings::Bindings(py::handle constants, std::vector<at::Tensor> bound)
    : program_(py::reinterpret_borrow<py::object>(constants)),
      bound_(std::move(bound)),
      blocks_(std::make_shared<BlockPool>()) {
  if (!constants.is_none()) {
    constants_ = Code::build(constants);
    if (constants_->inputs.size() != bound_.size()) invalid("constants take another number of bound tensors");
    if (!constants_->bound.empty()) invalid("constants program has bound tensors of its own");
    if (!constants_->constant.empty()) invalid("constants program has constants of its own");
  }
  for (size_t i = 0; i < bound_.size(); ++i) {
    metadata_.emplace_back(bound_[i]);
    feeds_constants_.push_back(constants_ != nullptr && constants_->reads_input(i));
  }
}

void Bindings::require_fit(const Code& code, py::handle constants) const {
  if (bound_.size() != code.bound.size()) {
    throw_value_error("the program has " + std::to_string(code.bound.size()) + " bound tensors, got " +
                      std::to_string(bound_.size()));
  }
  const int same = PyObject_RichCompareBool(constants.ptr(), program_.ptr(), Py_EQ);
  if (same < 0) throw python_error();
  if (same == 0) invalid("it computes other constants than the program that it shares them with");
  if (constants_ == nullptr && !code.constant.empty()) invalid("constant values but no constants program");
  if (constants_ != nullptr && constants_->outputs.size() < code.constant.size())
    invalid("constants program has too few outputs");
}

bool Bindings::is_current() const {
  if (state_ == nullptr) return bound_.empty() && constants_ == nullptr;
  const BoundState& state = *state_;
  for (size_t i = 0; i < state.snapshots.size(); ++i) {
    const Snapshot& snapshot = state.snapshots[i];
    const c10::TensorImpl* impl = snapshot.impl;
    if (impl->unsafe_storage().unsafeGetStorageImpl() != snapshot.storage) return false;
    if (snapshot.storage == nullptr) continue;
    if (snapshot.storage->data() != snapshot.storage_data) return false;
    if (!metadata_[i].same_shape(impl)) return false;
    if (compares_requires_grad_ && impl->requires_grad() != metadata_[i].requires_grad) return false;
    if (!snapshot.feeds_constants) continue;
    if (snapshot.version_counter.enabled() && snapshot.version_counter.current_version() != snapshot.version)
      return false;
    if (fingerprint_of(snapshot) != snapshot.fingerprint) return false;
  }
  return true;
}

bool Bindings::fits() const {
  for (size_t i = 0; i < bound_.size(); ++i) {
    if (!metadata_[i].fits(bound_[i].unsafeGetTensorImpl(), compares_requires_grad_)) return false;
  }
  return true;
}

void Bindings::refresh() {
  if (!fits()) throw StaleBoundTensor();
  auto state = std::make_shared<BoundState>();
  bool moved = state_ == nullptr;
  for (size_t i = 0; i < bound_.size(); ++i) {
    c10::TensorImpl* impl = bound_[i].unsafeGetTensorImpl();
    const at::Storage& storage = impl->unsafe_storage();
    c10::StorageImpl* storage_impl = storage.unsafeGetStorageImpl();
    const c10::VariableVersion& counter = impl->version_counter();
    Snapshot snapshot{impl,
                      storage_impl,
                      storage_impl != nullptr ? storage_impl->data() : nullptr,
                      counter,
                      counter.enabled() ? counter.current_version() : 0,
                      feeds_constants_[i],
                      0};
    if (snapshot.feeds_constants && storage_impl != nullptr) snapshot.fingerprint = fingerprint_of(snapshot);
    if (!moved && snapshot.feeds_constants) {
      const Snapshot& before = state_->snapshots[i];
      moved = before.storage_data != snapshot.storage_data || before.storage != snapshot.storage ||
              before.version != snapshot.version || before.fingerprint != snapshot.fingerprint;
    }
    state->storages.push_back(storage);
    state->bound_data.push_back(data_of(bound_[i]));
    state->snapshots.push_back(snapshot);
  }
  if (constants_ != nullptr && moved) {
    compute_constants(*state);
  } else if (constants_ != nullptr) {
    state->constants = state_->constants;
    state->constant_data = state_->constant_data;
  }
  state_ = std::move(state);
}

void Bindings::compute_constants(BoundState& state) {
  Frame frame(*constants_);
  if (constants_->arena_bytes > 0) frame.lay_out(*constants_, Arena(constants_->arena_bytes));
  c10::SmallVector<const at::Tensor*, 16> inputs;
  for (const at::Tensor& tensor : bound_) inputs.push_back(&tensor);
  frame.inputs = inputs.data();
  c10::SmallVector<at::Tensor, 8> outputs;
  {
    const ReleaseGil no_gil(true);
    const c10::InferenceMode normal_tensors(false);  // constants serve calls in either mode
    const ClearFrame clear{*constants_, frame};
    execute(*constants_, frame, {}, blocks_, outputs);
  }
  const bool first = state_ == nullptr;
  // What compiling and folding have freed stays with malloc; the packed weights should not come on top of it.
  if (first) malloc_trim(0);
  for (at::Tensor& tensor : outputs) {
    state.constant_data.push_back(data_of(tensor));
    state.constants.push_back(std::move(tensor));
  }
  if (first) return;  // the first time is no refresh
  ++refreshes_;
  ++runtime_stats().constant_refreshes;
}

}  // namespace lampwork
