// Models in programs that have libtorch: its operators are called through the dispatcher.
#include "lampwork/torch.hpp"

#include "model.h"
#include "strides.h"

#include <ATen/ATen.h>
#include <ATen/ScalarOps.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <charconv>
#include <cmath>
#include <cstring>
#include <optional>
#include <string_view>

namespace lampwork {

namespace rt = runtime;

namespace {

using rt::damaged;
using rt::Json;

constexpr std::pair<lw_dtype, at::ScalarType> kScalarTypes[] = {
    {LW_FLOAT32, at::kFloat},       {LW_FLOAT64, at::kDouble},
    {LW_FLOAT16, at::kHalf},        {LW_BFLOAT16, at::kBFloat16},
    {LW_INT8, at::kChar},           {LW_INT16, at::kShort},
    {LW_INT32, at::kInt},           {LW_INT64, at::kLong},
    {LW_UINT8, at::kByte},          {LW_UINT16, at::kUInt16},
    {LW_UINT32, at::kUInt32},       {LW_UINT64, at::kUInt64},
    {LW_BOOL, at::kBool},           {LW_FLOAT8_E4M3FN, at::kFloat8_e4m3fn},
    {LW_FLOAT8_E5M2, at::kFloat8_e5m2}, {LW_COMPLEX64, at::kComplexFloat},
    {LW_COMPLEX128, at::kComplexDouble}};

at::ScalarType scalar_type(lw_dtype dtype) {
  for (const auto& [ours, theirs] : kScalarTypes) {
    if (ours == dtype) return theirs;
  }
  rt::fail(LW_VERSION, "torch has no such dtype");
}

lw_dtype dtype_of(at::ScalarType dtype) {
  for (const auto& [ours, theirs] : kScalarTypes) {
    if (theirs == dtype) return ours;
  }
  rt::fail(LW_INPUT, std::string("a tensor is ") + c10::toString(dtype) + ", which artifacts do not take");
}

// --- memory ----------------------------------------------------------------------------------------------------

// Of memory that somebody else keeps: what lies in it must not leave.
void lent(void*) {}

void drop(void* owner) { delete static_cast<std::shared_ptr<const void>*>(owner); }

at::Tensor tensor_over(char* data, std::shared_ptr<const void> owner, lw_dtype dtype, at::IntArrayRef shape, at::IntArrayRef strides) {
  const auto bytes = static_cast<size_t>(rt::spanned_bytes(dtype, shape.vec(), strides.vec()));
  at::DataPtr memory = owner == nullptr
                           ? at::DataPtr(data, data, &lent, at::kCPU)
                           : at::DataPtr(data, new std::shared_ptr<const void>(std::move(owner)), &drop, at::kCPU);
  at::Storage storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes, std::move(memory), nullptr,
                                                            /*resizable=*/false));
  const auto keys = c10::DispatchKeySet(c10::DispatchKey::CPU);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, c10::scalarTypeToTypeMeta(scalar_type(dtype)));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(shape, strides, 0);
  return tensor;
}

bool is_lent(const at::Tensor& tensor) {
  return tensor.has_storage() && tensor.storage().data_ptr().get_deleter() == &lent;
}

at::Tensor object_as_tensor(const std::shared_ptr<void>& object) { return *static_cast<at::Tensor*>(object.get()); }

char* data_of(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return nullptr;  // known to torch alone, as packed oneDNN weights are
  return static_cast<char*>(const_cast<void*>(tensor.const_data_ptr()));
}

// A tensor that stands for a value of a running call.
at::Tensor value_as_tensor(rt::Frame& frame, int32_t number) {
  const auto at = static_cast<size_t>(number);
  if (frame.objects[at] != nullptr) return object_as_tensor(frame.objects[at]);
  const rt::Value& value = frame.program.values[at];
  const auto root = static_cast<size_t>(value.root);
  if (value.dtype == LW_NO_DTYPE) rt::fail(LW_INTERNAL, "a value is used before it is made");
  if (value.kind == rt::Kind::View && frame.objects[root] != nullptr) {
    const at::Tensor base = object_as_tensor(frame.objects[root]);
    const auto size = static_cast<int64_t>(rt::size_of(value.dtype));
    if (base.scalar_type() == scalar_type(value.dtype))
      return base.as_strided(value.shape, value.strides, base.storage_offset() + value.root_bytes / size);
  }
  std::shared_ptr<const void> owner = frame.blocks[root];
  return tensor_over(frame.data[root] + value.root_bytes, std::move(owner), value.dtype, value.shape, value.strides);
}

