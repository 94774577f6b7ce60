// The constants of a model's entries: computed of its weights, or taken from the file where that has them prepacked.

#include "model_parts.h"
#include "strides.h"
#include "text.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace lampwork::runtime {

namespace {

constexpr size_t kLine = 64;  // bytes that constants begin at a multiple of

bool are_like(const Value& value, lw_dtype dtype, const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
  return value.dtype == dtype && value.shape == shape &&
         same_layout(shape.data(), shape.size(), value.strides.data(), strides.data());
}

}  // namespace

std::shared_ptr<const Model::Constants> Model::constants(Maker& maker, const std::shared_ptr<Weights>& weights) const {
  const std::lock_guard<std::mutex> lock(maker.mutex);
  std::vector<uint64_t> versions;
  for (const size_t weight : maker.watched) versions.push_back(weights->versions[weight].load());
  if (maker.constants != nullptr && maker.constants->weights == weights && maker.constants->versions == versions)
    return maker.constants;
  if (maker.program == nullptr) maker.program = Program::place(*maker.layout, nullptr, *code_);
  auto made = std::make_shared<Constants>();
  made->weights = weights;
  made->versions = versions;
  const bool is_as_exported = weights->are_own && std::all_of(versions.begin(), versions.end(), [](uint64_t each) { return each == 0; });
  if (!is_as_exported || !take_known(maker, *weights, made->held)) {
    if (!maker.aten.empty() && aten_ == nullptr) {
      fail(LW_NEEDS_ATEN, "what is computed of weights that are not those of the file calls operators of torch: " + maker.aten +
                              ". Run it with liblampwork_torch, or export the model with require=\"standalone\"");
    }
    if (!maker.is_prepared) maker.program = place_program(*maker.layout, nullptr);
    maker.is_prepared = true;
    made->held = make_constants(*maker.program, maker, *weights, {});
  }
  maker.constants = made;
  return made;
}

// What a program gives for the weights of a maker, and then `further` tensors.
std::vector<Held> Model::make_constants(const Program& program, const Maker& maker, const Weights& weights,
                                        const std::vector<Held>& further) const {
  std::vector<char*> inputs;
  for (const size_t weight : maker.weights) inputs.push_back(weights.data[weight]);
  for (const Held& each : further) inputs.push_back(each.data);
  Frame frame(program);
  const Block arena(program.arena_bytes);
  static const std::vector<char*> no_weights;
  static const std::vector<Held> no_constants;
  const Call call{nullptr, inputs.data(), no_weights, no_constants, nullptr, *pool_, aten_, arena.data(), nullptr};
  return execute(frame, call, true);
}

std::unique_ptr<Model::Known> Model::read_known(const Json& json, const EntryManifest& about, size_t n_modules) const {
  const std::string what = "what is prepacked for '" + about.name + "'";
  auto known = std::make_unique<Known>();
  for (const Json& each : list_of(member(json, "tensors", what), what))
    known->tensors.push_back(static_cast<size_t>(integer_of(each, what, 0, static_cast<int64_t>(manifest_.prepacked.size()) - 1)));
  for (const Json& each : list_of(member(json, "places", what), what))
    known->places.push_back(integer_of(each, what, -1, static_cast<int64_t>(known->tensors.size()) - 1));
  if (const Json* rest = optional_member(json, "rest", what)) {
    known->rest = Layout::read(*rest, {}, n_modules, about.weights.size() + known->tensors.size(), 0);
    if (known->rest->constants != nullptr) damaged(what + " has constants");
    for (size_t number = 0; number < known->rest->values.size(); ++number) {
      const ValueLayout& value = known->rest->values[number];
      if (value.kind != Kind::Input || value.dtype != LW_NO_DTYPE || static_cast<size_t>(value.position) >= about.weights.size()) continue;
      const Weight& weight = manifest_.weights[about.weights[static_cast<size_t>(value.position)]];
      known->rest->describe(number, weight.dtype, {weight.shape.begin(), weight.shape.end()}, {weight.strides.begin(), weight.strides.end()});
    }
  }
  return known;
}

// Takes the constants that the file has, and computes the others. False where torch alone knows what one of them is.
bool Model::take_known(Maker& maker, const Weights& weights, std::vector<Held>& held) const {
  if (maker.known == nullptr) return false;
  const Known& known = *maker.known;
  const auto refuse = [] { damaged("what is prepacked is not what the program computes"); };
  const auto is_like = [&](const Value& value, size_t place) {
    const Prepacked& about = manifest_.prepacked[known.tensors[place]];
    return are_like(value, about.dtype, about.shape, about.strides);
  };
  std::vector<Held> tensors;
  for (const size_t number : known.tensors) {
    const Prepacked& about = manifest_.prepacked[number];
    if (about.dtype == LW_NO_DTYPE) return false;
    const std::string_view bytes = container_->find(about.tensor)->bytes;
    Held tensor{const_cast<char*>(bytes.data()), container_->bytes(), nullptr};  // never written to
    if (reinterpret_cast<uintptr_t>(bytes.data()) % kLine != 0) {
      auto copy = std::make_shared<Block>(bytes.size());
      std::memcpy(copy->data(), bytes.data(), bytes.size());
      tensor = {copy->data(), copy, nullptr};
    }
    tensors.push_back(std::move(tensor));
  }
  const Program& program = *maker.program;
  if (known.places.size() != program.outputs.size()) refuse();
  std::vector<Held> others;
  std::shared_ptr<Program> rest;
  if (known.rest != nullptr) {
    rest = place_program(*known.rest, nullptr);
    for (const Value& value : rest->values) {
      if (value.kind != Kind::Input || value.position < 0) continue;
      const auto position = static_cast<size_t>(value.position);
      if (position < maker.weights.size()) {
        const Weight& weight = manifest_.weights[maker.weights[position]];
        if (!are_like(value, weight.dtype, weight.shape, weight.strides)) refuse();
      } else if (value.dtype == LW_NO_DTYPE) {
        return false;
      } else if (!is_like(value, position - maker.weights.size())) {
        refuse();
      }
    }
    others = make_constants(*rest, maker, weights, tensors);
  }
  size_t next = 0;
  for (size_t i = 0; i < known.places.size(); ++i) {
    const Value& value = program.values[static_cast<size_t>(program.outputs[i])];
    if (known.places[i] >= 0) {
      const auto place = static_cast<size_t>(known.places[i]);
      if (value.dtype == LW_NO_DTYPE) return false;
      if (!is_like(value, place)) refuse();
      held.push_back(tensors[place]);
      continue;
    }
    if (next == others.size()) refuse();
    const Value& made = rest->values[static_cast<size_t>(rest->outputs[next])];
    if (!are_like(made, value.dtype, value.shape, value.strides)) refuse();
    held.push_back(others[next++]);
  }
  if (next != others.size()) refuse();
  return true;
}

}  // namespace lampwork::runtime
