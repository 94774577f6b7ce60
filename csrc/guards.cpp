#include "guards.h"

#include <structmember.h>

#include <unordered_set>
#include <utility>

namespace lampwork {

namespace {

// The range of addresses that a tensor's elements lie in; empty if it has none.
std::pair<const char*, const char*> address_range(const at::Tensor& tensor) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (!impl->has_storage() || tensor.numel() == 0) return {nullptr, nullptr};
  int64_t last = 0;
  for (int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  const char* begin = static_cast<const char*>(impl->data());
  return {begin, begin + (last + 1) * static_cast<int64_t>(tensor.element_size())};
}

bool overlap(const at::Tensor& a, const at::Tensor& b) {
  const auto [a_begin, a_end] = address_range(a);
  const auto [b_begin, b_end] = address_range(b);
  return a_begin < b_end && b_begin < a_end;
}

int keys_equal(PyObject* dict, PyObject* expected) {
  if (!PyDict_Check(dict) || PyDict_GET_SIZE(dict) != PyTuple_GET_SIZE(expected)) return 0;
  // An OrderedDict's order is not that of the table below it.
  const PyTypeObject& base = PyODict_Check(dict) ? PyODict_Type : PyDict_Type;
  const py::object iterator = py::reinterpret_steal<py::object>(base.tp_iter(dict));
  if (!iterator) return -1;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(expected); ++i) {
    const py::object key = py::reinterpret_steal<py::object>(PyIter_Next(iterator.ptr()));
    if (!key) return PyErr_Occurred() != nullptr ? -1 : 0;
    const int same = strictly_equal(key.ptr(), PyTuple_GET_ITEM(expected, i));
    if (same != 1) return same;
  }
  return 1;
}

// The place where an object keeps its __dict__, nullptr if it has none that could be replaced.
PyObject** dict_location(PyObject* object) { return _PyObject_GetDictPtr(object); }

// Whether an object that may have attributes never had one: its __dict__ would be made by asking for it, and most tensors
// are given to a call and dropped without.
bool has_no_attributes(PyObject* object) {
#if PY_VERSION_HEX >= 0x030D0000
  if (PyType_HasFeature(Py_TYPE(object), Py_TPFLAGS_INLINE_VALUES)) return false;
#endif
  PyObject** location = dict_location(object);
  return location != nullptr && *location == nullptr;
}

// What stands for the __dict__ of such an object. Nobody else sees it.
PyObject* empty_dict() {
  static PyObject* const dict = PyDict_New();
  return dict;
}

PyObject* or_none(PyObject* object) { return object == nullptr ? Py_None : object; }

bool same_items(PyObject* tuple, PyObject* expected) {
  if (tuple == nullptr || PyTuple_GET_SIZE(tuple) != PyTuple_GET_SIZE(expected)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(expected); ++i) {
    if (PyTuple_GET_ITEM(tuple, i) != PyTuple_GET_ITEM(expected, i)) return false;
  }
  return true;
}

// Whether a class attribute, found along the MRO and unbound, is `expected` (nullptr: there is none).
bool class_gives(PyTypeObject* type, PyObject* name, PyObject* expected) {
  PyObject* found = _PyType_Lookup(type, name);  // borrowed; gives the type a version tag
  if (found == expected) return true;
  if (found == nullptr || expected == nullptr) return false;
  const bool plain = PyLong_CheckExact(expected) || PyFloat_CheckExact(expected) || PyUnicode_CheckExact(expected);
  return plain && strictly_equal(found, expected) == 1;
}

}  // namespace

// --- guard programs ----------------------------------------------------------------------------------------

GuardProgram::GuardProgram(py::tuple kwarg_names, bool finds_equal)
    : kwarg_names_(std::move(kwarg_names)), finds_equal_(finds_equal) {}

PyObject* GuardProgram::keep(py::handle object) {
  references_.push_back(object.inc_ref().ptr());
  return object.ptr();
}