// --- arguments -------------------------------------------------------------------------------------------------

// An argument of a call: read once for a program, and filled in at each call where it has values or numbers of the call.
struct Argument {
  enum class Form : uint8_t { Fixed, Value, List, OptionalList, Number, Float, Wrapped, Numbers } form = Form::Fixed;
  c10::IValue fixed;
  std::vector<int32_t> values;  // -1: None
  std::vector<rt::Index> indices;
  bool bits = false;  // the number is a float64 by its bits
};

struct Prepared : rt::AtenCall {
  explicit Prepared(c10::OperatorHandle op) : op(std::move(op)) {}
  c10::OperatorHandle op;
  std::vector<Argument> arguments;
  bool is_one_kernel = false;
};

c10::TypePtr inner(const c10::TypePtr& type) {
  const auto optional = type->cast<c10::OptionalType>();
  return optional == nullptr ? type : optional->getElementType();
}

class ArgumentReader {
 public:
  ArgumentReader(const rt::Program& program, std::string op) : program_(program), op_(std::move(op)) {}

  Argument read(const c10::Argument& parameter, const Json& json) const {
    const c10::TypePtr type = inner(parameter.real_type());
    if (json.find("ref") != nullptr) {
      Argument argument;
      argument.form = Argument::Form::Value;
      argument.values.push_back(value(*json.find("ref")));
      return argument;
    }
    if (const auto list = type->cast<c10::ListType>(); list != nullptr && !json.is_null()) return read_list(*list, parameter, json);
    if (json.find("i") != nullptr || json.find("bits") != nullptr) {
      Argument argument;
      argument.bits = json.find("bits") != nullptr;
      argument.indices.push_back(index(argument.bits ? *json.find("bits") : *json.find("i")));
      const bool to_tensor = type->kind() == c10::TypeKind::TensorType;
      argument.form = to_tensor                                    ? Argument::Form::Wrapped
                      : type->kind() == c10::TypeKind::FloatType ? Argument::Form::Float
                                                                   : Argument::Form::Number;
      return argument;
    }
    Argument argument;
    argument.fixed = plain(*type, json);
    return argument;
  }

 private:
  [[noreturn]] void refuse(const Json& json, const c10::Type& type) const {
    damaged(op_ + " has the argument " + json.shown() + " where it takes " + type.str());
  }
  int32_t value(const Json& json) const {
    return static_cast<int32_t>(
        rt::integer_of(json, "an argument of " + op_, 0, static_cast<int64_t>(program_.values.size()) - 1));
  }
  rt::Index index(const Json& json) const { return rt::Index::read(json, program_.layout->symbols, "an argument of " + op_); }

