// A compiled graph at run time: the C++ twin of lampwork/runtime/program.py, and the interpreter that runs
// it.
//
//   Code        what a Program says; immutable, shared between threads
//   Frame       the memory of one running call: the arena and the values made so far
//   Bindings    (bindings.h) the bound tensors, and the constants computed from them
//   Executable  a Code with its bindings and a free-list of frames; several may share bindings and memory
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
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "blocks.h"
#include "device_kernel.h"
#include "errors.h"
#include "fork_mutex.h"
#include "heap.h"

namespace lampwork {

namespace py = pybind11;

enum class Kind : uint8_t { Input, Bound, Constant, Arena, Heap, Fresh, Aten, View };

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
  c10::Device device{c10::kCPU};  // of a view, that of its root
};

using KernelFunction = int64_t (*)(void** buffers, const int64_t* sizes, int64_t begin, int64_t end);

struct BufferRef {
  int32_t root;
  int64_t bytes;
};

// A number given with each call: where it goes, and its place among those of the call.
struct ScalarSize {
  size_t position;
  int32_t place;
};

// A name that the user put around operators, for a profiler; `number`: of the time that he did.
struct Label {
  int64_t number;
  std::string name;
};

struct KernelCall {
  KernelFunction function = nullptr;       // of the host, or
  DeviceKernel::Loaded* kernel = nullptr;  // of a card
  LaunchShape shape;                       // ... and how it is launched
  std::vector<BufferRef> buffers;
  std::vector<int64_t> sizes;  // with 0 where `scalars` go
  std::vector<ScalarSize> scalars;
  int64_t extent;
  int64_t grain;  // iterations that are worth a thread which waits for work
  std::string name;
  std::vector<int32_t> outside;  // inputs or bound values whose memory it writes to
};

// An argument of an ATen call that holds tensors: one value, or a list of values (-1: None).
struct TensorArgument {
  enum class Form : uint8_t { One, List, OptionalList } form;
  size_t position;
  std::vector<int32_t> values;
};

// An argument of an ATen call that is a number given with the call. `bits`: its int64 holds a float64.
struct ScalarArgument {
  enum class Form : uint8_t { Number, Float, Tensor } form;
  bool bits;
  size_t position;
  int32_t place;
};

struct AtenCall {
  c10::OperatorHandle op;
  std::vector<c10::IValue> arguments;  // with None where `tensors` and `scalars` go
  std::vector<TensorArgument> tensors;
  std::vector<ScalarArgument> scalars;
  std::vector<int32_t> outs;    // -1: result not used
  bool writes_outside = false;  // to an input or bound tensor
  bool communicates = false;    // with other processes
  bool is_one_kernel = false;   // to fresh memory: eager counts no versions within it
  std::string name;
};

// Takes back what instruction `at` wrote to an input.
struct UndoKernel {
  size_t at;
  KernelCall call;
};

struct ReleaseValues {
  std::vector<int32_t> values;
};

// Heap or fresh values whose memory is needed from here on.
struct TakeValues {
  std::vector<int32_t> values;
};

using Instruction = std::variant<KernelCall, AtenCall, ReleaseValues, TakeValues>;

// After instruction `at` nothing reads or writes the memory of output number `output`, which is no other's. `values` lie
// in it.
struct FinishedOutput {
  size_t at;
  size_t output;
  std::vector<int32_t> values;
};

struct Code : std::enable_shared_from_this<Code> {
  std::vector<Value> values;
  std::vector<Instruction> instructions;
  std::vector<UndoKernel> undo;
  std::vector<int32_t> outputs;
  std::vector<FinishedOutput> finished;  // in the order of instructions
  std::vector<int32_t> fresh;     // values to allocate before the first instruction
  std::vector<int32_t> inputs;    // input number -> value, -1 if the program has no value for it
  std::vector<int32_t> bound;     // bound number -> value, or -1
  std::vector<size_t> held;       // numbers of the bound tensors that calls and outputs take as tensors
  std::vector<int32_t> constant;  // constant number -> value
  std::vector<int32_t> device_arena;  // arena values that do not lie on the CPU
  std::optional<c10::Device> device;  // the one that kernels are launched on; none: the CPU
  size_t arena_bytes = 0;
  size_t device_arena_bytes = 0;
  size_t n_scalars = 0;
  int64_t grains = 0;  // of the kernels that threads may share
  size_t counters = 0;  // words that a kernel of a card counts in, at most
  bool has_aten = false;
  bool takes = false;  // memory from the heap, while it runs
  bool releases_gil = false;
  std::string name;                         // of what it computes, for a profiler
  std::vector<std::vector<Label>> labels;  // of each instruction, outermost first; empty if there are none at all
  py::object program;                       // what it was read from, which keeps alive what the kernels are in

