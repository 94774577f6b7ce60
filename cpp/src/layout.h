// A layout: the program of an entry before any number is known, as the file has it.
#pragma once

#include "dtype.h"
#include "index.h"

#include <memory>
#include <string>
#include <variant>
#include <vector>

namespace lampwork::runtime {

enum class Kind : uint8_t { Input, Bound, Constant, Arena, Heap, Fresh, Aten, View };

struct ValueLayout {
  Kind kind;
  lw_dtype dtype = LW_NO_DTYPE;  // of what is known to torch alone
  std::vector<Index> shape;
  std::vector<Index> strides;
  Index offset;
  int32_t base = -1;
  int32_t position = -1;
};

struct KernelLayout {
  size_t module;
  std::string function;
  std::vector<int32_t> buffers;
  std::vector<Index> sizes;
  Index extent;
  Index work;
  int64_t chunk;
  std::string name;
  std::vector<int32_t> outside;  // inputs or bound values whose memory it writes to
};

// A call of an operator of torch. Its arguments are read by who runs it.
struct AtenLayout {
  std::string op;
  Json::List args;
  std::vector<std::pair<std::string, Json>> kwargs;
  std::vector<int32_t> outs;  // -1: not used
  std::string name;
};

struct ReleaseLayout {
  std::vector<int32_t> values;
};

struct TakeLayout {
  std::vector<int32_t> values;
};

using StepLayout = std::variant<KernelLayout, AtenLayout, ReleaseLayout, TakeLayout>;

struct UndoLayout {
  size_t at;
  KernelLayout kernel;
};

struct Layout {
  std::vector<ValueLayout> values;
  std::vector<std::pair<bool, int32_t>> memory;  // whether it is taken or given back
  std::vector<StepLayout> steps;
  std::vector<int32_t> outputs;
  size_t n_inputs = 0;
  size_t n_bound = 0;
  size_t n_constants = 0;
  std::vector<size_t> keys;  // symbols that sizes, strides and ranges depend on
  std::unique_ptr<Layout> constants;
  std::vector<UndoLayout> undo;
  SymbolNumbers symbols;
  std::vector<bool> reads;  // of the inputs: whether a step or an output uses its memory
  size_t n_modules = 0;

  // Checks that every number in it is the number of something. LW_FORMAT, and LW_VERSION for what this library does not
  // run. `symbols`, `n_inputs` and `n_bound` are those of the entry; the program of the constants has no symbols.
  static std::unique_ptr<Layout> read(const Json& json, const SymbolNumbers& symbols, size_t n_modules, size_t n_inputs,
                                      size_t n_bound);
  // Says what a value is that is known to torch alone.
  void describe(size_t number, lw_dtype dtype, const std::vector<Index>& shape, const std::vector<Index>& strides);
};

}  // namespace lampwork::runtime
