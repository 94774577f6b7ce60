// The C interface over Model.
#include "lampwork/lampwork.h"

#include "model.h"

#include <new>
#include <string>

namespace rt = lampwork::runtime;

struct lw_model {
  std::unique_ptr<rt::Model> model;
  std::vector<std::vector<lw_spec>> inputs, outputs;
};

struct lw_result {
  std::vector<rt::Output> outputs;
};

namespace {

thread_local std::string last_error;

// Runs `work`, and makes a status of what it throws.
template <class Work>
lw_status guarded(const Work& work) noexcept {
  try {
    try {
      work();
      return LW_OK;
    } catch (const rt::Error& error) {
      last_error = error.what();
      return error.status;
    } catch (const std::bad_alloc&) {
      last_error = "there is not enough memory";
      return LW_MEMORY;
    } catch (const std::length_error&) {
      last_error = "there is not enough memory";
      return LW_MEMORY;
    } catch (const std::exception& error) {
      last_error = std::string("a mistake in liblampwork: ") + error.what();
      return LW_INTERNAL;
    }
  } catch (...) {  // there is no memory for a message
    return LW_INTERNAL;
  }
}

[[noreturn]] void refuse(const std::string& message) { rt::fail(LW_ARGUMENT, message); }

const rt::EntryManifest* entry_of(const lw_model* model, size_t entry) {
  if (model == nullptr || entry >= model->model->manifest().n_called) return nullptr;
  return &model->model->manifest().entries[entry];
}

const rt::EntryManifest& checked_entry(const lw_model* model, size_t entry) {
  const rt::EntryManifest* found = entry_of(model, entry);
  if (found == nullptr) refuse(model == nullptr ? "the model is a null pointer" : "there is no entry " + std::to_string(entry));
  return *found;
}

std::vector<rt::Given> given(const lw_tensor* tensors, size_t count, const char* what) {
  if (tensors == nullptr && count > 0) refuse("the " + std::string(what) + "s are a null pointer");
  std::vector<rt::Given> found;
  found.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const lw_tensor& one = tensors[i];
    const std::string name = "the " + std::string(what) + " " + std::to_string(i);
    if (one.ndim < 0 || one.ndim > 64) refuse(name + ": it has " + std::to_string(one.ndim) + " dimensions");
    if (one.ndim > 0 && one.shape == nullptr) refuse(name + ": its shape is a null pointer");
    if (rt::find_dtype(one.dtype) == nullptr) refuse(name + ": it has no dtype");
    found.push_back({static_cast<char*>(one.data), one.dtype, static_cast<size_t>(one.ndim), one.shape, one.strides, nullptr});
  }
  return found;
}

std::vector<rt::Output> run(lw_model* model, size_t entry, const lw_tensor* inputs, size_t n_inputs, const int64_t* numbers,
                            size_t n_numbers, const std::vector<rt::Given>& into) {
  (void)checked_entry(model, entry);
  if (numbers == nullptr && n_numbers > 0) refuse("the numbers are a null pointer");
  const std::vector<int64_t> given_numbers(numbers, numbers + n_numbers);
  return model->model->run(entry, given(inputs, n_inputs, "input"), given_numbers, into);
}

lw_spec spec_of(const std::string& name, lw_dtype dtype, const std::vector<int64_t>& sizes) {
  return {name.c_str(), dtype, static_cast<int32_t>(sizes.size()), sizes.data()};
}

void describe(lw_model& made) {
  for (const rt::EntryManifest& entry : made.model->manifest().entries) {
    std::vector<lw_spec>& inputs = made.inputs.emplace_back();
    for (const rt::Tensed& input : entry.inputs) inputs.push_back(spec_of(input.name, input.dtype, input.sizes));
    std::vector<lw_spec>& outputs = made.outputs.emplace_back();
    for (const rt::Leaf& leaf : entry.leaves) {
      if (leaf.output < 0) {
        outputs.push_back({leaf.name.c_str(), LW_INT64, 0, nullptr});
      } else {
        const rt::Tensed& output = entry.outputs[static_cast<size_t>(leaf.output)];
        outputs.push_back(spec_of(leaf.name, output.dtype, output.sizes));
      }
    }
  }
}

}  // namespace

