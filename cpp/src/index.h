// Indices: integer polynomials over symbols, computed when a call brings their numbers.
#pragma once

#include "json.h"

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace lampwork::runtime {

// The symbols of an entry by name -> the place of their numbers.
using SymbolNumbers = std::map<std::string, size_t>;

class Index {
 public:
  Index() : Index(0) {}
  explicit Index(int64_t number) : code_{{Op::Number, number}} {}
  // An int, or a list of terms. LW_FORMAT for what is neither, and for symbols that there are not.
  static Index read(const Json& json, const SymbolNumbers& symbols, const std::string& what);

  // False, and no result, if something overflows or a divisor is not positive. `//` and `%` floor as Python's do.
  bool evaluate(const int64_t* symbols, int64_t& result) const;
  // Places of the symbols that it is computed of.
  void collect(std::set<size_t>& symbols) const;
  bool is_constant() const { return code_.size() == 1 && code_[0].op == Op::Number; }
  bool is_symbol(size_t place) const {
    return code_.size() == 1 && code_[0].op == Op::Symbol && code_[0].operand == static_cast<int64_t>(place);
  }

 private:
  enum class Op : uint8_t { Number, Symbol, Add, Multiply, FloorDivide, Modulo };
  struct Instruction {
    Op op;
    int64_t operand = 0;  // the number, or the place of the symbol
  };
  static constexpr size_t kMostDepth = 64;  // of the stack
  struct Writer;

  std::vector<Instruction> code_;  // postfix
};

}  // namespace lampwork::runtime
