// Reading a Program's Python dataclasses into Code.
#include "program.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/TensorOptions.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/utils/device_lazy_init.h>

#include <algorithm>
#include <limits>
#include <unordered_map>

namespace torch::jit {
// From torch/csrc/jit/python/pybind_utils.h, which would triple the build time of this file.
TORCH_PYTHON_API c10::IValue toIValue(py::handle object, const c10::TypePtr& type,
                                      std::optional<int32_t> size);

class TORCH_PYTHON_API ToIValueAllowNumbersAsTensors {
  bool old_;

 public:
  ToIValueAllowNumbersAsTensors(bool enable);
  ~ToIValueAllowNumbersAsTensors();
};
}  // namespace torch::jit

namespace lampwork {

namespace {

// Programs that touch more memory than this, or call ATen, run with the GIL released.
constexpr int64_t kProgramGilBytes = 32 << 10;
// ... and those that launch more kernels, of some 2 us each.
constexpr int64_t kGilLaunches = 32;

[[noreturn]] void invalid_program(const std::string& what) { throw_value_error("invalid program: " + what); }

Kind kind_of(const std::string& name) {
  static const std::unordered_map<std::string, Kind> kinds = {
      {"input", Kind::Input}, {"bound", Kind::Bound}, {"constant", Kind::Constant}, {"arena", Kind::Arena},
      {"heap", Kind::Heap},   {"fresh", Kind::Fresh}, {"aten", Kind::Aten},         {"view", Kind::View}};
  const auto found = kinds.find(name);
  if (found == kinds.end()) invalid_program("unknown value kind '" + name + "'");
  return found->second;
}

int64_t spanned_bytes(const Value& value) {
  int64_t elements = 1;
  for (size_t i = 0; i < value.shape.size(); ++i) {
    if (value.shape[i] == 0) return 0;
  }
  for (size_t i = 0; i < value.shape.size(); ++i) {
    int64_t reach = 0;
    if (__builtin_mul_overflow(value.shape[i] - 1, value.strides[i], &reach) ||
        __builtin_add_overflow(elements, reach, &elements)) {
      invalid_program("a value has more elements than int64 counts");
    }
  }
  int64_t bytes = 0;
  if (__builtin_mul_overflow(elements, static_cast<int64_t>(c10::elementSize(value.dtype)), &bytes)) {
    invalid_program("a value has more bytes than int64 counts");
  }
  return bytes;
}

bool is_contiguous(const Value& value) {
  int64_t step = 1;
  for (size_t i = value.shape.size(); i-- > 0;) {
    if (value.strides[i] != step) return false;
    step *= std::max<int64_t>(value.shape[i], 1);
  }
  return true;
}

c10::DispatchKeySet dense_keys(at::ScalarType dtype, c10::Device device) {
  return c10::DispatchKeySet(c10::computeDispatchKey(dtype, c10::kStrided, device));
}

c10::Device read_device(py::handle object) {
  if (!THPDevice_Check(object.ptr())) invalid_program("a device is not a torch.device");
  const c10::Device device = reinterpret_cast<THPDevice*>(object.ptr())->device;
  if (!device.is_cpu() && !device.has_index()) invalid_program("a device has no number");
  return device;
}

Value read_value(py::handle object) {
  Value value;
  value.kind = kind_of(object.attr("kind").cast<std::string>());
  const py::object dtype = object.attr("dtype");
  if (!dtype.is_none()) {
    if (!THPDtype_Check(dtype.ptr())) invalid_program("dtype of a value is not a torch.dtype");
    value.typed = true;
    value.dtype = reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type;
  }
  value.device = read_device(object.attr("device"));
  for (const py::handle size : object.attr("shape")) value.shape.push_back(size.cast<int64_t>());
  for (const py::handle stride : object.attr("strides")) value.strides.push_back(stride.cast<int64_t>());
  if (value.shape.size() != value.strides.size()) invalid_program("shape and strides of a value differ in length");
  value.offset = object.attr("offset").cast<int64_t>();
  value.base = object.attr("base").cast<int32_t>();
  value.position = object.attr("position").cast<int32_t>();
  value.contiguous = is_contiguous(value);
  if (value.typed) value.nbytes = spanned_bytes(value);
  return value;
}

// Finds the memory that every value lies in. A view lies inside it: checked here, where sizes are numbers, so that a
// call need not.
void resolve_roots(std::vector<Value>& values) {
  const auto count = static_cast<int32_t>(values.size());
  for (int32_t number = 0; number < count; ++number) {
    Value& value = values[number];
    int32_t at = number;
    int64_t bytes = 0;
    for (int32_t steps = 0; values[at].kind == Kind::View; ++steps) {
      const Value& view = values[at];
      if (view.base < 0 || view.base >= count || steps > count) invalid_program("a view has no base");
      if (!view.typed) invalid_program("a view has no dtype");
      bytes += view.offset * static_cast<int64_t>(c10::elementSize(view.dtype));
      at = view.base;
    }
    value.root = at;
    value.root_bytes = bytes;
    if (value.kind == Kind::View && value.nbytes > 0) {
      const Value& root = values[at];
      if (!root.typed) invalid_program("a view of memory that is known to torch alone");
      if (bytes < 0 || bytes + value.nbytes > root.nbytes) invalid_program("a view reaches beyond the memory that it is of");
    }
    if (value.kind == Kind::View) value.device = values[at].device;
    if (value.typed) value.keys = dense_keys(value.dtype, value.device);
    const bool owns_memory = value.kind == Kind::Arena || value.kind == Kind::Heap || value.kind == Kind::Fresh;
    if (owns_memory && !value.typed) invalid_program("an arena, heap or fresh value has no dtype");
  }
}

// The values that lie in the memory of a root value.
std::vector<int32_t> values_in(const Code& code, int32_t root) {
  std::vector<int32_t> found;
  for (size_t number = 0; number < code.values.size(); ++number) {
    if (code.values[number].root == root) found.push_back(static_cast<int32_t>(number));
  }
  return found;
}

class Reader {
 public:
  explicit Reader(Code& code) : code_(code) {
    const py::module_ module = py::module_::import("lampwork.runtime.program");
    kernel_ = module.attr("CallKernel");
    aten_ = module.attr("CallAten");
    release_ = module.attr("Release");
    take_ = module.attr("Take");
    ref_ = module.attr("Ref");
    scalar_ = module.attr("Scalar");
  }

