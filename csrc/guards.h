// Guards: conditions on the raw arguments of a call and on what can be reached from known objects.
//
// A GuardProgram is a list of operations that run in order: loads put the value of a source into a slot,
// checks test a slot. It creates no objects except for attributes. SlowGuards is a GuardProgram over objects
// that seldom change (module trees, globals), together with the version tags that tell cheaply that nothing
// on its way has changed.
#pragma once

#include "dict_version.h"
#include "errors.h"

#include <torch/csrc/autograd/python_variable.h>

#include <c10/util/SmallVector.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace lampwork {

namespace py = pybind11;

// The arguments of a call as vectorcall gives them: positional ones first, then the values of the keyword
// ones.
struct CallArgs {
  PyObject* const* values;
  Py_ssize_t n_positional;
};

// Process and thread state that every entry is guarded on (lampwork.capture.model.region.GlobalState), and the
// depth of the stack of torch function modes.
struct GlobalState {
  bool grad_enabled;
  bool inference_mode;
  bool autocast_cpu;
  at::ScalarType autocast_dtype;
  at::ScalarType default_dtype;
  bool deterministic;
  int64_t function_modes;
  uint32_t switches;  // torch.backends and their like, as process_switches() has them

  static GlobalState from_python(py::handle state);
  bool matches() const;
  // The name of the first field that differs from now, nullptr if none does.
  const char* mismatch() const;
};

struct TensorCheck {
  PyTypeObject* type;
  at::ScalarType dtype;
  c10::Device device{c10::kCPU};
  c10::SmallVector<int64_t, 5> sizes;    // kAny: not compared
  c10::SmallVector<int64_t, 5> strides;  // kAny: not compared
  bool requires_grad;
  bool check_keys;  // plain tensors only: a subclass may carry more dispatch keys
  c10::DispatchKeySet keys;
  c10::DispatchKeySet inference_keys;

  static constexpr int64_t kAny = INT64_MIN;
  static TensorCheck from_python(py::handle guard);
  bool matches(PyObject* object) const;
};

enum class OpCode : uint8_t {
  // loads: slots[slot] = ...
  LoadArg,
  LoadKnown,
  LoadAttr,
  LoadSlot,
  LoadDictItem,
  LoadItem,
  LoadCell,
  LoadInstanceDict,
  LoadResult,
  // checks of slots[slot]
  CheckType,
  CheckIs,
  CheckEquals,
  CheckLen,
  CheckKeys,
  CheckMissingKey,
  CheckMissingAttr,
  CheckTensor,
  CheckSame,
  CheckDistinct,
  CheckStorageDistinct,
  CheckPredicate,
  CheckMro,
  CheckClassAttr,
  CheckFunction,
};

struct GuardOp {
  OpCode code;
  int32_t slot;
  int32_t base = -1;           // slot a load reads from, or the other slot of a comparison
  int32_t guard = -1;          // number of the guard this belongs to
  Py_ssize_t index = 0;        // of an argument or item; of a tensor check; how far into an object a slot lies
  PyObject* object = nullptr;  // key, name, descriptor, known object, expected value; owned by the program's `references`
  PyObject* value = nullptr;   // what a class gives for the name `object`, nullptr for nothing; owned likewise
};

// Values of the sources of one call. Borrowed, except those that `owned` keeps.
struct Slots {
  c10::SmallVector<PyObject*, 24> values;
  c10::SmallVector<PyObject*, 8> owned;
  c10::SmallVector<int64_t, 8> numbers;  // of the symbols, then of what is computed from them
  c10::SmallVector<int64_t, 4> scalars;  // the numbers that the program takes

  explicit Slots(size_t count) : values(count, nullptr) {}
  ~Slots() {
    for (PyObject* object : owned) Py_DECREF(object);
  }
  Slots(const Slots&) = delete;
  void own(PyObject* object) { owned.push_back(object); }
  // Keeps the value alive as long as the slots.
  void pin(int32_t slot) {
    Py_INCREF(values[slot]);
    own(values[slot]);
  }
};

class GuardProgram {
 public:
  // `kwarg_names`: tuple of the names of the call's keyword arguments, in order. `finds_equal`: sources that are equal
  // share a slot, not only those that are the same object. It saves loads, and costs time here: comparing runs Python.
  explicit GuardProgram(py::tuple kwarg_names, bool finds_equal = true);

