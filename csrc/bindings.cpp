#include "bindings.h"

#include "content.h"
#include "weight_files.h"

#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <malloc.h>

#include <algorithm>
#include <utility>

namespace lampwork {

namespace {

uint32_t version_of(const c10::TensorImpl* impl) {
  const c10::VariableVersion& counter = impl->version_counter();
  return counter.enabled() ? counter.current_version() : 0;  // inference tensors have none
}

const c10::StorageImpl* storage_of(const c10::TensorImpl* impl) {
  return impl->unsafe_storage().unsafeGetStorageImpl();
}

// The bytes that a tensor's elements lie between.
struct HashedSpan {
  HeldStorage storage;  // keeps them
  const char* data;
  size_t bytes;
};

std::optional<HashedSpan> span_of(const at::Tensor& tensor) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (!impl->is_cpu() || impl->numel() == 0) return std::nullopt;
  return HashedSpan{HeldStorage(impl->unsafe_storage()), data_of(tensor), spanned_bytes(tensor)};
}

// The hashes of what lies there; without the GIL if that takes a while.
std::vector<uint64_t> hash_spans(const std::vector<HashedSpan>& spans) {
  constexpr size_t kGilBytes = size_t{1} << 20;
  size_t bytes = 0;
  for (const HashedSpan& span : spans) bytes += span.bytes;
  const ReleaseGil no_gil(bytes > kGilBytes);
  std::vector<uint64_t> hashes;
  for (const HashedSpan& span : spans) hashes.push_back(hash_content(span.data, span.bytes));
  return hashes;
}

// Whether Python runs in other threads too.
bool has_other_threads() {
  return PyThreadState_Next(PyInterpreterState_ThreadHead(PyInterpreterState_Get())) != nullptr;
}

// An operator that another thread is in the midst of may hold a pointer from before the watch began. Those that
// count versions do so when they are done; for the others, content is compared for so long after a write.
constexpr std::chrono::seconds kLongestWrite{1};

[[noreturn]] void invalid(const std::string& what) { throw_value_error("invalid program: " + what); }

}  // namespace

BoundMetadata::BoundMetadata(const at::Tensor& tensor)
    : sizes(tensor.sizes().begin(), tensor.sizes().end()),
      strides(tensor.strides().begin(), tensor.strides().end()),
      dtype(tensor.scalar_type()),
      keys(tensor.key_set()),
      requires_grad(tensor.requires_grad()) {}

Bindings::Bindings(py::handle constants, PyObject* bound)
    : program_(py::reinterpret_borrow<py::object>(constants)),
      bound_(bound),
      blocks_(std::make_shared<BlockPool>()) {
  const auto n_bound = static_cast<size_t>(PyTuple_GET_SIZE(bound));
  if (!constants.is_none()) {
    constants_ = Code::build(constants);
    if (constants_->inputs.size() != n_bound) invalid("constants take another number of bound tensors");
    if (!constants_->bound.empty()) invalid("constants program has bound tensors of its own");
    if (!constants_->constant.empty()) invalid("constants program has constants of its own");
  }
  for (size_t i = 0; i < n_bound; ++i) {
    metadata_.emplace_back(tensor(i));
    feeds_constants_.push_back(constants_ != nullptr && constants_->reads_input(i));
  }
}

void Bindings::require_fit(const Code& code, py::handle constants) const {
  if (size() != code.bound.size()) {
    throw_value_error("the program has " + std::to_string(code.bound.size()) + " bound tensors, got " +
                      std::to_string(size()));
  }
  const int same = PyObject_RichCompareBool(constants.ptr(), program_.ptr(), Py_EQ);
  if (same < 0) throw python_error();
  if (same == 0) invalid("it computes other constants than the program that it shares them with");
  if (constants_ == nullptr && !code.constant.empty()) invalid("constant values but no constants program");
  if (constants_ != nullptr && constants_->outputs.size() < code.constant.size())
    invalid("constants program has too few outputs");
}

