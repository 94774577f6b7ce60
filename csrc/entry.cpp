#include "entry.h"

#include <torch/csrc/Exceptions.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/SavedTensorHooks.h>
#include <c10/core/GradMode.h>

#include <utility>

namespace lampwork {

namespace {

EntryData& data_of(PyObject* self) { return *reinterpret_cast<EntryObject*>(self)->data; }

// --- running -----------------------------------------------------------------------------------------------

bool same_names(PyObject* a, PyObject* b) {
  if (a == b) return true;
  const Py_ssize_t size_a = a == nullptr ? 0 : PyTuple_GET_SIZE(a);
  const Py_ssize_t size_b = b == nullptr ? 0 : PyTuple_GET_SIZE(b);
  if (size_a != size_b) return false;
  for (Py_ssize_t i = 0; i < size_a; ++i) {
    PyObject* x = PyTuple_GET_ITEM(a, i);
    PyObject* y = PyTuple_GET_ITEM(b, i);
    if (x == y) continue;
    const int same = PyUnicode_Compare(x, y);
    if (same == -1 && PyErr_Occurred() != nullptr) PyErr_Clear();
    if (same != 0) return false;
  }
  return true;
}

bool bound_fits(const EntryData& entry) {
  if (entry.program.executable != nullptr) return entry.program.executable->bound_fits();
  const bool gradients = entry.state && entry.state->grad_enabled;
  for (size_t i = 0; i < entry.bound_metadata.size(); ++i) {
    const at::Tensor& tensor =
        THPVariable_Unpack(PyTuple_GET_ITEM(entry.bound.ptr(), static_cast<Py_ssize_t>(i)));
    if (!entry.bound_metadata[i].fits(tensor.unsafeGetTensorImpl(), gradients)) return false;
  }
  return true;
}

py::object call_on_failure(const EntryData& entry, const CallArgs& args) {
  const Py_ssize_t n_kwargs = PyTuple_GET_SIZE(entry.kwarg_names.ptr());
  py::tuple positional(args.n_positional);
  for (Py_ssize_t i = 0; i < args.n_positional; ++i) {
    PyTuple_SET_ITEM(positional.ptr(), i, Py_NewRef(args.values[i]));
  }
  py::dict kwargs;
  for (Py_ssize_t i = 0; i < n_kwargs; ++i) {
    PyDict_SetItem(kwargs.ptr(), PyTuple_GET_ITEM(entry.kwarg_names.ptr(), i),
                   args.values[args.n_positional + i]);
  }
  PyObject* pair[] = {positional.ptr(), kwargs.ptr()};
  PyObject* answer = PyObject_Vectorcall(entry.on_failure.ptr(), pair, 2, nullptr);
  return py::reinterpret_steal<py::object>(
      followed(answer, args.values, args.n_positional, entry.kwarg_names.ptr()));
}

// The inputs, then the bound tensors.
py::list tensor_list(const EntryData& entry, const Slots& slots) {
  py::list tensors;
  for (const int32_t slot : entry.input_slots) tensors.append(py::handle(slots.values[slot]));
  for (const py::handle tensor : entry.bound) tensors.append(tensor);
  return tensors;
}

// The recipe over any sequence of outputs.
PyObject* finish(const EntryData& entry, const Slots& slots, py::handle outputs) {
  const py::object items = py::reinterpret_steal<py::object>(
      PySequence_Fast(outputs.ptr(), "lampwork: a program must return a sequence of tensors"));
  if (!items) return nullptr;
  return entry.recipe->run(PySequence_Fast_ITEMS(items.ptr()), PySequence_Fast_GET_SIZE(items.ptr()), slots);
}

// Whether the exception that is set is one of lampwork.errors.
bool is_own_error() {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  const py::object base =
      py::module_::import("lampwork.errors").attr("LampworkError");
  const bool own = PyErr_GivenExceptionMatches(type, base.ptr()) != 0;
  PyErr_Restore(type, value, trace);
  return own;
}

// What a call changes before it is known to succeed.
class Undo {
 public:
  // Moves versions on as often as eager does; the program does it once for each tensor that it writes, which
  // `settle` takes back where eager does not.
  Undo(const EntryData& entry, const Slots& slots) {
    for (const auto& [number, by] : entry.versions) {
      const size_t n_inputs = entry.input_slots.size();
      PyObject* object = number < n_inputs ? slots.values[entry.input_slots[number]]
                                           : PyTuple_GET_ITEM(entry.bound.ptr(), static_cast<Py_ssize_t>(number - n_inputs));
      if (!THPVariable_Check(object)) continue;
      const c10::VariableVersion& counter = THPVariable_Unpack(object).unsafeGetTensorImpl()->version_counter();
      if (!counter.enabled()) continue;
      if (by == 0) {
        unmoved_.emplace_back(counter, counter.current_version());
        continue;
      }
      versions_.emplace_back(counter, counter.current_version());
      versions_.back().first.set_version(counter.current_version() + by - 1);
    }
    if (!entry.draws) return;
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator_ = generator.clone();
  }

