// Recipes: how the object that a call returns is built from the program's outputs
// (lampwork.capture.model.region.Recipe).
#pragma once

#include "symbols.h"

namespace lampwork {

enum class StepKind : uint8_t { Output, Source, Symbol, Const, Tuple, List, Dict, Call };

class Recipe {
 public:
  // Adds the loads of `source` steps to `program`, the indices of `symbol` steps to `symbols`. ValueError on
  // a malformed recipe.
  Recipe(py::handle recipe, GuardProgram& program, Symbols& symbols);

  // Runs the steps. `outputs` are tensors as Python objects. Returns a new reference, nullptr with an error
  // set.
  PyObject* run(PyObject* const* outputs, size_t n_outputs, const Slots& slots) const;
  // The only step is an output: its number, else -1.
  int32_t single_output() const { return single_output_; }
  // Slots whose values must outlive the program's run.
  const std::vector<int32_t>& pinned() const { return pinned_; }
  int32_t max_output() const { return max_output_; }
  int visit(visitproc visit, void* arg) const;
  void clear();

 private:
  struct Step {
    StepKind kind;
    int32_t payload = -1;  // output number, slot, place in Slots::numbers, or index of a constant
    std::vector<int32_t> args;
  };

  PyObject* run_step(const Step& step, PyObject* const* values, PyObject* const* outputs, size_t n_outputs,
                     const Slots& slots) const;

  std::vector<Step> steps_;
  std::vector<py::object> constants_;
  std::vector<int32_t> pinned_;
  int32_t result_ = -1;
  int32_t single_output_ = -1;
  int32_t max_output_ = -1;
};

}  // namespace lampwork
