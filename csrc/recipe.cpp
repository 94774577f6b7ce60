#include "recipe.h"

namespace lampwork {

namespace {

// By `kind` of Step in capture/model/region.py.
const Forms<StepKind> kSteps = {
    {"output", StepKind::Output}, {"source", StepKind::Source}, {"symbol", StepKind::Symbol},
    {"const", StepKind::Const},   {"tuple", StepKind::Tuple},   {"list", StepKind::List},
    {"dict", StepKind::Dict},     {"call", StepKind::Call},
};

}  // namespace

Recipe::Recipe(py::handle recipe, GuardProgram& program, Symbols& symbols) {
  for (const py::handle object : recipe.attr("steps")) {
    Step step{form_of(kSteps, "recipe step", object.attr("kind").cast<std::string>())};
    const py::object payload = object.attr("payload");
    for (const py::handle arg : object.attr("args")) {
      const auto number = arg.cast<int64_t>();
      if (number < 0 || number >= static_cast<int64_t>(steps_.size())) {
        throw_value_error("a recipe step uses a step that does not precede it");
      }
      step.args.push_back(static_cast<int32_t>(number));
    }
    switch (step.kind) {
      case StepKind::Output:
        step.payload = payload.cast<int32_t>();
        if (step.payload < 0) throw_value_error("a recipe step names a negative output");
        max_output_ = std::max(max_output_, step.payload);
        break;
      case StepKind::Source:
        step.payload = program.load(payload);
        pinned_.push_back(step.payload);
        break;
      case StepKind::Symbol:
        step.payload = symbols.derive(payload);
        break;
      case StepKind::Const:
        step.payload = static_cast<int32_t>(constants_.size());
        constants_.push_back(payload);
        break;
      case StepKind::Dict:
        if (step.args.size() % 2 != 0) throw_value_error("a dict step has a key without a value");
        break;
      case StepKind::Call:
        if (step.args.empty()) throw_value_error("a call step has no function");
        break;
      case StepKind::Tuple:
      case StepKind::List:
        break;
    }
    steps_.push_back(std::move(step));
  }
  result_ = recipe.attr("result").cast<int32_t>();
  if (result_ < 0 || result_ >= static_cast<int32_t>(steps_.size())) {
    throw_value_error("the recipe's result is not one of its steps");
  }
  if (steps_.size() == 1 && steps_[0].kind == StepKind::Output) single_output_ = steps_[0].payload;
}

PyObject* Recipe::run_step(const Step& step, PyObject* const* values, PyObject* const* outputs,
                           size_t n_outputs, const Slots& slots) const {
  const auto count = static_cast<Py_ssize_t>(step.args.size());
  switch (step.kind) {
    case StepKind::Output:
      if (static_cast<size_t>(step.payload) >= n_outputs) {
        PyErr_SetString(PyExc_IndexError, "lampwork: the program gave fewer outputs than the recipe uses");
        return nullptr;
      }
      return Py_NewRef(outputs[step.payload]);
    case StepKind::Source:
      return Py_NewRef(slots.values[step.payload]);
    case StepKind::Symbol:
      return PyLong_FromLongLong(slots.numbers[static_cast<size_t>(step.payload)]);
    case StepKind::Const:
      return Py_NewRef(constants_[step.payload].ptr());
    case StepKind::Tuple: {
      PyObject* tuple = PyTuple_New(count);
      for (Py_ssize_t i = 0; tuple != nullptr && i < count; ++i) {
        PyTuple_SET_ITEM(tuple, i, Py_NewRef(values[step.args[i]]));
      }
      return tuple;
    }
    case StepKind::List: {
      PyObject* list = PyList_New(count);
      for (Py_ssize_t i = 0; list != nullptr && i < count; ++i) {
        PyList_SET_ITEM(list, i, Py_NewRef(values[step.args[i]]));
      }
      return list;
    }
    case StepKind::Dict: {
      py::object dict = py::reinterpret_steal<py::object>(PyDict_New());
      for (Py_ssize_t i = 0; dict && i < count; i += 2) {
        if (PyDict_SetItem(dict.ptr(), values[step.args[i]], values[step.args[i + 1]]) != 0) return nullptr;
      }
      return dict.release().ptr();
    }
    case StepKind::Call: {
      c10::SmallVector<PyObject*, 8> call;
      for (const int32_t arg : step.args) call.push_back(values[arg]);
      return PyObject_Vectorcall(call[0], call.data() + 1, call.size() - 1, nullptr);
    }
  }
  return nullptr;
}

PyObject* Recipe::run(PyObject* const* outputs, size_t n_outputs, const Slots& slots) const {
  c10::SmallVector<PyObject*, 16> values;
  PyObject* result = nullptr;
  for (const Step& step : steps_) {
    PyObject* value = run_step(step, values.data(), outputs, n_outputs, slots);
    if (value == nullptr) break;
    values.push_back(value);
  }
  if (values.size() == steps_.size()) result = Py_NewRef(values[result_]);
  for (PyObject* value : values) Py_DECREF(value);
  return result;
}

int Recipe::visit(visitproc visit, void* arg) const {
  for (const py::object& object : constants_) Py_VISIT(object.ptr());
  return 0;
}

void Recipe::clear() {
  std::vector<py::object> constants;
  constants.swap(constants_);
  steps_.clear();
}

}  // namespace lampwork
