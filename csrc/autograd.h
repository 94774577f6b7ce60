// Autograd nodes of compiled regions.
//
// A `Segment` stands for a stretch of a region's graph between the tensors that the caller can hold. Its backward is
// Python's (lampwork.runtime.tape), or a program that runs without Python (trained.h).
#pragma once

#include <Python.h>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "node_pointer.h"

namespace lampwork {

// Version counters with the versions they had. They keep no tensor alive.
class Versions {
 public:
  void add(const at::Tensor& tensor);
  bool any_moved() const;
  void restore() const;
  // {number: (version then, version now)} of those that have moved. A new reference.
  PyObject* moved() const;

 private:
  c10::SmallVector<std::pair<c10::VariableVersion, uint32_t>, 16> items_;
};

// A new reference to what Python's `moved` takes, or nullptr with an error set.
PyObject* to_python(Versions versions);

class Segment : public torch::autograd::Node {
 public:
  Segment(std::string name, PyObject* backward);
  ~Segment() override;

  std::string name() const override { return name_; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override;
  void release_variables() override;

 protected:
  // The gradients, if they can be had without Python's backward; what is given is gone then. With the GIL.
  virtual bool differentiate(torch::autograd::variable_list&, torch::autograd::variable_list&) { return false; }
  // What `attach` takes as backward: a new reference, or nullptr with an error set.
  virtual PyObject* make_backward() { return nullptr; }
  // Drops what differentiate and make_backward need. With the GIL.
  virtual void release() {}

  // Whether eager's graph of this stretch saves tensors, so that it cannot be run again once they are freed.
  bool saves_ = true;

 private:
  void call(torch::autograd::variable_list grads, torch::autograd::variable_list& results);

  std::mutex mutex_;
  std::string name_;
  PyObject* backward_;  // nullptr until it is needed
  bool released_ = false;
};

// Where the gradients of a segment's sources go. Made before the segment's node.
torch::autograd::edge_list edges_to(c10::ArrayRef<const at::Tensor*> sources);

// A tensor without a history as the next result of a node; `apart`: with a node of its own behind that.
at::Tensor result_of(const NodePointer& node, const at::Tensor& value, bool apart);

// Throws the error that is set.
[[noreturn]] void throw_python_error();

extern PyMethodDef autograd_methods[];

}  // namespace lampwork