  Instruction instruction(py::handle object) {
    if (py::isinstance(object, kernel_)) return kernel(object);
    if (py::isinstance(object, aten_)) return aten(object);
    if (py::isinstance(object, release_)) {
      ReleaseValues release;
      for (const py::handle object_number : object.attr("values")) {
        // With the views of it that calls may have made.
        const int32_t released = number(object_number);
        const std::vector<int32_t> all = values_in(code_, released);
        release.values.insert(release.values.end(), all.begin(), all.end());
      }
      return release;
    }
    if (py::isinstance(object, take_)) {
      TakeValues take;
      for (const py::handle object_number : object.attr("values")) {
        const int32_t taken = number(object_number);
        const Kind kind = code_.values[taken].kind;
        if (kind != Kind::Heap && kind != Kind::Fresh) invalid_program("memory is taken for what has no memory of its own");
        take.values.push_back(taken);
      }
      return take;
    }
    invalid_program("unknown instruction " + py::repr(object).cast<std::string>());
  }

  int32_t number(py::handle object) const {
    const auto value = object.cast<int64_t>();
    if (value < 0 || value >= static_cast<int64_t>(code_.values.size())) invalid_program("value number out of range");
    return static_cast<int32_t>(value);
  }

  KernelCall kernel(py::handle object) const {
    KernelCall call;
    call.name = object.attr("name").cast<std::string>();
    for (const py::handle buffer : object.attr("buffers")) {
      const Value& value = code_.values[number(buffer)];
      call.buffers.push_back({value.root, value.root_bytes});
    }
    for (const py::handle size : object.attr("sizes")) {
      const bool is_scalar = py::isinstance(size, scalar_);
      if (is_scalar) call.scalars.push_back({call.sizes.size(), place(size)});
      call.sizes.push_back(is_scalar ? 0 : size.cast<int64_t>());
    }
    call.extent = object.attr("extent").cast<int64_t>();
    call.grain = std::max<int64_t>(object.attr("grain").cast<int64_t>(), 1);
    if (object.attr("launch").is_none()) {
      const auto address = object.attr("code").attr("address").cast<uintptr_t>();
      if (address == 0) invalid_program("a kernel has no address");
      call.function = reinterpret_cast<KernelFunction>(address);
    } else {
      load(call, object);
    }
    for (const py::handle written : object.attr("outside")) {
      const int32_t root = code_.values[number(written)].root;
      const Kind kind = code_.values[root].kind;
      if (kind != Kind::Input && kind != Kind::Bound) invalid_program("memory outside that is none of an input");
      call.outside.push_back(root);
    }
    return call;
  }

