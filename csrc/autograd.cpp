#include "autograd.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <memory>

#include "errors.h"

namespace lampwork {

namespace {

using torch::autograd::Node;
using torch::autograd::Variable;
using torch::autograd::variable_list;

constexpr const char* kNodeName = "lampwork._C.node";
constexpr const char* kVersionsName = "lampwork._C.versions";

void delete_node(PyObject* capsule) {
  delete static_cast<NodePointer*>(PyCapsule_GetPointer(capsule, kNodeName));
}

// Hands a leaf's gradient on unchanged. The engine runs what is ready by age, the youngest first, and gradients of
// leaves at once: so gates, made in the order in which a region first uses its leaves, run the leaves' hooks in eager's
// order, though a segment computes all gradients at a time. Without hooks nobody sees the order, and a gate takes the
// engine a microsecond. Behind a segment that stands for several of eager's nodes, gates are those of its results.
struct Gate : public Node {
  variable_list apply(variable_list&& grads) override { return std::move(grads); }
  std::string name() const override { return "LampworkGate"; }
};

// Whether a hook hears of a leaf's gradient.
bool is_heard(const at::Tensor& source) {
  if (!source.requires_grad() || !source.is_leaf()) return false;
  if (!torch::autograd::impl::hooks(source).empty() || torch::autograd::impl::post_acc_grad_hooks(source)) return true;
  const NodePointer accumulator = torch::autograd::impl::try_get_grad_accumulator(source);
  return accumulator && (!accumulator->pre_hooks().empty() || !accumulator->post_hooks().empty());
}

const at::Tensor& tensor_at(PyObject* list, Py_ssize_t i) {
  PyObject* item = PyList_GET_ITEM(list, i);
  if (!THPVariable_Check(item)) throw_type_error("item " + std::to_string(i) + " is not a tensor");
  return THPVariable_Unpack(item);
}

PyObject* attach(PyObject*, PyObject* args) {
  PyObject *values, *sources, *backward;
  const char* name = nullptr;
  int apart = 0;
  if (!PyArg_ParseTuple(args, "O!O!Osp", &PyList_Type, &values, &PyList_Type, &sources, &backward, &name, &apart)) {
    return nullptr;
  }
  HANDLE_TH_ERRORS
  c10::SmallVector<const at::Tensor*, 8> tensors;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(sources); ++i) tensors.push_back(&tensor_at(sources, i));
  torch::autograd::edge_list edges = edges_to(tensors);
  const NodePointer segment = make_node<Segment>(name, Py_NewRef(backward));
  segment->set_next_edges(std::move(edges));
  py::list results;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(values); ++i) {
    const at::Tensor& value = tensor_at(values, i);
    if (value.requires_grad()) throw_value_error("a tensor that requires grad has its place in a graph");
    PyObject* result = THPVariable_Wrap(result_of(segment, value, apart != 0));
    if (result == nullptr) return nullptr;
    results.append(py::reinterpret_steal<py::object>(result));
  }
  return results.release().ptr();
  END_HANDLE_TH_ERRORS
}

PyObject* with_edge(PyObject*, PyObject* args) {
  PyObject *value, *capsule;
  Py_ssize_t number = 0;
  if (!PyArg_ParseTuple(args, "OOn", &value, &capsule, &number)) return nullptr;
  HANDLE_TH_ERRORS
  const auto* node = static_cast<NodePointer*>(PyCapsule_GetPointer(capsule, kNodeName));
  if (node == nullptr) return nullptr;
  if (!THPVariable_Check(value)) throw_type_error("with_edge expects a tensor");
  const Py_ssize_t count = static_cast<Py_ssize_t>(number < 0 ? (*node)->num_inputs() : (*node)->num_outputs());
  if ((number < 0 ? -1 - number : number) >= count) throw_value_error("the node has no such edge");
  at::Tensor result = THPVariable_Unpack(value).detach();
  torch::autograd::impl::set_gradient_edge(
      result, number < 0 ? torch::autograd::Edge(*node, static_cast<uint32_t>(-1 - number))
                         : (*node)->next_edge(static_cast<size_t>(number)));
  return THPVariable_Wrap(std::move(result));
  END_HANDLE_TH_ERRORS
}