  // Reads a lampwork.runtime.program.Program, without its constants. Throws what becomes a Python error.
  static std::unique_ptr<Code> build(py::handle program);
  // Whether any instruction or output reads input `number`.
  bool reads_input(size_t number) const;
};

// The program cannot finish this call: the caller reruns in eager PyTorch.
struct RunFailure : std::exception {
  explicit RunFailure(std::string text) : message(std::move(text)) {}
  const char* what() const noexcept override { return message.c_str(); }
  std::string message;
};

// The driver did not take a launch.
struct LaunchFailure : RunFailure {
  LaunchFailure(const std::string& kernel, CUresult error)
      : RunFailure("kernel '" + kernel + "' could not be launched, or one before it failed: " +
                   Driver::opened().describe(error)) {}
};

// A kernel reported an index out of range.
struct KernelFailure : RunFailure {
  explicit KernelFailure(const std::string& kernel) : RunFailure("kernel '" + kernel + "' reported a failure") {}
};

// A storage is smaller than its tensor, as after `untyped_storage().resize_(0)`.
struct MemoryGone : RunFailure {
  MemoryGone() : RunFailure("a tensor reaches beyond its storage") {}
};

// Takes outputs of a call while it runs, each as soon as it is finished. Called without the GIL, with the dispatch keys
// of the caller.
class OutputSink {
 public:
  virtual ~OutputSink() = default;
  virtual bool takes(size_t output) const = 0;
  virtual void take(size_t output, at::Tensor tensor) = 0;
};

struct BoundState;

struct Frame {
  explicit Frame(const Code& code)
      : data(code.values.size(), nullptr), tensors(code.values.size()), bound(code.bound.size()) {}
  Frame(const Frame&) = delete;
  // Gives the arena's values their place in it.
  void lay_out(const Code& code, Arena memory);
  // Drops what a call made, also when it ended by an exception.
  void clear(const Code& code);

  Arena arena;
  c10::DataPtr device_arena;        // of a running call
  const char* laid_out = nullptr;   // the memory that `data` and `tensors` point into
  std::vector<char*> data;          // of root values
  std::vector<at::Tensor> tensors;  // of fresh, aten and view values; of arena values once asked for
  std::shared_ptr<const BoundState> state;
  std::vector<at::Tensor> lent;     // of fresh values: earlier results to write to, or undefined
  const at::Tensor* const* inputs = nullptr;
  at::Tensor* owned = nullptr;  // the inputs, if the call may drop them after their last use
  const int64_t* scalars = nullptr;
  std::vector<at::Tensor> bound;  // of `Code::held`, during a call
  bool wrote_outside = false;
};

// Its destruction clears a frame.
struct ClearFrame {
  ~ClearFrame() { frame.clear(code); }
  const Code& code;
  Frame& frame;
};

struct ReleaseGil {
  explicit ReleaseGil(bool release) : state(release ? PyEval_SaveThread() : nullptr) {}
  ~ReleaseGil() {
    if (state != nullptr) PyEval_RestoreThread(state);
  }
  ReleaseGil(const ReleaseGil&) = delete;
  PyThreadState* state;
};

// Whether a program has communicated with other processes in this thread, so that a call which failed must not be
// repeated: set by programs, cleared by who asks.
bool& communicated();

// The first element of a tensor; nullptr if it is opaque.
char* data_of(const at::Tensor& tensor);
// From the first byte of a tensor's elements to the last.
size_t spanned_bytes(const at::Tensor& tensor);
// Whether `bytes` bytes from the first element on are there; an opaque tensor has all that it needs.
bool has_memory(const at::Tensor& tensor, size_t bytes);

