// The interpreter: runs Code on a Frame, and keeps constants in step with the bound tensors.
#include "program.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/InferenceMode.h>

#include <malloc.h>

#include <cstring>

namespace lampwork {

namespace {

struct ReleaseGil {
  explicit ReleaseGil(bool release) : state(release ? PyEval_SaveThread() : nullptr) {}
  ~ReleaseGil() {
    if (state != nullptr) PyEval_RestoreThread(state);
  }
  ReleaseGil(const ReleaseGil&) = delete;
  PyThreadState* state;
};

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

char* data_of(const at::Tensor& tensor) {
  const at::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  const c10::StorageImpl* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  if (storage == nullptr) return nullptr;  // opaque, as packed oneDNN weights are
  // Read-only: kernels do not write to what they did not allocate, and a copy-on-write storage must stay one.
  auto* data = const_cast<char*>(static_cast<const char*>(storage->data()));
  return data + impl->storage_offset() * static_cast<int64_t>(impl->itemsize());
}

at::Tensor tensor_in(at::Storage storage, const Value& value, int64_t storage_offset) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), value.keys,
                                                         c10::scalarTypeToTypeMeta(value.dtype));
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (value.contiguous && storage_offset == 0) {
    impl->set_sizes_contiguous(value.shape);
  } else {
    impl->set_sizes_and_strides(value.shape, value.strides, storage_offset);
  }
  return tensor;
}

at::Tensor allocate(const Value& value, const std::shared_ptr<BlockPool>& blocks) {
  const auto bytes = static_cast<size_t>(value.nbytes);
  c10::DataPtr data = bytes >= kPooledBytes ? blocks->allocate(bytes) : allocate_small(bytes);
  at::Storage storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                            std::move(data), c10::GetCPUAllocator(),
                                                            /*resizable=*/true));
  return tensor_in(std::move(storage), value, 0);
}

// One call in progress.
class Run {
 public:
  Run(const Code& code, Frame& frame, const std::vector<at::Tensor>& bound,
      const std::shared_ptr<BlockPool>& blocks)
      : code_(code), frame_(frame), bound_(bound), blocks_(blocks) {}

  void kernel(const KernelCall& call) {
    if (call.extent <= 0) return;
    c10::SmallVector<void*, 16> buffers(call.buffers.size());
    for (size_t i = 0; i < buffers.size(); ++i) {
      buffers[i] = frame_.data[call.buffers[i].root] + call.buffers[i].bytes;
    }
    if (call.extent > call.grain && at::get_num_threads() > 1 && !at::in_parallel_region()) {
      std::atomic<bool> failed{false};
      at::parallel_for(0, call.extent, call.grain, [&](int64_t begin, int64_t end) {
        if (call.function(buffers.data(), call.sizes.data(), begin, end) != 0) {
          failed.store(true, std::memory_order_relaxed);
        }
      });
      if (failed.load()) throw KernelFailure(call.name);
    } else if (call.function(buffers.data(), call.sizes.data(), 0, call.extent) != 0) {
      throw KernelFailure(call.name);
    }
  }

  void aten(const AtenCall& call) {
    std::vector<c10::IValue> stack(call.arguments);
    for (const TensorArgument& argument : call.tensors) stack[argument.position] = pack(argument);
    if (call.writes_outside) frame_.wrote_outside = true;
    call.op.callBoxed(stack);
    size_t next = 0;
    for (c10::IValue& result : stack) {
      if (result.isTensor()) {
        store(call, next++, std::move(result).toTensor());
      } else if (result.isTensorList()) {
        for (at::Tensor tensor : result.toTensorVector()) store(call, next++, std::move(tensor));
      } else {
        ++next;
      }
      if (next >= call.outs.size()) break;
    }
    TORCH_INTERNAL_ASSERT(next >= call.outs.size(), call.name,
                          " gave fewer results than the program has names for");
  }

  void release(const ReleaseValues& release) {
    for (const int32_t value : release.values) frame_.tensors[value] = at::Tensor();
  }