// Tensors to keep until backward: the object itself (0), an alias (1), or a copy (2).
PyObject* keep(PyObject*, PyObject* args) {
  PyObject *tensors, *how;
  if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &tensors, &PyBytes_Type, &how)) return nullptr;
  HANDLE_TH_ERRORS
  const Py_ssize_t count = PyList_GET_SIZE(tensors);
  if (PyBytes_GET_SIZE(how) != count) throw_value_error("keep expects one byte for each tensor");
  const at::NoGradGuard no_grad;
  py::list kept(static_cast<size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    const char way = PyBytes_AS_STRING(how)[i];
    PyObject* item = PyList_GET_ITEM(tensors, i);
    if (way != 0) {
      const at::Tensor& tensor = tensor_at(tensors, i);
      item = THPVariable_Wrap(way == 1 ? tensor.detach() : tensor.clone());
      if (item == nullptr) return nullptr;
    } else {
      Py_INCREF(item);
    }
    PyList_SET_ITEM(kept.ptr(), i, item);
  }
  return kept.release().ptr();
  END_HANDLE_TH_ERRORS
}

PyObject* versions(PyObject*, PyObject* tensors) {
  if (!PyList_Check(tensors)) return PyErr_Format(PyExc_TypeError, "versions expects a list of tensors");
  HANDLE_TH_ERRORS
  Versions seen;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(tensors); ++i) seen.add(tensor_at(tensors, i));
  return to_python(std::move(seen));
  END_HANDLE_TH_ERRORS
}

PyObject* moved(PyObject*, PyObject* capsule) {
  HANDLE_TH_ERRORS
  const auto* seen = static_cast<Versions*>(PyCapsule_GetPointer(capsule, kVersionsName));
  if (seen == nullptr) return nullptr;
  return seen->moved();
  END_HANDLE_TH_ERRORS
}

}  // namespace

void throw_python_error() {
  python_error error;
  error.persist();
  throw std::move(error);
}

Segment::Segment(std::string name, PyObject* backward) : name_(std::move(name)), backward_(backward) {}

Segment::~Segment() {
  if (backward_ == nullptr || Py_IsInitialized() == 0) return;
  const py::gil_scoped_acquire gil;
  Py_CLEAR(backward_);
}

variable_list Segment::apply(variable_list&& grads) {
  const std::lock_guard<std::mutex> lock(mutex_);
  TORCH_CHECK(!released_ || !saves_, torch::autograd::ERR_BACKWARD_TWICE);
  variable_list results(num_outputs());
  const auto defined = [](const Variable& grad) { return grad.defined(); };
  if (std::none_of(grads.begin(), grads.end(), defined)) return results;
  const py::gil_scoped_acquire gil;
  if (!differentiate(grads, results)) call(std::move(grads), results);
  return results;
}

void Segment::release_variables() {
  const std::lock_guard<std::mutex> lock(mutex_);
  released_ = true;
  // What an error left in the engine's queue is released when the thread ends, behind the interpreter's end maybe.
  if (!saves_ || Py_IsInitialized() == 0) return;
  const py::gil_scoped_acquire gil;
  Py_CLEAR(backward_);
  release();
}

void Segment::call(variable_list grads, variable_list& results) {
  if (backward_ == nullptr) backward_ = make_backward();
  if (backward_ == nullptr) throw_python_error();
  py::list given(grads.size());
  py::tuple needed(results.size());
  for (size_t i = 0; i < grads.size(); ++i) {
    PyObject* grad = THPVariable_Wrap(std::move(grads[i]));  // None where it is undefined
    if (grad == nullptr) throw_python_error();
    given[i] = py::reinterpret_steal<py::object>(grad);
  }
  for (size_t i = 0; i < results.size(); ++i) needed[i] = py::bool_(task_should_compute_output(i));
  const auto node = py::reinterpret_steal<py::object>(
      PyCapsule_New(new NodePointer(getptr()), kNodeName, delete_node));
  if (!node) throw_python_error();
  PyObject* keep = torch::autograd::get_current_graph_task_keep_graph() ? Py_True : Py_False;
  const auto answer = py::reinterpret_steal<py::object>(
      PyObject_CallFunctionObjArgs(backward_, given.ptr(), needed.ptr(), keep, node.ptr(), nullptr));
  PyObject *gradients = nullptr, *saves = nullptr;
  if (!answer || PyArg_ParseTuple(answer.ptr(), "O!O!", &PyList_Type, &gradients, &PyBool_Type, &saves) == 0) {
    throw_python_error();
  }
  saves_ = saves == Py_True;
  TORCH_INTERNAL_ASSERT(PyList_GET_SIZE(gradients) == static_cast<Py_ssize_t>(results.size()));
  for (size_t i = 0; i < results.size(); ++i) {
    PyObject* gradient = PyList_GET_ITEM(gradients, static_cast<Py_ssize_t>(i));
    if (THPVariable_Check(gradient)) results[i] = THPVariable_Unpack(gradient);
  }
}