// Counters of the process.
struct RuntimeStats {
  uint64_t calls = 0;           // of Compiled objects
  uint64_t compiled_calls = 0;  // served by an entry that covers the whole function
  uint64_t partial_calls = 0;   // served by an entry with a graph break
  uint64_t misses = 0;
  uint64_t failures = 0;
  uint64_t constant_refreshes = 0;
  uint64_t specializations = 0;  // programs made for values of an entry's symbols
  uint64_t compiled_backwards = 0;  // of segments, run without Python
};
// Counted under the GIL.
RuntimeStats& runtime_stats();

class Bindings;
class KeptResults;

class Executable {
 public:
  // `bound`: a tuple of tensors, which must outlive this. Needs the GIL, as do all methods.
  Executable(py::handle program, PyObject* bound);
  // One that computes the same for other sizes: it has the bound tensors, constants and memory of `other`.
  Executable(py::handle program, const Executable& other);
  ~Executable();
  Executable(const Executable&) = delete;

  // Runs on `inputs` (n_inputs pointers, alive during the call) and `scalars` (n_scalars numbers, which
  // outlive the call too), and appends the outputs. Releases the GIL
  // while working if the program is large enough. Throws RunFailure, StaleBoundTensor, c10::Error,
  // python_error. `wrote_outside` tells after an exception whether an input or bound tensor had been written
  // to already. `owned`: the tensors that `inputs` point to, if they are to be dropped as soon as nothing reads them.
  // `sink`: may take outputs, which are undefined then, if the program `hands_out`.
  void run(const at::Tensor* const* inputs, const int64_t* scalars, c10::SmallVectorImpl<at::Tensor>& outputs,
           bool& wrote_outside, at::Tensor* owned = nullptr, OutputSink* sink = nullptr);

  // Whether the bound tensors still have the metadata that the program was made for.
  bool bound_fits() const;

  // Brings what is bound and computed from it up to date, as `run` does first, and tells which state that is: while the
  // number is the same, its memory lies where it lay. Throws as `run`.
  uint64_t generation();

  // As Bindings::adopt.
  void adopt(py::handle rest, std::vector<at::Tensor> known, std::vector<int64_t> places);

  // From now on a bound tensor whose requires_grad changes does not fit. For calls made with gradients
  // enabled.
  void compare_requires_grad();

  // From now on results that nobody refers to any more are written again.
  void reuse_results();

  // Constants count too: they are computed in the middle of a call.
  bool calls_aten() const { return calls_aten_; }
  // Whether outputs can be taken while it runs: of calls that take a while, and keep nothing for the next.
  bool hands_out() const { return code_->releases_gil && results_ == nullptr; }
  size_t n_inputs() const { return code_->inputs.size(); }
  size_t n_outputs() const { return code_->outputs.size(); }
  // Whether an output has memory of its own on every call.
  bool gives_fresh(size_t output) const { return code_->values[code_->outputs[output]].kind == Kind::Fresh; }
  size_t n_scalars() const { return code_->n_scalars; }
  size_t n_bound() const { return code_->bound.size(); }
  uint64_t runs() const { return runs_; }
  uint64_t constant_refreshes() const;
  size_t arena_bytes() const { return code_->arena_bytes; }

 private:
  std::unique_ptr<Frame> take_frame();
  void give_frame(std::unique_ptr<Frame> frame);

  std::shared_ptr<const Code> code_;
  std::shared_ptr<Bindings> bindings_;
  std::shared_ptr<ArenaPool> arenas_;
  std::shared_ptr<BlockPool> blocks_;
  std::shared_ptr<Heap> heap_;  // of a program that takes memory from it
  bool calls_aten_;
  std::vector<std::unique_ptr<Frame>> frames_;
  std::unique_ptr<KeptResults> results_;  // nullptr: every result is a new tensor
  uint64_t runs_ = 0;
};

// Runs `code` on a prepared frame, without needing the GIL. Throws as Executable::run.
void execute(const Code& code, Frame& frame, const std::shared_ptr<BlockPool>& blocks, Heap* heap,
             c10::SmallVectorImpl<at::Tensor>& outputs, OutputSink* sink = nullptr);

}  // namespace lampwork