bool Bindings::is_current() const {
  if (state_ == nullptr) return size() == 0 && constants_ == nullptr;
  for (size_t i = 0; i < seen_.size(); ++i) {
    const Seen& seen = seen_[i];
    const c10::TensorImpl* impl = tensor(i).unsafeGetTensorImpl();
    if (impl != seen.impl || storage_of(impl) != seen.storage) return false;
    if (compares_requires_grad_ && impl->requires_grad() != metadata_[i].requires_grad) return false;
    if (seen.storage != nullptr) {
      if (seen.storage->data() != seen.storage_data || impl->storage_offset() != seen.storage_offset) return false;
      if (!metadata_[i].same_shape(impl)) return false;
    }
    if (!feeds_constants_[i]) continue;
    if (version_of(impl) != seen.version) return false;
    if (seen.storage != nullptr && (seen.loud || !seen.watch.quiet())) return false;
  }
  return true;
}

bool Bindings::fits() const {
  for (size_t i = 0; i < size(); ++i) {
    if (!metadata_[i].fits(tensor(i).unsafeGetTensorImpl(), compares_requires_grad_)) return false;
  }
  return true;
}

// What all bound tensors look like now, and what that means.
struct Bindings::Look {
  std::vector<Seen> seen;
  bool memory_changed = false;
  bool constants_changed = false;
};

struct Bindings::Adopted {
  std::shared_ptr<const Code> rest;
  std::vector<at::Tensor> known;
  std::vector<int64_t> places;
  std::shared_ptr<const BoundState> state;  // keeps the addresses that `Seen` has from being reused
};

void Bindings::adopt(py::handle rest, std::vector<at::Tensor> known, std::vector<int64_t> places) {
  if (constants_ == nullptr) throw_value_error("the program has no constants");
  if (state_ != nullptr || adopted_ != nullptr) throw_value_error("constants are given once, before the first call");
  if (places.size() != constants_->outputs.size()) {
    throw_value_error("there are " + std::to_string(constants_->outputs.size()) + " constants, got places of " +
                      std::to_string(places.size()));
  }
  const auto limit = static_cast<int64_t>(known.size());
  size_t missing = 0;
  for (const int64_t place : places) {
    if (place < -1 || place >= limit) throw_value_error("a constant has the place " + std::to_string(place));
    missing += place < 0 ? 1 : 0;
  }
  auto adopted = std::make_shared<Adopted>();
  if (!rest.is_none()) {
    adopted->rest = Code::build(rest);
    if (adopted->rest->inputs.size() != size() + known.size() || !adopted->rest->bound.empty() ||
        !adopted->rest->constant.empty()) {
      invalid("what computes the other constants takes the bound tensors and the known constants");
    }
  }
  if ((adopted->rest == nullptr ? 0 : adopted->rest->outputs.size()) != missing)
    throw_value_error(std::to_string(missing) + " constants are neither known nor computed");
  if (!fits()) throw StaleBoundTensor();
  adopted->known = std::move(known);
  adopted->places = std::move(places);
  adopted->state = make_state();
  Look found = look(true);
  seen_ = std::move(found.seen);
  adopted_ = std::move(adopted);
}