  // The program has run.
  void settle() const {
    for (const auto& [counter, version] : unmoved_) c10::VariableVersion(counter).set_version(version);
  }

  // Eager runs the call from its beginning.
  void apply() const {
    for (const auto& [counter, version] : versions_) c10::VariableVersion(counter).set_version(version);
    if (!generator_.defined()) return;
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const at::Tensor state = generator_.get_state();
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(state);
  }

 private:
  c10::SmallVector<std::pair<c10::VariableVersion, uint32_t>, 2> versions_;
  c10::SmallVector<std::pair<c10::VariableVersion, uint32_t>, 2> unmoved_;
  at::Generator generator_;  // as it was, if the program draws
};

PyObject* run_callable(const EntryData& entry, const Runnable& runnable, Slots& slots, const Undo& undo,
                       bool& committed) {
  py::object outputs;
  if (runnable.program.is_none()) {
    outputs = py::tuple();
  } else {
    const py::list inputs = tensor_list(entry, slots);
    aten_failed() = false;
    if (entry.symbols->n_scalars() > 0) {
      const auto numbers = [](const int64_t* values, size_t count) {
        py::tuple made(count);
        for (size_t i = 0; i < count; ++i) made[i] = values[i];
        return made;
      };
      const py::tuple scalars = numbers(slots.scalars.data(), slots.scalars.size());
      const py::tuple values = numbers(slots.numbers.data(), entry.symbols->count());
      PyObject* args[] = {inputs.ptr(), scalars.ptr(), values.ptr()};
      outputs =
          py::reinterpret_steal<py::object>(PyObject_Vectorcall(runnable.program.ptr(), args, 3, nullptr));
    } else {
      outputs =
          py::reinterpret_steal<py::object>(PyObject_CallOneArg(runnable.program.ptr(), inputs.ptr()));
    }
    if (!outputs) {
      committed = !aten_failed() && !is_own_error();
      return nullptr;
    }
    committed = true;
    undo.settle();
  }
  committed = true;
  return finish(entry, slots, outputs);
}

PyObject* run_executable(EntryData& entry, Executable& executable, Slots& slots, const Undo& undo, bool& committed) {
  c10::SmallVector<const at::Tensor*, 8> inputs;
  for (const int32_t slot : entry.input_slots) {
    PyObject* value = slots.values[slot];
    if (!THPVariable_Check(value)) return nullptr;  // a source without a tensor guard: no match
    inputs.push_back(&THPVariable_Unpack(value));
  }
  c10::SmallVector<at::Tensor, 4> outputs;
  executable.run(inputs.data(), slots.scalars.data(), outputs, committed);
  undo.settle();
  for (const size_t number : entry.apart) {
    if (number >= outputs.size() || executable.gives_fresh(number)) continue;
    if (outputs[number].is_view()) outputs[number] = outputs[number].detach();
  }
  for (const auto& [number, version] : entry.fresh_versions) {
    if (number >= outputs.size()) continue;
    const c10::VariableVersion& counter = outputs[number].unsafeGetTensorImpl()->version_counter();
    if (counter.enabled()) c10::VariableVersion(counter).set_version(version);
  }
  const int32_t single = entry.recipe->single_output();
  if (single >= 0) return THPVariable_Wrap(std::move(outputs[single]));
  c10::SmallVector<PyObject*, 8> objects;
  for (at::Tensor& tensor : outputs) objects.push_back(THPVariable_Wrap(std::move(tensor)));
  committed = true;
  PyObject* result = entry.recipe->run(objects.data(), objects.size(), slots);
  for (PyObject* object : objects) Py_XDECREF(object);
  return result;
}

// A failed run is repeated in eager PyTorch, which raises the genuine error; unless it was interrupted, or it
// is `committed`: an outside tensor was written to, other processes have heard of it, effects may have been replayed,
// or Python code around the program raised, such as a hook on saved tensors, whose exception is genuine and whose
// effects have happened.
PyObject* fail(const EntryData& entry, const CallArgs& args, const Undo& undo, bool committed) {
  ++runtime_stats().failures;
  const bool is_exception = PyErr_ExceptionMatches(PyExc_Exception) != 0;
  if (entry.on_failure.is_none() || committed || !is_exception) return nullptr;
  PyErr_Clear();
  undo.apply();
  return call_on_failure(entry, args).release().ptr();
}

// Whether hooks get the tensors that autograd saves. One may end the call, as those of checkpoints do on purpose, and then
// what eager did outside until there has happened, where a program would have done nothing yet.
bool may_be_stopped() {
  return c10::GradMode::is_enabled() && at::SavedTensorDefaultHooks::get_hooks(true).has_value();
}

// Turns the exception in flight into a Python one, or into a miss.
void translate_exception(bool& missed) {
  const auto translate = [&]() -> PyObject* {
    HANDLE_TH_ERRORS
    try {
      throw;
    } catch (const StaleBoundTensor&) {
      missed = true;
    } catch (const RunFailure& failure) {
      raise_runtime_failure(failure.what());
    }
    return nullptr;
    END_HANDLE_TH_ERRORS
  };
  translate();
}

PyObject* run_entry(EntryData& entry, const Runnable& runnable, Slots& slots, const Undo& undo, bool& missed,
                    bool& committed) {
  try {
    if (entry.symbols->computes()) entry.symbols->compute(slots);
    if (runnable.executable == nullptr) return run_callable(entry, runnable, slots, undo, committed);
    PyObject* result = run_executable(entry, *runnable.executable, slots, undo, committed);
    missed = result == nullptr && PyErr_Occurred() == nullptr;
    return result;
  } catch (...) {
    translate_exception(missed);
    return nullptr;
  }
}

// ATen warns through a handler that must be in place while it runs.
PyObject* run_entry_with_warnings(EntryData& entry, const Runnable& runnable, Slots& slots, const Undo& undo,
                                  bool& missed, bool& committed) {
  HANDLE_TH_ERRORS
  PyObject* result = run_entry(entry, runnable, slots, undo, missed, committed);
  if (PyErr_Occurred() != nullptr) throw python_error();
  // What is raised from here on is a warning that the user has made an error.
  if (result != nullptr) committed = true;
  return result;
  END_HANDLE_TH_ERRORS
}

// --- programs ----------------------------------------------------------------------------------------------

// What a Python object given as a program is; throws if it does not fit the entry.
Runnable runnable_of(const EntryData& entry, py::handle program) {
  Runnable runnable{py::reinterpret_borrow<py::object>(program)};
  if (Py_TYPE(program.ptr()) != &ExecutableType) {
    if (!program.is_none() && !PyCallable_Check(program.ptr())) {
      throw_type_error("program must be a lampwork._C.Executable, a callable or None");
    }
    return runnable;
  }
  Executable* executable = reinterpret_cast<ExecutableObject*>(program.ptr())->executable;
  if (executable->n_inputs() != entry.input_slots.size()) {
    throw_value_error("the program takes " + std::to_string(executable->n_inputs()) +
                      " inputs, the region has " + std::to_string(entry.input_slots.size()));
  }
  if (entry.recipe->max_output() >= static_cast<int32_t>(executable->n_outputs())) {
    throw_value_error("the recipe uses an output that the program does not have");
  }
  if (executable->n_bound() != entry.bound.size()) {
    throw_value_error("the program was made with " + std::to_string(executable->n_bound()) +
                      " bound tensors, the region has " + std::to_string(entry.bound.size()));
  }
  if (executable->n_scalars() != entry.symbols->n_scalars()) {
    throw_value_error("the program takes " + std::to_string(executable->n_scalars()) +
                      " scalars, the entry gives " + std::to_string(entry.symbols->n_scalars()));
  }
  if (entry.state && entry.state->grad_enabled) executable->compare_requires_grad();
  if (entry.reuses) executable->reuse_results();
  runnable.executable = executable;
  return runnable;
}

using Values = c10::SmallVector<int64_t, 8>;

Values values_of(const EntryData& entry, const Slots& slots) {
  Values values;
  for (const int32_t key : entry.keys) values.push_back(slots.numbers[static_cast<size_t>(key)]);
  return values;
}

// Has a program made for the values of a call. False with an error set, which is the caller's: making a
// program is compiling, and whether a failure of that is hidden is for those who compile to say.
bool specialize(EntryObject* object, const Slots& slots) {
  HANDLE_TH_ERRORS
  const Values values = values_of(*object->data, slots);
  py::tuple arguments(values.size());
  for (size_t i = 0; i < values.size(); ++i) arguments[i] = values[i];
  const py::object made = object->data->specialize(arguments);
  EntryData& entry = *object->data;
  if (made.is_none()) {
    throw_type_error("specialize must return a lampwork._C.Executable or a callable, not None");
  }
  Runnable runnable = runnable_of(entry, made);
  // Another thread may have been faster, or a weight have changed so that the program is for another one.
  if (entry.specializations.find(values) != nullptr || !bound_fits(entry)) return true;
  ++runtime_stats().specializations;
  entry.specializations.add(values, std::move(runnable));
  return true;
  END_HANDLE_TH_ERRORS_RET(false)
}

// --- the Python type ---------------------------------------------------------------------------------------

// An attribute that must be a tuple.
py::tuple tuple_of(py::handle object, const char* name) {
  const py::object value = object.attr(name);
  if (!PyTuple_Check(value.ptr())) throw_type_error(std::string(name) + " must be a tuple");
  return py::reinterpret_borrow<py::tuple>(value);
}

using Versions = std::vector<std::pair<size_t, uint32_t>>;

// Reads what lampwork.capture.model.region.Region and lampwork.runtime.entry.Service say.
PyObject* entry_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"region", "service", nullptr};
  PyObject *region_object, *service_object;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO", const_cast<char**>(names), &region_object, &service_object)) {
    return nullptr;
  }
  HANDLE_TH_ERRORS
  const py::handle region(region_object), service(service_object);
  const py::tuple guards = tuple_of(region, "guards");
  const py::tuple slow_guards = tuple_of(region, "slow_guards");
  const py::object program = service.attr("program");
  auto data = std::make_unique<EntryData>(tuple_of(region, "kwarg_names"));
  data->n_args = region.attr("n_args").cast<Py_ssize_t>();
  const int counter = service.attr("counter").cast<int>();
  if (counter < 0 || counter > 2) throw_value_error("counter must be 0, 1 or 2");
  data->counter = static_cast<EntryData::Counter>(counter);
  data->draws = service.attr("draws").cast<bool>();
  data->acts = service.attr("acts").cast<bool>();
  data->reuses = service.attr("reuses").cast<bool>();
  for (const py::handle pair : tuple_of(service, "versions")) data->versions.push_back(pair.cast<Versions::value_type>());
  for (const py::handle pair : tuple_of(region, "fresh_versions")) {
    data->fresh_versions.push_back(pair.cast<Versions::value_type>());
  }
  for (const py::handle number : tuple_of(region, "apart")) data->apart.push_back(number.cast<size_t>());
  data->guards = py::reinterpret_steal<py::tuple>(PySequence_Concat(guards.ptr(), slow_guards.ptr()));
  data->bound = tuple_of(region, "bound");
  data->symbol_objects = tuple_of(region, "symbols");
  data->conditions = py::tuple(region.attr("conditions"));
  for (const py::handle key : tuple_of(service, "keys")) {
    data->keys.push_back(key.cast<int32_t>());
    if (data->keys.back() < 0 || data->keys.back() >= static_cast<int32_t>(data->symbol_objects.size())) {
      throw_value_error("keys must be numbers of symbols");
    }
  }
  data->specialize = service.attr("specialize");
  const bool specializes = !data->specialize.is_none();
  if (specializes && !PyCallable_Check(data->specialize.ptr())) throw_type_error("specialize must be callable");
  if (specializes && !program.is_none()) {
    throw_value_error("an entry has either one program or makes one for each tuple of values");
  }
  const py::object state = region.attr("state");
  if (!state.is_none()) data->state = GlobalState::from_python(state.ptr());
  const auto n_fast = static_cast<int32_t>(guards.size());
  const auto n_guards = static_cast<int32_t>(data->guards.size());
  for (int32_t number = 0; number < n_fast; ++number) data->fast.add(data->guards[number], number);
  py::list slow;
  for (int32_t number = n_fast; number < n_guards; ++number) {
    slow.append(py::make_tuple(number, data->guards[number]));
  }
  data->slow = std::make_unique<SlowGuards>(slow, region.attr("versioned").ptr());
  for (const py::handle source : py::object(region.attr("inputs"))) {
    data->input_slots.push_back(data->fast.load(source));
  }
  data->symbols = std::make_unique<Symbols>(data->symbol_objects, data->conditions, service.attr("computed"),
                                            tuple_of(service, "scalars"), data->fast);
  data->recipe = std::make_unique<Recipe>(region.attr("recipe").ptr(), data->fast, *data->symbols);
  data->on_failure = service.attr("on_failure");
  data->program = runnable_of(*data, program);
  for (const py::handle tensor : data->bound) {
    if (!THPVariable_Check(tensor.ptr())) throw_type_error("bound tensors must be tensors");
    if (data->program.executable == nullptr) {
      data->bound_metadata.emplace_back(THPVariable_Unpack(tensor.ptr()));
    }
  }
  const int32_t failed = data->slow->rebuild();
  if (failed >= 0) {
    const py::object guard = py::reinterpret_borrow<py::object>(data->guards[static_cast<size_t>(failed)]);
    throw_value_error("a guard does not hold when its entry is made: " + py::repr(guard).cast<std::string>());
  }
  PyObject* self = type->tp_alloc(type, 0);
  if (self == nullptr) return nullptr;
  reinterpret_cast<EntryObject*>(self)->data = data.release();
  return self;
  END_HANDLE_TH_ERRORS
}

