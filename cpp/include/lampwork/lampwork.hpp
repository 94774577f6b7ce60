// lampwork.h for C++17: owners, vectors and exceptions.
//
//     lampwork::Model model("m.lamp", {.trust = true});        // C++20; in C++17 fill in a lampwork::Options
//     std::vector<float> pixels(3 * 224 * 224);
//     lampwork::Result result = model.run({lampwork::Tensor::of(pixels, {1, 3, 224, 224})});
//     const float* scores = result[0].data<float>();
#ifndef LAMPWORK_HPP
#define LAMPWORK_HPP

#include "lampwork/lampwork.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace lampwork {

// What a call did not do. `what()` says what was expected, what came, and what to do.
class Error : public std::runtime_error {
 public:
  Error(lw_status status, const std::string& message) : std::runtime_error(message), status_(status) {}
  lw_status status() const noexcept { return status_; }

 private:
  lw_status status_;
};

inline void check(lw_status status) {
  if (status != LW_OK) throw Error(status, lw_error());
}

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> { static constexpr lw_dtype value = LW_FLOAT32; };
template <>
struct DTypeOf<double> { static constexpr lw_dtype value = LW_FLOAT64; };
template <>
struct DTypeOf<int8_t> { static constexpr lw_dtype value = LW_INT8; };
template <>
struct DTypeOf<int16_t> { static constexpr lw_dtype value = LW_INT16; };
template <>
struct DTypeOf<int32_t> { static constexpr lw_dtype value = LW_INT32; };
template <>
struct DTypeOf<int64_t> { static constexpr lw_dtype value = LW_INT64; };
template <>
struct DTypeOf<uint8_t> { static constexpr lw_dtype value = LW_UINT8; };
template <>
struct DTypeOf<bool> { static constexpr lw_dtype value = LW_BOOL; };

// A tensor in memory of somebody else's.
class Tensor {
 public:
  Tensor(void* data, lw_dtype dtype, std::vector<int64_t> shape, std::vector<int64_t> strides = {})
      : data_(data), dtype_(dtype), shape_(std::move(shape)), strides_(std::move(strides)) {}

  // The elements of a vector, in C's order. Throws std::invalid_argument if there are more or fewer of them.
  template <class T>
  static Tensor of(std::vector<T>& elements, std::vector<int64_t> shape) {
    Tensor tensor(elements.data(), DTypeOf<T>::value, std::move(shape));
    if (tensor.count() != static_cast<int64_t>(elements.size())) throw std::invalid_argument("a vector has another size than its shape");
    return tensor;
  }

  lw_dtype dtype() const { return dtype_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  // Those of C's order, if there are none.
  const std::vector<int64_t>& strides() const { return strides_; }
  int64_t count() const {
    int64_t count = 1;
    for (const int64_t size : shape_) count *= size;
    return count;
  }
  bool is_contiguous() const {
    int64_t step = 1;
    for (size_t i = shape_.size(); i-- > 0 && !strides_.empty();) {
      if (shape_[i] != 1 && strides_[i] != step) return count() == 0;
      step *= shape_[i];
    }
    return true;
  }
  void* data() const { return data_; }
  // Throws std::invalid_argument if it is of another dtype.
  template <class T>
  T* data() const {
    if (DTypeOf<T>::value != dtype_) throw std::invalid_argument(std::string("the tensor is ") + lw_dtype_name(dtype_));
    return static_cast<T*>(data_);
  }
  // A copy of the elements, in C's order.
  template <class T>
  std::vector<T> elements() const {
    std::vector<T> found;
    found.reserve(static_cast<size_t>(count()));
    collect(data<T>(), 0, found);
    return found;
  }
  lw_tensor view() const {
    return {data_, dtype_, static_cast<int32_t>(shape_.size()), shape_.data(), strides_.empty() ? nullptr : strides_.data()};
  }

 private:
  template <class T>
  void collect(const T* from, size_t dim, std::vector<T>& into) const {
    if (dim == shape_.size()) {
      into.push_back(*from);
      return;
    }
    int64_t stride = 1;
    if (!strides_.empty()) {
      stride = strides_[dim];
    } else {
      for (size_t i = dim + 1; i < shape_.size(); ++i) stride *= shape_[i];
    }
    for (int64_t i = 0; i < shape_[dim]; ++i) collect(from + i * stride, dim + 1, into);
  }

  void* data_;
  lw_dtype dtype_;
  std::vector<int64_t> shape_;
  std::vector<int64_t> strides_;
};

struct Spec {
  std::string name;
  lw_dtype dtype;
  std::vector<int64_t> shape;  // -1: another with each call
};

// The results of a call, with their memory: but for those that lie in an input which the model wrote to.
class Result {
 public:
  struct Alias {
    size_t input;
    int64_t offset;  // of the first element from the input's, in elements
  };
  explicit Result(lw_result* result) : result_(result, &lw_result_free) {}
  size_t size() const { return lw_result_count(result_.get()); }
  Tensor operator[](size_t output) const {
    lw_tensor tensor{};
    check(lw_result_tensor(result_.get(), output, &tensor));
    const auto n = static_cast<size_t>(tensor.ndim);
    return {tensor.data, tensor.dtype, {tensor.shape, tensor.shape + n}, {tensor.strides, tensor.strides + n}};
  }