  // Adds the loads that a source needs and returns its slot. Throws on an unknown source class.
  int32_t load(py::handle source, int32_t guard = -1);
  // Adds a guard (lampwork.capture.model.region.Guard); `number` is what a failing check reports.
  void add(py::handle guard, int32_t number);

  // Runs everything; returns kPassed, or the index of the operation that failed. Clears Python errors.
  int32_t run(const CallArgs& args, Slots& slots) const;
  static constexpr int32_t kPassed = -1;

  size_t n_slots() const { return static_cast<size_t>(n_slots_); }
  const std::vector<GuardOp>& ops() const { return ops_; }
  int visit(visitproc visit, void* arg) const;
  void clear();
  // Checks one operation against a value that is at hand.
  bool check(const GuardOp& op, const Slots& slots) const;

 private:
  bool load(const GuardOp& op, const CallArgs& args, Slots& slots) const;
  PyObject* keep(py::handle object);

  py::tuple kwarg_names_;
  std::vector<py::object> sources_;  // keeps the addresses in slot_of_object_ from being reused
  std::unordered_map<PyObject*, int32_t> slot_of_object_;
  py::dict slot_of_source_;
  bool finds_equal_;
  int32_t n_slots_ = 0;
  std::vector<GuardOp> ops_;
  std::vector<TensorCheck> tensor_checks_;
  std::vector<PyObject*> references_;
  bool runs_python_ = false;  // an operation may run arbitrary Python: borrowed values must be kept alive
};

class SlowGuards {
 public:
  // `guards`: a list of (number, Guard) on sources that start at Known objects; `versioned`: the dicts whose
  // version tags stand for what the guards find in them.
  SlowGuards(py::handle guards, py::handle versioned);

  // Evaluates everything anew. Returns the number of the guard that failed, or -1.
  int32_t rebuild();
  // Whether everything still holds; -1 or the number of the failing guard.
  int32_t check();
  bool empty() const { return program_.ops().empty(); }
  size_t n_dicts() const { return dicts_.size(); }
  uint64_t full_runs() const { return full_runs_; }
  int visit(visitproc visit, void* arg) const;
  void clear();

 private:
  struct WatchedDict {
    DictVersion version;
    uint64_t seen;
  };
  struct WatchedPointer {
    PyObject** location;
    PyObject* expected;
    int32_t guard;  // that fails if it differs; -1: that has to be found out
  };
  struct WatchedType {
    PyObject* object;
    PyTypeObject* type;
  };
  struct WatchedClass {
    PyTypeObject* type;
    unsigned int tag;
  };
  struct DirectItem {
    PyObject* key;
    PyObject* value;
  };
  // What the guards know of one dict: which values they read from it and what they check on it.
  struct Direct {
    std::vector<DirectItem> items;
    std::vector<int32_t> checks;  // indices of operations
  };
  int32_t guard_of(int32_t op) const { return program_.ops()[op].guard >= 0 ? program_.ops()[op].guard : 0; }
  // The guard that wants the very object that an operation loads, -1 if there is none.
  int32_t guard_after(int32_t load) const;
  bool unchanged(const WatchedDict& dict, const Direct& direct) const;

  GuardProgram program_;
  std::vector<py::object> versioned_;
  std::vector<WatchedDict> dicts_;  // parallel to versioned_
  std::vector<Direct> directs_;     // parallel to dicts_
  bool only_direct_ = true;         // no guard looks into anything but dicts
  bool vouched_for_ = true;         // ... all of which are versioned; else every check runs everything
  std::vector<WatchedPointer> pointers_;
  std::vector<WatchedType> types_;
  std::vector<WatchedClass> classes_;
  std::vector<py::object> kept_;  // the values that the watches point at
  uint64_t full_runs_ = 0;
};

bool is_tensor(PyObject* object);

// Whether nothing but identity tells two values apart: type(a) is type(b) and a == b, where nan equals nan of its sign, 0.0
// differs from -0.0, containers compare item by item, subclasses of numbers and strings as those do, and the rest prints
// alike. What compares in Python is equal to itself only. Returns -1 with a Python error set if a comparison raised.
int strictly_equal(PyObject* a, PyObject* b);

}  // namespace lampwork