 private:
  // Reads how a kernel is launched, and loads it.
  void load(KernelCall& call, py::handle object) const {
    const py::object launch = object.attr("launch");
    const py::object kernel = object.attr("code").attr("kernel");
    if (Py_TYPE(kernel.ptr()) != &DeviceKernelType) invalid_program("what is to be launched is no kernel of a card");
    const py::tuple block(launch.attr("block"));
    if (block.size() != 2) invalid_program("a block has two sides");
    call.shape = {{block[0].cast<unsigned>(), block[1].cast<unsigned>()},
                  launch.attr("per_block").cast<int64_t>(),
                  launch.attr("shared").cast<unsigned>(),
                  launch.attr("cluster").cast<unsigned>(),
                  launch.attr("counters").cast<unsigned>()};
    if (call.shape.per_block < 1 || call.shape.block[0] < 1 || call.shape.block[1] < 1) invalid_program("an empty block");
    if (call.shape.cluster < 1) invalid_program("an empty cluster");
    code_.counters = std::max<size_t>(code_.counters, call.shape.counters);
    DeviceKernel& device_kernel = *reinterpret_cast<DeviceKernelObject*>(kernel.ptr())->kernel;
    if (call.buffers.size() != device_kernel.buffers() || call.sizes.size() != device_kernel.sizes()) {
      invalid_program("kernel '" + call.name + "' takes other parameters than it is given");
    }
    call.kernel = &device_kernel.load(code_.device ? code_.device->index() : 0, call.shape);
  }

  int32_t place(py::handle scalar) const {
    const auto found = scalar.attr("place").cast<int64_t>();
    if (found < 0 || found >= static_cast<int64_t>(code_.n_scalars)) invalid_program("a scalar has no valid place");
    return static_cast<int32_t>(found);
  }

  ScalarArgument scalar(const c10::Argument& parameter, size_t position, py::handle object) const {
    using Form = ScalarArgument::Form;
    const bool bits = object.attr("is_float").cast<bool>();
    c10::TypePtr type = parameter.real_type();
    if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
    switch (type->kind()) {
      case c10::TypeKind::NumberType:
        return {Form::Number, bits, position, place(object)};
      case c10::TypeKind::FloatType:
        return {Form::Float, bits, position, place(object)};
      case c10::TypeKind::TensorType:
        return {Form::Tensor, bits, position, place(object)};
      case c10::TypeKind::IntType:
      case c10::TypeKind::SymIntType:
        if (!bits) return {Form::Number, false, position, place(object)};
        break;
      default:
        break;
    }
    invalid_program("the argument '" + parameter.name() + "' takes no number: " + type->str());
  }

  bool is_ref(py::handle object) const { return py::isinstance(object, ref_); }
  int32_t ref(py::handle object) const { return number(object.attr("value")); }

  bool is_list(py::handle object) const {
    return py::isinstance<py::tuple>(object) || py::isinstance<py::list>(object);
  }

  bool holds_refs(py::handle object) const {
    if (!is_list(object)) return is_ref(object);
    return std::any_of(object.begin(), object.end(), [this](py::handle item) { return is_ref(item); });
  }

