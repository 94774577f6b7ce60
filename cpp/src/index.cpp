#include "index.h"

namespace lampwork::runtime {

struct Index::Writer {
  const SymbolNumbers& symbols;
  const std::string& what;
  std::vector<Instruction> code;
  size_t depth = 0;

  void push(Op op, int64_t operand) {
    if (++depth > kMostDepth) damaged(what + " is an index of too many parts");
    code.push_back({op, operand});
  }
  void combine(Op op) {
    code.push_back({op});
    --depth;
  }

  void write(const Json& json) {
    if (json.list() == nullptr) {
      push(Op::Number, integer_of(json, what));
      return;
    }
    if (json.list()->empty()) push(Op::Number, 0);
    bool is_first_term = true;
    for (const Json& each : *json.list()) {
      const Json::List& term = pair_of(each, what);
      push(Op::Number, integer_of(term[0], what));
      for (const Json& atom : list_of(term[1], what)) {
        write_atom(atom);
        combine(Op::Multiply);
      }
      if (!is_first_term) combine(Op::Add);
      is_first_term = false;
    }
  }

  void write_atom(const Json& atom) {
    if (atom.text() != nullptr) {
      const auto found = symbols.find(*atom.text());
      if (found == symbols.end()) damaged(what + " names the symbol '" + *atom.text() + "', which there is not");
      push(Op::Symbol, static_cast<int64_t>(found->second));
      return;
    }
    const Json::List& parts = list_of(atom, what);
    if (parts.size() != 3) damaged(what + " has a factor that is none");
    const std::string& op = text_of(parts[0], what);
    if (op != "//" && op != "%") damaged(what + " has the operator '" + op + "', which there is not");
    write(parts[1]);
    write(parts[2]);
    combine(op == "%" ? Op::Modulo : Op::FloorDivide);
  }
};

Index Index::read(const Json& json, const SymbolNumbers& symbols, const std::string& what) {
  Writer writer{symbols, what, {}};
  writer.write(json);
  Index index;
  index.code_ = std::move(writer.code);
  std::set<size_t> needed;
  index.collect(needed);
  if (int64_t number = 0; needed.empty()) {
    if (!index.evaluate(nullptr, number)) damaged(what + " has no value");
    return Index(number);
  }
  if (index.code_.size() == 3 && index.code_[0].op == Op::Number && index.code_[0].operand == 1 &&
      index.code_[1].op == Op::Symbol && index.code_[2].op == Op::Multiply) {
    index.code_ = {index.code_[1]};
  }
  return index;
}

bool Index::evaluate(const int64_t* symbols, int64_t& result) const {
  std::array<int64_t, kMostDepth> stack;
  size_t top = 0;  // one past the topmost value
  for (const Instruction& instruction : code_) {
    if (instruction.op <= Op::Symbol) {
      stack[top++] = instruction.op == Op::Number ? instruction.operand : symbols[instruction.operand];
      continue;
    }
    const int64_t right = stack[--top];
    int64_t& left = stack[top - 1];
    if (instruction.op == Op::Add) {
      if (__builtin_add_overflow(left, right, &left)) return false;
    } else if (instruction.op == Op::Multiply) {
      if (__builtin_mul_overflow(left, right, &left)) return false;
    } else {
      if (right <= 0) return false;
      int64_t quotient = left / right;
      int64_t rest = left % right;
      if (rest < 0) {
        --quotient;
        rest += right;
      }
      left = instruction.op == Op::Modulo ? rest : quotient;
    }
  }
  result = stack[0];
  return true;
}

void Index::collect(std::set<size_t>& symbols) const {
  for (const Instruction& instruction : code_) {
    if (instruction.op == Op::Symbol) symbols.insert(static_cast<size_t>(instruction.operand));
  }
}

}  // namespace lampwork::runtime
