// The interpreter: runs Code on a Frame.
#include "bindings.h"
#include "counters.h"
#include "results.h"
#include "spans.h"

#include <ATen/Parallel.h>
#include <ATen/ScalarOps.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

namespace lampwork {

char* data_of(const at::Tensor& tensor) {
  const at::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  const c10::StorageImpl* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  if (storage == nullptr) return nullptr;  // opaque, as packed oneDNN weights are
  // Read-only: kernels do not write to what they did not allocate, and a copy-on-write storage must stay one.
  auto* data = const_cast<char*>(static_cast<const char*>(storage->data()));
  return data + impl->storage_offset() * static_cast<int64_t>(impl->itemsize());
}

size_t spanned_bytes(const at::Tensor& tensor) {
  const at::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (impl->numel() == 0) return 0;
  int64_t last = 0;
  for (int64_t i = 0; i < impl->dim(); ++i) last += (impl->sizes()[i] - 1) * impl->strides()[i];
  return static_cast<size_t>(last + 1) * impl->itemsize();
}

bool has_memory(const at::Tensor& tensor, size_t bytes) {
  const at::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  const c10::StorageImpl* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  if (storage == nullptr || bytes == 0 || !(impl->is_cpu() || impl->is_cuda())) return true;
  const size_t begin = static_cast<size_t>(impl->storage_offset()) * impl->itemsize();
  return begin + bytes <= storage->nbytes() && storage->data() != nullptr;
}

namespace {

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

// A tensor of the value's looks in memory that was allocated for it.
at::Tensor tensor_over(c10::DataPtr data, const Value& value) {
  const auto bytes = static_cast<size_t>(value.nbytes);
  c10::Allocator* allocator = value.device.is_cpu() ? c10::GetCPUAllocator() : c10::GetAllocator(value.device.type());
  at::Storage storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes, std::move(data),
                                                            allocator, /*resizable=*/true));
  return tensor_in(std::move(storage), value, 0);
}

// On another device than the CPU from torch's allocator, on the current stream of the current device.
at::Tensor allocate(const Value& value, const std::shared_ptr<BlockPool>& blocks) {
  const auto bytes = static_cast<size_t>(value.nbytes);
  if (C10_UNLIKELY(!value.device.is_cpu())) return tensor_over(c10::GetAllocator(value.device.type())->allocate(bytes), value);
  return tensor_over(bytes >= kPooledBytes ? blocks->allocate(bytes) : allocate_small(bytes), value);
}

// The driver's handle of a stream. Torch looks at its device for that; but its name for a stream stands for one handle.
CUstream handle_of(const c10::impl::VirtualGuardImpl& device, const c10::Stream& stream) {
  thread_local std::optional<c10::Stream> last;
  thread_local CUstream handle = nullptr;
  if (!last || *last != stream) {
    handle = device.getStreamNativeHandle(stream);
    last = stream;
  }
  return handle;
}

using Clock = std::chrono::steady_clock;

// Threads wait actively for about this long. Later ones have to be woken, which takes 40 to 100 us.
constexpr auto kAwake = std::chrono::milliseconds(1);
// Grains of work, of about 2 us each, that are worth it.
constexpr int64_t kWorthWaking = 64;
// When this thread last had work that others may share, whether they did or not.
thread_local Clock::time_point last_work;

// Whether threads are to share the kernels of a call: of one with little work only if they are awake, or if it is not
// the first such call in a short time.
bool threads_share(const Code& code) {
  if (code.grains == 0 || at::get_num_threads() == 1 || at::in_parallel_region()) return false;
  const Clock::time_point before = std::exchange(last_work, Clock::now());
  return code.grains >= kWorthWaking || last_work - before < kAwake;
}

// One call in progress.
class Run {
 public:
  Run(const Code& code, Frame& frame, const std::shared_ptr<BlockPool>& blocks, Heap* heap)
      : code_(code), frame_(frame), blocks_(blocks), heap_(heap), shares_(threads_share(code)) {}

