// What a step of torch's optimizers reads before it computes: the optimizer, its groups, parameters, gradients, states.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/python_headers.h>

#include <vector>

namespace lampwork {

// Where a float hyperparameter stands: `group[key]`, or `group[key][place]` if place is not negative.
struct FloatPlace {
  Py_ssize_t group;
  PyObject* key;
  Py_ssize_t place;
};

// Two optimizers whose readings are equal take the same way through torch's step, whatever their floats and the numbers
// in their tensors are; so it is read anew on each call, whole, and there is no list of things to compare. Owns nothing:
// it is good until Python code runs.
class Reading {
 public:
  // False if the step may depend on something that has no place here, or is watched.
  bool read(PyObject* optimizer);
  bool operator==(const Reading& other) const { return objects == other.objects && facts == other.facts; }

  std::vector<PyObject*> objects;  // compared by identity; all of them immutable
  std::vector<int64_t> facts;
  std::vector<double> floats;
  std::vector<FloatPlace> places;  // of the floats
  std::vector<const at::Tensor*> tensors;

 private:
  bool read_attributes(PyObject* optimizer);
  bool read_attribute(PyTypeObject* type, PyObject* key, PyObject* value);
  bool read_group(Py_ssize_t number, PyObject* group);
  bool read_option(Py_ssize_t number, PyObject* key, PyObject* value, Py_ssize_t place);
  bool read_parameters(PyObject* list);
  bool read_states();
  bool read_scalar(PyObject* value);
  bool read_tensor(const at::Tensor& tensor, const at::Tensor* parameter);
  void clear();

  PyObject *groups_ = nullptr, *states_ = nullptr;
  std::vector<PyObject*> parameters_;
};

}  // namespace lampwork