  // "nan(0xfff8000000000000)": a nan that has another sign or payload than NAN.
  static std::optional<double> other_nan(std::string_view text) {
    constexpr std::string_view kBefore = "nan(0x", kAfter = ")";
    constexpr size_t kDigits = 16;
    if (text.size() != kBefore.size() + kDigits + kAfter.size()) return std::nullopt;
    if (!text.starts_with(kBefore) || !text.ends_with(kAfter)) return std::nullopt;
    const std::string_view digits = text.substr(kBefore.size(), kDigits);
    uint64_t bits = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + kDigits, bits, 16);
    if (error != std::errc() || end != digits.data() + kDigits) return std::nullopt;
    double value = 0;
    std::memcpy(&value, &bits, sizeof value);
    return std::isnan(value) ? std::optional(value) : std::nullopt;
  }

  std::optional<double> real(const Json& json) const {
    if (json.real() != nullptr) return *json.real();
    if (json.integer() != nullptr) return static_cast<double>(*json.integer());
    const Json* name = json.find("f");
    if (name == nullptr) return std::nullopt;
    const std::string& text = rt::text_of(*name, "an argument of " + op_);
    if (text == "inf") return INFINITY;
    if (text == "-inf") return -INFINITY;
    if (text == "nan") return NAN;
    if (const auto other = other_nan(text)) return *other;
    damaged(op_ + " has the number '" + text + "'");
  }

  // A number, as an operator that takes any takes it.
  std::optional<at::Scalar> scalar(const Json& json) const {
    if (json.boolean() != nullptr) return at::Scalar(*json.boolean());
    if (json.integer() != nullptr) return at::Scalar(*json.integer());
    if (const Json* pair = json.find("complex")) {
      const Json::List& parts = rt::pair_of(*pair, "a number of " + op_);
      const auto first = real(parts[0]), second = real(parts[1]);
      if (first && second) return at::Scalar(c10::complex<double>(*first, *second));
      return std::nullopt;
    }
    const auto number = real(json);
    if (!number) return std::nullopt;
    return at::Scalar(*number);
  }

  c10::IValue plain(const c10::Type& type, const Json& json) const {
    using c10::TypeKind;
    if (json.is_null()) return {};
    switch (type.kind()) {
      case TypeKind::BoolType:
        if (json.boolean() != nullptr) return *json.boolean();
        break;
      case TypeKind::FloatType:
        if (const auto number = real(json)) return *number;
        break;
      case TypeKind::NumberType:
        if (const auto number = scalar(json)) return c10::IValue(*number);
        break;
      case TypeKind::TensorType:
        if (const auto number = scalar(json)) return at::native::wrapped_scalar_tensor(*number);
        break;
      case TypeKind::StringType:
        if (const Json* text = json.find("s")) return rt::text_of(*text, "an argument of " + op_);
        break;
      case TypeKind::DeviceObjType:
        if (const Json* device = json.find("device")) return c10::Device(rt::text_of(*device, "a device of " + op_));
        break;
      case TypeKind::IntType:
      case TypeKind::SymIntType:
      case TypeKind::ScalarTypeType:
      case TypeKind::LayoutType:
      case TypeKind::MemoryFormatType:
        if (const auto number = code(json)) return *number;
        break;
      default:
        break;
    }
    refuse(json, type);
  }

  // What is an int in a schema.
  std::optional<int64_t> code(const Json& json) const {
    if (json.integer() != nullptr) return *json.integer();
    if (json.boolean() != nullptr) return *json.boolean() ? 1 : 0;
    if (const Json* dtype = json.find("dtype")) {
      const rt::DType* found = rt::find_dtype(rt::text_of(*dtype, "a dtype of " + op_));
      if (found == nullptr) damaged(op_ + " has the dtype " + dtype->shown());
      return static_cast<int64_t>(scalar_type(found->dtype));
    }
    if (const Json* layout = json.find("layout")) {
      const std::string& name = rt::text_of(*layout, "a layout of " + op_);
      if (name.find("strided") != std::string::npos) return static_cast<int64_t>(at::kStrided);
      if (name.find("mkldnn") != std::string::npos) return static_cast<int64_t>(at::kMkldnn);
      rt::fail(LW_VERSION, op_ + " has the layout " + name + ", which this library does not know");
    }
    if (const Json* format = json.find("memory_format")) {
      const std::string& name = rt::text_of(*format, "a memory format of " + op_);
      const auto is = [&name](const char* wanted) { return name == wanted || name == std::string("torch.") + wanted; };
      if (is("contiguous_format")) return static_cast<int64_t>(at::MemoryFormat::Contiguous);
      if (is("preserve_format")) return static_cast<int64_t>(at::MemoryFormat::Preserve);
      if (is("channels_last")) return static_cast<int64_t>(at::MemoryFormat::ChannelsLast);
      if (is("channels_last_3d")) return static_cast<int64_t>(at::MemoryFormat::ChannelsLast3d);
      rt::fail(LW_VERSION, op_ + " has the memory format " + name + ", which this library does not know");
    }
    return std::nullopt;
  }

  Argument read_list(const c10::ListType& list, const c10::Argument& parameter, const Json& json) const {
    using c10::TypeKind;
    Argument argument;
    const c10::TypePtr element = list.getElementType();
    const Json* given = json.find("l") != nullptr ? json.find("l") : json.find("t");
    Json::List repeated;
    if (given == nullptr && parameter.N()) {
      for (int32_t i = 0; i < *parameter.N(); ++i) repeated.push_back(json);  // int[2] takes one number for both
    } else if (given == nullptr) {
      refuse(json, list);
    }
    const Json::List& items = given == nullptr ? repeated : rt::list_of(*given, "a list of " + op_);
    const bool is_optional = element->kind() == TypeKind::OptionalType;
    const c10::TypePtr type = inner(element);
    switch (type->kind()) {
      case TypeKind::TensorType:
        argument.form = is_optional ? Argument::Form::OptionalList : Argument::Form::List;
        for (const Json& item : items) {
          if (item.find("ref") != nullptr) {
            argument.values.push_back(value(*item.find("ref")));
          } else if (item.is_null() && is_optional) {
            argument.values.push_back(-1);
          } else {
            refuse(item, *element);
          }
        }
        return argument;
      case TypeKind::IntType:
      case TypeKind::SymIntType:
        argument.form = Argument::Form::Numbers;
        for (const Json& item : items) {
          if (item.find("i") != nullptr) {
            argument.indices.push_back(index(*item.find("i")));
          } else if (const auto number = code(item)) {
            argument.indices.emplace_back(*number);
          } else {
            refuse(item, *element);
          }
        }
        return argument;
      case TypeKind::FloatType: {
        c10::List<double> numbers;
        for (const Json& item : items) numbers.push_back(*plain(*type, item).toOptional<double>());
        argument.fixed = numbers;
        return argument;
      }
      case TypeKind::BoolType: {
        c10::List<bool> flags;
        for (const Json& item : items) flags.push_back(plain(*type, item).toBool());
        argument.fixed = flags;
        return argument;
      }
      default: {
        auto any = c10::impl::GenericList(type);
        for (const Json& item : items) any.push_back(plain(*type, item));
        argument.fixed = any;
        return argument;
      }
    }
  }

  const rt::Program& program_;
  std::string op_;
};