  at::Tensor output(int32_t number) {
    const Value& value = code_.values[number];
    const Value& root = code_.values[value.root];
    if (value.kind == Kind::View) {
      at::Tensor base = tensor(value.root);
      if (root.kind == Kind::Arena || root.kind == Kind::Constant) return fresh_copy(tensor(number));
      // Through the dispatcher: what leaves must be a view for autograd's and version counters' purposes too.
      const auto itemsize = static_cast<int64_t>(c10::elementSize(value.dtype));
      return base.as_strided(value.shape, value.strides, base.storage_offset() + value.root_bytes / itemsize);
    }
    at::Tensor result = tensor(number);
    if (value.kind == Kind::Arena || value.kind == Kind::Constant) return fresh_copy(result);
    if (value.kind == Kind::Aten && lies_in_own_memory(result)) return fresh_copy(result);
    return result;
  }

  const at::Tensor& tensor(int32_t number) {
    const Value& value = code_.values[number];
    switch (value.kind) {
      case Kind::Input:
        return *frame_.inputs[value.position];
      case Kind::Bound:
        return bound_[value.position];
      case Kind::Constant:
        return frame_.state->constants[value.position];
      case Kind::Arena:
        if (!frame_.tensors[number].defined()) make_arena_tensor(number);
        return frame_.tensors[number];
      case Kind::View:
        if (!frame_.tensors[number].defined()) make_view(number);
        return frame_.tensors[number];
      case Kind::Fresh:
      case Kind::Aten:
        break;
    }
    TORCH_INTERNAL_ASSERT(frame_.tensors[number].defined(), "value ", number, " is used before it is made");
    return frame_.tensors[number];
  }

 private:
  c10::IValue pack(const TensorArgument& argument) {
    switch (argument.form) {
      case TensorArgument::Form::One:
        return tensor(argument.values[0]);
      case TensorArgument::Form::List: {
        c10::List<at::Tensor> list;
        list.reserve(argument.values.size());
        for (const int32_t value : argument.values) list.push_back(tensor(value));
        return list;
      }
      case TensorArgument::Form::OptionalList: {
        c10::List<std::optional<at::Tensor>> list;
        list.reserve(argument.values.size());
        for (const int32_t value : argument.values) {
          list.push_back(value < 0 ? std::optional<at::Tensor>() : tensor(value));
        }
        return list;
      }
    }
    return {};
  }

  void store(const AtenCall& call, size_t position, at::Tensor tensor) {
    if (position >= call.outs.size() || call.outs[position] < 0) return;
    const int32_t number = call.outs[position];
    const Value& value = code_.values[number];
    if (value.typed && tensor.defined()) {
      TORCH_INTERNAL_ASSERT(
          tensor.sizes() == at::IntArrayRef(value.shape) && tensor.scalar_type() == value.dtype, call.name,
          " gave a result of another shape or dtype than was recorded: ", tensor.sizes(), " ",
          tensor.scalar_type());
      if (tensor.strides() != at::IntArrayRef(value.strides)) {
        at::Tensor laid_out = at::empty_strided(value.shape, value.strides, tensor.options());
        laid_out.copy_(tensor);
        tensor = std::move(laid_out);
      }
    }
    frame_.data[number] = tensor.defined() ? data_of(tensor) : nullptr;
    frame_.tensors[number] = std::move(tensor);
  }

  // A tensor over arena memory, cached in the frame. Each has a storage of its own, so that storage offsets
  // are eager's.
  void make_arena_tensor(int32_t number) {
    const c10::InferenceMode normal_tensors(false);
    const Value& value = code_.values[number];
    c10::DataPtr data(frame_.arena + value.offset, c10::Device(c10::kCPU));
    at::Storage storage(c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), static_cast<size_t>(value.nbytes), std::move(data), nullptr,
        /*resizable=*/false));
    frame_.tensors[number] = tensor_in(std::move(storage), value, 0);
  }

  void make_view(int32_t number) {
    const Value& value = code_.values[number];
    const at::Tensor& root = tensor(value.root);
    const auto itemsize = static_cast<int64_t>(c10::elementSize(value.dtype));
    const int64_t root_bytes =
        root.storage_offset() * static_cast<int64_t>(root.element_size()) + value.root_bytes;
    frame_.tensors[number] = tensor_in(root.storage(), value, root_bytes / itemsize);
  }

  // Results must not lie in memory that the next call writes to or reads constants from.
  bool lies_in_own_memory(const at::Tensor& tensor) const {
    if (!tensor.defined() || !tensor.has_storage()) return false;
    const char* data = data_of(tensor);
    if (frame_.arena != nullptr && data >= frame_.arena && data < frame_.arena + code_.arena_bytes)
      return true;
    if (frame_.state == nullptr) return false;
    const auto* storage = tensor.storage().unsafeGetStorageImpl();
    for (const at::Tensor& constant : frame_.state->constants) {
      if (constant.has_storage() && constant.storage().unsafeGetStorageImpl() == storage) return true;
    }
    return false;
  }

  at::Tensor fresh_copy(const at::Tensor& tensor) {
    at::Tensor copy = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options());
    copy.copy_(tensor);
    return copy;
  }

  const Code& code_;
  Frame& frame_;
  const std::vector<at::Tensor>& bound_;
  const std::shared_ptr<BlockPool>& blocks_;
};

