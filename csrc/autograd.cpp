#include "autograd.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/utils/pybind.h>

#include "errors.h"

namespace lampwork {

namespace {

using torch::autograd::Node;
using torch::autograd::Variable;
using torch::autograd::variable_list;

constexpr const char* kNodeName = "lampwork._C.node";
constexpr const char* kVersionsName = "lampwork._C.versions";

using NodePointer = c10::intrusive_ptr<Node>;

void delete_node(PyObject* capsule) {
  delete static_cast<NodePointer*>(PyCapsule_GetPointer(capsule, kNodeName));
}

// Hands a leaf's gradient on unchanged. The engine runs what is ready by age, the youngest first, and gradients of
// leaves at once: so gates, made in the order in which a region first uses its leaves, give the leaves their
// gradients, and run their hooks, in eager's order, though a segment computes all gradients at a time.
struct Gate : public Node {
  variable_list apply(variable_list&& grads) override { return std::move(grads); }
  std::string name() const override { return "LampworkGate"; }
};

struct Segment : public Node {
  Segment(PyObject* callable, std::string text) : backward(Py_NewRef(callable)), name_(std::move(text)) {}

  ~Segment() override {
    if (backward == nullptr || Py_IsInitialized() == 0) return;
    const py::gil_scoped_acquire gil;
    Py_CLEAR(backward);
  }

  std::string name() const override { return name_; }

  variable_list apply(variable_list&& grads) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    TORCH_CHECK(!released || !saves, torch::autograd::ERR_BACKWARD_TWICE);
    variable_list results(num_outputs());
    const auto defined = [](const Variable& grad) { return grad.defined(); };
    if (std::none_of(grads.begin(), grads.end(), defined)) return results;
    const py::gil_scoped_acquire gil;
    const py::object answer = call(std::move(grads));
    if (!answer) throw_python_error();
    unpack(answer, results);
    return results;
  }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    released = true;
    if (!saves || backward == nullptr) return;
    const py::gil_scoped_acquire gil;
    Py_CLEAR(backward);
  }

  // backward(grads, needed, keep, node) -> (gradients, saves), which may take the gradients out of their list
  PyObject* backward;
  // Whether eager's graph of this stretch saves tensors, so that it cannot be run again once they are freed.
  bool saves = true;
  bool released = false;

 private:
  py::object call(variable_list grads) {
    const auto n_grads = static_cast<Py_ssize_t>(grads.size());
    const auto n_needed = static_cast<Py_ssize_t>(num_outputs());
    const auto given = py::reinterpret_steal<py::object>(PyList_New(n_grads));
    const auto needed = py::reinterpret_steal<py::object>(PyTuple_New(n_needed));
    const auto node = py::reinterpret_steal<py::object>(
        PyCapsule_New(new NodePointer(NodePointer::unsafe_reclaim_from_nonowning(this)), kNodeName, delete_node));
    if (!given || !needed || !node) return {};
    for (Py_ssize_t i = 0; i < n_grads; ++i) {
      PyObject* grad = grads[i].defined() ? THPVariable_Wrap(std::move(grads[i])) : Py_NewRef(Py_None);
      if (grad == nullptr) return {};
      PyList_SET_ITEM(given.ptr(), i, grad);
    }
    for (Py_ssize_t i = 0; i < n_needed; ++i) {
      PyTuple_SET_ITEM(needed.ptr(), i, PyBool_FromLong(task_should_compute_output(static_cast<size_t>(i))));
    }
    PyObject* keep = torch::autograd::get_current_graph_task_keep_graph() ? Py_True : Py_False;
    return py::reinterpret_steal<py::object>(
        PyObject_CallFunctionObjArgs(backward, given.ptr(), needed.ptr(), keep, node.ptr(), nullptr));
  }

  void unpack(const py::object& answer, variable_list& results) {
    PyObject *gradients = nullptr, *saved = nullptr;
    if (PyArg_ParseTuple(answer.ptr(), "O!O!", &PyList_Type, &gradients, &PyBool_Type, &saved) == 0) {
      throw_python_error();
    }
    saves = saved == Py_True;
    TORCH_INTERNAL_ASSERT(PyList_GET_SIZE(gradients) == static_cast<Py_ssize_t>(results.size()));
    for (size_t i = 0; i < results.size(); ++i) {
      PyObject* gradient = PyList_GET_ITEM(gradients, static_cast<Py_ssize_t>(i));
      if (THPVariable_Check(gradient)) results[i] = THPVariable_Unpack(gradient);
    }
  }

  [[noreturn]] static void throw_python_error() {
    python_error error;
    error.persist();
    throw std::move(error);
  }

