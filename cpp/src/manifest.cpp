#include "manifest.h"

#include "strides.h"

#include <algorithm>
#include <set>

namespace lampwork::runtime {

namespace {

constexpr int64_t kVersion = 1;

lw_dtype dtype_of(const Json& json, const std::string& what) {
  const std::string name = text_of(json, "the dtype of " + what);
  const DType* found = find_dtype(name);
  if (found == nullptr) fail(LW_VERSION, what + " has the dtype '" + name + "', which this library does not know");
  return found->dtype;
}

std::vector<int64_t> sizes_of(const Json& json, const std::string& what) {
  std::vector<int64_t> found;
  for (const Json& each : list_of(json, what)) found.push_back(integer_of(each, what, 0));
  if (found.size() > 64) damaged(what + " has too many dimensions");
  return found;
}

std::vector<std::string> texts_of(const Json& json, const std::string& what) {
  std::vector<std::string> found;
  for (const Json& each : list_of(json, what)) found.push_back(text_of(each, what));
  return found;
}

Weight read_weight(const Json& json, const Container& container) {
  Weight weight;
  weight.name = text_of(member(json, "name", "a weight"), "the name of a weight");
  const std::string what = "the weight '" + weight.name + "'";
  weight.tensor = text_of(member(json, "tensor", what), "the tensor of " + what);
  weight.dtype = dtype_of(member(json, "dtype", what), what);
  weight.shape = sizes_of(member(json, "shape", what), "the shape of " + what);
  weight.strides = sizes_of(member(json, "strides", what), "the strides of " + what);
  if (weight.strides.size() != weight.shape.size()) damaged("shape and strides of " + what + " differ in length");
  weight.kind = text_of(member(json, "kind", what), "the kind of " + what);
  if (const Json* persistent = optional_member(json, "persistent", what)) weight.is_persistent = truth_of(*persistent, what);
  const StoredTensor* stored = container.find(weight.tensor);
  if (stored == nullptr) damaged(what + " has its bytes in '" + weight.tensor + "', which the file does not have");
  if (stored->dtype != weight.dtype) damaged(what + " is stored in another dtype");
  (void)spanned_bytes(weight.dtype, weight.shape, weight.strides);
  return weight;
}

Prepacked read_prepacked(const Json& json, const Container& container) {
  Prepacked found;
  found.tensor = text_of(member(json, "tensor", "a prepacked tensor"), "the name of a prepacked tensor");
  const std::string what = "the tensor '" + found.tensor + "'";
  // A dtype that is not known here is one that no program of this library reads.
  const DType* dtype = find_dtype(text_of(member(json, "dtype", what), "the dtype of " + what));
  found.dtype = dtype == nullptr ? LW_NO_DTYPE : dtype->dtype;
  found.shape = sizes_of(member(json, "shape", what), "the shape of " + what);
  found.strides = sizes_of(member(json, "strides", what), "the strides of " + what);
  if (found.strides.size() != found.shape.size()) damaged("shape and strides of " + what + " differ in length");
  const StoredTensor* stored = container.find(found.tensor);
  if (stored == nullptr) damaged("it does not have " + what);
  if (found.dtype != LW_NO_DTYPE && spanned_bytes(found.dtype, found.shape, found.strides) > static_cast<int64_t>(stored->bytes.size()))
    damaged(what + " has fewer bytes than its shape says");
  return found;
}

class EntryReader {
 public:
  EntryReader(EntryManifest& entry, size_t n_weights) : entry_(entry), n_weights_(n_weights), what_("the entry '" + entry.name + "'") {}