// Drops what the call made, also when it ends by an exception.
struct ClearFrame {
  ~ClearFrame() {
    for (size_t number = 0; number < frame.tensors.size(); ++number) {
      const Value& value = code.values[code.values[number].root];
      if (value.kind != Kind::Arena && frame.tensors[number].defined()) frame.tensors[number] = at::Tensor();
    }
  }
  const Code& code;
  Frame& frame;
};

}  // namespace

void execute(const Code& code, Frame& frame, const std::vector<at::Tensor>& bound,
             const std::shared_ptr<BlockPool>& blocks, c10::SmallVectorImpl<at::Tensor>& outputs) {
  for (size_t i = 0; i < code.inputs.size(); ++i) {
    if (code.inputs[i] >= 0) frame.data[code.inputs[i]] = data_of(*frame.inputs[i]);
  }
  for (const int32_t number : code.fresh) {
    at::Tensor tensor = allocate(code.values[number], blocks);
    frame.data[number] =
        static_cast<char*>(tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get());
    frame.tensors[number] = std::move(tensor);
  }
  Run run(code, frame, bound, blocks);
  const auto work = [&] {
    for (const Instruction& instruction : code.instructions) {
      if (const auto* kernel = std::get_if<KernelCall>(&instruction)) {
        run.kernel(*kernel);
      } else if (const auto* aten = std::get_if<AtenCall>(&instruction)) {
        run.aten(*aten);
      } else {
        run.release(std::get<ReleaseValues>(instruction));
      }
    }
  };
  if (code.has_aten) {
    // The recorder saw these calls below autograd and autocast: they must not pass through them a second
    // time.
    const c10::impl::ExcludeDispatchKeyGuard below(c10::autograd_dispatch_keyset |
                                                   c10::autocast_dispatch_keyset);
    work();
  } else {
    work();
  }
  for (const int32_t number : code.outputs) {
    const Value& value = code.values[number];
    if (value.kind == Kind::Fresh) {
      outputs.push_back(frame.tensors[number]);
    } else {
      const c10::impl::ExcludeDispatchKeyGuard below(c10::autograd_dispatch_keyset |
                                                     c10::autocast_dispatch_keyset);
      outputs.push_back(run.output(number));
    }
  }
}

Frame::Frame(const Code& code) : data(code.values.size(), nullptr), tensors(code.values.size()) {
  if (code.arena_bytes > 0) arena = static_cast<char*>(allocate_block(code.arena_bytes));
  for (size_t number = 0; number < code.values.size(); ++number) {
    if (code.values[number].kind == Kind::Arena) data[number] = arena + code.values[number].offset;
  }
}

Frame::~Frame() {
  tensors.clear();
  if (arena != nullptr) free_block(arena);
}

BoundMetadata::BoundMetadata(const at::Tensor& tensor)
    : sizes(tensor.sizes().begin(), tensor.sizes().end()),
      strides(tensor.strides().begin(), tensor.strides().end()),
      dtype(tensor.scalar_type()),
      keys(tensor.key_set()),
      requires_grad(tensor.requires_grad()) {}

Executable::Executable(py::handle program, std::vector<at::Tensor> bound)
    : code_(Code::build(program)), bound_(std::move(bound)), blocks_(std::make_shared<BlockPool>()) {
  if (bound_.size() != code_->bound.size()) {
    throw_value_error("the program has " + std::to_string(code_->bound.size()) + " bound tensors, got " +
                      std::to_string(bound_.size()));
  }
  for (size_t i = 0; i < bound_.size(); ++i) {
    const at::Tensor& tensor = bound_[i];
    metadata_.emplace_back(tensor);
    feeds_constants_.push_back(code_->constants != nullptr && code_->constants->reads_input(i));
  }
}