namespace {

struct SourceForm {
  OpCode code;
  const char* attribute;  // what leads from the base to the value, nullptr for nothing
  bool runs_python = false;
};

// By the names of the classes in capture/model/region.py that have a base.
const Forms<SourceForm> kSources = {
    {"Attr", {OpCode::LoadAttr, "name", true}},
    {"Slot", {OpCode::LoadSlot, "descriptor"}},
    {"DictItem", {OpCode::LoadDictItem, "key"}},
    {"Item", {OpCode::LoadItem, "key"}},
    {"CellContents", {OpCode::LoadCell, nullptr}},
    {"InstanceDict", {OpCode::LoadInstanceDict, nullptr}},
    {"Result", {OpCode::LoadResult, nullptr, true}},
};

struct KindForm {
  OpCode code;
  bool runs_python = false;
};

const Forms<KindForm> kKinds = {
    {"type", {OpCode::CheckType}},
    {"is", {OpCode::CheckIs}},
    {"equals", {OpCode::CheckEquals}},
    {"len", {OpCode::CheckLen, true}},
    {"keys", {OpCode::CheckKeys, true}},
    {"missing_key", {OpCode::CheckMissingKey}},
    {"missing_attr", {OpCode::CheckMissingAttr, true}},
    {"tensor", {OpCode::CheckTensor}},
    {"same", {OpCode::CheckSame}},
    {"distinct", {OpCode::CheckDistinct}},
    {"storage_distinct", {OpCode::CheckStorageDistinct}},
    {"predicate", {OpCode::CheckPredicate, true}},
    {"mro", {OpCode::CheckMro}},
    {"class_attr", {OpCode::CheckClassAttr}},
    {"function", {OpCode::CheckFunction}},
};

bool compares_natively(PyObject* object) {
  return object == Py_None || PyLong_CheckExact(object) || PyBool_Check(object) || PyFloat_CheckExact(object) ||
         PyUnicode_CheckExact(object);
}

// Where an object of a descriptor's class keeps what the descriptor reads.
Py_ssize_t slot_offset(PyObject* descriptor) {
  if (Py_TYPE(descriptor) == &PyMemberDescr_Type) {
    const PyMemberDef* member = reinterpret_cast<PyMemberDescrObject*>(descriptor)->d_member;
    if (member->type == T_OBJECT_EX) return member->offset;
  }
  throw_value_error("no descriptor of a slot");
}

PyObject** slot_location(PyObject* object, const GuardOp& load) {
  return reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + load.index);
}

// Attributes that each of hundreds of guards has.
struct Names {
  PyObject* const kind = PyUnicode_InternFromString("kind");
  PyObject* const expected = PyUnicode_InternFromString("expected");
  PyObject* const source = PyUnicode_InternFromString("source");
  PyObject* const base = PyUnicode_InternFromString("base");
  PyObject* const value = PyUnicode_InternFromString("value");

  static const Names& get() {
    static const Names names;
    return names;
  }
};

py::object attribute(py::handle object, PyObject* name) {
  py::object value = py::reinterpret_steal<py::object>(PyObject_GetAttr(object.ptr(), name));
  if (!value) throw py::error_already_set();
  return value;
}

}  // namespace

int32_t GuardProgram::load(py::handle source, int32_t guard) {
  const auto same = slot_of_object_.find(source.ptr());
  if (same != slot_of_object_.end()) return same->second;
  if (finds_equal_ && slot_of_source_.contains(source)) {
    const auto slot = slot_of_source_[source].cast<int32_t>();
    sources_.push_back(py::reinterpret_borrow<py::object>(source));
    slot_of_object_.emplace(source.ptr(), slot);
    return slot;
  }
  const std::string name = Py_TYPE(source.ptr())->tp_name;
  GuardOp op{OpCode::LoadArg, -1};
  op.guard = guard;
  if (name == "Arg") {
    op.index = source.attr("index").cast<Py_ssize_t>();
  } else if (name == "Kwarg") {
    const Py_ssize_t position = PySequence_Index(kwarg_names_.ptr(), py::object(source.attr("name")).ptr());
    if (position < 0) throw py::error_already_set();
    op.index = -1 - position;
  } else if (name == "Known") {
    op.code = OpCode::LoadKnown;
    op.object = keep(attribute(source, Names::get().value));
  } else {
    const SourceForm& form = form_of(kSources, "source", name);
    op.code = form.code;
    op.base = load(attribute(source, Names::get().base), guard);
    runs_python_ |= form.runs_python;
    if (form.code == OpCode::LoadItem) {
      op.index = source.attr(form.attribute).cast<Py_ssize_t>();
    } else if (form.attribute != nullptr) {
      op.object = keep(source.attr(form.attribute));
    }
    if (form.code == OpCode::LoadSlot) op.index = slot_offset(op.object);
  }
  op.slot = n_slots_++;
  sources_.push_back(py::reinterpret_borrow<py::object>(source));
  slot_of_object_.emplace(source.ptr(), op.slot);
  if (finds_equal_) slot_of_source_[source] = op.slot;
  ops_.push_back(op);
  return op.slot;
}

