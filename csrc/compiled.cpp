// Compiled: the callable that users hold.
#include "entry.h"

#include <structmember.h>
#include <torch/csrc/Exceptions.h>

#include <algorithm>
#include <numeric>

namespace lampwork {

namespace {

struct CompiledObject {
  PyObject_HEAD vectorcallfunc vectorcall;
  PyObject* dict;
  PyObject* weak_references;
  PyObject* on_miss;
  PyObject* entries;  // a tuple, replaced as a whole: a call in progress keeps the one it began with
  std::vector<int32_t> order;  // indices of entries, that of the one that served the last call first
  char binds;                  // as an attribute of a class it becomes a bound method, as functions do
};

CompiledObject* as_compiled(PyObject* self) { return reinterpret_cast<CompiledObject*>(self); }

PyObject* call_on_miss(CompiledObject* self, PyObject* const* args, Py_ssize_t n_args,
                       PyObject* kwarg_names) {
  ++runtime_stats().misses;
  const py::object positional = py::reinterpret_steal<py::object>(PyTuple_New(n_args));
  const py::object keywords = py::reinterpret_steal<py::object>(PyDict_New());
  if (!positional || !keywords) return nullptr;
  for (Py_ssize_t i = 0; i < n_args; ++i) PyTuple_SET_ITEM(positional.ptr(), i, Py_NewRef(args[i]));
  const Py_ssize_t n_kwargs = kwarg_names == nullptr ? 0 : PyTuple_GET_SIZE(kwarg_names);
  for (Py_ssize_t i = 0; i < n_kwargs; ++i) {
    if (PyDict_SetItem(keywords.ptr(), PyTuple_GET_ITEM(kwarg_names, i), args[n_args + i]) != 0)
      return nullptr;
  }
  PyObject* pair[] = {positional.ptr(), keywords.ptr()};
  const py::object result =
      py::reinterpret_steal<py::object>(PyObject_Vectorcall(self->on_miss, pair, 2, nullptr));
  if (!result || Py_TYPE(result.ptr()) != &EntryType) {
    return followed(Py_XNewRef(result.ptr()), args, n_args, kwarg_names);
  }
  // Run from here, so that no frame of on_miss comes between the program's.
  const py::object run = py::reinterpret_steal<py::object>(PyObject_GetAttrString(result.ptr(), "run"));
  return run ? PyObject_Vectorcall(run.ptr(), pair, 2, nullptr) : nullptr;
}

// So a few that take turns are found soon, however many there are.
void move_to_front(std::vector<int32_t>& order, int32_t entry) {
  const auto found = std::find(order.begin(), order.end(), entry);
  if (found != order.end()) std::rotate(order.begin(), found, found + 1);
}

PyObject* compiled_vectorcall(PyObject* object, PyObject* const* args, size_t flags, PyObject* kwarg_names) {
  CompiledObject* self = as_compiled(object);
  const Py_ssize_t n_args = PyVectorcall_NARGS(flags);
  if (self->on_miss == nullptr) {
    PyErr_SetString(PyExc_RuntimeError,
                    "lampwork: this compiled function was torn down by the garbage collector");
    return nullptr;
  }
  ++runtime_stats().calls;
  if (!skip_entries().load(std::memory_order_relaxed) && !self->order.empty()) {
    const py::object entries = py::reinterpret_borrow<py::object>(self->entries);
    const auto attempt = [&](int32_t i) {
      PyObject* entry = PyTuple_GET_ITEM(entries.ptr(), i);
      return try_entry(reinterpret_cast<EntryObject*>(entry), args, n_args, kwarg_names);
    };
    const int32_t first = self->order[0];
    PyObject* result = attempt(first);
    if (result != nullptr || PyErr_Occurred() != nullptr) return followed(result, args, n_args, kwarg_names);
    // Guards may run Python code that changes the order.
    const c10::SmallVector<int32_t, 16> order(self->order.begin(), self->order.end());
    for (const int32_t i : order) {
      if (i == first || i >= PyTuple_GET_SIZE(entries.ptr())) continue;
      result = attempt(i);
      if (result != nullptr && self->entries == entries.ptr()) move_to_front(self->order, i);
      if (result != nullptr || PyErr_Occurred() != nullptr) return followed(result, args, n_args, kwarg_names);
    }
  }
  return call_on_miss(self, args, n_args, kwarg_names);
}

PyObject* compiled_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"on_miss", nullptr};
  PyObject* on_miss = nullptr;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O", const_cast<char**>(names), &on_miss)) return nullptr;
  if (!PyCallable_Check(on_miss)) {
    PyErr_SetString(PyExc_TypeError, "on_miss must be callable");
    return nullptr;
  }
  PyObject* self = type->tp_alloc(type, 0);
  if (self == nullptr) return nullptr;
  as_compiled(self)->vectorcall = compiled_vectorcall;
  as_compiled(self)->on_miss = Py_NewRef(on_miss);
  as_compiled(self)->entries = PyTuple_New(0);
  new (&as_compiled(self)->order) std::vector<int32_t>();
  as_compiled(self)->binds = 1;
  return self;
}