Bindings::Look Bindings::look(bool untouched) const {
  Look look;
  look.memory_changed = look.constants_changed = state_ == nullptr && adopted_ == nullptr;
  const auto now = std::chrono::steady_clock::now();
  const bool alone = untouched || !has_other_threads();
  std::vector<bool> touched_before(size(), false);
  TensorMemory memory;
  for (size_t i = 0; i < size(); ++i) {
    const c10::TensorImpl* impl = tensor(i).unsafeGetTensorImpl();
    const c10::StorageImpl* storage = storage_of(impl);
    Seen seen;
    seen.impl = impl;
    seen.storage = storage;
    seen.storage_data = storage != nullptr ? storage->data() : nullptr;
    seen.storage_offset = storage != nullptr ? impl->storage_offset() : 0;
    if (feeds_constants_[i] && storage != nullptr) {
      const bool same = !seen_.empty() && seen_[i].same_memory(seen);
      touched_before[i] = same && !seen_[i].watch.quiet();
      seen.watch = same && !touched_before[i]
                       ? seen_[i].watch
                       : StorageWatch(const_cast<c10::StorageImpl*>(storage), memory);
      seen.holder = KnownHolder(storage, PyTuple_GET_ITEM(bound_, static_cast<Py_ssize_t>(i)));
    }
    if (feeds_constants_[i]) seen.version = version_of(impl);
    look.seen.push_back(std::move(seen));
  }
  // Once all that holds them is known.
  std::vector<size_t> hashed;
  std::vector<HashedSpan> spans;
  for (size_t i = 0; i < size(); ++i) {
    Seen& seen = look.seen[i];
    const Seen* before = seen_.empty() ? nullptr : &seen_[i];
    const bool same_memory = before != nullptr && before->same_memory(seen);
    look.memory_changed |= !same_memory;
    if (!feeds_constants_[i]) continue;
    const bool written = !same_memory || before->version != seen.version;
    look.constants_changed |= written;
    if (seen.storage == nullptr) continue;
    const bool touched = touched_before[i] && !written;
    if (!tensor(i).is_cpu()) {  // content is not read here: what was touched counts as written
      look.constants_changed |= touched;
      continue;
    }
    const bool in_doubt = touched || (!written && before->loud);
    if (!written && !in_doubt) {
      // No pointer to write through was handed out, so whoever holds the memory by now has none.
      seen.content = before->content;
      continue;
    }
    seen.loud_until = alone ? now : written || touched ? now + kLongestWrite : before->loud_until;
    seen.loud = seen.watch.open() || now < seen.loud_until;
    if (!in_doubt && !seen.loud) continue;
    if (auto span = span_of(tensor(i))) {
      hashed.push_back(i);
      spans.push_back(std::move(*span));
    }
  }
  const std::vector<uint64_t> hashes = hash_spans(spans);
  for (size_t k = 0; k < hashed.size(); ++k) {
    const size_t i = hashed[k];
    look.seen[i].content = hashes[k];
    // Compared with what was seen before, unless another thread has looked meanwhile.
    look.constants_changed |= seen_.empty() || seen_[i].content != hashes[k];
  }
  return look;
}

void Bindings::refresh() {
  if (!fits()) throw StaleBoundTensor();
  for (size_t i = 0; i < size(); ++i) {
    if (!has_memory(tensor(i), spanned_bytes(tensor(i)))) throw MemoryGone();
  }
  Look found = look();
  if (constants_ != nullptr && found.constants_changed) {
    auto state = make_state();
    compute_constants(*state);
    watch_again(found.seen);
    state_ = std::move(state);
    ++generation_;
  } else if (found.memory_changed || state_ == nullptr) {
    auto state = make_state();
    if (adopted_ != nullptr) {
      take_adopted(*state);
    } else if (constants_ != nullptr) {
      state->constants = state_->constants;
      state->constant_data = state_->constant_data;
      state->streams = state_->streams;
      for (const HeldStorage& held : state_->constant_storages) {
        state->constant_storages.emplace_back(held.storage(), 2);
      }
    }
    state_ = std::move(state);
    ++generation_;
  }
  seen_ = std::move(found.seen);
  adopted_ = nullptr;
}

void Bindings::watch_again(std::vector<Seen>& seen) const {
  TensorMemory memory;
  for (size_t i = 0; i < size(); ++i) {
    if (!feeds_constants_[i] || seen[i].storage == nullptr || tensor(i).is_cpu()) continue;
    seen[i].watch = StorageWatch(const_cast<c10::StorageImpl*>(seen[i].storage), memory);
  }
}

void BoundState::use_on(c10::Stream stream) const {
  if (streams.empty() || std::find(streams.begin(), streams.end(), stream) != streams.end()) return;
  const c10::impl::VirtualGuardImpl device(stream.device_type());
  for (const at::Tensor& constant : constants) {
    if (constant.device() != stream.device() || !constant.has_storage()) continue;
    device.recordDataPtrOnStream(constant.storage().data_ptr(), stream);
  }
  streams.push_back(stream);
}

std::shared_ptr<BoundState> Bindings::make_state() const {
  auto state = std::make_shared<BoundState>();
  for (size_t i = 0; i < size(); ++i) {
    state->storages.emplace_back(tensor(i).unsafeGetTensorImpl()->unsafe_storage());
    state->bound_data.push_back(data_of(tensor(i)));
  }
  return state;
}