int entry_traverse(PyObject* self, visitproc visit, void* arg) {
  const EntryData* data = reinterpret_cast<EntryObject*>(self)->data;
  if (data == nullptr) return 0;
  Py_VISIT(data->kwarg_names.ptr());
  Py_VISIT(data->program.program.ptr());
  Py_VISIT(data->specialize.ptr());
  if (const int stop = data->specializations.visit(visit, arg)) return stop;
  Py_VISIT(data->on_failure.ptr());
  Py_VISIT(data->guards.ptr());
  Py_VISIT(data->symbol_objects.ptr());
  Py_VISIT(data->conditions.ptr());
  Py_VISIT(data->bound.ptr());
  if (const int stop = data->fast.visit(visit, arg)) return stop;
  if (data->slow != nullptr) {
    if (const int stop = data->slow->visit(visit, arg)) return stop;
  }
  return data->recipe != nullptr ? data->recipe->visit(visit, arg) : 0;
}

int entry_clear(PyObject* self) {
  // Everything goes at once; an entry without data matches no call.
  EntryData* data = reinterpret_cast<EntryObject*>(self)->data;
  reinterpret_cast<EntryObject*>(self)->data = nullptr;
  if (data != nullptr) {
    data->specializations.clear();
    data->fast.clear();
    if (data->slow != nullptr) data->slow->clear();
    if (data->recipe != nullptr) data->recipe->clear();
    delete data;
  }
  return 0;
}