  // Gives the values that a call has from its start their memory.
  void begin() {
    if (C10_UNLIKELY(code_.device_arena_bytes > 0)) lay_out_on_device();
    for (size_t i = 0; i < code_.fresh.size(); ++i) {
      const int32_t number = code_.fresh[i];
      const bool is_lent = i < frame_.lent.size() && frame_.lent[i].defined();
      own(number, is_lent ? std::move(frame_.lent[i]) : allocate(code_.values[number], blocks_));
    }
  }

  void kernel(const KernelCall& call) {
    if (call.extent <= 0) return;
    for (const int32_t root : call.outside) write_to(root);
    c10::SmallVector<void*, 16> buffers(call.buffers.size());
    for (size_t i = 0; i < buffers.size(); ++i) {
      buffers[i] = frame_.data[call.buffers[i].root] + call.buffers[i].bytes;
    }
    const int64_t* sizes = call.sizes.data();
    c10::SmallVector<int64_t, 16> filled;
    if (!call.scalars.empty()) {
      filled.append(call.sizes.begin(), call.sizes.end());
      for (const ScalarSize& scalar : call.scalars) filled[scalar.position] = frame_.scalars[scalar.place];
      sizes = filled.data();
    }
    if (C10_UNLIKELY(call.kernel != nullptr)) {
      launch(call, buffers, sizes);
    } else if (shares_ && call.extent > call.grain) {
      std::atomic<bool> failed{false};
      at::parallel_for(0, call.extent, call.grain, [&](int64_t begin, int64_t end) {
        if (call.function(buffers.data(), sizes, begin, end) != 0) {
          failed.store(true, std::memory_order_relaxed);
        }
      });
      if (failed.load()) throw KernelFailure(call.name);
    } else if (call.function(buffers.data(), sizes, 0, call.extent) != 0) {
      throw KernelFailure(call.name);
    }
  }

  void aten(const AtenCall& call) {
    std::vector<c10::IValue> stack(call.arguments);
    for (const TensorArgument& argument : call.tensors) stack[argument.position] = pack(argument);
    for (const ScalarArgument& argument : call.scalars) stack[argument.position] = pack(argument);
    if (call.writes_outside) frame_.wrote_outside = true;
    if (call.communicates) frame_.wrote_outside = communicated() = true;
    if (call.is_one_kernel) {
      const c10::impl::ExcludeDispatchKeyGuard within(c10::DispatchKey::ADInplaceOrView);
      call.op.callBoxed(stack);
    } else {
      call.op.callBoxed(stack);
    }
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
    for (const int32_t number : release.values) {
      frame_.tensors[number] = at::Tensor();
      const Value& value = code_.values[number];
      if (value.kind == Kind::Input && frame_.owned != nullptr) frame_.owned[value.position] = at::Tensor();
    }
  }

  void take(const TakeValues& take) {
    const c10::InferenceMode normal_tensors(false);
    for (const int32_t number : take.values) {
      const Value& value = code_.values[number];
      own(number, value.device.is_cpu() ? tensor_over(heap_->allocate(static_cast<size_t>(value.nbytes)), value)
                                        : allocate(value, blocks_));
    }
  }