void GuardProgram::add(py::handle guard, int32_t number) {
  const KindForm& form = form_of(kKinds, "guard kind", attribute(guard, Names::get().kind).cast<std::string>());
  const py::object expected = attribute(guard, Names::get().expected);
  GuardOp op{form.code, -1};
  op.guard = number;
  op.slot = load(attribute(guard, Names::get().source), number);
  runs_python_ |= form.runs_python;
  switch (form.code) {
    case OpCode::CheckLen:
      op.index = expected.cast<Py_ssize_t>();
      break;
    case OpCode::CheckKeys:
    case OpCode::CheckMro:
      op.object = keep(py::tuple(expected));
      break;
    case OpCode::CheckTensor:
      op.index = static_cast<Py_ssize_t>(tensor_checks_.size());
      keep(expected);
      tensor_checks_.push_back(TensorCheck::from_python(expected));
      break;
    case OpCode::CheckSame:
    case OpCode::CheckDistinct:
    case OpCode::CheckStorageDistinct:
      op.base = load(expected, number);
      break;
    case OpCode::CheckClassAttr:
      op.object = keep(expected.attr("name"));
      if (!expected.attr("missing").cast<bool>()) op.value = keep(expected.attr("found"));
      break;
    case OpCode::CheckFunction:
      op.object = keep(py::make_tuple(expected.attr("code"), expected.attr("defaults"), expected.attr("kwdefaults")));
      break;
    default:
      op.object = keep(expected);
      if (form.code == OpCode::CheckEquals) runs_python_ |= !compares_natively(expected.ptr());
      break;
  }
  ops_.push_back(op);
}

bool GuardProgram::load(const GuardOp& op, const CallArgs& args, Slots& slots) const {
  PyObject* base = op.base >= 0 ? slots.values[op.base] : nullptr;
  PyObject* value = nullptr;
  bool owned = false;
  switch (op.code) {
    case OpCode::LoadArg:
      value = args.values[op.index >= 0 ? op.index : args.n_positional + (-1 - op.index)];
      break;
    case OpCode::LoadKnown:
      value = op.object;
      break;
    case OpCode::LoadAttr:
      value = PyObject_GetAttr(base, op.object);
      owned = true;
      break;
    case OpCode::LoadDictItem:
      if (PyDict_Check(base)) value = PyDict_GetItemWithError(base, op.object);
      break;
    case OpCode::LoadItem: {
      const bool list = PyList_Check(base);
      if (!list && !PyTuple_Check(base)) {
        value = PySequence_GetItem(base, op.index);  // a collections.deque
        if (value == nullptr) PyErr_Clear();
        owned = true;
        break;
      }
      const Py_ssize_t size = list ? PyList_GET_SIZE(base) : PyTuple_GET_SIZE(base);
      const Py_ssize_t index = op.index < 0 ? op.index + size : op.index;
      if (index >= 0 && index < size)
        value = list ? PyList_GET_ITEM(base, index) : PyTuple_GET_ITEM(base, index);
      break;
    }
    case OpCode::LoadCell:
      if (PyCell_Check(base)) value = PyCell_GET(base);
      break;
    case OpCode::LoadSlot:
      if (PyObject_TypeCheck(base, reinterpret_cast<PyDescrObject*>(op.object)->d_type))
        value = *slot_location(base, op);
      break;
    case OpCode::LoadInstanceDict:
      if (has_no_attributes(base)) {
        value = empty_dict();
        break;
      }
      value = PyObject_GenericGetDict(base, nullptr);
      if (value == nullptr) {
        PyErr_Clear();
        value = PyObject_GetAttrString(base, "__dict__");
      }
      owned = true;
      break;
    case OpCode::LoadResult:
      value = PyObject_CallNoArgs(base);
      owned = true;
      break;
    default:
      break;
  }
  if (value == nullptr) return false;
  if (runs_python_ && !owned) {
    Py_INCREF(value);
    owned = true;
  }
  if (owned) slots.own(value);
  slots.values[op.slot] = value;
  return true;
}