  // Appends the argument of the schema's next parameter.
  void argument(AtenCall& call, const c10::Argument& parameter, py::handle object) const {
    const size_t position = call.arguments.size();
    if (py::isinstance(object, scalar_)) {
      call.arguments.emplace_back();
      call.scalars.push_back(scalar(parameter, position, object));
      return;
    }
    const bool writes = parameter.alias_info() != nullptr && parameter.alias_info()->isWrite();
    if (!holds_refs(object)) {
      // Through real_type: int parameters that are really dtypes, layouts, … are told apart by it.
      py::object plain = py::reinterpret_borrow<py::object>(object);
      if (py::isinstance<py::tuple>(plain)) plain = py::list(plain);
      // add.Tensor(x, 1e-5): a number stands for a tensor, as it does in Python.
      const torch::jit::ToIValueAllowNumbersAsTensors numbers(true);
      call.arguments.push_back(torch::jit::toIValue(plain, parameter.real_type(), parameter.N()));
      return;
    }
    call.arguments.emplace_back();
    TensorArgument tensors{TensorArgument::Form::One, position, {}};
    if (is_ref(object)) {
      tensors.values.push_back(ref(object));
    } else {
      const bool optional = parameter.type()->str().find("?[") != std::string::npos ||
                            parameter.type()->str().find("Optional[Tensor]") != std::string::npos;
      tensors.form = optional ? TensorArgument::Form::OptionalList : TensorArgument::Form::List;
      for (const py::handle item : object) {
        if (item.is_none() && optional) {
          tensors.values.push_back(-1);
        } else if (is_ref(item)) {
          tensors.values.push_back(ref(item));
        } else {
          invalid_program("a list argument of " + call.name + " mixes values and constants");
        }
      }
    }
    if (writes) {
      for (const int32_t value : tensors.values) {
        if (value < 0) continue;
        const Kind root = code_.values[code_.values[value].root].kind;
        call.writes_outside |= root == Kind::Input || root == Kind::Bound;
        if (root == Kind::Constant) invalid_program(call.name + " writes to a constant");
      }
    }
    call.tensors.push_back(std::move(tensors));
  }

  AtenCall aten(py::handle object) const {
    const auto full_name = object.attr("op").cast<std::string>();
    const size_t dot = full_name.rfind('.');
    std::string name = full_name.substr(0, dot);
    std::string overload = dot == std::string::npos ? "" : full_name.substr(dot + 1);
    if (overload == "default") overload.clear();
    AtenCall call{c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str())};
    call.communicates = name.starts_with("_c10d_functional::");
    const auto label = object.attr("name").cast<std::string>();
    call.name = label.empty() ? full_name : full_name + " (" + label + ")";

    const c10::FunctionSchema& schema = call.op.schema();
    const py::tuple args(object.attr("args"));
    py::dict kwargs;
    for (const py::handle item : object.attr("kwargs")) {
      const py::tuple pair = py::reinterpret_borrow<py::tuple>(item);
      kwargs[pair[0]] = pair[1];
    }
    size_t used = 0;
    for (size_t i = 0; i < schema.arguments().size(); ++i) {
      const c10::Argument& parameter = schema.arguments()[i];
      const py::str key(parameter.name());
      if (i < args.size()) {
        if (parameter.kwarg_only()) invalid_program("too many positional arguments for " + full_name);
        argument(call, parameter, args[i]);
      } else if (kwargs.contains(key)) {
        argument(call, parameter, kwargs[key]);
        ++used;
      } else if (parameter.default_value()) {
        call.arguments.push_back(*parameter.default_value());
      } else {
        invalid_program("argument '" + parameter.name() + "' of " + full_name + " is missing");
      }
    }
    if (args.size() > schema.arguments().size() || used != kwargs.size()) {
      invalid_program("arguments that " + full_name + " does not take");
    }
    const auto& returns = schema.returns();
    const bool aliases =
        std::any_of(returns.begin(), returns.end(), [](const auto& each) { return each.alias_info() != nullptr; });
    call.is_one_kernel = name.starts_with("aten::") && (schema.is_mutable() ? !call.writes_outside : !aliases) &&
                         !call.op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
    for (const py::handle out : object.attr("outs")) {
      const auto value = out.cast<int64_t>();
      call.outs.push_back(value < 0 ? -1 : number(out));
      if (value >= 0 && code_.values[value].kind != Kind::Aten)
        invalid_program("the result of an ATen call is not an aten value");
    }
    return call;
  }