  // The input that a result lies in, if there is one: its memory has to stay then.
  std::optional<Alias> alias(size_t output) const {
    int64_t input = -1, offset = 0;
    check(lw_result_alias(result_.get(), output, &input, &offset));
    if (input < 0) return std::nullopt;
    return Alias{static_cast<size_t>(input), offset};
  }

 private:
  std::unique_ptr<lw_result, decltype(&lw_result_free)> result_;
};

struct Options {
  bool trust = false;   // the machine code in the file may be run
  int threads = 0;      // that share the work of a call; 0: as many as there are cores
  std::string target;   // whose code is used; "": the best that this CPU has
  // Paths of public keys, or their PEM: if there are any, one of them has to have signed the file, whatever `trust` says, and
  // its machine code may be run then.
  std::vector<std::string> keys = {};
};

// A loaded artifact. Many threads may run it at once.
class Model {
 public:
  explicit Model(const std::string& path, const Options& options = {}) : model_(nullptr, &lw_free) {
    lw_options chosen = lw_default_options();
    chosen.trust = options.trust ? 1 : 0;
    chosen.threads = options.threads;
    chosen.target = options.target.empty() ? nullptr : options.target.c_str();
    std::vector<const char*> keys;
    for (const std::string& key : options.keys) keys.push_back(key.c_str());
    chosen.keys = keys.empty() ? nullptr : keys.data();
    chosen.n_keys = keys.size();
    lw_model* model = nullptr;
    check(lw_load(path.c_str(), &chosen, &model));
    model_.reset(model);
  }

  size_t entry(const std::string& name) const {
    size_t found = 0;
    check(lw_find_entry(model_.get(), name.c_str(), &found));
    return found;
  }
  std::vector<std::string> entries() const {
    std::vector<std::string> names;
    for (size_t i = 0; i < lw_entry_count(model_.get()); ++i) names.emplace_back(lw_entry_name(model_.get(), i));
    return names;
  }
  std::vector<Spec> inputs(size_t entry = 0) const { return specs(entry, lw_input_count(model_.get(), entry), &lw_input_spec); }
  std::vector<Spec> outputs(size_t entry = 0) const { return specs(entry, lw_output_count(model_.get(), entry), &lw_output_spec); }
  std::vector<std::string> numbers(size_t entry = 0) const {
    std::vector<std::string> names;
    for (size_t i = 0; i < lw_number_count(model_.get(), entry); ++i) names.emplace_back(lw_number_name(model_.get(), entry, i));
    return names;
  }
  std::string manifest() const { return lw_manifest(model_.get()); }
  std::string target() const { return lw_target(model_.get()); }
  std::string target_reason() const { return lw_target_reason(model_.get()); }
  // The id of the key that signed the file; "": it was loaded without keys.
  std::string signer() const { return lw_signer(model_.get()); }
  // Operators of torch that an entry calls; "": it needs no torch.
  std::string needs_aten(size_t entry = 0) const {
    const char* names = lw_entry_needs_aten(model_.get(), entry);
    return names == nullptr ? "" : names;
  }

  void set_weights(const std::string& path) { check(lw_set_weights(model_.get(), path.c_str())); }
  void prepare(size_t entry = 0) { check(lw_prepare(model_.get(), entry)); }

  Result run(const std::vector<Tensor>& inputs, size_t entry = 0, const std::vector<int64_t>& numbers = {}) {
    const std::vector<lw_tensor> given = views(inputs);
    lw_result* result = nullptr;
    check(lw_run(model_.get(), entry, given.data(), given.size(), numbers.data(), numbers.size(), &result));
    return Result(result);
  }
  void run_into(const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs, size_t entry = 0,
                const std::vector<int64_t>& numbers = {}) {
    const std::vector<lw_tensor> given = views(inputs), made = views(outputs);
    check(lw_run_into(model_.get(), entry, given.data(), given.size(), numbers.data(), numbers.size(), made.data(), made.size()));
  }

  lw_model* get() const { return model_.get(); }

 private:
  static std::vector<lw_tensor> views(const std::vector<Tensor>& tensors) {
    std::vector<lw_tensor> found;
    found.reserve(tensors.size());
    for (const Tensor& tensor : tensors) found.push_back(tensor.view());
    return found;
  }
  template <class Describe>
  std::vector<Spec> specs(size_t entry, size_t count, const Describe& describe) const {
    std::vector<Spec> found;
    for (size_t i = 0; i < count; ++i) {
      lw_spec spec{};
      check(describe(model_.get(), entry, i, &spec));
      found.push_back({spec.name, spec.dtype, {spec.shape, spec.shape + spec.ndim}});
    }
    return found;
  }

  std::unique_ptr<lw_model, decltype(&lw_free)> model_;
};

}  // namespace lampwork

#endif