  // `like`: what the manifest says of the entry that this one serves for, or nullptr.
  void read(const Json& json, const Json* like) {
    const Json::List& symbols = list_of(member(json, "symbols", what_), "the symbols of " + what_);
    const Json::List& inputs = list_of(member(json, "inputs", what_), "the inputs of " + what_);
    for (const Json& symbol : symbols) read_symbol(symbol, inputs.size());
    for (const Json& input : inputs) entry_.inputs.push_back(read_tensed(input, "an input of " + what_));
    for (const Symbol& symbol : entry_.symbols) {
      if (symbol.kind != SymbolKind::Number && symbol.dim >= entry_.inputs[symbol.input].shape.size())
        damaged("the symbol '" + symbol.name + "' of " + what_ + " is of a dimension that the input does not have");
    }
    for (const Json& condition : list_of(member(json, "conditions", what_), "the conditions of " + what_)) read_condition(condition);
    for (const Json& weight : list_of(member(json, "weights", what_), "the weights of " + what_))
      entry_.weights.push_back(static_cast<size_t>(integer_of(weight, "a weight of " + what_, 0, static_cast<int64_t>(n_weights_) - 1)));
    for (const Json& output : list_of(member(json, "outputs", what_), "the outputs of " + what_))
      entry_.outputs.push_back(read_tensed(output, "an output of " + what_));
    read_leaves(member(json, "result", what_), like == nullptr ? nullptr : like->find("result"), "");
    for (const Json& pair : list_of(member(json, "writes", what_), "what " + what_ + " writes to")) {
      const Json::List& item = pair_of(pair, "what " + what_ + " writes to");
      const auto n_written = static_cast<int64_t>(entry_.inputs.size() + entry_.weights.size());
      const int64_t written = integer_of(item[0], "what " + what_ + " writes to", 0, n_written - 1);
      entry_.writes.emplace_back(static_cast<size_t>(written), output_number(item[1]));
    }
    const Json* views = optional_member(json, "views", what_);
    if (views == nullptr) return;
    for (const Json& pair : list_of(*views, "the views of " + what_)) {
      const Json::List& item = pair_of(pair, "a view of " + what_);
      const auto n_places = static_cast<int64_t>(entry_.inputs.size() + entry_.weights.size());
      entry_.views.emplace_back(output_number(item[0]), static_cast<size_t>(integer_of(item[1], "a view of " + what_, 0, n_places - 1)));
    }
  }

 private:
  size_t output_number(const Json& json) const {
    return static_cast<size_t>(integer_of(json, "an output of " + what_, 0, static_cast<int64_t>(entry_.outputs.size()) - 1));
  }

  void read_symbol(const Json& json, size_t n_inputs) {
    Symbol symbol{};
    symbol.name = text_of(member(json, "name", "a symbol of " + what_), "the name of a symbol of " + what_);
    const std::string what = "the symbol '" + symbol.name + "' of " + what_;
    symbol.min = integer_of(member(json, "min", what), "the least value of " + what);
    if (const Json* most = optional_member(json, "max", what)) symbol.max = integer_of(*most, "the largest value of " + what);
    if (const Json* input = optional_member(json, "input", what)) {
      symbol.input = static_cast<size_t>(integer_of(*input, "the input of " + what, 0, static_cast<int64_t>(n_inputs) - 1));
      symbol.dim = static_cast<size_t>(integer_of(member(json, "dim", what), "the dimension of " + what, 0, 63));
      const Json* kind = optional_member(json, "kind", what);
      const std::string name = kind == nullptr ? "size" : text_of(*kind, "the kind of " + what);
      if (name != "size" && name != "stride") fail(LW_VERSION, what + " is a " + name + ", which this library does not know");
      symbol.kind = name == "size" ? SymbolKind::Size : SymbolKind::Stride;
      if (symbol.kind == SymbolKind::Stride) symbol.stride = Index::read(member(json, "index", what), entry_.numbers, what);
    } else {
      const Json& argument = member(json, "argument", what);
      symbol.kind = SymbolKind::Number;
      symbol.input = entry_.arguments.size();
      entry_.arguments.push_back(argument.text() != nullptr ? *argument.text() : symbol.name);
    }
    if (!entry_.numbers.emplace(symbol.name, entry_.symbols.size()).second) damaged(what_ + " has two symbols of one name");
    entry_.symbols.push_back(std::move(symbol));
  }

  Tensed read_tensed(const Json& json, const std::string& of) const {
    Tensed tensed;
    tensed.name = text_of(member(json, "name", of), "the name of " + of);
    const std::string what = of + ", '" + tensed.name + "',";
    tensed.dtype = dtype_of(member(json, "dtype", what), what);
    for (const Json& size : list_of(member(json, "shape", what), "the shape of " + what))
      tensed.shape.push_back(Index::read(size, entry_.numbers, "a size of " + what));
    for (const Json& stride : list_of(member(json, "strides", what), "the strides of " + what))
      tensed.strides.push_back(Index::read(stride, entry_.numbers, "a stride of " + what));
    if (tensed.shape.size() != tensed.strides.size() || tensed.shape.size() > 64)
      damaged("shape and strides of " + what + " differ in length, or are too long");
    for (const Index& size : tensed.shape) {
      int64_t number = -1;
      if (size.is_constant()) (void)size.evaluate(nullptr, number);
      tensed.sizes.push_back(number);
    }
    return tensed;
  }