PyObject* compiled_descr_get(PyObject* self, PyObject* instance, PyObject*) {
  if (instance == nullptr || instance == Py_None || !as_compiled(self)->binds) return Py_NewRef(self);
  return PyMethod_New(self, instance);
}

int compiled_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(as_compiled(self)->dict);
  Py_VISIT(as_compiled(self)->on_miss);
  Py_VISIT(as_compiled(self)->entries);
  return 0;
}

// Takes a reference to `entries`, the last of which is tried first from now on.
void replace_entries(CompiledObject* self, PyObject* entries) {
  PyObject* before = self->entries;
  self->entries = entries;
  self->order.resize(entries == nullptr ? 0 : static_cast<size_t>(PyTuple_GET_SIZE(entries)));
  std::iota(self->order.rbegin(), self->order.rend(), 0);
  Py_XDECREF(before);
}

int compiled_clear(PyObject* self) {
  Py_CLEAR(as_compiled(self)->dict);
  Py_CLEAR(as_compiled(self)->on_miss);
  replace_entries(as_compiled(self), PyTuple_New(0));
  return 0;
}

void compiled_dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  if (as_compiled(self)->weak_references != nullptr) PyObject_ClearWeakRefs(self);
  Py_CLEAR(as_compiled(self)->dict);
  Py_CLEAR(as_compiled(self)->on_miss);
  Py_CLEAR(as_compiled(self)->entries);
  as_compiled(self)->order.~vector();
  Py_TYPE(self)->tp_free(self);
}

PyObject* compiled_add_entry(PyObject* self, PyObject* entry) {
  if (Py_TYPE(entry) != &EntryType) {
    PyErr_Format(PyExc_TypeError, "add_entry expects a lampwork._C.Entry, got %s", Py_TYPE(entry)->tp_name);
    return nullptr;
  }
  const Py_ssize_t count = PyTuple_GET_SIZE(as_compiled(self)->entries);
  PyObject* entries = PyTuple_New(count + 1);
  if (entries == nullptr) return nullptr;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyTuple_SET_ITEM(entries, i, Py_NewRef(PyTuple_GET_ITEM(as_compiled(self)->entries, i)));
  }
  PyTuple_SET_ITEM(entries, count, Py_NewRef(entry));
  replace_entries(as_compiled(self), entries);
  Py_RETURN_NONE;
}

PyObject* compiled_remove_entry(PyObject* self, PyObject* entry) {
  const py::object list = py::reinterpret_steal<py::object>(PySequence_List(as_compiled(self)->entries));
  if (!list) return nullptr;
  const Py_ssize_t position = PySequence_Index(list.ptr(), entry);
  if (position < 0 || PySequence_DelItem(list.ptr(), position) != 0) return nullptr;
  PyObject* entries = PyList_AsTuple(list.ptr());
  if (entries == nullptr) return nullptr;
  replace_entries(as_compiled(self), entries);
  Py_RETURN_NONE;
}

