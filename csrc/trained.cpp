#include "trained.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/anomaly_mode.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <unordered_set>

#include "autograd.h"
#include "entry.h"
#include "holds.h"

namespace lampwork {

namespace {

using torch::autograd::variable_list;

// How the gradient of a result must look, if there is one. `expanded`: it may be one number for all.
struct Tangent {
  explicit Tangent(const at::Tensor& like, bool expanded)
      : dtype(like.scalar_type()), sizes(like.sizes()), strides(like.strides()), expanded(expanded) {}

  at::ScalarType dtype;
  c10::SmallVector<int64_t, 5> sizes;
  c10::SmallVector<int64_t, 5> strides;
  bool expanded;
};

// Where an input of a backward program comes from.
struct Source {
  enum class From : uint8_t { Kept, Saved, Tangent } from;
  size_t number;
};

struct Backward {
  py::object program;
  std::vector<Source> inputs;
  std::vector<std::optional<Tangent>> tangents;
  std::vector<bool> needed;
  std::vector<int32_t> gradients;  // output of the program, or -1

  Executable& executable() const { return *reinterpret_cast<ExecutableObject*>(program.ptr())->executable; }
};

// A segment. `results`: outputs of the forward program, or -1 where `stand_ins` has a tensor of the shape.
// `sources`: tensors of the call, or, from their number on, values: results of the segments before. `saved`: those of
// the call's saved tensors that its backward reads, here or in Python.
struct Stretch {
  std::string name;
  std::vector<int32_t> results;
  std::vector<at::Tensor> stand_ins;
  std::vector<size_t> sources;
  std::vector<size_t> saved;
  bool saves;
  bool is_composite;
  std::optional<Backward> backward;
};

struct Plan {
  py::object forward;
  py::tuple bound;
  py::object make_tape;
  size_t n_inputs = 0;
  size_t n_results = 0;
  bool random = false;
  std::string keeping;
  std::string holding;
  std::vector<size_t> given;
  std::vector<size_t> leaves;
  std::vector<size_t> watched;
  std::vector<int64_t> roots;  // outputs; negative, counted from -1, tensors of the call that were written
  std::vector<std::pair<size_t, uint32_t>> fresh_versions;
  std::vector<size_t> unnoticed;
  std::string apart;             // for each result: 0 as it is, 1 no view, 2 detached
  std::vector<int32_t> values;   // for each result: the value that it is, or -1
  std::vector<Stretch> segments;

  const at::Tensor& bound_at(size_t number) const {
    return THPVariable_Unpack(PyTuple_GET_ITEM(bound.ptr(), static_cast<Py_ssize_t>(number)));
  }
  Executable& executable() const { return *reinterpret_cast<ExecutableObject*>(forward.ptr())->executable; }
};

using PlanPointer = std::shared_ptr<const Plan>;

// Runs a program under the GIL; throws python_error with what is due. `owned`: as `Executable::run` takes it.
void run_program(Executable& executable, TensorPointers inputs, c10::SmallVectorImpl<at::Tensor>& outputs,
                 at::Tensor* owned = nullptr, OutputSink* sink = nullptr) {
  bool wrote_outside = false;
  try {
    executable.run(inputs.data(), nullptr, outputs, wrote_outside, owned, sink);
    return;
  } catch (const RunFailure& failure) {
    raise_runtime_failure(failure.what());
  } catch (const StaleBoundTensor& stale) {
    raise_runtime_failure(stale.what());
  } catch (...) {
    aten_failed() = true;
    throw;
  }
  throw_python_error();
}

// What one call keeps for its backward; see lampwork.runtime.tape.Tape.
struct Call {
  PlanPointer plan;
  std::vector<at::Tensor> own;  // aliases and copies; undefined where a bound tensor itself is kept
  HoldsPointer before;
  Versions versions;
  at::Tensor state;
  std::vector<at::Tensor> leaves;
  std::vector<at::Tensor> saved;  // undefined once all segments that read them are done
  std::vector<at::Tensor> roots;
  HoldsPointer roots_before;
  std::vector<bool> done;
  bool deterministic = false;  // whether algorithms had to be, for which backward was compiled
  py::object tape;

  c10::SmallVector<const at::Tensor*, 16> kept() const {
    c10::SmallVector<const at::Tensor*, 16> all;
    for (size_t i = 0; i < own.size(); ++i) {
      all.push_back(own[i].defined() ? &own[i] : &plan->bound_at(i - plan->n_inputs));
    }
    return all;
  }