  std::mutex mutex_;
  std::string name_;
};

const at::Tensor& tensor_at(PyObject* list, Py_ssize_t i) {
  PyObject* item = PyList_GET_ITEM(list, i);
  if (!THPVariable_Check(item)) throw_type_error("item " + std::to_string(i) + " is not a tensor");
  return THPVariable_Unpack(item);
}

torch::autograd::Edge edge_to(const at::Tensor& source) {
  torch::autograd::Edge edge = torch::autograd::impl::gradient_edge(source);
  if (!edge.is_valid() || !source.is_leaf()) return edge;
  NodePointer gate = c10::make_intrusive<Gate>();
  gate->add_input_metadata(source);
  gate->set_next_edges({std::move(edge)});
  return {std::move(gate), 0};
}

PyObject* attach(PyObject*, PyObject* args) {
  PyObject *values, *sources, *backward;
  const char* name = nullptr;
  if (!PyArg_ParseTuple(args, "O!O!Os", &PyList_Type, &values, &PyList_Type, &sources, &backward, &name)) {
    return nullptr;
  }
  HANDLE_TH_ERRORS
  torch::autograd::edge_list edges;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(sources); ++i) edges.push_back(edge_to(tensor_at(sources, i)));
  NodePointer segment = c10::make_intrusive<Segment>(backward, name);
  segment->set_next_edges(std::move(edges));
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(values); ++i) {
    const at::Tensor& value = tensor_at(values, i);
    if (value.requires_grad()) throw_value_error("a tensor that requires grad has its place in a graph");
    torch::autograd::set_history(value, segment);
  }
  Py_RETURN_NONE;
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
  if (number < 0 || number >= static_cast<Py_ssize_t>((*node)->num_outputs())) {
    throw_value_error("the node has no such edge");
  }
  at::Tensor result = THPVariable_Unpack(value).detach();
  torch::autograd::impl::set_gradient_edge(result, (*node)->next_edge(static_cast<size_t>(number)));
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

// Version counters with the versions they had. They keep no tensor alive.
struct Versions {
  std::vector<std::pair<c10::VariableVersion, uint32_t>> items;
};

PyObject* versions(PyObject*, PyObject* tensors) {
  if (!PyList_Check(tensors)) return PyErr_Format(PyExc_TypeError, "versions expects a list of tensors");
  HANDLE_TH_ERRORS
  auto seen = std::make_unique<Versions>();
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(tensors); ++i) {
    const at::Tensor& tensor = tensor_at(tensors, i);
    if (tensor.is_inference()) {
      seen->items.emplace_back(c10::VariableVersion(0), 0);
      continue;
    }
    const c10::VariableVersion& counter = tensor.unsafeGetTensorImpl()->version_counter();
    seen->items.emplace_back(counter, counter.current_version());
  }
  PyObject* capsule = PyCapsule_New(seen.get(), kVersionsName, [](PyObject* self) {
    delete static_cast<Versions*>(PyCapsule_GetPointer(self, kVersionsName));
  });
  if (capsule != nullptr) seen.release();
  return capsule;
  END_HANDLE_TH_ERRORS
}

PyObject* moved(PyObject*, PyObject* capsule) {
  HANDLE_TH_ERRORS
  const auto* seen = static_cast<Versions*>(PyCapsule_GetPointer(capsule, kVersionsName));
  if (seen == nullptr) return nullptr;
  py::dict found;
  for (size_t i = 0; i < seen->items.size(); ++i) {
    const auto& [counter, version] = seen->items[i];
    if (counter.current_version() != version) {
      found[py::int_(i)] = py::make_tuple(version, counter.current_version());
    }
  }
  return found.release().ptr();
  END_HANDLE_TH_ERRORS
}

}  // namespace

PyMethodDef autograd_methods[] = {
    {"attach", attach, METH_VARARGS,
     "attach(values, sources, backward, name): makes the tensors `values` the results of one autograd node, with "
     "`sources` as its inputs. backward(grads, needed, keep, node) -> (gradients, saves) is called with a list of the "
     "gradients of values, or None, which it may empty, and says whether the node cannot be run again once it was "
     "freed."},
    {"with_edge", with_edge, METH_VARARGS,
     "with_edge(value, node, i): the value as a tensor whose gradients go where the node's i-th go."},
    {"keep", keep, METH_VARARGS,
     "keep(tensors, how): each tensor itself, an alias, or a copy, where the byte of `how` is 0, 1, or 2."},
    {"versions", versions, METH_O, "versions(tensors): their version counters with the present versions."},
    {"moved", moved, METH_O, "moved(versions): {number: (version then, version now)} of those that have moved."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace lampwork
