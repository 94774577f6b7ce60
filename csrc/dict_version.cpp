#include "dict_version.h"

#include "errors.h"

#include <torch/csrc/Exceptions.h>

#include <unordered_map>

namespace lampwork {

#if PY_VERSION_HEX >= 0x030D0000

namespace {

struct Watched {
  uint64_t version = 0;
  size_t users = 0;
};

// By dict; the addresses of its values stay theirs. Never destroyed: dicts may change while the process exits.
std::unordered_map<PyObject*, Watched>& watched() {
  static auto* made = new std::unordered_map<PyObject*, Watched>();
  return *made;
}

int note_change(PyDict_WatchEvent, PyObject* dict, PyObject*, PyObject*) {
  const auto found = watched().find(dict);
  if (found != watched().end()) ++found->second.version;
  return 0;
}

int watcher() {
  static const int number = PyDict_AddWatcher(&note_change);
  if (number < 0) throw python_error();
  return number;
}

// A dict may have its values in the object whose attributes they are: changes through the object are then told to
// nobody. A key that is no string makes it a table of its own, for good.
void take_values(PyDictObject* dict) {
  if (dict->ma_values == nullptr) return;
  auto* object = reinterpret_cast<PyObject*>(dict);
  if (PyDict_SetItem(object, Py_Ellipsis, Py_None) != 0 || PyDict_DelItem(object, Py_Ellipsis) != 0) throw python_error();
}

}  // namespace

DictVersion::DictVersion(PyDictObject* dict) : dict_(dict) {
  take_values(dict);
  auto* object = reinterpret_cast<PyObject*>(dict);
  if (PyDict_Watch(watcher(), object) != 0) throw python_error();
  Watched& mine = watched()[object];
  ++mine.users;
  version_ = &mine.version;
}

DictVersion::~DictVersion() {
  if (dict_ == nullptr) return;
  auto* object = reinterpret_cast<PyObject*>(dict_);
  const auto found = watched().find(object);
  if (--found->second.users > 0) return;
  watched().erase(found);
  PyDict_Unwatch(watcher(), object);
}

#endif

}  // namespace lampwork