class Library : public rt::AtenLibrary {
 public:
  std::shared_ptr<rt::AtenCall> prepare(const rt::Program& program, const rt::AtenLayout& layout, const int64_t*) override {
    const size_t dot = layout.op.rfind('.');
    const std::string name = layout.op.substr(0, dot);
    std::string overload = dot == std::string::npos ? "" : layout.op.substr(dot + 1);
    if (overload == "default") overload.clear();
    const auto found = c10::Dispatcher::singleton().findSchema({name, overload});
    if (!found) rt::fail(LW_VERSION, "this torch has no operator " + layout.op + ". Use the version that the artifact was made with");
    auto call = std::make_shared<Prepared>(*found);
    const c10::FunctionSchema& schema = call->op.schema();
    const ArgumentReader reader(program, layout.op);
    size_t used = 0;
    for (size_t i = 0; i < schema.arguments().size(); ++i) {
      const c10::Argument& parameter = schema.arguments()[i];
      const auto named = std::find_if(layout.kwargs.begin(), layout.kwargs.end(),
                                      [&](const auto& pair) { return pair.first == parameter.name(); });
      if (i < layout.args.size()) {
        if (parameter.kwarg_only()) damaged(layout.op + " has too many positional arguments");
        call->arguments.push_back(reader.read(parameter, layout.args[i]));
      } else if (named != layout.kwargs.end()) {
        call->arguments.push_back(reader.read(parameter, named->second));
        ++used;
      } else if (parameter.default_value()) {
        call->arguments.emplace_back();
        call->arguments.back().fixed = *parameter.default_value();
      } else {
        damaged(layout.op + " has no argument '" + parameter.name() + "'");
      }
    }
    if (layout.args.size() > schema.arguments().size() || used != layout.kwargs.size())
      damaged(layout.op + " has arguments that it does not take");
    return call;
  }