PyObject* compiled_clear_entries(PyObject* self, PyObject*) {
  PyObject* entries = PyTuple_New(0);
  if (entries == nullptr) return nullptr;
  replace_entries(as_compiled(self), entries);
  Py_RETURN_NONE;
}

// The first entry whose guards hold for a call, or None.
PyObject* compiled_match(PyObject* self, PyObject* args) {
  const py::object entries = py::reinterpret_borrow<py::object>(as_compiled(self)->entries);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(entries.ptr()); ++i) {
    PyObject* entry = PyTuple_GET_ITEM(entries.ptr(), i);
    const py::object method = py::reinterpret_steal<py::object>(PyObject_GetAttrString(entry, "matches"));
    if (!method) return nullptr;
    const py::object answer = py::reinterpret_steal<py::object>(PyObject_CallObject(method.ptr(), args));
    if (!answer) return nullptr;
    if (answer.ptr() == Py_True) return Py_NewRef(entry);
  }
  Py_RETURN_NONE;
}

// A function is copied as itself and pickled by its name; anything else would share what the original holds.
PyObject* compiled_reduce(PyObject* self, PyObject*) {
  PyObject* dict = as_compiled(self)->dict;
  PyObject* wrapped = dict != nullptr ? PyDict_GetItemString(dict, "__wrapped__") : nullptr;
  PyObject* name = dict != nullptr ? PyDict_GetItemString(dict, "__qualname__") : nullptr;
  if (wrapped != nullptr && PyFunction_Check(wrapped) && name != nullptr) return Py_NewRef(name);
  PyErr_SetString(
      PyExc_TypeError,
      "cannot pickle or deepcopy what lampwork compiled, unless it is a function or a module: its machine code and "
      "guards belong to this process; pickle the original and compile it again");
  return nullptr;
}

PyObject* compiled_entries(PyObject* self, void*) { return Py_NewRef(as_compiled(self)->entries); }

PyObject* compiled_repr(PyObject* self) {
  PyObject* name = as_compiled(self)->dict != nullptr ? PyDict_GetItemString(as_compiled(self)->dict, "__name__") : nullptr;
  if (name != nullptr) return PyUnicode_FromFormat("<lampwork compiled function %S>", name);
  return PyUnicode_FromFormat("<lampwork compiled function at %p>", self);
}

PyMethodDef compiled_methods[] = {
    {"add_entry", compiled_add_entry, METH_O,
     "add_entry(entry): adds a compiled region; the next call tries it first."},
    {"remove_entry", compiled_remove_entry, METH_O, "remove_entry(entry); ValueError if it is not there."},
    {"match", compiled_match, METH_VARARGS,
     "match(args, kwargs): the first entry that serves such a call, or None."},
    {"clear", compiled_clear_entries, METH_NOARGS, "clear(): drops all entries."},
    {"__reduce__", compiled_reduce, METH_NOARGS,
     "The name of a compiled function, as functions are pickled; TypeError for what is no function."},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef compiled_getset[] = {
    {"raw_entries", compiled_entries, nullptr, "The entries, a tuple of Entry.", nullptr},
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMemberDef compiled_members[] = {{"on_miss", T_OBJECT, offsetof(CompiledObject, on_miss), READONLY,
                                   "Called as on_miss(args, kwargs) if no entry fits; gives the result, or the "
                                   "Entry to run."},
                                  {"binds", T_BOOL, offsetof(CompiledObject, binds), 0,
                                   "Whether it becomes a bound method where a class holds it."},
                                  {nullptr, 0, 0, 0, nullptr}};

// --- Instead -----------------------------------------------------------------------------------------------

PyObject* instead_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"function", "done", "args", nullptr};
  PyObject *function = nullptr, *done = Py_None, *given = nullptr;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|OO!", const_cast<char**>(names), &function, &done, &PyTuple_Type,
                                   &given)) {
    return nullptr;
  }
  PyObject* self = type->tp_alloc(type, 0);
  if (self == nullptr) return nullptr;
  reinterpret_cast<InsteadObject*>(self)->function = Py_NewRef(function);
  reinterpret_cast<InsteadObject*>(self)->done = done == Py_None ? nullptr : Py_NewRef(done);
  reinterpret_cast<InsteadObject*>(self)->args = Py_XNewRef(given);
  return self;
}

