// The Python types of the extension.
//
//   Executable  a compiled graph with its bound tensors
//   Entry       one compiled region: guards, inputs, program, recipe
//   Compiled    the callable: its entries, tried in order, and what to do when none matches
#pragma once

#include "bindings.h"
#include "guards.h"
#include "program.h"
#include "recipe.h"
#include "specializations.h"

#include <atomic>
#include <optional>

namespace lampwork {

struct ExecutableObject {
  PyObject_HEAD Executable* executable;
  PyObject* bound;      // tuple of the tensor objects, which the executable borrows
  PyObject* program;  // what it was made of, which keeps alive what the kernels' addresses point into
};
extern PyTypeObject ExecutableType;

// What an Entry holds besides its Python header.
struct EntryData {
  EntryData(py::tuple kwargs) : kwarg_names(kwargs), fast(kwargs) {}

  Py_ssize_t n_args = 0;
  py::tuple kwarg_names;
  std::optional<GlobalState> state;
  GuardProgram fast;
  std::unique_ptr<SlowGuards> slow;
  std::unique_ptr<Symbols> symbols;
  std::vector<int32_t> input_slots;
  std::unique_ptr<Recipe> recipe;
  Runnable program;       // for all calls, unless there is `specialize`
  py::object specialize;  // makes a program for the values of the symbols that are `keys`, or None
  std::vector<int32_t> keys;
  Specializations specializations;
  py::tuple bound;  // the region's bound tensors
  // For callables, which have no other way to tell that they no longer fit, and for `specialize`; an
  // Executable checks its own.
  std::vector<BoundMetadata> bound_metadata;
  py::object on_failure;
  bool draws = false;                                // random numbers, from torch's default generator
  bool acts = false;                                 // on what is outside: by its recipe, or by writes to tensors
  bool reuses = false;                               // results in the memory of earlier ones
  std::vector<std::pair<size_t, uint32_t>> versions;  // input or bound tensor, how often eager moves its version on
  std::vector<std::pair<size_t, uint32_t>> fresh_versions;  // output in fresh memory that eager wrote, how often
  std::vector<size_t> apart;                         // outputs that eager does not call views
  py::tuple guards;           // lampwork.capture.model.region.Guard, by number
  py::tuple symbol_objects;   // lampwork.capture.model.region.Symbol, by number
  py::tuple conditions;       // lampwork.graph.symbols.Condition, by number
  enum class Counter : int { None, Compiled, Partial } counter = Counter::None;  // counts calls served
  uint64_t hits = 0;
};

struct EntryObject {
  PyObject_HEAD EntryData* data;
};
extern PyTypeObject EntryType;

// Whether the shape of the call, the global state, the guards and the symbols allow the entry to serve a
// call, whose symbols are then in `slots.numbers`. Whether the bound tensors do is left to what runs.
bool entry_matches(EntryData& entry, const CallArgs& call, PyObject* kwarg_names, Slots& slots);

// Tries an entry: a new reference, or nullptr with an error set, or nullptr without an error: it does not
// match.
PyObject* try_entry(EntryObject* entry, PyObject* const* args, Py_ssize_t n_args, PyObject* kwarg_names);

// A callable to run in place of a compiled version, given by on_miss, on_failure or a recipe.
struct InsteadObject {
  PyObject_HEAD PyObject* function;
  PyObject* done;  // called without arguments if `function` did not raise, or nullptr
  PyObject* args;  // a tuple of arguments to call it with instead of the call's, or nullptr
};
extern PyTypeObject InsteadType;

// What an on_miss, on_failure or recipe gave, with an Instead followed: its function is called with the arguments of the
// call from here, so that no frame of ours lies between the program's. Takes the reference to `answer`, which may be
// nullptr; gives a new one, or nullptr with an error set.
PyObject* follow(PyObject* instead, PyObject* const* args, Py_ssize_t n_args, PyObject* kwarg_names);
inline PyObject* followed(PyObject* answer, PyObject* const* args, Py_ssize_t n_args, PyObject* kwarg_names) {
  if (answer == nullptr || Py_TYPE(answer) != &InsteadType) return answer;
  return follow(answer, args, n_args, kwarg_names);
}

extern PyTypeObject CompiledType;

// While it is true every call of every Compiled goes straight to its on_miss: no entry is tried.
std::atomic<bool>& skip_entries();

// Whether what Python code ran in this thread, an Executable or an operator, was ended by an error of ATen, so that the
// exception is no more than that; set by Executable and `operator_failed`, cleared by who asks.
bool& aten_failed();

// lampwork.errors.RuntimeFailure, raised with `message`.
void raise_runtime_failure(const char* message);

}  // namespace lampwork