Executable::~Executable() = default;

bool Executable::bound_is_current() const {
  if (state_ == nullptr) return bound_.empty() && code_->constants == nullptr;
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

bool Executable::bound_fits() const {
  for (size_t i = 0; i < bound_.size(); ++i) {
    if (!metadata_[i].fits(bound_[i].unsafeGetTensorImpl(), compares_requires_grad_)) return false;
  }
  return true;
}

void Executable::refresh() {
  if (!bound_fits()) throw StaleBoundTensor();
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
  if (code_->constants != nullptr) {
    if (!moved) {
      state->constants = state_->constants;
      state->constant_data = state_->constant_data;
    } else {
      const Code& code = *code_->constants;
      Frame frame(code);
      c10::SmallVector<const at::Tensor*, 16> inputs;
      for (const at::Tensor& tensor : bound_) inputs.push_back(&tensor);
      frame.inputs = inputs.data();
      c10::SmallVector<at::Tensor, 8> outputs;
      {
        const ReleaseGil no_gil(true);
        const c10::InferenceMode normal_tensors(false);  // constants serve calls in either mode
        const ClearFrame clear{code, frame};
        execute(code, frame, {}, blocks_, outputs);
      }
      // What compiling and folding have freed stays with malloc; the packed weights should not come on top of it.
      if (state_ == nullptr) malloc_trim(0);
      for (at::Tensor& tensor : outputs) {
        state->constant_data.push_back(data_of(tensor));
        state->constants.push_back(std::move(tensor));
      }
      if (state_ != nullptr) {  // the first time is no refresh
        ++stats_.constant_refreshes;
        ++runtime_stats().constant_refreshes;
      }
    }
  }
  state_ = std::move(state);
}

std::unique_ptr<Frame> Executable::take_frame() {
  {
    std::lock_guard<std::mutex> lock(frames_mutex_);
    if (!frames_.empty()) {
      std::unique_ptr<Frame> frame = std::move(frames_.back());
      frames_.pop_back();
      return frame;
    }
  }
  return std::make_unique<Frame>(*code_);
}

void Executable::give_frame(std::unique_ptr<Frame> frame) {
  constexpr size_t kMaxIdle = 8;
  frame->inputs = nullptr;
  std::lock_guard<std::mutex> lock(frames_mutex_);
  if (frames_.size() < kMaxIdle) frames_.push_back(std::move(frame));
}

void Executable::run(const at::Tensor* const* inputs, c10::SmallVectorImpl<at::Tensor>& outputs,
                     bool& wrote_outside) {
  wrote_outside = false;
  if (!bound_is_current()) refresh();
  ++stats_.runs;
  std::unique_ptr<Frame> frame = take_frame();
  if (frame->state != state_) {
    frame->state = state_;
    for (size_t i = 0; i < code_->bound.size(); ++i) {
      if (code_->bound[i] >= 0) frame->data[code_->bound[i]] = state_->bound_data[i];
    }
    for (size_t i = 0; i < code_->constant.size(); ++i) {
      if (code_->constant[i] >= 0) frame->data[code_->constant[i]] = state_->constant_data[i];
    }
  }
  frame->wrote_outside = false;
  frame->inputs = inputs;
  struct Return {
    ~Return() {
      wrote_outside = frame->wrote_outside;
      self.give_frame(std::move(frame));
    }
    Executable& self;
    std::unique_ptr<Frame>& frame;
    bool& wrote_outside;
  } give_back{*this, frame, wrote_outside};
  const ClearFrame clear{*code_, *frame};
  if (!code_->releases_gil) {
    execute(*code_, *frame, bound_, blocks_, outputs);
    return;
  }
  // Without the GIL the caller's objects may lose their references: these keep the tensors alive.
  c10::SmallVector<at::Tensor, 8> alive;
  for (size_t i = 0; i < code_->inputs.size(); ++i) alive.push_back(*inputs[i]);
  c10::SmallVector<const at::Tensor*, 8> pointers;
  for (const at::Tensor& tensor : alive) pointers.push_back(&tensor);
  frame->inputs = pointers.data();
  const ReleaseGil no_gil(true);
  execute(*code_, *frame, bound_, blocks_, outputs);
}

}  // namespace lampwork
