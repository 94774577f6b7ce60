#include "replay.h"

#include "entry.h"
#include "errors.h"
#include "reading.h"
#include "rows.h"
#include "symbols.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

namespace lampwork {

namespace {

int64_t bits_of(double value) {
  int64_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

template <class Item>
std::vector<Item> list_of(py::handle items) {
  std::vector<Item> made;
  for (const py::handle item : items) made.push_back(item.cast<Item>());
  return made;
}

// --- arithmetic ----------------------------------------------------------------------------------------------

// Arithmetic on Python's floats (lampwork.optimizers.tape.Tape): each instruction has a value.
class Tape {
 public:
  explicit Tape(py::handle instructions) {
    for (const py::handle each : instructions) {
      const auto parts = py::reinterpret_borrow<py::tuple>(each);
      code_.push_back({form_of(kOps, "operation", parts[0].cast<std::string>()), parts[1].cast<size_t>(),
                       parts[2].cast<size_t>(), parts[3].cast<double>()});
    }
  }

  // False where Python would raise or have a complex number, or answer a question otherwise than it did.
  bool evaluate(const std::vector<double>& floats, const std::vector<double>& counts,
                std::vector<double>& values) const {
    values.clear();
    for (const Instruction& each : code_) {
      double value = 0;
      if (!evaluate(each, floats, counts, values, value)) return false;
      values.push_back(value);
    }
    return true;
  }

 private:
  enum class Op : uint8_t {
    Constant, Float, Count, Add, Subtract, Multiply, Divide, Power, Negate, Absolute, Less, AtMost, Equal
  };
  struct Instruction {
    Op op;
    size_t a, b;   // values; of a float or count its place
    double value;  // of a constant, or what a question was answered
  };
  static const Forms<Op> kOps;

  static bool evaluate(const Instruction& each, const std::vector<double>& floats, const std::vector<double>& counts,
                       const std::vector<double>& values, double& value) {
    if (each.op == Op::Constant) value = each.value;
    if (each.op == Op::Float) value = floats[each.a];
    if (each.op == Op::Count) value = counts[each.a];
    if (each.op <= Op::Count) return true;
    const double a = values[each.a], b = values[each.b];
    switch (each.op) {
      case Op::Add:
        value = a + b;
        return true;
      case Op::Subtract:
        value = a - b;
        return true;
      case Op::Multiply:
        value = a * b;
        return true;
      case Op::Divide:
        value = a / b;
        return b != 0;
      case Op::Power:
        value = std::pow(a, b);
        return a >= 0 && (a > 0 || b >= 0) && std::isfinite(a) && std::isfinite(b) && std::isfinite(value);
      case Op::Negate:
        value = -a;
        return true;
      case Op::Absolute:
        value = std::fabs(a);
        return true;
      case Op::Less:
        value = a < b;
        break;
      case Op::AtMost:
        value = a <= b;
        break;
      default:
        value = a == b;
    }
    return value == each.value;
  }

  std::vector<Instruction> code_;
};

const Forms<Tape::Op> Tape::kOps = {
    {"constant", Op::Constant}, {"float", Op::Float}, {"count", Op::Count},   {"add", Op::Add},
    {"sub", Op::Subtract},      {"mul", Op::Multiply}, {"truediv", Op::Divide}, {"pow", Op::Power},
    {"neg", Op::Negate},        {"abs", Op::Absolute}, {"lt", Op::Less},       {"le", Op::AtMost},
    {"eq", Op::Equal}};

// --- kernels -------------------------------------------------------------------------------------------------

// What a lampwork.optimizers.kernel.RowKernel asks of its numbers, and the arguments that it makes of them.
class Arguments {
 public:
  // numbers: the values of a tape that they are.
  Arguments(py::handle kernel, std::vector<size_t> numbers) : numbers_(std::move(numbers)) {
    SymbolNumbers places;
    for (const py::handle name : kernel.attr("names")) {
      places.emplace(name.cast<std::string>(), static_cast<int32_t>(places.size()));
    }
    for (const py::handle condition : kernel.attr("conditions")) {
      const Relation relation = form_of(kRelations, "relation", condition.attr("op").cast<std::string>());
      conditions_.push_back({relation, IndexProgram(condition.attr("index"), places)});
    }
    for (const py::handle pair : kernel.attr("excluded")) {
      const auto parts = py::reinterpret_borrow<py::tuple>(pair);
      excluded_.emplace_back(parts[0].cast<size_t>(), parts[1].cast<double>());
    }
    for (const py::handle argument : kernel.attr("arguments")) {
      if (argument.is_none()) {
        lengths.push_back(arguments_.size());
        arguments_.emplace_back(std::nullopt);
      } else if (PyLong_Check(argument.ptr())) {
        arguments_.emplace_back(argument.cast<size_t>());
      } else {
        arguments_.emplace_back(std::nullopt);
        computed_.emplace_back(arguments_.size() - 1, FloatProgram(argument, places));
      }
    }
  }

  // False if the kernel is not for these numbers.
  bool fill(const std::vector<double>& values, std::vector<int64_t>& sizes) const {
    c10::SmallVector<int64_t, 16> bits;
    for (const size_t number : numbers_) bits.push_back(bits_of(values[number]));
    for (const auto& [place, value] : excluded_) {
      if (values[numbers_[place]] == value) return false;
    }
    for (const auto& [relation, index] : conditions_) {
      int64_t value = 0;
      if (!index.evaluate(bits.data(), value)) return false;
      if (relation == Relation::Equal && value != 0) return false;
      if (relation == Relation::NotEqual && value == 0) return false;
      if (relation == Relation::NotNegative && value < 0) return false;
    }
    sizes.clear();
    for (const std::optional<size_t>& number : arguments_) sizes.push_back(number ? bits[*number] : 0);
    for (const auto& [place, program] : computed_) sizes[place] = program.evaluate(bits.data());
    return true;
  }

  std::vector<size_t> lengths;  // the arguments that are lengths of rows

 private:
  static const Forms<Relation> kRelations;

  std::vector<size_t> numbers_;
  std::vector<std::pair<size_t, double>> excluded_;
  std::vector<std::pair<Relation, IndexProgram>> conditions_;
  std::vector<std::optional<size_t>> arguments_;
  std::vector<std::pair<size_t, FloatProgram>> computed_;
};

const Forms<Relation> Arguments::kRelations = {{"==", Relation::Equal},
                                               {"!=", Relation::NotEqual},
                                               {">=", Relation::NotNegative},
                                               {"fits", Relation::Fits}};

// A kernel over rows of one step count (lampwork.optimizers.replay.Unit). Tensors are their numbers in a Reading.
struct Unit {
  explicit Unit(py::handle unit)
      : arguments(unit.attr("kernel"), list_of<size_t>(unit.attr("numbers"))),
        counts(list_of<size_t>(unit.attr("counts"))) {
    const py::object kernel = unit.attr("kernel");
    work.set_code(kernel.attr("launched").ptr());
    if (work.card.is_given()) work.card.load(unit.attr("device").cast<int>());
    work.lengths = arguments.lengths;
    const auto mask = kernel.attr("written").cast<uint64_t>();
    for (const py::handle column : kernel.attr("columns")) written.push_back((mask >> column.cast<size_t>() & 1) != 0);
    work.columns = written.size();
    for (const py::handle row : unit.attr("rows")) {
      for (const size_t tensor : list_of<size_t>(row)) table.push_back(tensor);
    }
  }

  RowWork work;  // but for what each call brings
  Arguments arguments;
  std::vector<size_t> counts;
  std::vector<size_t> table;  // row by row
  std::vector<bool> written;  // by column
};

// --- steps ---------------------------------------------------------------------------------------------------

class Replay {
 public:
  explicit Replay(Reading reading) : read_(std::move(reading)) {
    for (PyObject* object : read_.objects) kept_.push_back(py::reinterpret_borrow<py::object>(object));
    read_.tensors.clear();
    read_.places.clear();
  }

  bool fits(PyObject* optimizer) { return now_.read(optimizer) && now_ == read_; }

  void prepare(py::handle tape, py::handle units) {
    tape_.emplace(tape);
    units_.clear();
    for (const py::handle unit : units) units_.emplace_back(unit);
    kept_.push_back(py::reinterpret_borrow<py::object>(units));  // with the machine code
  }

  // False, with nothing done, if this step is another one.
  bool run(PyObject* optimizer) {
    if (!tape_ || !fits(optimizer) || !read_counts() || !tape_->evaluate(now_.floats, counts_, values_)) return false;
    try {
      for (Unit& unit : units_) {
        if (!unit.arguments.fill(values_, unit.work.sizes)) return false;
      }
    } catch (python_error& error) {
      error.restore();
      PyErr_Clear();
      return false;
    }
    if (overlap() || is_captured()) return false;
    const int64_t bytes = point_at_tensors();
    if (bytes <= kGilBytes) {
      for (const Unit& unit : units_) unit.work.run();
      return true;
    }
    // Without the GIL others may drop the tensors, or call this.
    std::vector<at::Tensor> tensors;
    std::vector<RowWork> works;
    for (const at::Tensor* tensor : now_.tensors) tensors.push_back(*tensor);
    for (const Unit& unit : units_) works.push_back(unit.work);
    const ReleaseGil no_gil(true);
    for (const RowWork& work : works) work.run();
    return true;
  }

 private:
  // Whether a graph records what is done on a card: only steps that are `capturable` may be, which torch's code sees to.
  bool is_captured() const {
    return std::any_of(units_.begin(), units_.end(), [](const Unit& unit) {
      return unit.work.card.is_given() && unit.work.card.is_captured();
    });
  }

  // The step count of each unit; false if its rows differ.
  bool read_counts() {
    counts_.clear();
    for (const Unit& unit : units_) {
      double first = 0, count = 0;
      for (size_t i = 0; i < unit.counts.size(); ++i) {
        if (!count_in(*now_.tensors[unit.counts[i]], i == 0 ? first : count)) return false;
        if (i > 0 && count != first) return false;
      }
      counts_.push_back(first);
    }
    return true;
  }

  bool overlap() {
    ranges_.clear();
    for (const Unit& unit : units_) {
      for (size_t i = 0; i < unit.table.size(); ++i) {
        const at::Tensor& tensor = *now_.tensors[unit.table[i]];
        const char* begin = data_of(tensor);
        const bool is_written = unit.written[i % unit.written.size()];
        if (tensor.numel() > 0) ranges_.push_back({begin, begin + tensor.nbytes(), is_written});
      }
    }
    return lampwork::overlap(ranges_, order_);
  }

  // The works' buffers and lengths, and one more step in the counts; gives the bytes of all.
  int64_t point_at_tensors() {
    int64_t bytes = 0;
    // What is written first: that may move memory which is read as well.
    for (Unit& unit : units_) {
      for (const size_t count : unit.counts) advance(*now_.tensors[count]);
      unit.work.buffers.assign(unit.table.size(), nullptr);
      for (size_t i = 0; i < unit.table.size(); ++i) {
        const at::Tensor& tensor = *now_.tensors[unit.table[i]];
        bytes += static_cast<int64_t>(tensor.nbytes());
        if (unit.written[i % unit.written.size()]) unit.work.buffers[i] = memory_to_write(tensor);
      }
    }
    for (Unit& unit : units_) {
      unit.work.ends.clear();
      int64_t total = 0;
      for (size_t i = 0; i < unit.table.size(); ++i) {
        const at::Tensor& tensor = *now_.tensors[unit.table[i]];
        if (unit.work.buffers[i] == nullptr) unit.work.buffers[i] = data_of(tensor);
        if (i % unit.work.columns == 0) unit.work.ends.push_back(total += tensor.numel());
      }
    }
    return bytes;
  }

  Reading read_, now_;
  std::vector<py::object> kept_;
  std::optional<Tape> tape_;
  std::vector<Unit> units_;
  // Of one call, until it releases the GIL.
  std::vector<double> counts_, values_;
  std::vector<Range> ranges_;
  std::vector<size_t> order_;
};

// --- the Python type -----------------------------------------------------------------------------------------

struct ReplayObject {
  PyObject_HEAD
  Replay* replay;
};

Replay& as_replay(PyObject* self) { return *reinterpret_cast<ReplayObject*>(self)->replay; }

void replay_dealloc(PyObject* self) {
  delete reinterpret_cast<ReplayObject*>(self)->replay;
  Py_TYPE(self)->tp_free(self);
}

PyObject* replay_fits(PyObject* self, PyObject* optimizer) {
  HANDLE_TH_ERRORS
  return PyBool_FromLong(as_replay(self).fits(optimizer));
  END_HANDLE_TH_ERRORS
}

PyObject* replay_run(PyObject* self, PyObject* optimizer) {
  HANDLE_TH_ERRORS
  try {
    return PyBool_FromLong(as_replay(self).run(optimizer));
  } catch (const RunFailure& failure) {
    raise_runtime_failure(failure.what());
    return nullptr;
  }
  END_HANDLE_TH_ERRORS
}

PyObject* replay_prepare(PyObject* self, PyObject* args) {
  PyObject *tape, *units;
  if (!PyArg_ParseTuple(args, "OO:prepare", &tape, &units)) return nullptr;
  HANDLE_TH_ERRORS
  as_replay(self).prepare(tape, units);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* read_step(PyObject*, PyObject* optimizer) {
  HANDLE_TH_ERRORS
  Reading reading;
  if (!reading.read(optimizer)) Py_RETURN_NONE;
  py::list floats, tensors;
  for (size_t i = 0; i < reading.floats.size(); ++i) {
    const FloatPlace& place = reading.places[i];
    floats.append(py::make_tuple(place.group, py::handle(place.key), place.place, reading.floats[i]));
  }
  for (const at::Tensor* tensor : reading.tensors) {
    tensors.append(py::reinterpret_steal<py::object>(THPVariable_Wrap(*tensor)));
  }
  const py::object made = py::reinterpret_steal<py::object>(ReplayType.tp_alloc(&ReplayType, 0));
  if (!made) return nullptr;
  reinterpret_cast<ReplayObject*>(made.ptr())->replay = new Replay(std::move(reading));
  return py::make_tuple(made, floats, tensors).release().ptr();
  END_HANDLE_TH_ERRORS
}

PyMethodDef type_methods[] = {
    {"fits", replay_fits, METH_O, "fits(optimizer): whether its step would read what was read, but for numbers."},
    {"prepare", replay_prepare, METH_VARARGS, "prepare(instructions, units): what `run` does."},
    {"run", replay_run, METH_O, "run(optimizer): does its step. False, with nothing done, if that is another one."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

PyTypeObject ReplayType = {
    .ob_base = PyVarObject_HEAD_INIT(nullptr, 0).tp_name = "lampwork._C.Replay",
    .tp_basicsize = sizeof(ReplayObject),
    .tp_dealloc = replay_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "What a step of an optimizer reads, and does: made by read_step.",
    .tp_methods = type_methods,
};

PyMethodDef replay_methods[] = {
    {"read_step", read_step, METH_O,
     "read_step(optimizer): a Replay; the float hyperparameters, each as its group, key, place in a tuple or -1, and "
     "value; the tensors. None if its step may depend on anything else."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace lampwork