  // Whether anything that backward depends on was written or replaced since.
  bool is_written(TensorPointers kept) const {
    if (versions.any_moved() || is_any_changed(*before, kept)) return true;
    for (size_t i = 0; i < leaves.size(); ++i) {
      const at::Tensor& alias = own[plan->leaves[i]];
      if (!leaves[i].defined()) continue;
      if (!leaves[i].storage().is_alias_of(alias.storage()) || leaves[i].sizes() != alias.sizes() ||
          leaves[i].strides() != alias.strides() || leaves[i].storage_offset() != alias.storage_offset()) {
        return true;
      }
    }
    c10::SmallVector<const at::Tensor*, 4> results;
    for (const at::Tensor& root : roots) results.push_back(&root);
    return is_any_changed(*roots_before, results);
  }

  // Notes that a segment's backward ran and will not be asked for again.
  void finish(size_t number) {
    done[number] = true;
    std::vector<bool> is_read(saved.size());
    for (size_t i = 0; i < done.size(); ++i) {
      if (done[i]) continue;
      for (const size_t each : plan->segments[i].saved) is_read[each] = true;
    }
    for (size_t i = 0; i < saved.size(); ++i) {
      if (!is_read[i]) saved[i] = at::Tensor();
    }
  }

  // The tape that goes on from here. What it takes is given away.
  py::object make_tape();
};

py::object wrap(const at::Tensor& tensor) {
  PyObject* object = THPVariable_Wrap(tensor);
  if (object == nullptr) throw python_error();
  return py::reinterpret_steal<py::object>(object);
}

template <class Tensors>
py::list wrap_all(const Tensors& tensors) {
  py::list all;
  for (const auto& tensor : tensors) {
    if constexpr (std::is_pointer_v<std::decay_t<decltype(tensor)>>) {
      all.append(wrap(*tensor));
    } else {
      all.append(wrap(tensor));
    }
  }
  return all;
}

py::object Call::make_tape() {
  if (tape) return tape;
  const auto reference = [](PyObject* object) {
    if (object == nullptr) throw python_error();
    return py::reinterpret_steal<py::object>(object);
  };
  py::dict found;
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (leaves[i].defined()) found[py::int_(plan->leaves[i])] = wrap(leaves[i]);
  }
  py::list finished;
  for (size_t i = 0; i < done.size(); ++i) {
    if (done[i]) finished.append(i);
  }
  const py::object random = state.defined() ? wrap(state) : py::none();
  tape = plan->make_tape(wrap_all(kept()), reference(to_python(std::move(before))),
                         reference(to_python(std::move(versions))), random, found, wrap_all(saved), wrap_all(roots),
                         reference(to_python(std::move(roots_before))), finished);
  return tape;
}

// Modes that see the operators that run, and autocast, which has them compute in other dtypes.
bool modes_are_on() {
  return c10::impl::TorchDispatchModeTLS::stack_len() > 0 || at::impl::PythonTorchFunctionTLS::stack_len() > 0 ||
         at::autocast::is_autocast_enabled(at::kCPU);
}

// Whether it is a tensor of torch's own with memory, of no transform, not lazily conjugated or negated.
bool is_plain_gradient(const at::Tensor& tensor) {
  static const c10::DispatchKeySet plain = [] {
    const c10::InferenceMode normal_tensors(false);  // the first backward may run under inference mode
    return at::empty({0}).key_set();
  }();
  return tensor.key_set() == plain && Py_TYPE(wrap(tensor).ptr()) == reinterpret_cast<PyTypeObject*>(THPVariableClass);
}

// Adds gradients to the `.grad` that leaves have, as soon as each is made, by autograd's own nodes: then the gradients of
// a step are never there twice. Where nobody hears of it: hooks are called with gradients after the segment's node.
class Accumulation : public OutputSink {
 public:
  // `gradients`: for each edge the output that is its gradient, or -1. `inputs`: what the program reads.
  Accumulation(const torch::autograd::edge_list& edges, const std::vector<int32_t>& gradients, size_t n_outputs,
               TensorPointers inputs)
      : leaves_(n_outputs) {
    const auto* wanted = torch::autograd::get_current_graph_task_exec_info();
    if (wanted == nullptr || !wanted->empty()) return;  // asked for some gradients, which may be given to the caller
    std::unordered_set<const c10::StorageImpl*> read;
    for (const at::Tensor* input : inputs) {
      if (input->has_storage()) read.insert(input->storage().unsafeGetStorageImpl());
    }
    for (size_t i = 0; i < edges.size(); ++i) {
      const int32_t output = gradients[i];
      if (output < 0 || std::count(gradients.begin(), gradients.end(), output) > 1) continue;
      auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(edges[i].function.get());
      if (leaf == nullptr || !is_quiet(*leaf)) continue;
      if (read.count(leaf->variable.grad().storage().unsafeGetStorageImpl()) == 0) leaves_[output] = leaf;
    }
  }