void entry_dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  entry_clear(self);
  Py_TYPE(self)->tp_free(self);
}

// The arguments of a call given as a tuple and a dict.
struct UnpackedCall {
  UnpackedCall(PyObject* positional, PyObject* keywords) {
    names = py::tuple(py::list(py::reinterpret_borrow<py::dict>(keywords).attr("keys")()));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(positional); ++i)
      values.push_back(PyTuple_GET_ITEM(positional, i));
    for (const py::handle name : names) values.push_back(PyDict_GetItem(keywords, name.ptr()));
    args = {values.data(), PyTuple_GET_SIZE(positional)};
  }
  py::tuple names;
  std::vector<PyObject*> values;
  CallArgs args;
};

// entry.run(args, kwargs): as a call of Compiled that this entry serves. If it does not match after all,
// on_failure serves it.
PyObject* entry_run(PyObject* self, PyObject* args) {
  PyObject *positional, *keywords;
  if (!PyArg_ParseTuple(args, "O!O!", &PyTuple_Type, &positional, &PyDict_Type, &keywords)) return nullptr;
  HANDLE_TH_ERRORS
  const UnpackedCall call(positional, keywords);
  PyObject* result = try_entry(reinterpret_cast<EntryObject*>(self), call.values.data(),
                               call.args.n_positional, call.names.ptr());
  if (result != nullptr || PyErr_Occurred() != nullptr) {
    return followed(result, call.values.data(), call.args.n_positional, call.names.ptr());
  }
  const EntryData* entry = reinterpret_cast<EntryObject*>(self)->data;
  ++runtime_stats().failures;
  if (entry == nullptr || entry->on_failure.is_none()) {
    raise_runtime_failure("the entry does not match the call that it was asked to run");
    return nullptr;
  }
  PyObject* answer = PyObject_CallFunctionObjArgs(entry->on_failure.ptr(), positional, keywords, nullptr);
  return followed(answer, call.values.data(), call.args.n_positional, call.names.ptr());
  END_HANDLE_TH_ERRORS
}