bool GuardProgram::check(const GuardOp& op, const Slots& slots) const {
  PyObject* value = slots.values[op.slot];
  switch (op.code) {
    case OpCode::CheckType:
      return reinterpret_cast<PyObject*>(Py_TYPE(value)) == op.object;
    case OpCode::CheckIs:
      return value == op.object;
    case OpCode::CheckEquals:
      return strictly_equal(value, op.object) == 1;
    case OpCode::CheckLen: {
      if (PyTuple_Check(value)) return PyTuple_GET_SIZE(value) == op.index;
      if (PyList_Check(value)) return PyList_GET_SIZE(value) == op.index;
      if (PyDict_CheckExact(value)) return PyDict_GET_SIZE(value) == op.index;
      return PyObject_Size(value) == op.index;
    }
    case OpCode::CheckKeys:
      return keys_equal(value, op.object) == 1;
    case OpCode::CheckMissingKey:
      return PyDict_Check(value) && PyDict_Contains(value, op.object) == 0;
    case OpCode::CheckMissingAttr: {
      PyObject* attribute = PyObject_GetAttr(value, op.object);
      if (attribute == nullptr) return PyErr_ExceptionMatches(PyExc_AttributeError) != 0;
      Py_DECREF(attribute);
      return false;
    }
    case OpCode::CheckTensor:
      return tensor_checks_[static_cast<size_t>(op.index)].matches(value);
    case OpCode::CheckSame:
      return value == slots.values[op.base];
    case OpCode::CheckDistinct:
      return value != slots.values[op.base];
    case OpCode::CheckStorageDistinct: {
      PyObject* other = slots.values[op.base];
      if (!is_tensor(value) || !is_tensor(other)) return true;
      return !overlap(THPVariable_Unpack(value), THPVariable_Unpack(other));
    }
    case OpCode::CheckPredicate: {
      const py::object answer = py::reinterpret_steal<py::object>(PyObject_CallOneArg(op.object, value));
      return answer && PyObject_IsTrue(answer.ptr()) == 1;
    }
    case OpCode::CheckMro:
      return PyType_Check(value) && same_items(reinterpret_cast<PyTypeObject*>(value)->tp_mro, op.object);
    case OpCode::CheckClassAttr:
      return PyType_Check(value) && class_gives(reinterpret_cast<PyTypeObject*>(value), op.object, op.value);
    case OpCode::CheckFunction: {
      if (!PyFunction_Check(value)) return false;
      const auto* function = reinterpret_cast<PyFunctionObject*>(value);
      return function->func_code == PyTuple_GET_ITEM(op.object, 0) &&
             or_none(function->func_defaults) == PyTuple_GET_ITEM(op.object, 1) &&
             or_none(function->func_kwdefaults) == PyTuple_GET_ITEM(op.object, 2);
    }
    default:
      return false;
  }
}

int32_t GuardProgram::run(const CallArgs& args, Slots& slots) const {
  const auto count = static_cast<int32_t>(ops_.size());
  for (int32_t i = 0; i < count; ++i) {
    const GuardOp& op = ops_[i];
    const bool passed = op.code <= OpCode::LoadResult ? load(op, args, slots) : check(op, slots);
    if (!passed) {
      PyErr_Clear();
      return i;
    }
    if (op.code == OpCode::CheckMissingAttr) PyErr_Clear();
  }
  return kPassed;
}

int GuardProgram::visit(visitproc visit, void* arg) const {
  for (PyObject* object : references_) Py_VISIT(object);
  for (const py::object& source : sources_) Py_VISIT(source.ptr());
  Py_VISIT(slot_of_source_.ptr());
  return 0;
}