  Code& code_;
  py::object kernel_, aten_, release_, take_, ref_, scalar_;
};

// Numbers of the input, bound or constant values by position.
std::vector<int32_t> positions(const Code& code, Kind kind, size_t count, bool extend) {
  std::vector<int32_t> found(count, -1);
  for (size_t number = 0; number < code.values.size(); ++number) {
    const Value& value = code.values[number];
    if (value.kind != kind) continue;
    const auto at = static_cast<size_t>(value.position);
    if (value.position >= 0 && at >= found.size() && extend) found.resize(at + 1, -1);
    if (value.position < 0 || at >= found.size()) invalid_program("a value has no valid position");
    if (found[at] != -1) invalid_program("two values of one position");
    found[at] = static_cast<int32_t>(number);
  }
  return found;
}

// Numbers of the bound tensors that an ATen call or an output refers to, by themselves or through a view.
std::vector<size_t> bound_as_tensors(const Code& code) {
  std::vector<bool> found(code.bound.size(), false);
  const auto note = [&](int32_t number) {
    if (number < 0) return;
    const Value& root = code.values[code.values[number].root];
    if (root.kind == Kind::Bound) found[static_cast<size_t>(root.position)] = true;
  };
  for (const int32_t output : code.outputs) note(output);
  for (const Instruction& instruction : code.instructions) {
    if (const auto* kernel = std::get_if<KernelCall>(&instruction)) {
      for (const int32_t value : kernel->outside) note(value);
    }
    const auto* aten = std::get_if<AtenCall>(&instruction);
    if (aten == nullptr) continue;
    for (const TensorArgument& argument : aten->tensors) {
      for (const int32_t value : argument.values) note(value);
    }
  }
  std::vector<size_t> numbers;
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i]) numbers.push_back(i);
  }
  return numbers;
}

// The last instruction that each root value is read, written, or given memory by; -1 if there is none.
std::vector<int64_t> last_uses(const Code& code) {
  std::vector<int64_t> last(code.values.size(), -1);
  for (size_t at = 0; at < code.instructions.size(); ++at) {
    const auto use = [&](int32_t number) {
      if (number >= 0) last[static_cast<size_t>(code.values[number].root)] = static_cast<int64_t>(at);
    };
    const Instruction& instruction = code.instructions[at];
    if (const auto* kernel = std::get_if<KernelCall>(&instruction)) {
      for (const BufferRef& buffer : kernel->buffers) use(buffer.root);
    } else if (const auto* aten = std::get_if<AtenCall>(&instruction)) {
      for (const TensorArgument& argument : aten->tensors) std::for_each(argument.values.begin(), argument.values.end(), use);
      std::for_each(aten->outs.begin(), aten->outs.end(), use);
    } else if (const auto* take = std::get_if<TakeValues>(&instruction)) {
      std::for_each(take->values.begin(), take->values.end(), use);
    }
  }
  return last;
}

// The outputs that a sink may take.
std::vector<FinishedOutput> finished_outputs(const Code& code) {
  std::vector<int32_t> sharing(code.values.size(), 0);
  for (const int32_t number : code.outputs) ++sharing[static_cast<size_t>(code.values[number].root)];
  const std::vector<int64_t> last = last_uses(code);
  std::vector<FinishedOutput> finished;
  for (size_t output = 0; output < code.outputs.size(); ++output) {
    const int32_t root = code.values[code.outputs[output]].root;
    const Kind kind = code.values[root].kind;
    const bool is_own = (kind == Kind::Fresh || kind == Kind::Aten) && sharing[static_cast<size_t>(root)] == 1;
    if (is_own && last[root] >= 0) finished.push_back({static_cast<size_t>(last[root]), output, values_in(code, root)});
  }
  const auto earlier = [](const FinishedOutput& a, const FinishedOutput& b) { return a.at < b.at; };
  std::stable_sort(finished.begin(), finished.end(), earlier);
  return finished;
}

}  // namespace

// The labels of each instruction, given those of each call.
static std::vector<std::vector<Label>> read_labels(const Code& code, const py::tuple& of_calls) {
  std::vector<std::vector<Label>> found;
  if (of_calls.empty()) return found;
  size_t call = 0;
  for (const Instruction& instruction : code.instructions) {
    std::vector<Label>& labels = found.emplace_back();
    if (!std::holds_alternative<KernelCall>(instruction) && !std::holds_alternative<AtenCall>(instruction)) continue;
    if (call >= of_calls.size()) invalid_program("it has fewer labels than calls");
    for (const py::handle pair : of_calls[call++]) {
      const auto [number, name] = pair.cast<std::pair<int64_t, std::string>>();
      labels.push_back({number, name});
    }
  }
  return found;
}