  // Gives a fresh or heap value the memory of `tensor`.
  void own(int32_t number, at::Tensor tensor) {
    frame_.data[number] =
        static_cast<char*>(tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get());
    frame_.tensors[number] = std::move(tensor);
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
        return frame_.bound[value.position];
      case Kind::Constant:
        return frame_.state->constants[value.position];
      case Kind::Arena:
        if (!frame_.tensors[number].defined()) make_arena_tensor(number);
        return frame_.tensors[number];
      case Kind::View:
        if (!frame_.tensors[number].defined()) make_view(number);
        return frame_.tensors[number];
      case Kind::Heap:
      case Kind::Fresh:
      case Kind::Aten:
        break;
    }
    TORCH_INTERNAL_ASSERT(frame_.tensors[number].defined(), "value ", number, " is used before it is made");
    return frame_.tensors[number];
  }

  // Takes back what the instructions up to `last` have written to inputs.
  void undo(size_t last) {
    for (size_t i = code_.undo.size(); i-- > 0;) {
      if (code_.undo[i].at <= last) kernel(code_.undo[i].call);
    }
  }

 private:
  C10_NOINLINE void lay_out_on_device() {
    frame_.device_arena = c10::GetAllocator(code_.device->type())->allocate(code_.device_arena_bytes);
    auto* memory = static_cast<char*>(frame_.device_arena.get());
    for (const int32_t number : code_.device_arena) frame_.data[number] = memory + code_.values[number].offset;
  }

  // Queues a kernel of a card. Kept out of the way of calls on the CPU.
  C10_NOINLINE void launch(const KernelCall& call, c10::SmallVectorImpl<void*>& buffers, const int64_t* sizes) {
    if (!has_stream_) find_stream(*call.kernel);
    c10::SmallVector<void*, 32> parameters;
    for (void*& buffer : buffers) parameters.push_back(&buffer);
    for (size_t i = 0; i < call.sizes.size(); ++i) parameters.push_back(const_cast<int64_t*>(sizes + i));
    parameters.push_back(const_cast<int64_t*>(&call.extent));
    CUdeviceptr counters = 0;
    if (call.shape.counters > 0) {
      counters = find_counters(call);
      parameters.push_back(&counters);
    }
    const CUresult error =
        DeviceKernel::launch(*call.kernel, call.shape, call.extent, stream_, captures_, parameters.data());
    if (error != kSuccess) throw LaunchFailure(call.name, error);
  }

  // The counters of all kernels of a call.
  C10_NOINLINE CUdeviceptr find_counters(const KernelCall& call) {
    if (!counters_) {
      const c10::Device device = code_.device.value_or(c10::Device(c10::kCPU));
      const CUresult error = counters_.take(Driver::opened(), device, stream_, captures_, code_.counters);
      if (error != kSuccess) throw LaunchFailure(call.name, error);
    }
    return counters_.address();
  }

  // The current stream of the device, for all of a call.
  void find_stream(const DeviceKernel::Loaded& kernel) {
    const Driver& driver = Driver::opened();
    stream_ = bare_stream;
    if (code_.device) {
      const c10::impl::VirtualGuardImpl device(code_.device->type());
      stream_ = handle_of(device, device.getStream(*code_.device));
    }
    // A thread in which nothing has been done on the device has none of its contexts.
    CUcontext context = nullptr;
    if (driver.get_context(&context) == kSuccess && context == nullptr) driver.set_context(kernel.context);
    int status = 0;
    captures_ = stream_ != nullptr && driver.is_capturing(stream_, &status) == kSuccess && status != 0;
    has_stream_ = true;
  }

  // Asks for an input's memory as one does to write: whoever watches it notices, and what shares it gets a
  // copy, which may put it elsewhere.
  void write_to(int32_t root) {
    const at::Tensor& written = tensor(root);
    const int64_t offset = written.storage_offset() * static_cast<int64_t>(written.element_size());
    auto* memory = static_cast<char*>(written.storage().unsafeGetStorageImpl()->mutable_data());
    frame_.data[root] = memory + offset;
  }

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

  c10::IValue pack(const ScalarArgument& argument) {
    const int64_t number = frame_.scalars[argument.place];
    double real = static_cast<double>(number);
    if (argument.bits) std::memcpy(&real, &number, sizeof real);
    switch (argument.form) {
      case ScalarArgument::Form::Float:
        return real;
      case ScalarArgument::Form::Tensor:
        return at::native::wrapped_scalar_tensor(argument.bits ? at::Scalar(real) : at::Scalar(number));
      case ScalarArgument::Form::Number:
        break;
    }
    return argument.bits ? c10::IValue(real) : c10::IValue(number);
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
    c10::DataPtr data(frame_.data[number], value.device);
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
    // What ATen calls and the caller give is as large as planned (program.cpp checks the plan).
    TORCH_INTERNAL_ASSERT_DEBUG_ONLY(
        root_bytes + value.nbytes <= static_cast<int64_t>(root.storage().nbytes()), "a view beyond its storage");
    frame_.tensors[number] = tensor_in(root.storage(), value, root_bytes / itemsize);
  }

  // Results must not lie in memory that the next call writes to or reads constants from.
  bool lies_in_own_memory(const at::Tensor& tensor) const {
    if (!tensor.defined() || !tensor.has_storage()) return false;
    const char* data = data_of(tensor);
    const auto lies_in = [data](const void* memory, size_t bytes) {
      const auto* arena = static_cast<const char*>(memory);
      return arena != nullptr && data >= arena && data < arena + bytes;
    };
    if (lies_in(frame_.arena.memory(), code_.arena_bytes)) return true;
    if (lies_in(frame_.device_arena.get(), code_.device_arena_bytes)) return true;
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
  const std::shared_ptr<BlockPool>& blocks_;
  Heap* heap_;
  const bool shares_;
  bool has_stream_ = false;
  bool captures_ = false;  // the stream is, into a graph
  CUstream stream_ = nullptr;
  Counters counters_;
};