PyObject* entry_matches_call(PyObject* self, PyObject* args) {
  PyObject *positional, *keywords;
  if (!PyArg_ParseTuple(args, "O!O!", &PyTuple_Type, &positional, &PyDict_Type, &keywords)) return nullptr;
  HANDLE_TH_ERRORS
  EntryData* entry = reinterpret_cast<EntryObject*>(self)->data;
  if (entry == nullptr) Py_RETURN_FALSE;
  const UnpackedCall call(positional, keywords);
  Slots slots(entry->fast.n_slots());
  const bool matches = entry_matches(*entry, call.args, call.names.ptr(), slots) && bound_fits(*entry);
  return PyBool_FromLong(matches ? 1 : 0);
  END_HANDLE_TH_ERRORS
}

// The symbol that cannot be read or the condition that fails, from the result of Symbols::read; a text for a derived
// number.
PyObject* explain_symbols(const EntryData& entry, int32_t failed) {
  const auto number = static_cast<Py_ssize_t>(failed);
  const auto n_symbols = static_cast<Py_ssize_t>(entry.symbols->count());
  const auto n_conditions = static_cast<Py_ssize_t>(entry.symbols->n_conditions());
  if (number < n_symbols) {
    return Py_NewRef(PyTuple_GET_ITEM(entry.symbol_objects.ptr(), number));
  }
  if (number < n_symbols + n_conditions) {
    return Py_NewRef(PyTuple_GET_ITEM(entry.conditions.ptr(), number - n_symbols));
  }
  return PyUnicode_FromString("an int of the result leaves int64, or is divided by what is not positive");
}