  bool takes(size_t output) const override { return leaves_[output] != nullptr; }

  void take(size_t output, at::Tensor gradient) override { (*leaves_[output])({std::move(gradient)}); }

 private:
  static bool is_quiet(torch::autograd::AccumulateGrad& leaf) {
    const at::Tensor& grad = leaf.variable.grad();
    return grad.defined() && is_plain_gradient(grad) && !grad.requires_grad() && leaf.pre_hooks().empty() &&
           leaf.post_hooks().empty() && leaf.tensor_pre_hooks().empty() && leaf.retains_grad_hooks().empty() &&
           leaf.tensor_post_acc_grad_hooks() == nullptr;
  }

  std::vector<torch::autograd::AccumulateGrad*> leaves_;  // by number of output; the node that runs has edges to them
};

class TrainedSegment : public Segment {
 public:
  TrainedSegment(std::shared_ptr<Call> call, size_t number)
      : Segment(call->plan->segments[number].name, nullptr), call_(std::move(call)), number_(number) {
    saves_ = stretch().saves;
  }

  ~TrainedSegment() override {
    if (call_ == nullptr) return;
    if (Py_IsInitialized() == 0) {
      new std::shared_ptr<Call>(std::move(call_));  // never freed: what it holds belongs to Python
      return;
    }
    const py::gil_scoped_acquire gil;
    call_.reset();
  }

 protected:
  bool differentiate(variable_list& grads, variable_list& results) override {
    if (call_ == nullptr || call_->tape || !stretch().backward || at::GradMode::is_enabled() || modes_are_on() ||
        at::globalContext().deterministicAlgorithms() != call_->deterministic) {
      return false;
    }
    if (call_->done[number_] && !stretch().saved.empty()) return false;
    const Backward& backward = *stretch().backward;
    for (size_t i = 0; i < results.size(); ++i) {
      if (task_should_compute_output(i) != backward.needed[i]) return false;
    }
    const auto kept = call_->kept();
    c10::SmallVector<at::Tensor, 4> tangents;
    if (call_->is_written(kept) || !lay_out(backward, grads, tangents)) return false;
    c10::SmallVector<at::Tensor, 16> inputs;
    c10::SmallVector<const at::Tensor*, 16> pointers;
    for (const Source& source : backward.inputs) {
      inputs.push_back(source.from == Source::From::Kept    ? *kept[source.number]
                       : source.from == Source::From::Saved ? call_->saved[source.number]
                                                            : tangents[source.number]);
    }
    for (const at::Tensor& input : inputs) pointers.push_back(&input);
    // From here on it is the program that holds what nothing else needs, each tensor until its last use.
    const std::shared_ptr<Call> alive = call_;
    if (!torch::autograd::get_current_graph_task_keep_graph()) alive->finish(number_);
    tangents.clear();
    grads.clear();
    c10::SmallVector<at::Tensor, 8> outputs;
    ++runtime_stats().compiled_backwards;
    Executable& executable = backward.executable();
    std::optional<Accumulation> sink;
    if (executable.hands_out()) sink.emplace(next_edges(), backward.gradients, executable.n_outputs(), pointers);
    run_program(executable, pointers, outputs, inputs.data(), sink ? &*sink : nullptr);
    for (size_t i = 0; i < results.size(); ++i) {
      if (backward.gradients[i] >= 0) results[i] = outputs[backward.gradients[i]];
    }
    return true;
  }

  PyObject* make_backward() override {
    if (call_ == nullptr) return PyErr_Format(PyExc_RuntimeError, "lampwork: backward of what was freed");
    return call_->make_tape().attr("backward")(number_).release().ptr();
  }

  void release() override { call_.reset(); }

 private:
  const Stretch& stretch() const { return call_->plan->segments[number_]; }

