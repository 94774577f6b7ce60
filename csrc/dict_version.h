// Whether a dict has changed since it was last looked at.
#pragma once

#include <Python.h>

#include <cstdint>
#include <utility>

namespace lampwork {

// Up to CPython 3.12 each dict has a version that every change moves on. From 3.13 on not every change does, so dicts are
// watched (PyDict_Watch) and their changes counted. The dict must outlive this. Needs the GIL.
class DictVersion {
 public:
#if PY_VERSION_HEX >= 0x030D0000
  explicit DictVersion(PyDictObject* dict);
  ~DictVersion();
  DictVersion(DictVersion&& other) noexcept
      : dict_(std::exchange(other.dict_, nullptr)), version_(other.version_) {}
  DictVersion& operator=(DictVersion&& other) noexcept {
    std::swap(dict_, other.dict_);
    std::swap(version_, other.version_);
    return *this;
  }
#else
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // in 3.12, where it still works
  explicit DictVersion(PyDictObject* dict) : dict_(dict), version_(&dict->ma_version_tag) {}
#pragma GCC diagnostic pop
#endif

  PyDictObject* dict() const { return dict_; }
  // Another number after each change.
  uint64_t now() const { return *version_; }

 private:
  PyDictObject* dict_;
  const uint64_t* version_;
};

}  // namespace lampwork
