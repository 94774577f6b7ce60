// Symbols: integers that an entry reads anew on every call, the conditions on them, and what is computed from
// them (lampwork.capture.model.region.Symbol, lampwork.graph.symbols.Condition).
#pragma once

#include "guards.h"

#include <string>
#include <unordered_map>
#include <vector>

namespace lampwork {

using SymbolNumbers = std::unordered_map<std::string, int32_t>;

// A polynomial over symbols (lampwork.loops.ir.polynomial.Index) as a postfix program. `//` and `%` floor as
// Python's do.
class IndexProgram {
 public:
  // `numbers`: the place of each symbol's value. ValueError on anything but symbols, //, % and int64 numbers.
  IndexProgram(py::handle index, const SymbolNumbers& numbers);

  // False, and no result, if something overflows or a divisor is not positive.
  bool evaluate(const int64_t* symbols, int64_t& result) const;

 private:
  enum class Op : uint8_t { Number, Symbol, Add, Multiply, FloorDivide, Modulo };
  struct Instruction {
    Op op;
    int64_t operand = 0;  // the number, or the place of the symbol
  };
  void emit(py::handle index, const SymbolNumbers& numbers);
  void emit_atom(py::handle atom, const SymbolNumbers& numbers);
  void push(Op op, int64_t operand);
  void combine(Op op);

  std::vector<Instruction> code_;
  size_t depth_ = 0;  // of the stack at this point of the code
  size_t max_depth_ = 0;
};

// A float that Python computes of symbols on each call (lampwork.graph.symbols.SymbolicFloat), as a postfix
// program.
class FloatProgram {
 public:
  FloatProgram(py::handle number, const SymbolNumbers& numbers);

  // The bits of the float; throws the Python error that the computation raises.
  int64_t evaluate(const int64_t* symbols) const;

 private:
  enum class Op : uint8_t { Const, Int, Float, Call };
  struct Instruction {
    Op op;
    py::object object;    // the constant, or the function to call
    int32_t operand = 0;  // the number of the IndexProgram, or of arguments
  };
  void emit(py::handle number, const SymbolNumbers& numbers);

  std::vector<Instruction> code_;
  std::vector<IndexProgram> indices_;
};

enum class SymbolKind : uint8_t { Size, Stride, Int, Float };
enum class Relation : uint8_t { Equal, NotEqual, NotNegative, Fits };

class Symbols {
 public:
  // Adds the loads of the symbols' sources to `program`. `scalars`: indices whose values a program takes on
  // each call, over the symbols and over the names of `computed`, a dict of SymbolicFloats.
  Symbols(const py::tuple& symbols, const py::tuple& conditions, py::handle computed, py::handle scalars,
          GuardProgram& program);

  // Asks for the value of an index on every call; returns its place in Slots::numbers.
  int32_t derive(py::handle index);

  // Reads the symbols of a call whose guards hold, checks the conditions and computes what was asked for, all
  // into slots.numbers. Returns kHold, or what failed: the number of a symbol that has no value, then those
  // of the conditions, then those of the derived values.
  int32_t read(Slots& slots) const;
  static constexpr int32_t kHold = -1;

  // The values of the scalars for a call whose symbols were read. Throws what computing a float raises.
  void compute(Slots& slots) const;
  size_t n_scalars() const { return scalars_.size(); }
  bool computes() const { return !scalars_.empty() || !computed_.empty(); }

  bool empty() const { return readers_.empty() && conditions_.empty() && derived_.empty(); }
  size_t count() const { return readers_.size(); }
  size_t n_conditions() const { return conditions_.size(); }

 private:
  struct Reader {
    SymbolKind kind;
    bool negated;
    int32_t slot;
    int64_t dim;
  };
  struct Condition {
    Relation relation;
    IndexProgram index;
  };
  static bool read_one(const Reader& reader, PyObject* value, int64_t& number);

  SymbolNumbers numbers_;
  std::vector<Reader> readers_;
  std::vector<Condition> conditions_;
  std::vector<IndexProgram> derived_;
  std::vector<FloatProgram> computed_;
  std::vector<IndexProgram> scalars_;
  SymbolNumbers scalar_numbers_;  // the places of the symbols, then of what is computed
};

}  // namespace lampwork