  // The gradients as the program takes them. False if eager's gradients would be others.
  static bool lay_out(const Backward& backward, const variable_list& grads, c10::SmallVectorImpl<at::Tensor>& laid) {
    for (size_t i = 0; i < grads.size(); ++i) {
      const std::optional<Tangent>& like = backward.tangents[i];
      const at::Tensor& grad = grads[i];
      if (grad.defined() != like.has_value()) return false;
      if (!grad.defined()) continue;
      if (!is_plain_gradient(grad) || grad.scalar_type() != like->dtype || grad.sizes() != at::IntArrayRef(like->sizes)) {
        return false;
      }
      if (grad.strides() == at::IntArrayRef(like->strides)) {
        laid.push_back(grad);
        continue;
      }
      const auto is_zero = [](int64_t stride) { return stride == 0; };
      const bool is_one_number = std::all_of(grad.strides().begin(), grad.strides().end(), is_zero);
      if (grad.numel() > 1 && !(like->expanded && is_one_number)) return false;
      laid.push_back(at::empty_strided(like->sizes, like->strides, grad.options()).copy_(grad));
    }
    return true;
  }

  std::shared_ptr<Call> call_;
  size_t number_;
};

// --- forward -------------------------------------------------------------------------------------------------

// What a segment's node is attached to: the output, or what has its shape and is in nobody's reach.
at::Tensor value_of(const Stretch& segment, size_t i, const std::vector<at::Tensor>& outputs) {
  if (segment.results[i] < 0) return segment.stand_ins[i].detach();
  const at::Tensor& output = outputs[static_cast<size_t>(segment.results[i])];
  return output.requires_grad() || output.is_view() ? output.detach() : output;
}

py::list run_forward(const PlanPointer& pointer, const std::vector<at::Tensor>& tensors) {
  const Plan& plan = *pointer;
  auto call = std::make_shared<Call>();
  call->plan = pointer;
  call->done.resize(plan.segments.size());
  call->deterministic = at::globalContext().deterministicAlgorithms();
  std::vector<at::Tensor> outputs;
  Versions unnoticed;
  for (const size_t number : plan.unnoticed) unnoticed.add(tensors[number]);
  {
    const at::NoGradGuard no_grad;
    if (plan.random) call->state = at::detail::getDefaultCPUGenerator().get_state();
    for (size_t i = 0; i < tensors.size(); ++i) {
      const char way = plan.keeping[i];
      call->own.push_back(way == 0 ? at::Tensor() : way == 1 ? tensors[i].detach() : tensors[i].clone());
    }
    call->before = hold_memory(call->kept(), plan.holding.data());
    c10::SmallVector<const at::Tensor*, 16> given;
    for (const size_t number : plan.given) given.push_back(&tensors[number]);
    c10::SmallVector<at::Tensor, 16> made;
    run_program(plan.executable(), given, made);
    outputs.assign(std::make_move_iterator(made.begin()), std::make_move_iterator(made.end()));
  }
  call->saved.assign(outputs.begin() + static_cast<Py_ssize_t>(plan.n_results), outputs.end());
  // A result that is saved too is saved as an alias: it will have the node, and the node what is saved.
  for (at::Tensor& saved : call->saved) {
    const auto is_saved = [&](const at::Tensor& output) { return output.is_same(saved); };
    const auto end = outputs.begin() + static_cast<Py_ssize_t>(plan.n_results);
    if (std::any_of(outputs.begin(), end, is_saved)) saved = saved.detach();
  }
  for (const auto& [number, version] : plan.fresh_versions) {
    const c10::VariableVersion& counter = outputs[number].unsafeGetTensorImpl()->version_counter();
    if (counter.enabled()) c10::VariableVersion(counter).set_version(version);
  }
  unnoticed.restore();
  for (const at::Tensor& tensor : tensors) call->versions.add(tensor);
  for (const size_t number : plan.watched) call->versions.add(outputs[number]);
  for (const size_t number : plan.leaves) {
    call->leaves.push_back(tensors[number].is_leaf() ? tensors[number] : at::Tensor());
  }
  c10::SmallVector<const at::Tensor*, 4> roots;
  for (const int64_t number : plan.roots) {
    call->roots.push_back((number < 0 ? tensors[-1 - number] : outputs[number]).detach());
  }
  for (const at::Tensor& root : call->roots) roots.push_back(&root);
  call->roots_before = hold_memory(roots, std::string(roots.size(), 3).data());
  std::vector<at::Tensor> values;
  for (size_t number = 0; number < plan.segments.size(); ++number) {
    const Stretch& segment = plan.segments[number];
    c10::SmallVector<const at::Tensor*, 16> sources;
    for (const size_t source : segment.sources) {
      sources.push_back(source < tensors.size() ? &tensors[source] : &values[source - tensors.size()]);
    }
    torch::autograd::edge_list edges = edges_to(sources);
    const NodePointer node = make_node<TrainedSegment>(call, number);
    node->set_next_edges(std::move(edges));
    for (size_t i = 0; i < segment.results.size(); ++i) {
      values.push_back(result_of(node, value_of(segment, i, outputs), segment.is_composite));
    }
  }
  py::list results(plan.values.size());
  for (size_t i = 0; i < plan.values.size(); ++i) {
    const bool apart = plan.apart[i] == 2 || (plan.apart[i] == 1 && outputs[i].is_view());
    const at::Tensor result = plan.values[i] >= 0 ? values[static_cast<size_t>(plan.values[i])]
                              : apart             ? outputs[i].detach()
                                                  : outputs[i];
    results[i] = wrap(result);
  }
  return results;
}

// --- the Python type -----------------------------------------------------------------------------------------

struct TrainedObject {
  PyObject_HEAD vectorcallfunc vectorcall;
  PlanPointer plan;
};

TrainedObject* as_trained(PyObject* self) { return reinterpret_cast<TrainedObject*>(self); }

template <class Number>
std::vector<Number> numbers(py::handle items) {
  std::vector<Number> all;
  for (const py::handle item : items) all.push_back(item.cast<Number>());
  return all;
}

const at::Tensor& tensor_of(py::handle item) {
  if (!THPVariable_Check(item.ptr())) throw_type_error("expected a tensor");
  return THPVariable_Unpack(item.ptr());
}

py::object executable_of(py::handle program) {
  if (Py_TYPE(program.ptr()) != &ExecutableType) throw_type_error("expected a lampwork._C.Executable");
  return py::reinterpret_borrow<py::object>(program);
}

Backward read_backward(py::handle object) {
  Backward backward;
  backward.program = executable_of(object.attr("program"));
  for (const py::handle item : object.attr("inputs")) {
    static const Forms<Source::From> froms = {
        {"kept", Source::From::Kept}, {"saved", Source::From::Saved}, {"tangent", Source::From::Tangent}};
    const auto kind = item.attr("kind").cast<std::string>();
    backward.inputs.push_back({form_of(froms, "kind of input", kind), item.attr("number").cast<size_t>()});
  }
  for (const py::handle item : object.attr("tangents")) {
    const py::handle like = item[py::int_(0)];
    backward.tangents.emplace_back();
    if (!like.is_none()) backward.tangents.back().emplace(tensor_of(like), item[py::int_(1)].cast<bool>());
  }
  backward.needed = numbers<bool>(object.attr("needed"));
  backward.gradients = numbers<int32_t>(object.attr("gradients"));
  return backward;
}

Stretch read_segment(py::handle object) {
  Stretch segment;
  segment.name = object.attr("name").cast<std::string>();
  for (const py::handle item : object.attr("results")) {
    const bool is_output = PyLong_Check(item.ptr());
    segment.results.push_back(is_output ? item.cast<int32_t>() : -1);
    segment.stand_ins.push_back(is_output ? at::Tensor() : tensor_of(item));
  }
  segment.sources = numbers<size_t>(object.attr("sources"));
  segment.saved = numbers<size_t>(object.attr("saved"));
  segment.saves = object.attr("saves").cast<bool>();
  segment.is_composite = object.attr("is_composite").cast<bool>();
  if (!object.attr("backward").is_none()) segment.backward = read_backward(object.attr("backward"));
  return segment;
}

// Reads a lampwork.runtime.native.Plan.
PlanPointer read_plan(py::handle object) {
  auto plan = std::make_shared<Plan>();
  plan->forward = executable_of(object.attr("forward"));
  plan->bound = py::tuple(object.attr("bound"));
  plan->make_tape = object.attr("make_tape");
  plan->n_inputs = object.attr("n_inputs").cast<size_t>();
  plan->n_results = object.attr("n_results").cast<size_t>();
  plan->random = object.attr("random").cast<bool>();
  plan->keeping = object.attr("keeping").cast<std::string>();
  plan->holding = object.attr("holding").cast<std::string>();
  plan->given = numbers<size_t>(object.attr("given"));
  plan->leaves = numbers<size_t>(object.attr("leaves"));
  plan->watched = numbers<size_t>(object.attr("watched"));
  plan->roots = numbers<int64_t>(object.attr("roots"));
  for (const py::handle item : object.attr("fresh_versions")) {
    plan->fresh_versions.emplace_back(item.cast<std::pair<size_t, uint32_t>>());
  }
  plan->unnoticed = numbers<size_t>(object.attr("unnoticed"));
  plan->apart = object.attr("apart").cast<std::string>();
  plan->values = numbers<int32_t>(object.attr("values"));
  for (const py::handle item : object.attr("segments")) plan->segments.push_back(read_segment(item));
  size_t n_values = 0;
  for (const Stretch& segment : plan->segments) n_values += segment.results.size();
  const auto is_value = [&](int32_t value) { return value < static_cast<int32_t>(n_values); };
  if (!std::all_of(plan->values.begin(), plan->values.end(), is_value) ||
      plan->executable().n_inputs() > plan->given.size() || plan->executable().n_outputs() < plan->n_results ||
      plan->keeping.size() != plan->n_inputs + plan->bound.size() || plan->holding.size() != plan->keeping.size()) {
    throw_value_error("the plan of a trained region does not fit its program");
  }
  return plan;
}

// Whether somebody watches what only eager's own nodes have.
bool is_watched() {
  return torch::autograd::AnomalyMode::is_enabled() || at::SavedTensorDefaultHooks::get_hooks(true).has_value();
}

PyObject* trained_call(PyObject* self, PyObject* const* args, size_t flags, PyObject* names) {
  if (PyVectorcall_NARGS(flags) != 1 || names != nullptr || !PyList_Check(args[0])) {
    return PyErr_Format(PyExc_TypeError, "a trained region takes a list of tensors");
  }
  HANDLE_TH_ERRORS
  const PlanPointer plan = as_trained(self)->plan;
  if (plan == nullptr) Py_RETURN_NONE;  // the garbage collector has cleared it
  if (static_cast<size_t>(PyList_GET_SIZE(args[0])) != plan->keeping.size()) {
    throw_value_error("a trained region takes its inputs and its bound tensors");
  }
  if (is_watched()) Py_RETURN_NONE;
  std::vector<at::Tensor> tensors;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(args[0]); ++i) {
    tensors.push_back(tensor_of(PyList_GET_ITEM(args[0], i)));
    if (tensors.back().is_inference()) Py_RETURN_NONE;
  }
  return run_forward(plan, tensors).release().ptr();
  END_HANDLE_TH_ERRORS
}

