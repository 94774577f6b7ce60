// What computes a region, and the programs of a region with symbols: one for each tuple of values seen
// lately.
#pragma once

#include "program.h"

#include <ATen/core/ATen_fwd.h>

#include <cstdint>
#include <vector>

namespace lampwork {

struct Runnable {
  py::object program = py::none();   // an Executable, a callable (list of tensors -> sequence of them), or None
  Executable* executable = nullptr;  // of `program`, if it is an Executable
};

// At most kCapacity of them, the one used last first. All under the GIL.
class Specializations {
 public:
  static constexpr size_t kCapacity = 64;

  // The program for these values, or nullptr. Valid until the next call of a method.
  const Runnable* find(at::IntArrayRef values);
  // Adds one that is not there; the one not used for longest goes if there are too many.
  void add(at::IntArrayRef values, Runnable runnable);
  // ((values, program), ...)
  py::tuple to_python() const;
  int visit(visitproc visit, void* arg) const;
  void clear();

 private:
  struct Item {
    c10::SmallVector<int64_t, 4> values;
    Runnable runnable;
  };
  std::vector<Item> items_;
};

}  // namespace lampwork