torch::autograd::edge_list edges_to(c10::ArrayRef<const at::Tensor*> sources) {
  const auto heard = [](const at::Tensor* source) { return is_heard(*source); };
  const bool gated = std::any_of(sources.begin(), sources.end(), heard);
  torch::autograd::edge_list edges;
  for (const at::Tensor* source : sources) {
    torch::autograd::Edge edge = torch::autograd::impl::gradient_edge(*source);
    if (gated && edge.is_valid() && source->is_leaf()) {
      NodePointer gate = make_node<Gate>();
      gate->add_input_metadata(*source);
      gate->set_next_edges({std::move(edge)});
      edge = {std::move(gate), 0};
    }
    edges.push_back(std::move(edge));
  }
  return edges;
}

at::Tensor result_of(const NodePointer& node, const at::Tensor& value, bool apart) {
  torch::autograd::set_history(value, node);
  if (!apart) return value;
  NodePointer gate = make_node<Gate>();
  gate->set_next_edges({torch::autograd::impl::gradient_edge(value)});
  at::Tensor result = value.detach();
  torch::autograd::set_history(result, gate);
  return result;
}

void Versions::add(const at::Tensor& tensor) {
  if (tensor.is_inference()) {
    items_.emplace_back(c10::VariableVersion(0), 0);
    return;
  }
  const c10::VariableVersion& counter = tensor.unsafeGetTensorImpl()->version_counter();
  items_.emplace_back(counter, counter.current_version());
}

bool Versions::any_moved() const {
  return std::any_of(items_.begin(), items_.end(),
                     [](const auto& item) { return item.first.current_version() != item.second; });
}

void Versions::restore() const {
  for (const auto& [counter, version] : items_) c10::VariableVersion(counter).set_version(version);
}

PyObject* Versions::moved() const {
  py::dict found;
  for (size_t i = 0; i < items_.size(); ++i) {
    const auto& [counter, version] = items_[i];
    if (counter.current_version() == version) continue;
    found[py::int_(i)] = py::make_tuple(version, counter.current_version());
  }
  return found.release().ptr();
}

PyObject* to_python(Versions versions) {
  auto owned = std::make_unique<Versions>(std::move(versions));
  PyObject* capsule = PyCapsule_New(owned.get(), kVersionsName, [](PyObject* self) {
    delete static_cast<Versions*>(PyCapsule_GetPointer(self, kVersionsName));
  });
  if (capsule != nullptr) owned.release();
  return capsule;
}

PyMethodDef autograd_methods[] = {
    {"attach", attach, METH_VARARGS,
     "attach(values, sources, backward, name, apart): the tensors `values` as the results of one autograd node, with "
     "`sources` as its inputs; `apart`: each has a node of its own behind that. backward(grads, needed, keep, node) -> "
     "(gradients, saves) is called with a list of the gradients of values, or None, which it may empty, and says "
     "whether the node cannot be run again once it was freed."},
    {"with_edge", with_edge, METH_VARARGS,
     "with_edge(value, node, i): the value as a tensor whose gradients go where the node's i-th go; for -1 - i it is the "
     "node's own i-th result."},
    {"keep", keep, METH_VARARGS,
     "keep(tensors, how): each tensor itself, an alias, or a copy, where the byte of `how` is 0, 1, or 2."},
    {"versions", versions, METH_O, "versions(tensors): their version counters with the present versions."},
    {"moved", moved, METH_O, "moved(versions): {number: (version then, version now)} of those that have moved."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace lampwork