namespace {

// The fresh values of a program share memory.
struct ExpectFresh {
  ExpectFresh(const Code& code, BlockPool& pool) : blocks(pool) {
    size_t bytes = 0;
    for (const int32_t number : code.fresh) {
      if (!code.values[number].device.is_cpu()) continue;
      bytes += BlockPool::shared_bytes(static_cast<size_t>(code.values[number].nbytes));
    }
    blocks.expect(bytes);
  }
  ~ExpectFresh() { blocks.expect(0); }

  BlockPool& blocks;
};

// The stream that constants of a card are computed on.
std::optional<c10::Stream> stream_of(const Code& code) {
  if (!code.device) return std::nullopt;
  const c10::impl::VirtualGuardImpl device(code.device->type());
  const c10::Stream stream = device.getStream(*code.device);
  int status = 0;
  if (Driver::get().is_capturing(device.getStreamNativeHandle(stream), &status) == kSuccess && status != 0) {
    throw RunFailure("weights have changed, and what they determine is not computed while a graph is captured");
  }
  return stream;
}

}  // namespace

std::vector<at::Tensor> Bindings::tensors() const {
  std::vector<at::Tensor> bound;
  for (size_t i = 0; i < size(); ++i) bound.push_back(tensor(i));
  return bound;
}

c10::SmallVector<at::Tensor, 8> Bindings::evaluate(const Code& code, const std::vector<at::Tensor>& bound,
                                                   const std::vector<at::Tensor>& further, BoundState& state) {
  const std::optional<c10::Stream> stream = stream_of(code);
  Frame frame(code);
  if (code.arena_bytes > 0) frame.lay_out(code, Arena(code.arena_bytes));
  c10::SmallVector<const at::Tensor*, 16> inputs;
  for (const at::Tensor& tensor : bound) inputs.push_back(&tensor);
  for (const at::Tensor& tensor : further) inputs.push_back(&tensor);
  frame.inputs = inputs.data();
  c10::SmallVector<at::Tensor, 8> outputs;
  {
    const ReleaseGil no_gil(true);
    const c10::InferenceMode normal_tensors(false);  // constants serve calls in either mode
    const ClearFrame clear{code, frame};
    const ExpectFresh expect{code, *blocks_};
    execute(code, frame, blocks_, nullptr, outputs);
    // Once for calls on any stream.
    if (stream) c10::impl::VirtualGuardImpl(stream->device_type()).synchronizeStream(*stream);
  }
  if (stream) state.streams.push_back(*stream);
  return outputs;
}

namespace {

void add_constant(BoundState& state, const std::vector<at::Tensor>& bound, at::Tensor tensor) {
  const auto same = [&](const at::Tensor& other) { return other.is_same(tensor); };
  // A reference to the tensor itself would keep it from being swapped.
  if (std::any_of(bound.begin(), bound.end(), same)) tensor = tensor.variable_data();
  if (tensor.has_storage()) state.constant_storages.emplace_back(tensor.storage(), 2);  // with the tensor's own reference
  state.constant_data.push_back(data_of(tensor));
  state.constants.push_back(std::move(tensor));
}

}  // namespace

void Bindings::compute_constants(BoundState& state) {
  const std::vector<at::Tensor> bound = tensors();  // they may be swapped for others while the GIL is free
  c10::SmallVector<at::Tensor, 8> outputs = evaluate(*constants_, bound, {}, state);
  for (const at::Tensor& tensor : bound) page_out(tensor);
  const bool first = state_ == nullptr;
  // What compiling and folding have freed stays with malloc; the packed weights should not come on top of it.
  if (first) malloc_trim(0);
  for (at::Tensor& tensor : outputs) add_constant(state, bound, std::move(tensor));
  if (first) return;  // the first time is no refresh
  ++refreshes_;
  ++runtime_stats().constant_refreshes;
}

void Bindings::take_adopted(BoundState& state) {
  const std::shared_ptr<const Adopted> adopted = adopted_;  // another thread may be done with it while the GIL is free
  const std::vector<at::Tensor> bound = tensors();
  c10::SmallVector<at::Tensor, 8> outputs;
  if (adopted->rest != nullptr) outputs = evaluate(*adopted->rest, bound, adopted->known, state);
  size_t next = 0;
  for (const int64_t place : adopted->places)
    add_constant(state, bound, place < 0 ? std::move(outputs[next++]) : adopted->known[static_cast<size_t>(place)]);
}

}  // namespace lampwork