int instead_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(reinterpret_cast<InsteadObject*>(self)->function);
  Py_VISIT(reinterpret_cast<InsteadObject*>(self)->done);
  Py_VISIT(reinterpret_cast<InsteadObject*>(self)->args);
  return 0;
}

int instead_clear(PyObject* self) {
  Py_CLEAR(reinterpret_cast<InsteadObject*>(self)->function);
  Py_CLEAR(reinterpret_cast<InsteadObject*>(self)->done);
  Py_CLEAR(reinterpret_cast<InsteadObject*>(self)->args);
  return 0;
}

void instead_dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  instead_clear(self);
  Py_TYPE(self)->tp_free(self);
}

PyMemberDef instead_members[] = {
    {"function", T_OBJECT, offsetof(InsteadObject, function), READONLY, "What is called."},
    {nullptr, 0, 0, 0, nullptr}};

}  // namespace

PyObject* follow(PyObject* answer, PyObject* const* args, Py_ssize_t n_args, PyObject* kwarg_names) {
  const py::object alive = py::reinterpret_steal<py::object>(answer);
  const auto* instead = reinterpret_cast<InsteadObject*>(answer);
  PyObject* result = instead->args != nullptr ? PyObject_Call(instead->function, instead->args, nullptr)
                                              : PyObject_Vectorcall(instead->function, args, n_args, kwarg_names);
  if (result == nullptr || instead->done == nullptr) return result;
  const py::object done = py::reinterpret_steal<py::object>(PyObject_CallNoArgs(instead->done));
  if (!done) Py_CLEAR(result);
  return result;
}

PyTypeObject InsteadType = {
    .ob_base = PyVarObject_HEAD_INIT(nullptr, 0).tp_name = "lampwork._C.Instead",
    .tp_basicsize = sizeof(InsteadObject),
    .tp_dealloc = instead_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc =
        "Instead(function, done=None, args=None): what on_miss, on_failure or the result of a recipe gives to have "
        "`function` called with the call's arguments, or with `args`, with no frame of ours in between; then `done`, "
        "unless it raised.",
    .tp_traverse = instead_traverse,
    .tp_clear = instead_clear,
    .tp_members = instead_members,
    .tp_new = instead_new,
};

std::atomic<bool>& skip_entries() {
  static std::atomic<bool> skip{false};
  return skip;
}

PyTypeObject CompiledType = {
    .ob_base = PyVarObject_HEAD_INIT(nullptr, 0).tp_name = "lampwork._C.Compiled",
    .tp_basicsize = sizeof(CompiledObject),
    .tp_dealloc = compiled_dealloc,
    .tp_vectorcall_offset = offsetof(CompiledObject, vectorcall),
    .tp_repr = compiled_repr,
    .tp_call = PyVectorcall_Call,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_doc =
        "Compiled(on_miss): calls go to the first entry whose guards hold, else to on_miss(args, kwargs).",
    .tp_traverse = compiled_traverse,
    .tp_clear = compiled_clear,
    .tp_weaklistoffset = offsetof(CompiledObject, weak_references),
    .tp_methods = compiled_methods,
    .tp_members = compiled_members,
    .tp_getset = compiled_getset,
    .tp_descr_get = compiled_descr_get,
    .tp_dictoffset = offsetof(CompiledObject, dict),
    .tp_new = compiled_new,
};

}  // namespace lampwork