// The first guard or condition that does not hold for a call, or symbol that cannot be read; a text for what is none
// of these, None if the entry matches.
PyObject* entry_explain(PyObject* self, PyObject* args) {
  PyObject *positional, *keywords;
  if (!PyArg_ParseTuple(args, "O!O!", &PyTuple_Type, &positional, &PyDict_Type, &keywords)) return nullptr;
  if (reinterpret_cast<EntryObject*>(self)->data == nullptr)
    return PyUnicode_FromString("the entry was cleared");
  EntryData& entry = data_of(self);
  HANDLE_TH_ERRORS
  const UnpackedCall call(positional, keywords);
  if (PyTuple_GET_SIZE(positional) != entry.n_args ||
      !same_names(call.names.ptr(), entry.kwarg_names.ptr())) {
    return PyUnicode_FromFormat(
        "call of another shape: expected %zd positional arguments and keywords %R, got %zd and %R",
        entry.n_args, entry.kwarg_names.ptr(), PyTuple_GET_SIZE(positional), call.names.ptr());
  }
  if (entry.state) {
    if (const char* field = entry.state->mismatch())
      return PyUnicode_FromFormat("global state: %s differs", field);
  }
  Slots slots(entry.fast.n_slots());
  const int32_t op = entry.fast.run(call.args, slots);
  int32_t guard = op >= 0 ? entry.fast.ops()[op].guard : -1;
  if (op >= 0 && guard < 0)
    return PyUnicode_FromString("an input or a source of the result cannot be reached");
  if (guard < 0) guard = entry.slow->check();
  if (guard >= 0) return Py_NewRef(PyTuple_GET_ITEM(entry.guards.ptr(), guard));
  const int32_t failed = entry.symbols->read(slots);
  if (failed != Symbols::kHold) return explain_symbols(entry, failed);
  if (!bound_fits(entry)) {
    return PyUnicode_FromString("a bound tensor changed its shape, strides, dtype or requires_grad");
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// The symbols' values for a call by name, None if the call's guards do not hold or one cannot be read.
PyObject* entry_values(PyObject* self, PyObject* args) {
  PyObject *positional, *keywords;
  if (!PyArg_ParseTuple(args, "O!O!", &PyTuple_Type, &positional, &PyDict_Type, &keywords)) return nullptr;
  HANDLE_TH_ERRORS
  if (reinterpret_cast<EntryObject*>(self)->data == nullptr) Py_RETURN_NONE;
  const EntryData& entry = data_of(self);
  const UnpackedCall call(positional, keywords);
  Slots slots(entry.fast.n_slots());
  if (PyTuple_GET_SIZE(positional) != entry.n_args ||
      !same_names(call.names.ptr(), entry.kwarg_names.ptr()) ||
      entry.fast.run(call.args, slots) != GuardProgram::kPassed) {
    Py_RETURN_NONE;
  }
  const int32_t failed = entry.symbols->read(slots);
  if (failed != Symbols::kHold && failed < static_cast<int32_t>(entry.symbols->count())) Py_RETURN_NONE;
  py::dict values;
  for (size_t i = 0; i < entry.symbols->count(); ++i) {
    values[entry.symbol_objects[i].attr("name")] = slots.numbers[i];
  }
  return values.release().ptr();
  END_HANDLE_TH_ERRORS
}

PyObject* entry_hits(PyObject* self, void*) {
  const EntryData* data = reinterpret_cast<EntryObject*>(self)->data;
  return PyLong_FromUnsignedLongLong(data == nullptr ? 0 : data->hits);
}

PyObject* entry_program(PyObject* self, void*) {
  const EntryData* data = reinterpret_cast<EntryObject*>(self)->data;
  return Py_NewRef(data == nullptr ? Py_None : data->program.program.ptr());
}

PyObject* entry_specializations(PyObject* self, void*) {
  HANDLE_TH_ERRORS
  const EntryData* data = reinterpret_cast<EntryObject*>(self)->data;
  return data == nullptr ? PyTuple_New(0) : data->specializations.to_python().release().ptr();
  END_HANDLE_TH_ERRORS
}

PyObject* entry_symbols(PyObject* self, void*) {
  const EntryData* data = reinterpret_cast<EntryObject*>(self)->data;
  return data == nullptr ? PyTuple_New(0) : Py_NewRef(data->symbol_objects.ptr());
}

PyObject* entry_conditions(PyObject* self, void*) {
  const EntryData* data = reinterpret_cast<EntryObject*>(self)->data;
  return data == nullptr ? PyTuple_New(0) : Py_NewRef(data->conditions.ptr());
}

PyObject* entry_guards(PyObject* self, void*) {
  const EntryData* data = reinterpret_cast<EntryObject*>(self)->data;
  return data == nullptr ? PyTuple_New(0) : Py_NewRef(data->guards.ptr());
}

PyObject* entry_full_checks(PyObject* self, void*) {
  const EntryData* data = reinterpret_cast<EntryObject*>(self)->data;
  return PyLong_FromUnsignedLongLong(data == nullptr ? 0 : data->slow->full_runs());
}

PyMethodDef entry_methods[] = {{"run", entry_run, METH_VARARGS,
                                "run(args, kwargs): serve a call; if it does not match, on_failure does."},
                               {"matches", entry_matches_call, METH_VARARGS,
                                "matches(args, kwargs): whether this entry serves such a call."},
                               {"explain", entry_explain, METH_VARARGS,
                                "explain(args, kwargs): the first Guard or Condition that does not hold, a "
                                "text for what is neither, None if all holds."},
                               {"values", entry_values, METH_VARARGS,
                                "values(args, kwargs): the values of the symbols by name for a call, None if "
                                "one cannot be read or a guard does not hold."},
                               {nullptr, nullptr, 0, nullptr}};

PyGetSetDef entry_getset[] = {
    {"hits", entry_hits, nullptr, "How many calls this entry has served.", nullptr},
    {"program", entry_program, nullptr, "The Program or callable, or None.", nullptr},
    {"specializations", entry_specializations, nullptr,
     "((values, program), ...): the programs made for values of the symbols, the one used last first.",
     nullptr},
    {"guards", entry_guards, nullptr, "The region's guards.", nullptr},
    {"symbols", entry_symbols, nullptr, "The region's symbols.", nullptr},
    {"conditions", entry_conditions, nullptr, "The conditions on them.", nullptr},
    {"full_checks", entry_full_checks, nullptr, "How often the slow guards were evaluated as a whole.",
     nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

}  // namespace

bool entry_matches(EntryData& entry, const CallArgs& call, PyObject* kwarg_names, Slots& slots) {
  if (entry.n_args != call.n_positional || !same_names(kwarg_names, entry.kwarg_names.ptr())) return false;
  if (entry.state && !entry.state->matches()) return false;
  if (entry.fast.run(call, slots) != GuardProgram::kPassed) return false;
  if (!entry.slow->empty() && entry.slow->check() >= 0) return false;
  return entry.symbols->empty() || entry.symbols->read(slots) == Symbols::kHold;
}

PyObject* try_entry(EntryObject* object, PyObject* const* args, Py_ssize_t n_args, PyObject* kwarg_names) {
  if (object->data == nullptr) return nullptr;
  EntryData& entry = *object->data;
  const CallArgs call{args, n_args};
  Slots slots(entry.fast.n_slots());
  if (!entry_matches(entry, call, kwarg_names, slots)) return nullptr;
  if (entry.acts && may_be_stopped() && !entry.on_failure.is_none()) {
    ++entry.hits;
    return call_on_failure(entry, call).release().ptr();
  }
  const Runnable* found = &entry.program;
  if (!entry.specialize.is_none()) found = entry.specializations.find(values_of(entry, slots));
  const bool checks_itself = found != nullptr && found->executable != nullptr;
  if (!checks_itself && !bound_fits(entry)) return nullptr;
  // Guards and what follows may run Python code that drops the last reference to the entry.
  const py::object alive = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(object));
  if (found == nullptr) {
    // Much may happen while a program is made, so the call is looked at anew.
    return specialize(object, slots) ? try_entry(object, args, n_args, kwarg_names) : nullptr;
  }
  const Runnable runnable = *found;  // may be evicted while it runs
  for (const int32_t slot : entry.recipe->pinned()) slots.pin(slot);
  bool missed = false;
  bool committed = false;
  const Undo undo(entry, slots);
  const bool before = std::exchange(communicated(), false);
  const bool quiet = runnable.executable != nullptr && !runnable.executable->calls_aten();
  PyObject* result = quiet ? run_entry(entry, runnable, slots, undo, missed, committed)
                           : run_entry_with_warnings(entry, runnable, slots, undo, missed, committed);
  committed |= communicated();
  communicated() |= before;
  if (missed) {
    undo.apply();
    return nullptr;
  }
  if (result == nullptr) result = fail(entry, call, undo, committed);
  ++entry.hits;
  if (entry.counter == EntryData::Counter::Compiled) ++runtime_stats().compiled_calls;
  if (entry.counter == EntryData::Counter::Partial) ++runtime_stats().partial_calls;
  return result;
}

PyTypeObject EntryType = {
    .ob_base = PyVarObject_HEAD_INIT(nullptr, 0).tp_name = "lampwork._C.Entry",
    .tp_basicsize = sizeof(EntryObject),
    .tp_dealloc = entry_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "One compiled region. Made by lampwork.runtime.make_entry.",
    .tp_traverse = entry_traverse,
    .tp_clear = entry_clear,
    .tp_methods = entry_methods,
    .tp_getset = entry_getset,
    .tp_new = entry_new,
};

}  // namespace lampwork