  void read_condition(const Json& json) {
    static const std::map<std::string, Relation> relations = {
        {"==", Relation::Equal}, {"!=", Relation::NotEqual}, {">=", Relation::NotNegative}, {"fits", Relation::Fits}};
    const std::string what = "a condition of " + what_;
    const std::string op = text_of(member(json, "op", what), what);
    const auto found = relations.find(op);
    if (found == relations.end()) fail(LW_VERSION, what + " is '" + op + "', which this library does not know");
    const Json* text = optional_member(json, "text", what);
    entry_.conditions.push_back({found->second, Index::read(member(json, "index", what), entry_.numbers, what),
                                 text == nullptr ? op : text_of(*text, what)});
  }

  // `like`: the same part of the result of the entry that this one serves for. What is a number there may be a constant here,
  // where sizes are; it is a number all the same.
  void read_leaves(const Json& tree, const Json* like, const std::string& path) {
    const std::string what = "the result of " + what_;
    const auto below = [&path](const std::string& name) { return path.empty() ? name : path + "." + name; };
    if (const Json* output = optional_member(tree, "output", what)) {
      const size_t number = output_number(*output);
      entry_.leaves.push_back({path.empty() ? entry_.outputs[number].name : path, static_cast<int64_t>(number), {}});
    } else if (const Json* number = optional_member(tree, "number", what)) {
      entry_.leaves.push_back({path.empty() ? "number" : path, -1, Index::read(*number, entry_.numbers, what)});
    } else if (like != nullptr && like->find("number") != nullptr) {
      const int64_t constant = integer_of(member(tree, "const", what), "a number in " + what);
      entry_.leaves.push_back({path.empty() ? "number" : path, -1, Index(constant)});
    }
    const auto item_like = [&](const char* kind, size_t at) -> const Json* {
      const Json* items = like == nullptr ? nullptr : like->find(kind);
      return items == nullptr || items->list() == nullptr || at >= items->list()->size() ? nullptr : &(*items->list())[at];
    };
    for (const char* kind : {"list", "tuple", "size"}) {
      const Json* items = optional_member(tree, kind, what);
      if (items == nullptr) continue;
      size_t at = 0;
      for (const Json& item : list_of(*items, what)) {
        read_leaves(item, item_like(kind, at), below(std::to_string(at)));
        ++at;
      }
    }
    for (const char* kind : {"dict", "fields"}) {
      const Json* items = optional_member(tree, kind, what);
      if (items == nullptr) continue;
      size_t at = 0;
      for (const Json& item : list_of(*items, what)) {
        const Json::List& pair = pair_of(item, "an item of " + what);
        const Json* there = item_like(kind, at++);
        const bool is_pair = there != nullptr && there->list() != nullptr && there->list()->size() == 2;
        read_leaves(pair[1], is_pair ? &(*there->list())[1] : nullptr, below(pair[0].text() != nullptr ? *pair[0].text() : pair[0].shown()));
      }
    }
  }

