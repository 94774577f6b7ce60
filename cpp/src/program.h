// A program: a layout with numbers for the symbols that it is placed by. Immutable, shared by threads.
#pragma once

#include "layout.h"

#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

namespace lampwork::runtime {

using KernelFunction = int64_t (*)(void** buffers, const int64_t* sizes, int64_t begin, int64_t end);

struct Value {
  Kind kind;
  lw_dtype dtype;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
  int32_t position;
  int32_t root;        // the value whose memory this one lies in: itself unless a view
  int64_t root_bytes;  // ... and how many bytes into it
  int64_t nbytes;      // memory spanned
  int64_t offset;      // of a value in the arena, in bytes

  bool owns_memory() const { return kind == Kind::Arena || kind == Kind::Heap || kind == Kind::Fresh; }
};

struct Buffer {
  int32_t root;
  int64_t bytes;
};

// A size that is known only when a call brings its numbers.
struct LateSize {
  size_t position;
  const Index* index;
};

struct Kernel {
  KernelFunction function;
  std::vector<Buffer> buffers;
  std::vector<int64_t> sizes;
  std::vector<LateSize> late;
  int64_t extent;
  int64_t grain;  // iterations that are worth a thread
  const KernelLayout* layout;
};

// Calls an operator of torch, for a placed program.
class AtenCall {
 public:
  virtual ~AtenCall() = default;
};

struct Aten {
  const AtenLayout* layout;
  std::shared_ptr<AtenCall> call;  // nullptr in a library without torch
};

// A tensor copied into another of the same dtype and shape, which writes back to an input or weight.
struct Copy {
  int32_t to;
  int32_t from;
};

struct Release {
  std::vector<int32_t> values;  // with the views of them
};

struct Take {
  std::vector<int32_t> values;
};

using Step = std::variant<Kernel, Aten, Copy, Release, Take>;

struct Undo {
  size_t at;
  Kernel kernel;
};

// The kernels of a target.
class Functions {
 public:
  virtual ~Functions() = default;
  // LW_FORMAT if there is no such function. nullptr: the memory that it would get is touched in its place.
  virtual KernelFunction find(size_t module, const std::string& name) const = 0;
};

// The values of a call that only copies one tensor to another of the same dtype and number of dimensions, which needs no
// torch.
bool is_copy(const AtenLayout& call, const Layout& layout, Copy& copy);

struct Program {
  std::vector<Value> values;
  std::vector<Step> steps;
  std::vector<Undo> undo;
  std::vector<int32_t> outputs;
  std::vector<int32_t> fresh;      // values that have their memory from the start
  std::vector<int32_t> inputs;     // input number -> value, -1 if there is none
  std::vector<int32_t> bound;      // ... of weights
  std::vector<int32_t> constants;  // ... of constants
  std::vector<int32_t> arena;      // values
  size_t arena_bytes = 0;
  int64_t grains = 0;  // of the kernels that threads may share
  const Layout* layout = nullptr;

  // `symbols`: the numbers of all symbols of the entry. The layout outlives the program. LW_FORMAT if a size is negative
  // or a view reaches beyond the memory that it is of, LW_INPUT if a size leaves int64.
  static std::shared_ptr<Program> place(const Layout& layout, const int64_t* symbols, const Functions& functions);
};

}  // namespace lampwork::runtime