void GuardProgram::clear() {
  std::vector<PyObject*> references;
  references.swap(references_);
  std::vector<py::object> sources;
  sources.swap(sources_);
  const py::dict slots = std::exchange(slot_of_source_, py::dict());
  slot_of_object_.clear();
  ops_.clear();
  for (PyObject* object : references) Py_DECREF(object);
}

// --- slow guards -------------------------------------------------------------------------------------------

SlowGuards::SlowGuards(py::handle guards, py::handle versioned) : program_(py::tuple(), false) {
  for (const py::handle dict : versioned) {
    if (!PyDict_Check(dict.ptr())) throw_value_error("only dicts have version tags");
    versioned_.push_back(py::reinterpret_borrow<py::object>(dict));
  }
  for (const py::handle item : guards) {
    const py::tuple pair = py::reinterpret_borrow<py::tuple>(item);
    program_.add(pair[1], pair[0].cast<int32_t>());
  }
  for (const GuardOp& op : program_.ops()) {
    if (op.code == OpCode::LoadArg) throw_value_error("a slow guard looks at an argument");
    // What these read has no version, so nothing would tell when to look again.
    if (op.code == OpCode::LoadAttr || op.code == OpCode::LoadResult || op.code == OpCode::CheckMissingAttr)
      throw_value_error("a slow guard looks at what nothing watches");
  }
}

int32_t SlowGuards::guard_after(int32_t load) const {
  const auto& ops = program_.ops();
  const auto next = static_cast<size_t>(load) + 1;
  if (next == ops.size() || ops[next].code != OpCode::CheckIs || ops[next].slot != ops[load].slot) return -1;
  return ops[next].guard;
}

int32_t SlowGuards::rebuild() {
  ++full_runs_;
  std::vector<WatchedDict> dicts;
  std::vector<Direct> directs(versioned_.size());
  std::unordered_map<PyObject*, size_t> number_of;
  for (const py::object& dict : versioned_) {
    // Tags first: what changes while the guards run is noticed on the next check.
    auto* object = reinterpret_cast<PyDictObject*>(dict.ptr());
    number_of.emplace(dict.ptr(), dicts.size());
    DictVersion version(object);
    const uint64_t seen = version.now();
    dicts.push_back({std::move(version), seen});
  }
  Slots slots(program_.n_slots());
  const int32_t failed = program_.run({nullptr, 0}, slots);
  if (failed != GuardProgram::kPassed) return guard_of(failed);

  std::vector<WatchedPointer> pointers;
  std::vector<WatchedType> types;
  std::vector<WatchedClass> classes;
  std::vector<py::object> kept;
  std::unordered_set<const void*> watched;
  const auto watch_type = [&](PyObject* object) {
    if (watched.insert(object).second) types.push_back({object, Py_TYPE(object)});
  };
  bool only_direct = true;
  bool vouched_for = true;
  for (PyObject* value : slots.values) kept.push_back(py::reinterpret_borrow<py::object>(value));
  const auto& ops = program_.ops();
  for (int32_t i = 0; i < static_cast<int32_t>(ops.size()); ++i) {
    const GuardOp& op = ops[i];
    PyObject* value = slots.values[op.slot];
    switch (op.code) {
      case OpCode::LoadKnown:
      case OpCode::CheckIs:
      case OpCode::CheckEquals:
      case OpCode::CheckSame:
      case OpCode::CheckDistinct:
        break;
      case OpCode::CheckTensor:  // of a bound tensor: the program compares the rest on every call
        watch_type(value);
        break;
      case OpCode::LoadDictItem: {
        const auto dict = number_of.find(slots.values[op.base]);
        if (dict == number_of.end()) {
          vouched_for = false;
        } else {
          directs[dict->second].items.push_back({op.object, value});
        }
        break;
      }
      case OpCode::LoadInstanceDict: {
        PyObject* owner = slots.values[op.base];
        PyObject** location = dict_location(owner);
        if (location != nullptr) pointers.push_back({location, *location, -1});
        watch_type(owner);
        break;
      }
      case OpCode::LoadCell:
        pointers.push_back({&reinterpret_cast<PyCellObject*>(slots.values[op.base])->ob_ref, value, guard_after(i)});
        break;
      case OpCode::LoadSlot:
        pointers.push_back({slot_location(slots.values[op.base], op), value, guard_after(i)});
        break;
      case OpCode::CheckType:
        // __class__ of an instance can be assigned to, without any dict telling of it.
        if (PyType_HasFeature(Py_TYPE(value), Py_TPFLAGS_HEAPTYPE)) watch_type(value);
        break;
      case OpCode::CheckMro:
      case OpCode::CheckClassAttr: {
        // One tag stands for the class and all its bases. A class without one is looked at on every call.
        auto* type = reinterpret_cast<PyTypeObject*>(value);
        if (type->tp_version_tag == 0) vouched_for = false;
        if (watched.insert(&type->tp_version_tag).second) classes.push_back({type, type->tp_version_tag});
        break;
      }
      case OpCode::CheckFunction: {
        auto* function = reinterpret_cast<PyFunctionObject*>(value);
        pointers.push_back({&function->func_code, function->func_code, -1});
        pointers.push_back({&function->func_defaults, function->func_defaults, -1});
        pointers.push_back({&function->func_kwdefaults, function->func_kwdefaults, -1});
        break;
      }
      case OpCode::CheckKeys:
      case OpCode::CheckLen:
      case OpCode::CheckMissingKey: {
        const auto dict = number_of.find(value);
        if (dict == number_of.end()) {
          vouched_for = false;
        } else {
          directs[dict->second].checks.push_back(i);
        }
        break;
      }
      case OpCode::LoadItem:
        only_direct = false;
        if (!PyTuple_Check(slots.values[op.base])) vouched_for = false;
        break;
      case OpCode::CheckPredicate:
        only_direct = false;
        if (!PyFrozenSet_CheckExact(value)) vouched_for = false;
        break;
      default:
        only_direct = false;
        vouched_for = false;
        break;
    }
  }
  dicts_.swap(dicts);
  directs_.swap(directs);
  pointers_.swap(pointers);
  types_.swap(types);
  classes_.swap(classes);
  kept_.swap(kept);
  only_direct_ = only_direct;
  vouched_for_ = vouched_for;
  return -1;
}