  EntryManifest& entry_;
  size_t n_weights_;
  std::string what_;
};

// Whether two entries take and give tensors of the same dtypes and numbers of dimensions, and numbers in the same places.
bool is_called_alike(const EntryManifest& one, const EntryManifest& other) {
  const auto is_alike = [](const Tensed& a, const Tensed& b) { return a.dtype == b.dtype && a.shape.size() == b.shape.size(); };
  const auto gives_alike = [&](const Leaf& a, const Leaf& b) {
    if (a.output < 0 || b.output < 0) return a.output < 0 && b.output < 0;
    return is_alike(one.outputs[static_cast<size_t>(a.output)], other.outputs[static_cast<size_t>(b.output)]);
  };
  return one.arguments == other.arguments &&
         std::equal(one.inputs.begin(), one.inputs.end(), other.inputs.begin(), other.inputs.end(), is_alike) &&
         std::equal(one.leaves.begin(), one.leaves.end(), other.leaves.begin(), other.leaves.end(), gives_alike);
}

TargetManifest read_target(const Json& json) {
  TargetManifest target;
  target.name = text_of(member(json, "name", "a target"), "the name of a target");
  const std::string what = "the target '" + target.name + "'";
  target.machine = text_of(member(json, "machine", what), "the machine of " + what);
  target.needs = texts_of(member(json, "needs", what), "what " + what + " needs");
  target.programs = text_of(member(json, "programs", what), "the programs of " + what);
  target.code = texts_of(member(json, "code", what), "the code of " + what);
  for (const auto& [entry, names] : members_of(member(json, "calls", what), "the calls of " + what)) target.calls[entry] = texts_of(names, "the calls of " + what);
  return target;
}

// Files have no code, graphs or packed weights that the manifest, of whatever version, says nothing of.
void check_is_known(const Manifest& manifest, const Container& container) {
  std::set<std::string> prepacked;
  for (const Prepacked& each : manifest.prepacked) prepacked.insert(each.tensor);
  for (const auto& [name, tensor] : container.tensors()) {
    if (is_section(name) && manifest.sections.count(name) == 0) damaged("the manifest does not know the section '" + name + "'");
    if (is_prepacked(name) && prepacked.count(name) == 0) damaged("the manifest does not know the tensor '" + name + "'");
  }
}

}  // namespace

Manifest Manifest::read(const Container& container) {
  const std::string* format = container.metadata("format");
  const std::string* text = container.metadata("manifest");
  if (format == nullptr || *format != "lampwork" || text == nullptr) {
    fail(LW_FORMAT, "it is no artifact of Lampwork" +
                        std::string(format == nullptr ? ", but may be a safetensors file of weights" : "") +
                        ". Make one with lampwork.export(model, path=\"m.lamp\", ...)");
  }
  const Json json = Json::parse(*text, "the manifest");
  Manifest manifest;
  manifest.text = *text;
  if (text_of(member(json, "format", "the manifest"), "the format") != "lampwork") damaged("its manifest is of another format");
  const int64_t version = integer_of(member(json, "version", "the manifest"), "the version", 1);
  if (version > kVersion) {
    fail(LW_VERSION, "the artifact is of version " + std::to_string(version) + ", and this library knows versions up to " +
                         std::to_string(kVersion) + ". Update the library, or export the model with an older Lampwork");
  }
  for (const Json& weight : list_of(member(json, "weights", "the manifest"), "the weights"))
    manifest.weights.push_back(read_weight(weight, container));
  const Json::Members& entries = members_of(member(json, "entries", "the manifest"), "the entries");
  if (entries.empty()) damaged("it has no entries");
  std::map<std::string, std::vector<std::string>> otherwise;
  std::set<std::string> uncalled;
  std::map<std::string, const Json*> served;  // by the name of an entry: what it serves for
  for (const auto& [name, about] : entries) {
    const Json* others = optional_member(about, "otherwise", "the entry '" + name + "'");
    if (others == nullptr) continue;
    otherwise[name] = texts_of(*others, "what serves otherwise than '" + name + "'");
    uncalled.insert(otherwise[name].begin(), otherwise[name].end());
    for (const std::string& other : otherwise[name]) served.emplace(other, &about);
  }
  Json::Members ordered = entries;
  const auto called = std::stable_partition(ordered.begin(), ordered.end(),
                                            [&](const auto& entry) { return uncalled.count(entry.first) == 0; });
  manifest.n_called = static_cast<size_t>(called - ordered.begin());
  if (manifest.n_called == 0) damaged("it has no entry that can be called");
  std::map<std::string, size_t> numbers;
  for (const auto& [name, about] : ordered) {
    numbers.emplace(name, manifest.entries.size());
    manifest.entries.push_back({});
    manifest.entries.back().name = name;
    const auto like = served.find(name);
    EntryReader(manifest.entries.back(), manifest.weights.size()).read(about, like == served.end() ? nullptr : like->second);
  }
  for (EntryManifest& entry : manifest.entries) {
    for (const std::string& other : otherwise[entry.name]) {
      const auto found = numbers.find(other);
      if (found == numbers.end()) damaged("it has no entry '" + other + "', which serves otherwise than '" + entry.name + "'");
      const EntryManifest& there = manifest.entries[found->second];
      if (!is_called_alike(there, entry))
        damaged("the entry '" + other + "' is called otherwise than '" + entry.name + "'");
      entry.otherwise.push_back(found->second);
    }
  }
  for (const Json& target : list_of(member(json, "targets", "the manifest"), "the targets"))
    manifest.targets.push_back(read_target(target));
  if (const Json* prepacked = optional_member(json, "prepacked", "the manifest")) {
    for (const Json& each : list_of(*prepacked, "what is prepacked")) manifest.prepacked.push_back(read_prepacked(each, container));
  }
  for (const auto& [name, about] : members_of(member(json, "sections", "the manifest"), "the sections")) {
    const std::string what = "the section '" + name + "'";
    const Section section{text_of(member(about, "sha256", what), "the digest of " + what),
                          integer_of(member(about, "bytes", what), "the size of " + what, 0)};
    const StoredTensor* stored = container.find(name);
    if (stored == nullptr || stored->dtype != LW_UINT8) damaged("it does not have " + what);
    if (static_cast<int64_t>(stored->bytes.size()) != section.bytes) damaged(what + " has another size than the manifest says");
    manifest.sections.emplace(name, section);
  }
  check_is_known(manifest, container);
  return manifest;
}

}  // namespace lampwork::runtime
