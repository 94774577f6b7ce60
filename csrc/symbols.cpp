#include "symbols.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>

namespace lampwork {

namespace {

std::string class_of(py::handle object) { return py::type::of(object).attr("__name__").cast<std::string>(); }

int64_t int64_of(py::handle number) {
  const long long value = PyLong_AsLongLong(number.ptr());
  if (value == -1 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    throw_value_error("a number in an index of the region does not fit int64");
  }
  return value;
}

}  // namespace

// --- indices -----------------------------------------------------------------------------------------------

IndexProgram::IndexProgram(py::handle index, const SymbolNumbers& numbers) { emit(index, numbers); }

void IndexProgram::push(Op op, int64_t operand) {
  code_.push_back({op, operand});
  max_depth_ = std::max(max_depth_, ++depth_);
}

void IndexProgram::combine(Op op) {
  code_.push_back({op});
  --depth_;
}

void IndexProgram::emit(py::handle index, const SymbolNumbers& numbers) {
  bool first_term = true;
  for (const py::handle term : index.attr("terms")) {
    const py::tuple pair = py::reinterpret_borrow<py::tuple>(term);
    const py::tuple monomial = pair[0];
    const int64_t coefficient = int64_of(pair[1]);
    bool first_factor = true;
    if (coefficient != 1 || monomial.empty()) {
      push(Op::Number, coefficient);
      first_factor = false;
    }
    for (const py::handle atom : monomial) {
      emit_atom(atom, numbers);
      if (!first_factor) combine(Op::Multiply);
      first_factor = false;
    }
    if (!first_term) combine(Op::Add);
    first_term = false;
  }
  if (first_term) push(Op::Number, 0);
}

void IndexProgram::emit_atom(py::handle atom, const SymbolNumbers& numbers) {
  const std::string kind = class_of(atom);
  if (kind == "Sym") {
    const auto name = atom.attr("name").cast<std::string>();
    const auto found = numbers.find(name);
    if (found == numbers.end()) throw_value_error("an index of the region names an unknown symbol " + name);
    push(Op::Symbol, found->second);
  } else if (kind == "FloorDiv" || kind == "Mod") {
    emit(atom.attr("a"), numbers);
    emit(atom.attr("b"), numbers);
    combine(kind == "Mod" ? Op::Modulo : Op::FloorDivide);
  } else {
    throw_value_error("an index of the region has a " + kind +
                      " inside; only symbols have a value before it runs");
  }
}

bool IndexProgram::evaluate(const int64_t* symbols, int64_t& result) const {
  c10::SmallVector<int64_t, 8> stack(max_depth_);
  size_t top = 0;  // one past the topmost value
  for (const Instruction& instruction : code_) {
    if (instruction.op <= Op::Symbol) {
      stack[top++] = instruction.op == Op::Number ? instruction.operand : symbols[instruction.operand];
      continue;
    }
    const int64_t right = stack[--top];
    int64_t& left = stack[top - 1];
    switch (instruction.op) {
      case Op::Add:
        if (__builtin_add_overflow(left, right, &left)) return false;
        break;
      case Op::Multiply:
        if (__builtin_mul_overflow(left, right, &left)) return false;
        break;
      default: {
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
  }
  result = stack[0];
  return true;
}

// --- floats that Python computes ----------------------------------------------------------------------------

FloatProgram::FloatProgram(py::handle number, const SymbolNumbers& numbers) { emit(number, numbers); }

void FloatProgram::emit(py::handle number, const SymbolNumbers& numbers) {
  const py::module_ module = py::module_::import("lampwork.graph.symbols");
  if (py::isinstance(number, module.attr("SymbolicInt"))) {
    code_.push_back({Op::Int, {}, static_cast<int32_t>(indices_.size())});
    indices_.emplace_back(number.attr("index"), numbers);
    return;
  }
  if (!py::isinstance(number, module.attr("SymbolicFloat"))) {
    code_.push_back({Op::Const, py::reinterpret_borrow<py::object>(number)});
    return;
  }
  const py::tuple args = number.attr("args");
  const py::object function = number.attr("function");
  if (function.is(module.attr("float_of_bits"))) {
    emit(args[0], numbers);
    code_.back().op = Op::Float;
    return;
  }
  for (const py::handle arg : args) emit(arg, numbers);
  code_.push_back({Op::Call, function, static_cast<int32_t>(args.size())});
}

int64_t FloatProgram::evaluate(const int64_t* symbols) const {
  std::vector<py::object> stack;
  for (const Instruction& instruction : code_) {
    PyObject* made = nullptr;
    if (instruction.op == Op::Const) {
      made = Py_NewRef(instruction.object.ptr());
    } else if (instruction.op == Op::Call) {
      c10::SmallVector<PyObject*, 4> args;
      const size_t first = stack.size() - static_cast<size_t>(instruction.operand);
      for (size_t i = first; i < stack.size(); ++i) args.push_back(stack[i].ptr());
      made = PyObject_Vectorcall(instruction.object.ptr(), args.data(), args.size(), nullptr);
      stack.resize(first);
    } else {
      int64_t number = 0;
      if (!indices_[static_cast<size_t>(instruction.operand)].evaluate(symbols, number)) {
        PyErr_SetString(PyExc_OverflowError, "a number of the program leaves int64");
        throw python_error();
      }
      double real = 0;
      std::memcpy(&real, &number, sizeof real);
      made = instruction.op == Op::Int ? PyLong_FromLongLong(number) : PyFloat_FromDouble(real);
    }
    if (made == nullptr) throw python_error();
    stack.push_back(py::reinterpret_steal<py::object>(made));
  }
  if (!PyFloat_CheckExact(stack.back().ptr())) throw_type_error("a number of the program is no float");
  const double result = PyFloat_AS_DOUBLE(stack.back().ptr());
  int64_t bits = 0;
  std::memcpy(&bits, &result, sizeof bits);
  return bits;
}

// --- symbols -----------------------------------------------------------------------------------------------

namespace {

// By `kind` of Symbol in capture/model/region.py, and by `op` of Condition in graph/symbols.py.
const Forms<SymbolKind> kSymbolKinds = {{"size", SymbolKind::Size},
                                  {"stride", SymbolKind::Stride},
                                  {"int", SymbolKind::Int},
                                  {"float", SymbolKind::Float}};
const Forms<Relation> kRelations = {{"==", Relation::Equal},
                                    {"!=", Relation::NotEqual},
                                    {">=", Relation::NotNegative},
                                    {"fits", Relation::Fits}};

}  // namespace

Symbols::Symbols(const py::tuple& symbols, const py::tuple& conditions, py::handle computed, py::handle scalars,
                 GuardProgram& program) {
  for (const py::handle symbol : symbols) {
    const auto name = symbol.attr("kind").cast<std::string>();
    const Reader reader{form_of(kSymbolKinds, "symbol kind", name), symbol.attr("negated").cast<bool>(),
                        program.load(symbol.attr("source")), symbol.attr("dim").cast<int64_t>()};
    const bool of_dimension = reader.kind == SymbolKind::Size || reader.kind == SymbolKind::Stride;
    if (of_dimension && reader.dim < 0) throw_value_error("a symbol that is a " + name + " has no dimension");
    const auto number = static_cast<int32_t>(readers_.size());
    if (!numbers_.emplace(symbol.attr("name").cast<std::string>(), number).second) {
      throw_value_error("two symbols of one name");
    }
    readers_.push_back(reader);
  }
  for (const py::handle condition : conditions) {
    const Relation relation = form_of(kRelations, "relation", condition.attr("op").cast<std::string>());
    conditions_.push_back({relation, IndexProgram(condition.attr("index"), numbers_)});
  }
  scalar_numbers_ = numbers_;
  for (const auto& [name, number] : py::reinterpret_borrow<py::dict>(computed)) {
    computed_.emplace_back(number, numbers_);
    scalar_numbers_.emplace(name.cast<std::string>(), static_cast<int32_t>(scalar_numbers_.size()));
  }
  for (const py::handle scalar : scalars) scalars_.emplace_back(scalar, scalar_numbers_);
}

void Symbols::compute(Slots& slots) const {
  slots.scalars.resize(scalars_.size());
  c10::SmallVector<int64_t, 16> numbers(slots.numbers.begin(), slots.numbers.begin() + readers_.size());
  for (const FloatProgram& program : computed_) numbers.push_back(program.evaluate(slots.numbers.data()));
  for (size_t i = 0; i < scalars_.size(); ++i) {
    if (!scalars_[i].evaluate(numbers.data(), slots.scalars[i])) {
      PyErr_SetString(PyExc_OverflowError, "a number of the program leaves int64");
      throw python_error();
    }
  }
}

int32_t Symbols::derive(py::handle index) {
  derived_.emplace_back(index, numbers_);
  return static_cast<int32_t>(readers_.size() + derived_.size()) - 1;
}

bool Symbols::read_one(const Reader& reader, PyObject* value, int64_t& number) {
  if (reader.kind == SymbolKind::Int) {
    if (!PyLong_CheckExact(value)) return false;
    int overflow = 0;
    number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow != 0) return false;
  } else if (reader.kind == SymbolKind::Float) {
    if (!PyFloat_CheckExact(value)) return false;
    const double real = PyFloat_AS_DOUBLE(value);
    std::memcpy(&number, &real, sizeof number);
  } else {
    if (!is_tensor(value)) return false;
    const c10::TensorImpl* impl = THPVariable_Unpack(value).unsafeGetTensorImpl();
    // Such a tensor may answer in Python, with what it likes.
    if (impl == nullptr || impl->key_set().has(c10::DispatchKey::Python)) return false;
    if (reader.kind == SymbolKind::Stride && impl->layout() != c10::kStrided) return false;
    try {
      const at::IntArrayRef numbers = reader.kind == SymbolKind::Size ? impl->sizes() : impl->strides();
      if (reader.dim >= static_cast<int64_t>(numbers.size())) return false;
      number = numbers[static_cast<size_t>(reader.dim)];
    } catch (const c10::Error&) {
      return false;  // a tensor of a kind that has no such numbers: nested, sparse, with symbolic sizes
    }
  }
  return !reader.negated || !__builtin_sub_overflow(int64_t{0}, number, &number);
}

int32_t Symbols::read(Slots& slots) const {
  const size_t n_symbols = readers_.size();
  slots.numbers.resize(n_symbols + derived_.size());
  int64_t* numbers = slots.numbers.data();
  for (size_t i = 0; i < n_symbols; ++i) {
    if (!read_one(readers_[i], slots.values[readers_[i].slot], numbers[i])) return static_cast<int32_t>(i);
  }
  for (size_t i = 0; i < conditions_.size(); ++i) {
    const Condition& condition = conditions_[i];
    int64_t value = 0;
    bool holds = condition.index.evaluate(numbers, value);
    switch (condition.relation) {
      case Relation::Equal:
        holds &= value == 0;
        break;
      case Relation::NotEqual:
        holds &= value != 0;
        break;
      case Relation::NotNegative:
        holds &= value >= 0;
        break;
      case Relation::Fits:  // it could be evaluated
        break;
    }
    if (!holds) return static_cast<int32_t>(n_symbols + i);
  }
  for (size_t i = 0; i < derived_.size(); ++i) {
    if (!derived_[i].evaluate(numbers, numbers[n_symbols + i])) {
      return static_cast<int32_t>(n_symbols + conditions_.size() + i);
    }
  }
  return kHold;
}

}  // namespace lampwork
