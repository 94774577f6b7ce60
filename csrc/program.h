// A compiled graph at run time: the C++ twin of lampwork/runtime/program.py, and the interpreter that runs
// it.
//
//   Code        what a Program says; immutable, shared between threads
//   Frame       the memory of one running call: the arena and the values made so far
//   Executable  a Code with its bound tensors, its constants and a free-list of frames
#pragma once

#include <torch/csrc/autograd/python_variable.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <variant>
#include <vector>

#include "blocks.h"
#include "errors.h"

namespace lampwork {

namespace py = pybind11;

enum class Kind : uint8_t { Input, Bound, Constant, Arena, Fresh, Aten, View };

struct Value {
  Kind kind;
  bool typed = false;  // dtype, shape and strides are known (an opaque aten value has none)
  at::ScalarType dtype = at::kFloat;
  c10::SmallVector<int64_t, 5> shape;
  c10::SmallVector<int64_t, 5> strides;
  int64_t offset = 0;      // bytes into the arena; elements into `base` for views
  int32_t base = -1;       // of a view
  int32_t position = -1;   // of an input, bound or constant value
  int32_t root = -1;       // the value whose memory this one lies in: itself unless a view
  int64_t root_bytes = 0;  // ... and how many bytes into it
  int64_t nbytes = 0;      // memory spanned
  c10::DispatchKeySet keys;
  bool contiguous = false;
};

using KernelFunction = int64_t (*)(void** buffers, const int64_t* sizes, int64_t begin, int64_t end);

struct BufferRef {
  int32_t root;
  int64_t bytes;
};

struct KernelCall {
  KernelFunction function;
  std::vector<BufferRef> buffers;
  std::vector<int64_t> sizes;
  int64_t extent;
  int64_t grain;
  std::string name;
};

// An argument of an ATen call that holds tensors: one value, or a list of values (-1: None).
struct TensorArgument {
  enum class Form : uint8_t { One, List, OptionalList } form;
  size_t position;
  std::vector<int32_t> values;
};

struct AtenCall {
  c10::OperatorHandle op;
  std::vector<c10::IValue> arguments;  // with None where `tensors` go
  std::vector<TensorArgument> tensors;
  std::vector<int32_t> outs;    // -1: result not used
  bool writes_outside = false;  // to an input or bound tensor
  std::string name;
};

struct ReleaseValues {
  std::vector<int32_t> values;
};

using Instruction = std::variant<KernelCall, AtenCall, ReleaseValues>;

struct Code {
  std::vector<Value> values;
  std::vector<Instruction> instructions;
  std::vector<int32_t> outputs;
  std::vector<int32_t> fresh;     // values to allocate before the first instruction
  std::vector<int32_t> inputs;    // input number -> value, -1 if the program has no value for it
  std::vector<int32_t> bound;     // bound number -> value, or -1
  std::vector<int32_t> constant;  // constant number -> value
  size_t arena_bytes = 0;
  bool has_aten = false;
  bool releases_gil = false;
  std::unique_ptr<Code> constants;
  py::object keepalive;

  // Reads a lampwork.runtime.program.Program. Throws what becomes a Python error.
  static std::unique_ptr<Code> build(py::handle program);
  // Whether any instruction or output reads input `number`.
  bool reads_input(size_t number) const;
};

// A kernel reported that it could not finish (an index out of range): the caller reruns in eager PyTorch.
struct KernelFailure : std::exception {
  explicit KernelFailure(std::string kernel) : message("kernel '" + kernel + "' reported a failure") {}
  const char* what() const noexcept override { return message.c_str(); }
  std::string message;
};

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

struct Frame {
  explicit Frame(const Code& code);
  ~Frame();
  Frame(const Frame&) = delete;

  char* arena = nullptr;
  std::vector<char*> data;          // of root values
  std::vector<at::Tensor> tensors;  // of fresh, aten and view values; of arena values once asked for
  std::vector<at::Storage> arena_storages;
  std::shared_ptr<const BoundState> state;
  const at::Tensor* const* inputs = nullptr;
  bool wrote_outside = false;
};

// Counters of the process.
struct RuntimeStats {
  uint64_t calls = 0;           // of Compiled objects
  uint64_t compiled_calls = 0;  // served by an entry that covers the whole function
  uint64_t partial_calls = 0;   // served by an entry with a graph break
  uint64_t misses = 0;
  uint64_t failures = 0;
  uint64_t constant_refreshes = 0;
};
// Counted under the GIL.
RuntimeStats& runtime_stats();

struct ProgramStats {
  uint64_t runs = 0;
  uint64_t constant_refreshes = 0;
};

class Executable {
 public:
  // Needs the GIL, as do all methods.
  Executable(py::handle program, std::vector<at::Tensor> bound);
  ~Executable();
  Executable(const Executable&) = delete;

  // Runs on `inputs` (n_inputs pointers, alive during the call) and appends the outputs. Releases the GIL
  // while working if the program is large enough. Throws KernelFailure, StaleBoundTensor, c10::Error,
  // python_error. `wrote_outside` tells after an exception whether an input or bound tensor had been written
  // to already.
  void run(const at::Tensor* const* inputs, c10::SmallVectorImpl<at::Tensor>& outputs, bool& wrote_outside);

  // Whether constants are up to date; if not, `run` will compute them. Never throws.
  bool bound_is_current() const;
  // Whether the bound tensors still have the metadata that the program was made for.
  bool bound_fits() const;

  // From now on a bound tensor whose requires_grad changes does not fit. For calls made with gradients
  // enabled.
  void compare_requires_grad() { compares_requires_grad_ = true; }

  // Constants count too: they are computed in the middle of a call.
  bool calls_aten() const { return code_->has_aten || code_->constants != nullptr; }
  size_t n_inputs() const { return code_->inputs.size(); }
  size_t n_outputs() const { return code_->outputs.size(); }
  const std::vector<at::Tensor>& bound() const { return bound_; }
  const ProgramStats& stats() const { return stats_; }
  size_t arena_bytes() const { return code_->arena_bytes; }

 private:
  void refresh();
  std::unique_ptr<Frame> take_frame();
  void give_frame(std::unique_ptr<Frame> frame);

  std::unique_ptr<const Code> code_;
  std::vector<at::Tensor> bound_;
  std::vector<BoundMetadata> metadata_;
  std::vector<bool> feeds_constants_;
  bool compares_requires_grad_ = false;
  std::shared_ptr<const BoundState> state_;
  std::shared_ptr<BlockPool> blocks_;
  std::mutex frames_mutex_;
  std::vector<std::unique_ptr<Frame>> frames_;
  ProgramStats stats_;
};

// Runs `code` on a prepared frame, without needing the GIL. Throws as Executable::run.
void execute(const Code& code, Frame& frame, const std::vector<at::Tensor>& bound,
             const std::shared_ptr<BlockPool>& blocks, c10::SmallVectorImpl<at::Tensor>& outputs);

}  // namespace lampwork
