#include "signature.h"

#include "error.h"
#include "strides.h"
#include "text.h"

#include <algorithm>

namespace lampwork::runtime {

namespace {

std::string named(const EntryManifest& about, size_t input) {
  return "the input '" + about.inputs[input].name + "' of '" + about.name + "'";
}

// All but the sizes that symbols stand for.
void check_tensors(const EntryManifest& about, const std::vector<Given>& inputs) {
  if (inputs.size() != about.inputs.size()) {
    fail(LW_INPUT, "'" + about.name + "' takes " + std::to_string(about.inputs.size()) + " tensors, and got " +
                       std::to_string(inputs.size()));
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Tensed& input = about.inputs[i];
    const Given& given = inputs[i];
    const std::string what = named(about, i);
    if (given.dtype != input.dtype) fail(LW_INPUT, what + " is " + name_of(given.dtype) + "; " + name_of(input.dtype) + " was expected");
    if (given.ndim != input.shape.size()) {
      fail(LW_INPUT, what + " has " + std::to_string(given.ndim) + " dimensions; " + std::to_string(input.shape.size()) +
                         " were expected");
    }
    const Range range = range_of(given, what);
    if (given.data == nullptr && range.begin != range.end) fail(LW_INPUT, what + " has no memory");
  }
}

// The sizes of a dimension that other entries are for, which serve instead of this one.
bool is_of_another(const Manifest& manifest, const EntryManifest& about, const Symbol& symbol, int64_t size) {
  return symbol.kind == SymbolKind::Size && std::any_of(about.otherwise.begin(), about.otherwise.end(), [&](size_t other) {
           return manifest.entries[other].inputs[symbol.input].sizes[symbol.dim] == size;
         });
}

std::string range_text(const Symbol& symbol, int64_t least, std::optional<int64_t> most) {
  return (most ? "between " + std::to_string(least) + " and " + std::to_string(*most) : "at least " + std::to_string(least)) +
         " was expected (" + symbol.name + ")";
}

// The sizes of a dimension, those that other entries are for among them.
std::string whole_range_text(const Manifest& manifest, const EntryManifest& about, const Symbol& symbol) {
  int64_t least = symbol.min;
  std::optional<int64_t> most = symbol.max;
  while (least > 0 && is_of_another(manifest, about, symbol, least - 1)) --least;
  while (most && *most < INT64_MAX && is_of_another(manifest, about, symbol, *most + 1)) ++*most;
  return range_text(symbol, least, most);
}

}  // namespace

std::vector<int64_t> strides_of(const Given& given) {
  if (given.strides != nullptr) return {given.strides, given.strides + given.ndim};
  return contiguous_strides({given.shape, given.shape + given.ndim});
}

Range range_of(const Given& given, const std::string& what) {
  for (size_t d = 0; d < given.ndim; ++d) {
    if (given.shape[d] < 0) fail(LW_INPUT, what + " has the impossible shape " + shown(given.shape, given.ndim));
    if (given.strides != nullptr && given.strides[d] < 0) fail(LW_INPUT, what + " has a negative stride. Copy it");
  }
  int64_t elements = 1;
  const bool is_empty = std::find(given.shape, given.shape + given.ndim, 0) != given.shape + given.ndim;
  for (size_t d = 0; d < given.ndim && !is_empty; ++d) {
    if (__builtin_mul_overflow(elements, given.shape[d], &elements))
      fail(LW_INPUT, what + " has the impossible shape " + shown(given.shape, given.ndim));
  }
  const std::vector<int64_t> strides = strides_of(given);
  int64_t bytes = 0;
  uintptr_t end = 0;
  if (!span(given.dtype, given.shape, strides.data(), given.ndim, bytes) ||
      __builtin_add_overflow(reinterpret_cast<uintptr_t>(given.data), static_cast<uintptr_t>(bytes), &end)) {
    fail(LW_INPUT, what + " has the shape " + shown(given.shape, given.ndim) + " and the strides " +
                       shown(strides.data(), given.ndim) + ", which reach beyond all memory");
  }
  return {given.data, reinterpret_cast<const char*>(end)};
}

bool fits(const EntryManifest& about, const std::vector<Given>& inputs) {
  if (inputs.size() != about.inputs.size()) return false;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const std::vector<int64_t>& sizes = about.inputs[i].sizes;
    if (inputs[i].ndim != sizes.size()) return false;
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (sizes[d] >= 0 && inputs[i].shape[d] != sizes[d]) return false;
    }
  }
  return std::all_of(about.symbols.begin(), about.symbols.end(), [&](const Symbol& symbol) {
    if (symbol.kind != SymbolKind::Size) return true;
    const int64_t size = inputs[symbol.input].shape[symbol.dim];
    return size >= symbol.min && (!symbol.max || size <= *symbol.max);
  });
}