void execute_here(const Code& code, Frame& frame, const std::shared_ptr<BlockPool>& blocks, Heap* heap,
                  c10::SmallVectorImpl<at::Tensor>& outputs, OutputSink* sink) {
  for (size_t i = 0; i < code.inputs.size(); ++i) {
    if (code.inputs[i] < 0) continue;
    const size_t bytes = static_cast<size_t>(code.values[code.inputs[i]].nbytes);
    if (!has_memory(*frame.inputs[i], bytes)) throw MemoryGone();
    frame.data[code.inputs[i]] = data_of(*frame.inputs[i]);
  }
  Run run(code, frame, blocks, heap);
  run.begin();
  // A long call keeps them awake until it is over.
  const auto keep_awake = c10::make_scope_exit([&] {
    if (code.grains >= kWorthWaking) last_work = Clock::now();
  });
  const c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  c10::SmallVector<bool, 8> is_taken(sink == nullptr ? 0 : code.outputs.size(), false);
  auto finished = code.finished.begin();
  const auto make_output = [&](int32_t number) {
    const c10::impl::ExcludeDispatchKeyGuard below(c10::autograd_dispatch_keyset | c10::autocast_dispatch_keyset);
    return run.output(number);
  };
  const auto hand_out = [&](size_t at) {
    for (; finished != code.finished.end() && finished->at == at; ++finished) {
      if (!sink->takes(finished->output)) continue;
      at::Tensor output = make_output(code.outputs[finished->output]);
      for (const int32_t number : finished->values) frame.tensors[number] = at::Tensor();
      is_taken[finished->output] = true;
      const c10::impl::ForceDispatchKeyGuard outside(keys);
      sink->take(finished->output, std::move(output));
    }
  };
  const auto work = [&](auto is_watched) {
    size_t at = 0;
    [[maybe_unused]] OpenLabels labels;
    // Around a call, if anybody looks.
    const auto span = [&](const std::string& name) {
      if constexpr (is_watched) {
        if (!code.labels.empty()) labels.enter(code.labels[at]);
        return Span(code, static_cast<int32_t>(at), name);
      } else {
        return nullptr;
      }
    };
    try {
      for (; at < code.instructions.size(); ++at) {
        const Instruction& instruction = code.instructions[at];
        if (const auto* kernel = std::get_if<KernelCall>(&instruction)) {
          [[maybe_unused]] const auto seen = span(kernel->name);
          run.kernel(*kernel);
        } else if (const auto* aten = std::get_if<AtenCall>(&instruction)) {
          [[maybe_unused]] const auto seen = span(aten->name);
          run.aten(*aten);
        } else if (const auto* release = std::get_if<ReleaseValues>(&instruction)) {
          run.release(*release);
        } else {
          run.take(std::get<TakeValues>(instruction));
        }
        if (sink != nullptr) hand_out(at);
      }
    } catch (...) {
      if (!code.undo.empty() && !frame.wrote_outside) run.undo(at);
      throw;
    }
  };
  const auto start = [&] {
    if (C10_UNLIKELY(is_watched())) {
      work(std::true_type{});
    } else {
      work(std::false_type{});
    }
  };
  if (code.has_aten) {
    // The recorder saw these calls below autograd and autocast: they must not pass through them a second
    // time.
    const c10::impl::ExcludeDispatchKeyGuard below(c10::autograd_dispatch_keyset |
                                                   c10::autocast_dispatch_keyset);
    start();
  } else {
    start();
  }
  for (size_t i = 0; i < code.outputs.size(); ++i) {
    const int32_t number = code.outputs[i];
    const Value& value = code.values[number];
    if (sink != nullptr && is_taken[i]) {
      outputs.emplace_back();
    } else if (value.kind == Kind::Fresh) {
      outputs.push_back(frame.tensors[number]);
    } else {
      outputs.push_back(make_output(number));
    }
  }
}

}  // namespace

