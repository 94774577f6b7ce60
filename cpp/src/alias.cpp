#include "alias.h"

#include <algorithm>

namespace lampwork::runtime {

namespace {

using Numbers = std::vector<int64_t>;

// A dimension of a tensor that lies in memory in two ways.
struct Dim {
  int64_t size, from, to;
};

// The dimensions, the largest steps of the one layout first. Those that are one run of elements in both are one.
std::vector<Dim> run_together(const Moved& whole) {
  std::vector<Dim> dims, found;
  for (size_t i = 0; i < whole.shape.size(); ++i) {
    if (whole.shape[i] > 1) dims.push_back({whole.shape[i], whole.from[i], whole.to[i]});
  }
  std::stable_sort(dims.begin(), dims.end(), [](const Dim& a, const Dim& b) { return a.from > b.from; });
  for (const Dim& dim : dims) {
    int64_t from = 0, to = 0, size = 0;
    if (!found.empty() && !__builtin_mul_overflow(dim.from, dim.size, &from) && found.back().from == from &&
        !__builtin_mul_overflow(dim.to, dim.size, &to) && found.back().to == to &&
        !__builtin_mul_overflow(dim.size, found.back().size, &size)) {
      found.back() = {size, dim.from, dim.to};
    } else {
      found.push_back(dim);
    }
  }
  return found;
}

// How many steps along each dimension of a tensor a distance in it is; empty if it is none of so many.
std::optional<Numbers> steps_of(int64_t distance, const std::vector<Dim>& dims) {
  Numbers found;
  for (const Dim& dim : dims) {
    found.push_back(dim.from > 0 ? distance / dim.from : 0);
    if (dim.from > 0) distance %= dim.from;
  }
  return distance == 0 ? std::optional(found) : std::nullopt;
}

// Elements from the first to the last one in memory; nothing if there are more than int64 counts, or it goes backwards.
std::optional<int64_t> reach_of(const Numbers& shape, const Numbers& strides) {
  int64_t reach = 0;
  for (size_t i = 0; i < shape.size(); ++i) {
    int64_t more = 0;
    if (shape[i] > 1 && (strides[i] < 0 || __builtin_mul_overflow(shape[i] - 1, strides[i], &more) ||
                         __builtin_add_overflow(reach, more, &reach)))
      return std::nullopt;
  }
  return reach;
}

bool is_empty(const Numbers& shape) { return std::find(shape.begin(), shape.end(), 0) != shape.end(); }

}  // namespace

std::optional<Alias> moved_view(const Moved& whole, int64_t offset, const Numbers& shape, const Numbers& strides) {
  if (is_empty(whole.shape) || is_empty(shape)) return std::nullopt;
  const std::optional<int64_t> room = reach_of(whole.shape, whole.from), reach = reach_of(shape, strides);
  if (!room || !reach || offset < 0 || offset > *room || *reach > *room - offset) return std::nullopt;
  bool is_same = true;
  for (size_t i = 0; i < whole.shape.size(); ++i) is_same = is_same && (whole.shape[i] == 1 || whole.from[i] == whole.to[i]);
  if (is_same) return Alias{0, offset, strides, false};

  // A view of the one is a view of the other if no element of it takes more steps along a dimension than that has.
  const std::vector<Dim> dims = run_together(whole);
  const std::optional<Numbers> first = steps_of(offset, dims);
  if (!first) return std::nullopt;
  Numbers last = *first;
  std::vector<Numbers> along;
  for (size_t i = 0; i < shape.size(); ++i) {
    const std::optional<Numbers> steps = shape[i] > 1 ? steps_of(strides[i], dims) : Numbers(dims.size(), 0);
    if (!steps) return std::nullopt;
    for (size_t dim = 0; dim < dims.size(); ++dim) last[dim] += (shape[i] - 1) * (*steps)[dim];
    along.push_back(*steps);
  }
  for (size_t dim = 0; dim < dims.size(); ++dim) {
    if (last[dim] >= dims[dim].size) return std::nullopt;
  }
  const auto distance = [&](const Numbers& steps) {
    int64_t sum = 0;
    for (size_t i = 0; i < steps.size(); ++i) sum += steps[i] * dims[i].to;
    return sum;
  };
  Alias found{0, distance(*first), {}, false};
  for (const Numbers& steps : along) found.strides.push_back(distance(steps));
  return found;
}

std::optional<Alias> find_alias(const EntryManifest& about, const std::vector<bool>& written, const Frame& frame,
                                const std::vector<Given>& inputs, size_t output, const AtenLibrary* aten) {
  const Program& program = frame.program;
  const auto value_of = [&program](int32_t number) -> const Value& { return program.values[static_cast<size_t>(number)]; };
  const Value& value = value_of(program.outputs[output]);
  const auto root = static_cast<size_t>(value.root);
  size_t input = 0;
  const Value* whole = nullptr;  // what the input is in the program
  if (program.values[root].kind == Kind::Input) {
    whole = &program.values[root];
    input = static_cast<size_t>(whole->position);
  } else {
    const auto view = std::find_if(about.views.begin(), about.views.end(), [&](const auto& pair) { return pair.first == output; });
    if (view == about.views.end() || view->second >= inputs.size()) return std::nullopt;
    input = view->second;
    for (const auto& [place, of] : about.writes) {
      if (place == input) whole = &value_of(program.outputs[of]);
    }
  }
  if (whole == nullptr || !written[input] || value.dtype != whole->dtype || value.dtype != inputs[input].dtype) return std::nullopt;
  const Numbers shape(inputs[input].shape, inputs[input].shape + inputs[input].ndim);
  if (whole->shape != shape) return std::nullopt;

  const Numbers strides = strides_of(inputs[input]);
  if (&value == whole && whole->kind == Kind::Input) return Alias{input, 0, strides, true};
  const auto size = static_cast<int64_t>(size_of(value.dtype));
  int64_t bytes = value.root_bytes - whole->root_bytes;
  if (value.root != whole->root) {
    int64_t apart = 0;
    const auto other = static_cast<size_t>(whole->root);
    if (aten == nullptr || !aten->distance(frame.objects[root], frame.objects[other], apart)) return std::nullopt;
    bytes += apart;
  }
  if (bytes % size != 0) return std::nullopt;
  std::optional<Alias> found = moved_view({shape, whole->strides, strides}, bytes / size, value.shape, value.strides);
  if (found) found->input = input;
  return found;
}

}  // namespace lampwork::runtime