  void call(const rt::Aten& step, rt::Frame& frame) override {
    const auto& call = static_cast<const Prepared&>(*step.call);
    std::vector<c10::IValue> stack;
    stack.reserve(call.arguments.size());
    for (const Argument& argument : call.arguments) stack.push_back(pack(argument, frame));
    // Programs were recorded below autograd and autocast.
    const c10::impl::ExcludeDispatchKeyGuard below(c10::autograd_dispatch_keyset | c10::autocast_dispatch_keyset);
    call.op.callBoxed(stack);
    size_t next = 0;
    for (c10::IValue& result : stack) {
      if (result.isTensor()) {
        store(*step.layout, next++, std::move(result).toTensor(), frame);
      } else if (result.isTensorList()) {
        for (at::Tensor tensor : result.toTensorVector()) store(*step.layout, next++, std::move(tensor), frame);
      } else {
        ++next;
      }
    }
    if (next < step.layout->outs.size()) damaged(step.layout->op + " gave fewer results than the program has names for");
  }

  bool distance(const std::shared_ptr<void>& one, const std::shared_ptr<void>& other, int64_t& bytes) const override {
    if (one == nullptr || other == nullptr) return false;
    const at::Tensor from = object_as_tensor(other), to = object_as_tensor(one);
    if (!from.defined() || !to.defined() || !from.has_storage() || !to.has_storage() || !to.is_alias_of(from)) return false;
    bytes = data_of(to) - data_of(from);
    return true;
  }

 private:
  static int64_t number(const rt::Index& index, const rt::Frame& frame) {
    int64_t value = 0;
    if (!index.evaluate(frame.symbols, value)) rt::fail(LW_INPUT, "a number of the program leaves int64");
    return value;
  }

  static c10::IValue pack(const Argument& argument, rt::Frame& frame) {
    switch (argument.form) {
      case Argument::Form::Fixed:
        return argument.fixed;
      case Argument::Form::Value:
        return value_as_tensor(frame, argument.values[0]);
      case Argument::Form::List: {
        c10::List<at::Tensor> list;
        for (const int32_t value : argument.values) list.push_back(value_as_tensor(frame, value));
        return list;
      }
      case Argument::Form::OptionalList: {
        c10::List<std::optional<at::Tensor>> list;
        for (const int32_t value : argument.values)
          list.push_back(value < 0 ? std::optional<at::Tensor>() : value_as_tensor(frame, value));
        return list;
      }
      case Argument::Form::Numbers: {
        c10::List<int64_t> list;
        for (const rt::Index& index : argument.indices) list.push_back(number(index, frame));
        return list;
      }
      default:
        break;
    }
    const int64_t whole = number(argument.indices[0], frame);
    double real = static_cast<double>(whole);
    if (argument.bits) std::memcpy(&real, &whole, sizeof real);
    if (argument.form == Argument::Form::Float) return real;
    const at::Scalar scalar = argument.bits ? at::Scalar(real) : at::Scalar(whole);
    if (argument.form == Argument::Form::Wrapped) return at::native::wrapped_scalar_tensor(scalar);
    return c10::IValue(scalar);
  }

  static void store(const rt::AtenLayout& layout, size_t position, at::Tensor tensor, rt::Frame& frame) {
    if (position >= layout.outs.size() || layout.outs[position] < 0) return;
    const auto number = static_cast<size_t>(layout.outs[position]);
    const rt::Value& value = frame.program.values[number];
    if (value.dtype != LW_NO_DTYPE) {
      if (!tensor.defined() || tensor.sizes() != at::IntArrayRef(value.shape) || tensor.scalar_type() != scalar_type(value.dtype))
        rt::fail(LW_VERSION, layout.op + " gave another result than was recorded. Use the torch that the artifact was made with");
      tensor = tensor.resolve_conj().resolve_neg();
      if (tensor.strides() != at::IntArrayRef(value.strides) || !tensor.has_storage()) {
        at::Tensor laid_out = at::empty_strided(value.shape, value.strides, tensor.options().layout(at::kStrided));
        laid_out.copy_(tensor);
        tensor = std::move(laid_out);
      }
    }
    frame.data[number] = tensor.defined() ? data_of(tensor) : nullptr;
    frame.objects[number] = std::make_shared<at::Tensor>(std::move(tensor));
  }
};