void execute(const Code& code, Frame& frame, const std::shared_ptr<BlockPool>& blocks, Heap* heap,
             c10::SmallVectorImpl<at::Tensor>& outputs, OutputSink* sink) {
  if (!code.device || c10::impl::VirtualGuardImpl(code.device->type()).getDevice() == *code.device) {
    execute_here(code, frame, blocks, heap, outputs, sink);
    return;
  }
  const c10::DeviceGuard on_device(*code.device);
  execute_here(code, frame, blocks, heap, outputs, sink);
}

void Frame::lay_out(const Code& code, Arena memory) {
  arena = std::move(memory);
  if (arena.memory() == laid_out) return;
  laid_out = arena.memory();
  for (size_t number = 0; number < code.values.size(); ++number) {
    const Value& root = code.values[code.values[number].root];
    if (root.kind != Kind::Arena || !root.device.is_cpu()) continue;
    tensors[number] = at::Tensor();
    if (code.values[number].kind == Kind::Arena) data[number] = arena.memory() + root.offset;
  }
}

void Frame::clear(const Code& code) {
  for (size_t number = 0; number < tensors.size(); ++number) {
    if (!tensors[number].defined()) continue;
    const Value& value = code.values[code.values[number].root];
    if (value.kind != Kind::Arena || !value.device.is_cpu()) tensors[number] = at::Tensor();
  }
  if (device_arena) device_arena.clear();
  for (const size_t number : code.held) bound[number] = at::Tensor();
}

Executable::Executable(py::handle program, PyObject* bound)
    : code_(Code::build(program)),
      arenas_(std::make_shared<ArenaPool>()),
      blocks_(std::make_shared<BlockPool>()),
      heap_(code_->takes ? Heap::shared() : nullptr) {
  const py::object constants = program.attr("constants");
  bindings_ = std::make_shared<Bindings>(constants, bound);
  bindings_->require_fit(*code_, constants);
  calls_aten_ = code_->has_aten || bindings_->has_constants();
}

Executable::Executable(py::handle program, const Executable& other)
    : code_(Code::build(program)),
      bindings_(other.bindings_),
      arenas_(other.arenas_),
      blocks_(other.blocks_),
      heap_(code_->takes ? Heap::shared() : nullptr),
      calls_aten_(code_->has_aten || bindings_->has_constants()) {
  bindings_->require_fit(*code_, program.attr("constants"));
}

Executable::~Executable() {
  frames_.clear();
  if (heap_ != nullptr) heap_->trim();
}

bool Executable::bound_fits() const { return bindings_->fits(); }

void Executable::compare_requires_grad() { bindings_->compare_requires_grad(); }

void Executable::reuse_results() {
  const auto is_host = [this](int32_t number) { return code_->values[number].device.is_cpu(); };
  if (results_ != nullptr || std::none_of(code_->fresh.begin(), code_->fresh.end(), is_host)) return;
  results_ = std::make_unique<KeptResults>();
}