std::unique_ptr<Code> Code::build(py::handle program) {
  auto code = std::make_unique<Code>();
  const py::object device = program.attr("device");
  if (!device.is_none()) {
    code->device = read_device(device);
    torch::utils::device_lazy_init(code->device->type());
  }
  for (const py::handle value : program.attr("values")) code->values.push_back(read_value(value));
  resolve_roots(code->values);
  code->arena_bytes = program.attr("arena_bytes").cast<size_t>();
  code->device_arena_bytes = program.attr("device_arena_bytes").cast<size_t>();
  code->n_scalars = program.attr("n_scalars").cast<size_t>();
  Reader reader(*code);
  for (const py::handle instruction : program.attr("instructions")) {
    code->instructions.push_back(reader.instruction(instruction));
  }
  for (const py::handle item : program.attr("undo")) {
    const py::tuple pair = py::reinterpret_borrow<py::tuple>(item);
    const auto at = pair[0].cast<size_t>();
    if (at >= code->instructions.size()) invalid_program("there is no such instruction to undo");
    code->undo.push_back({at, reader.kernel(pair[1])});
  }
  for (const py::handle output : program.attr("outputs")) code->outputs.push_back(reader.number(output));
  code->finished = finished_outputs(*code);

  code->inputs = positions(*code, Kind::Input, program.attr("n_inputs").cast<size_t>(), false);
  code->bound = positions(*code, Kind::Bound, program.attr("n_bound").cast<size_t>(), false);
  code->constant = positions(*code, Kind::Constant, 0, true);
  std::vector<bool> taken(code->values.size(), false);
  for (const Instruction& instruction : code->instructions) {
    const auto* take = std::get_if<TakeValues>(&instruction);
    if (take == nullptr) continue;
    code->takes = true;
    for (const int32_t number : take->values) taken[number] = true;
  }
  int64_t bytes = 0, launches = 0;
  for (size_t number = 0; number < code->values.size(); ++number) {
    const Value& value = code->values[number];
    if (value.kind == Kind::Heap && !taken[number]) invalid_program("a heap value is never taken");
    if (value.kind == Kind::Fresh && !taken[number]) code->fresh.push_back(static_cast<int32_t>(number));
    const bool is_device = !value.device.is_cpu();
    if (value.kind == Kind::Arena) {
      const size_t arena = is_device ? code->device_arena_bytes : code->arena_bytes;
      if (static_cast<size_t>(value.offset + value.nbytes) > arena) invalid_program("an arena value lies outside the arena");
      if (is_device) code->device_arena.push_back(static_cast<int32_t>(number));
    }
    const bool owns_memory = value.kind == Kind::Arena || value.kind == Kind::Heap || value.kind == Kind::Fresh;
    if (owns_memory && is_device && value.device != code->device) invalid_program("a value lies on another device");
    if (value.kind != Kind::View && !is_device) bytes += value.nbytes;
  }
  for (const Instruction& instruction : code->instructions) {
    const auto* call = std::get_if<KernelCall>(&instruction);
    if (call == nullptr) continue;
    if (call->kernel != nullptr) {
      ++launches;
    } else if (call->extent > call->grain) {
      code->grains += call->extent / call->grain;
    }
  }
  code->has_aten = std::any_of(code->instructions.begin(), code->instructions.end(),
                               [](const Instruction& one) { return std::holds_alternative<AtenCall>(one); });
  code->held = bound_as_tensors(*code);
  code->releases_gil = code->has_aten || bytes > kProgramGilBytes || launches > kGilLaunches;
  code->name = program.attr("name").cast<std::string>();
  code->labels = read_labels(*code, program.attr("labels"));
  code->program = py::reinterpret_borrow<py::object>(program);
  return code;
}

bool Code::reads_input(size_t number) const {
  const int32_t value = inputs.at(number);
  if (value < 0) return false;
  const auto lies_in = [&](int32_t other) { return other >= 0 && values[other].root == value; };
  if (std::any_of(outputs.begin(), outputs.end(), lies_in)) return true;
  for (const Instruction& instruction : instructions) {
    if (const auto* kernel = std::get_if<KernelCall>(&instruction)) {
      for (const BufferRef& buffer : kernel->buffers) {
        if (buffer.root == value) return true;
      }
    } else if (const auto* aten = std::get_if<AtenCall>(&instruction)) {
      for (const TensorArgument& argument : aten->tensors) {
        if (std::any_of(argument.values.begin(), argument.values.end(), lies_in)) return true;
      }
    }
  }
  return false;
}

}  // namespace lampwork