extern "C" {

const char* lw_error(void) { return last_error.c_str(); }

int lw_abi_version(void) { return LW_ABI_VERSION; }

size_t lw_dtype_size(lw_dtype dtype) { return rt::size_of(dtype); }

const char* lw_dtype_name(lw_dtype dtype) { return rt::name_of(dtype); }

lw_options lw_default_options(void) { return {sizeof(lw_options), 0, 0, nullptr, nullptr, 0}; }

lw_status lw_load(const char* path, const lw_options* options, lw_model** model) {
  return guarded([&] {
    if (path == nullptr || model == nullptr) refuse("the path or the place of the model is a null pointer");
    *model = nullptr;
    rt::Options chosen;
    if (options != nullptr) {
      if (options->size < sizeof(lw_options)) refuse("the options are not of lw_default_options()");
      if (options->threads < 0) refuse("threads=" + std::to_string(options->threads) + " is no number of threads");
      chosen.trusts = options->trust != 0;
      chosen.threads = options->threads;
      if (options->target != nullptr) chosen.target = options->target;
      if ((options->keys == nullptr) != (options->n_keys == 0)) refuse("keys and n_keys: one of them is null or 0, and the other is not");
      for (size_t i = 0; i < options->n_keys; ++i) {
        if (options->keys[i] == nullptr) refuse("the key " + std::to_string(i) + " is a null pointer");
        chosen.keys.push_back(rt::read_public_key(options->keys[i]));
      }
    }
    auto made = std::make_unique<lw_model>();
    made->model = rt::Model::load(path, chosen);
    describe(*made);
    *model = made.release();
  });
}

void lw_free(lw_model* model) { delete model; }

const char* lw_manifest(const lw_model* model) { return model == nullptr ? nullptr : model->model->manifest().text.c_str(); }

const char* lw_target(const lw_model* model) { return model == nullptr ? nullptr : model->model->target().c_str(); }

const char* lw_target_reason(const lw_model* model) { return model == nullptr ? nullptr : model->model->reason().c_str(); }

const char* lw_signer(const lw_model* model) { return model == nullptr ? nullptr : model->model->signer().c_str(); }

size_t lw_entry_count(const lw_model* model) { return model == nullptr ? 0 : model->model->manifest().n_called; }

const char* lw_entry_name(const lw_model* model, size_t entry) {
  const rt::EntryManifest* found = entry_of(model, entry);
  return found == nullptr ? nullptr : found->name.c_str();
}

lw_status lw_find_entry(const lw_model* model, const char* name, size_t* entry) {
  return guarded([&] {
    if (model == nullptr || name == nullptr || entry == nullptr) refuse("an argument is a null pointer");
    *entry = model->model->find_entry(name);
  });
}

size_t lw_input_count(const lw_model* model, size_t entry) {
  return entry_of(model, entry) == nullptr ? 0 : model->inputs[entry].size();
}

lw_status lw_input_spec(const lw_model* model, size_t entry, size_t input, lw_spec* spec) {
  return guarded([&] {
    (void)checked_entry(model, entry);
    if (spec == nullptr || input >= model->inputs[entry].size()) refuse("there is no input " + std::to_string(input));
    *spec = model->inputs[entry][input];
  });
}

size_t lw_output_count(const lw_model* model, size_t entry) {
  return entry_of(model, entry) == nullptr ? 0 : model->outputs[entry].size();
}

lw_status lw_output_spec(const lw_model* model, size_t entry, size_t output, lw_spec* spec) {
  return guarded([&] {
    (void)checked_entry(model, entry);
    if (spec == nullptr || output >= model->outputs[entry].size()) refuse("there is no result " + std::to_string(output));
    *spec = model->outputs[entry][output];
  });
}

size_t lw_number_count(const lw_model* model, size_t entry) {
  const rt::EntryManifest* found = entry_of(model, entry);
  return found == nullptr ? 0 : found->arguments.size();
}

const char* lw_number_name(const lw_model* model, size_t entry, size_t number) {
  const rt::EntryManifest* found = entry_of(model, entry);
  return found == nullptr || number >= found->arguments.size() ? nullptr : found->arguments[number].c_str();
}

const char* lw_entry_needs_aten(const lw_model* model, size_t entry) {
  return entry_of(model, entry) == nullptr ? nullptr : model->model->aten_calls(entry).c_str();
}

lw_status lw_set_weights(lw_model* model, const char* path) {
  return guarded([&] {
    if (model == nullptr || path == nullptr) refuse("an argument is a null pointer");
    model->model->set_weights(path);
  });
}

lw_status lw_prepare(lw_model* model, size_t entry) {
  return guarded([&] {
    (void)checked_entry(model, entry);
    model->model->prepare(entry);
  });
}

lw_status lw_run(lw_model* model, size_t entry, const lw_tensor* inputs, size_t n_inputs, const int64_t* numbers,
                 size_t n_numbers, lw_result** result) {
  return guarded([&] {
    if (result == nullptr) refuse("the place of the result is a null pointer");
    *result = nullptr;
    auto made = std::make_unique<lw_result>();
    made->outputs = run(model, entry, inputs, n_inputs, numbers, n_numbers, {});
    *result = made.release();
  });
}

lw_status lw_run_into(lw_model* model, size_t entry, const lw_tensor* inputs, size_t n_inputs, const int64_t* numbers,
                      size_t n_numbers, const lw_tensor* outputs, size_t n_outputs) {
  return guarded([&] {
    const std::vector<rt::Given> into = given(outputs, n_outputs, "result");
    const rt::EntryManifest& about = checked_entry(model, entry);
    if (into.size() != about.leaves.size()) {
      rt::fail(LW_INPUT, "'" + about.name + "' gives " + std::to_string(about.leaves.size()) + " results, and got memory for " +
                             std::to_string(into.size()));
    }
    (void)run(model, entry, inputs, n_inputs, numbers, n_numbers, into);
  });
}

size_t lw_result_count(const lw_result* result) { return result == nullptr ? 0 : result->outputs.size(); }

lw_status lw_result_tensor(const lw_result* result, size_t output, lw_tensor* tensor) {
  return guarded([&] {
    if (result == nullptr || tensor == nullptr || output >= result->outputs.size())
      refuse("there is no result " + std::to_string(output));
    const rt::Output& found = result->outputs[output];
    *tensor = {found.held.data, found.dtype, static_cast<int32_t>(found.shape.size()), found.shape.data(), found.strides.data()};
  });
}

lw_status lw_result_alias(const lw_result* result, size_t output, int64_t* input, int64_t* offset) {
  return guarded([&] {
    if (result == nullptr || input == nullptr || offset == nullptr || output >= result->outputs.size())
      refuse("there is no result " + std::to_string(output) + ", or no place for what it lies in");
    const std::optional<rt::Alias>& alias = result->outputs[output].alias;
    *input = alias ? static_cast<int64_t>(alias->input) : -1;
    *offset = alias ? alias->offset : 0;
  });
}

void lw_result_free(lw_result* result) { delete result; }

}  // extern "C"