uint64_t Executable::generation() {
  if (!bindings_->is_current()) bindings_->refresh();
  return bindings_->generation();
}

void Executable::adopt(py::handle rest, std::vector<at::Tensor> known, std::vector<int64_t> places) {
  bindings_->adopt(rest, std::move(known), std::move(places));
}

uint64_t Executable::constant_refreshes() const { return bindings_->refreshes(); }

std::unique_ptr<Frame> Executable::take_frame() {
  std::unique_ptr<Frame> frame;
  if (!frames_.empty()) {
    frame = std::move(frames_.back());
    frames_.pop_back();
  }
  if (frame == nullptr) frame = std::make_unique<Frame>(*code_);
  if (code_->arena_bytes > 0 && frame->arena.memory() == nullptr) {
    frame->lay_out(*code_, arenas_->take(code_->arena_bytes));
  }
  return frame;
}

void Executable::give_frame(std::unique_ptr<Frame> frame) {
  constexpr size_t kMaxIdle = 8;
  frame->inputs = nullptr;
  frame->owned = nullptr;
  frame->scalars = nullptr;
  // Others that share the memory may be the next to run.
  if (arenas_.use_count() > 1) arenas_->give(std::move(frame->arena));
  if (frames_.size() < kMaxIdle) frames_.push_back(std::move(frame));
}

void Executable::run(const at::Tensor* const* inputs, const int64_t* scalars,
                     c10::SmallVectorImpl<at::Tensor>& outputs, bool& wrote_outside, at::Tensor* owned,
                     OutputSink* sink) {
  wrote_outside = false;
  std::optional<Span> span;
  if (C10_UNLIKELY(is_watched())) span.emplace(*code_, -1, code_->name);
  if (!bindings_->is_current()) bindings_->refresh();
  ++runs_;
  std::unique_ptr<Frame> frame = take_frame();
  if (frame->state != bindings_->state()) {
    frame->state = bindings_->state();
    for (size_t i = 0; i < code_->bound.size(); ++i) {
      if (code_->bound[i] >= 0) frame->data[code_->bound[i]] = frame->state->bound_data[i];
    }
    for (size_t i = 0; i < code_->constant.size(); ++i) {
      if (code_->constant[i] >= 0) frame->data[code_->constant[i]] = frame->state->constant_data[i];
    }
  }
  if (code_->device && frame->state != nullptr && !frame->state->streams.empty()) {
    frame->state->use_on(c10::impl::VirtualGuardImpl(code_->device->type()).getStream(*code_->device));
  }
  frame->wrote_outside = false;
  frame->inputs = inputs;
  frame->owned = owned;
  frame->scalars = scalars;
  for (const size_t number : code_->held) frame->bound[number] = bindings_->tensor(number);
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
  if (results_ != nullptr) results_->lend(*code_, frame->lent);
  const auto keep = [&] {
    if (results_ == nullptr) return;
    for (size_t i = 0; i < code_->fresh.size(); ++i) frame->lent[i] = frame->tensors[code_->fresh[i]];
    results_->keep(*code_, frame->lent);
    for (at::Tensor& tensor : frame->lent) tensor = at::Tensor();
  };
  if (!code_->releases_gil) {
    execute(*code_, *frame, blocks_, heap_.get(), outputs);
    keep();
    return;
  }
  // Without the GIL the caller's objects may lose their references: these keep the tensors alive.
  c10::SmallVector<at::Tensor, 8> alive;
  c10::SmallVector<const at::Tensor*, 8> pointers;
  if (owned == nullptr) {
    for (size_t i = 0; i < code_->inputs.size(); ++i) alive.push_back(*inputs[i]);
    for (const at::Tensor& tensor : alive) pointers.push_back(&tensor);
    frame->inputs = pointers.data();
  }
  {
    const ReleaseGil no_gil(true);
    execute(*code_, *frame, blocks_, heap_.get(), outputs, hands_out() ? sink : nullptr);
  }
  keep();
}

}  // namespace lampwork