bool SlowGuards::unchanged(const WatchedDict& watched, const Direct& direct) const {
  auto* dict = reinterpret_cast<PyObject*>(watched.version.dict());
  for (const DirectItem& item : direct.items) {
    if (PyDict_GetItemWithError(dict, item.key) != item.value) {
      PyErr_Clear();
      return false;
    }
  }
  if (direct.checks.empty()) return true;
  Slots slots(program_.n_slots());
  for (const int32_t index : direct.checks) {
    const GuardOp& op = program_.ops()[index];
    slots.values[op.slot] = dict;
    if (!program_.check(op, slots)) {
      PyErr_Clear();
      return false;
    }
  }
  return true;
}

int32_t SlowGuards::check() {
  if (!vouched_for_) return rebuild();
  for (const WatchedPointer& pointer : pointers_) {
    if (*pointer.location == pointer.expected) continue;
    return pointer.guard >= 0 ? pointer.guard : rebuild();
  }
  for (const WatchedType& type : types_) {
    if (Py_TYPE(type.object) != type.type) return rebuild();
  }
  for (const WatchedClass& watched : classes_) {
    if (watched.type->tp_version_tag != watched.tag) return rebuild();
  }
  for (size_t i = 0; i < dicts_.size(); ++i) {
    const uint64_t now = dicts_[i].version.now();
    if (now == dicts_[i].seen) continue;
    if (!only_direct_ || !unchanged(dicts_[i], directs_[i])) return rebuild();
    // Comparing keys may run Python code, which may have rebuilt these lists.
    if (i >= dicts_.size()) return rebuild();
    dicts_[i].seen = now;
  }
  return -1;
}

int SlowGuards::visit(visitproc visit, void* arg) const {
  for (const py::object& object : kept_) Py_VISIT(object.ptr());
  for (const py::object& dict : versioned_) Py_VISIT(dict.ptr());
  return program_.visit(visit, arg);
}

void SlowGuards::clear() {
  dicts_.clear();
  directs_.clear();
  pointers_.clear();
  types_.clear();
  classes_.clear();
  std::vector<py::object> kept;
  kept.swap(kept_);
  std::vector<py::object> versioned;
  versioned.swap(versioned_);
  program_.clear();
}

}  // namespace lampwork