std::vector<int64_t> solve(const Manifest& manifest, const EntryManifest& about, const std::vector<Given>& inputs,
                           const std::vector<int64_t>& numbers) {
  const std::string of = "'" + about.name + "'";
  check_tensors(about, inputs);
  if (numbers.size() != about.arguments.size()) {
    fail(LW_INPUT, of + " takes " + std::to_string(about.arguments.size()) + " numbers" +
                       (about.arguments.empty() ? "" : " (" + listed(about.arguments, ", ") + ")") + ", and got " +
                       std::to_string(numbers.size()));
  }
  std::vector<int64_t> symbols(about.symbols.size());
  std::string unserved;  // a size that another entry is for, which does not take the other sizes
  for (size_t i = 0; i < symbols.size(); ++i) {
    const Symbol& symbol = about.symbols[i];
    std::string what;
    if (symbol.kind == SymbolKind::Stride) {  // as the program expects it: how an input lies makes no difference
      if (!symbol.stride.evaluate(symbols.data(), symbols[i])) {
        fail(LW_INPUT, "the stride of dimension " + std::to_string(symbol.dim) + " of " + named(about, symbol.input) +
                           " has no value for these sizes");
      }
      continue;
    }
    if (symbol.kind == SymbolKind::Number) {
      symbols[i] = numbers[symbol.input];
      what = "the number '" + about.arguments[symbol.input] + "' of " + of;
    } else {
      symbols[i] = inputs[symbol.input].shape[symbol.dim];
      what = "dimension " + std::to_string(symbol.dim) + " of " + named(about, symbol.input);
    }
    if (symbols[i] >= symbol.min && (!symbol.max || symbols[i] <= *symbol.max)) continue;
    const std::string is = what + " is " + std::to_string(symbols[i]) + "; ";
    if (is_of_another(manifest, about, symbol, symbols[i])) {
      if (unserved.empty()) unserved = is + "with the other sizes " + range_text(symbol, symbol.min, symbol.max);
      continue;
    }
    fail(LW_INPUT, is + whole_range_text(manifest, about, symbol));
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Tensed& input = about.inputs[i];
    for (size_t d = 0; d < input.shape.size(); ++d) {
      int64_t wanted = 0;
      if (!input.shape[d].evaluate(symbols.data(), wanted)) fail(LW_INPUT, "a size of the input '" + input.name + "' has no value");
      if (inputs[i].shape[d] != wanted) {
        fail(LW_INPUT, named(about, i) + " has " + std::to_string(inputs[i].shape[d]) + " in dimension " + std::to_string(d) + "; " +
                           std::to_string(wanted) + " was expected");
      }
    }
  }
  if (!unserved.empty()) fail(LW_INPUT, unserved);
  for (const Condition& condition : about.conditions) {
    int64_t value = 0;
    bool holds = condition.index.evaluate(symbols.data(), value);
    if (condition.relation == Relation::Equal) holds = holds && value == 0;
    if (condition.relation == Relation::NotEqual) holds = holds && value != 0;
    if (condition.relation == Relation::NotNegative) holds = holds && value >= 0;
    if (!holds) {
      std::string sizes;
      for (size_t i = 0; i < symbols.size(); ++i)
        sizes += (sizes.empty() ? "" : ", ") + about.symbols[i].name + " = " + std::to_string(symbols[i]);
      fail(LW_INPUT, of + " was exported for inputs with " + condition.text + ", which does not hold for " + sizes);
    }
  }
  return symbols;
}

std::vector<int64_t> numbers_of(const std::vector<Index>& indices, const int64_t* symbols) {
  std::vector<int64_t> found(indices.size());
  for (size_t i = 0; i < indices.size(); ++i) {
    if (!indices[i].evaluate(symbols, found[i]) || found[i] < 0)
      fail(LW_INPUT, "a size or stride that follows from the sizes of the inputs is negative, divides by zero, or does not fit int64");
  }
  return found;
}

void check_written(const EntryManifest& about, const std::vector<Given>& inputs, const std::vector<bool>& written) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!written[i]) continue;
    const std::vector<int64_t> strides = strides_of(inputs[i]);
    const std::string what = named(about, i) + ", which is written to, ";
    if (overlaps(inputs[i].shape, strides.data(), inputs[i].ndim)) fail(LW_INPUT, what + "has elements in one another's place. Copy it");
    for (size_t other = 0; other < inputs.size(); ++other) {
      if (other != i && range_of(inputs[i], what).meets(range_of(inputs[other], named(about, other))))
        fail(LW_INPUT, what + "lies in the memory of the input '" + about.inputs[other].name + "'. Copy one of them");
    }
  }
}

}  // namespace lampwork::runtime