PyObject* trained_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"plan", nullptr};
  PyObject* plan = nullptr;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O", const_cast<char**>(names), &plan)) return nullptr;
  HANDLE_TH_ERRORS
  PlanPointer made = read_plan(plan);
  PyObject* self = type->tp_alloc(type, 0);
  if (self == nullptr) return nullptr;
  as_trained(self)->vectorcall = trained_call;
  new (&as_trained(self)->plan) PlanPointer(std::move(made));
  return self;
  END_HANDLE_TH_ERRORS
}

int trained_traverse(PyObject* self, visitproc visit, void* arg) {
  const PlanPointer& plan = as_trained(self)->plan;
  if (plan == nullptr || plan.use_count() > 1) return 0;  // nodes hold what it refers to too
  Py_VISIT(plan->forward.ptr());
  Py_VISIT(plan->bound.ptr());
  Py_VISIT(plan->make_tape.ptr());
  for (const Stretch& segment : plan->segments) {
    if (segment.backward) Py_VISIT(segment.backward->program.ptr());
  }
  return 0;
}

int trained_clear(PyObject* self) {
  const PlanPointer plan = std::move(as_trained(self)->plan);
  return 0;
}

void trained_dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  as_trained(self)->plan.~PlanPointer();
  Py_TYPE(self)->tp_free(self);
}

}  // namespace

PyTypeObject TrainedType = {
    .ob_base = PyVarObject_HEAD_INIT(nullptr, 0).tp_name = "lampwork._C.Trained",
    .tp_basicsize = sizeof(TrainedObject),
    .tp_dealloc = trained_dealloc,
    .tp_vectorcall_offset = offsetof(TrainedObject, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_doc = "Trained(plan): runs a lampwork.runtime.native.Plan on a list of tensors, inputs and then bound ones. "
              "Gives the results; None, and nothing was done, where eager's nodes are watched or a tensor is an "
              "inference tensor.",
    .tp_traverse = trained_traverse,
    .tp_clear = trained_clear,
    .tp_new = trained_new,
};

}  // namespace lampwork