Library& library() {
  static Library* one = new Library;  // models may live until the process ends
  return *one;
}

// Runs `work`, and makes an error of torch's of what it throws.
template <class Work>
auto translated(const Work& work) {
  try {
    return work();
  } catch (const rt::Error& error) {
    TORCH_CHECK(false, lw_status_name(error.status), ": ", error.what());
  }
}

}  // namespace

struct TorchModel::Parts {
  std::unique_ptr<rt::Model> model;
};

TorchModel::TorchModel(const std::string& path, const TorchOptions& options) : parts_(std::make_unique<Parts>()) {
  translated([&] {
    rt::Options chosen;
    chosen.trusts = options.trust;
    chosen.threads = options.threads;
    chosen.target = options.target;
    for (const std::string& key : options.keys) chosen.keys.push_back(rt::read_public_key(key));
    parts_->model = rt::Model::load(path, chosen, &library());
  });
}

TorchModel::~TorchModel() = default;
TorchModel::TorchModel(TorchModel&&) noexcept = default;

std::vector<at::Tensor> TorchModel::run(const std::vector<at::Tensor>& inputs, const std::string& entry,
                                        const std::vector<int64_t>& numbers) {
  return translated([&] {
    const size_t number = parts_->model->find_entry(entry);
    std::vector<rt::Given> given;
    for (const at::Tensor& tensor : inputs) {
      if (!tensor.defined() || !tensor.is_cpu() || tensor.layout() != at::kStrided || tensor.is_conj() || tensor.is_neg())
        rt::fail(LW_INPUT, "'" + entry + "' takes dense tensors on the CPU; call .cpu().resolve_conj().resolve_neg() before");
      given.push_back({data_of(tensor), dtype_of(tensor.scalar_type()), static_cast<size_t>(tensor.dim()), tensor.sizes().data(),
                       tensor.strides().data(), std::make_shared<at::Tensor>(tensor.detach())});
    }
    std::vector<at::Tensor> results;
    for (rt::Output& output : parts_->model->run(number, given, numbers, {})) {
      if (output.alias) {
        const at::Tensor& input = inputs[output.alias->input];
        const int64_t offset = input.storage_offset() + output.alias->offset;
        results.push_back(output.alias->is_input ? input : input.detach().as_strided(output.shape, output.strides, offset));
      } else if (output.held.object != nullptr) {
        at::Tensor tensor = object_as_tensor(output.held.object);
        bool is_shared = is_lent(tensor);
        for (const at::Tensor& input : inputs) is_shared = is_shared || tensor.is_alias_of(input);
        results.push_back(is_shared ? tensor.clone() : tensor);
      } else {
        results.push_back(tensor_over(output.held.data, std::move(output.held.owner), output.dtype, output.shape, output.strides));
      }
    }
    return results;
  });
}

std::vector<std::string> TorchModel::entries() const {
  std::vector<std::string> names;
  const rt::Manifest& manifest = parts_->model->manifest();
  for (size_t i = 0; i < manifest.n_called; ++i) names.push_back(manifest.entries[i].name);
  return names;
}

std::vector<std::string> TorchModel::outputs(const std::string& entry) const {
  return translated([&] {
    std::vector<std::string> names;
    for (const rt::Leaf& leaf : parts_->model->manifest().entries[parts_->model->find_entry(entry)].leaves) names.push_back(leaf.name);
    return names;
  });
}

std::string TorchModel::target() const { return parts_->model->target(); }
std::string TorchModel::target_reason() const { return parts_->model->reason(); }
std::string TorchModel::signer() const { return parts_->model->signer(); }
std::string TorchModel::manifest() const { return parts_->model->manifest().text; }
std::string TorchModel::aten_calls(const std::string& entry) const {
  return translated([&] { return parts_->model->aten_calls(parts_->model->find_entry(entry)); });
}
void TorchModel::set_weights(const std::string& path) {
  translated([&] { parts_->model->set_weights(path); });
}

}  // namespace lampwork
