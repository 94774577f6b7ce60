#include "model.h"

#include "cpu.h"
#include "model_parts.h"
#include "sha256.h"
#include "strides.h"
#include "text.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace lampwork::runtime {

namespace {

constexpr size_t kMostPlaced = 8;      // programs of an entry that are kept, for its last sizes
constexpr size_t kMostNamed = 3;       // weights in a message
constexpr size_t kMostIdleFrames = 8;  // of a program

int cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

// Adds the operators of torch that a program calls.
void list_calls(const Layout& layout, std::string& names) {
  for (const StepLayout& step : layout.steps) {
    const auto* call = std::get_if<AtenLayout>(&step);
    Copy copy{};
    if (call == nullptr || is_copy(*call, layout, copy)) continue;
    if ((" " + names + " ").find(" " + call->op + " ") == std::string::npos)
      names += (names.empty() ? "" : " ") + call->op;
  }
}

int32_t root_of(const Layout& layout, int32_t number) {
  while (layout.values[static_cast<size_t>(number)].kind == Kind::View) number = layout.values[static_cast<size_t>(number)].base;
  return number;
}

}  // namespace

// A frame and an arena for the time of a call.
class Model::Lease {
 public:
  Lease(Placed& placed, Arenas& arenas) : placed_(placed), arenas_(arenas) {
    {
      const std::lock_guard<std::mutex> lock(placed.mutex);
      if (!placed.idle.empty()) {
        frame_ = std::move(placed.idle.back());
        placed.idle.pop_back();
      }
    }
    if (frame_ == nullptr) frame_ = std::make_unique<Frame>(*placed.program);
    if (placed.program->arena_bytes > 0) arena_ = arenas.take(placed.program->arena_bytes);
  }
  ~Lease() {
    frame_->clear();
    if (arena_ != nullptr) arenas_.give(std::move(arena_));
    const std::lock_guard<std::mutex> lock(placed_.mutex);
    if (placed_.idle.size() < kMostIdleFrames) placed_.idle.push_back(std::move(frame_));
  }
  Lease(const Lease&) = delete;

  Frame& frame() { return *frame_; }
  char* arena() { return arena_ == nullptr ? nullptr : arena_->data(); }

 private:
  Placed& placed_;
  Arenas& arenas_;
  std::unique_ptr<Frame> frame_;
  std::unique_ptr<Block> arena_;
};

// --- loading -------------------------------------------------------------------------------------------------

Model::Model() = default;
Model::~Model() = default;

std::unique_ptr<Model> Model::load(const std::string& path, const Options& options, AtenLibrary* aten) {
  try {
    return load(Bytes::map(path), options, aten);
  } catch (const Error& error) {
    if (error.status == LW_FILE) throw;
    throw Error(error.status, "'" + path + "': " + error.what());
  }
}

std::unique_ptr<Model> Model::load(std::shared_ptr<const Bytes> bytes, const Options& options, AtenLibrary* aten) {
  std::unique_ptr<Model> model(new Model);
  model->aten_ = aten;
  model->container_ = std::make_unique<Container>(std::move(bytes));
  if (!options.keys.empty()) model->signer_ = verify(*model->container_, options.keys);
  model->manifest_ = Manifest::read(*model->container_);
  if (!options.trusts && options.keys.empty()) {
    fail(LW_TRUST,
         "it holds machine code, which runs with all that this process may do, and there is no compiler here to make it "
         "anew from its graphs. Give `keys`, if the file is signed; if you know who made it, set `trust`");
  }
  model->choose_target(options);
  model->read_entries(options);
  model->weights_ = model->make_weights(*model->container_, true);
  model->pool_ = std::make_unique<Pool>(options.threads > 0 ? options.threads : cores());
  return model;
}

void Model::choose_target(const Options& options) {
  std::vector<std::string> reasons, names;
  const TargetManifest* first = nullptr;
  for (const TargetManifest& target : manifest_.targets) {
    names.push_back(target.name);
    if (!options.target.empty() && target.name != options.target) continue;
    if (target.machine != machine()) {
      reasons.push_back(target.name + " is for " + target.machine + ", and this is " + machine());
      continue;
    }
    std::vector<std::string> missing;
    for (const std::string& flag : target.needs) {
      if (!cpu_has(flag) || (flag.rfind("amx", 0) == 0 && !permit(flag))) missing.push_back(flag);
    }
    if (!missing.empty()) {
      reasons.push_back(target.name + " needs " + listed(missing, ", ") + ", which this CPU (or system) does not have");
      continue;
    }
    const bool is_standalone =
        std::all_of(target.calls.begin(), target.calls.end(), [](const auto& calls) { return calls.second.empty(); });
    if (aten_ != nullptr || is_standalone) {
      chosen_ = &target;
      break;
    }
    reasons.push_back(target.name + " calls operators of torch");
    if (first == nullptr) first = &target;
  }
  if (chosen_ == nullptr) chosen_ = first;
  if (chosen_ == nullptr) {
    if (!options.target.empty() && reasons.empty()) {
      fail(LW_TARGET, "it has no target '" + options.target + "'; those that it has are " + listed(names, ", "));
    }
    fail(LW_TARGET, "it has no code for this machine: " + (reasons.empty() ? "it has no targets" : listed(reasons, "; ")) +
                        ". Export the model with targets=[...] that name one for it");
  }
  target_ = chosen_->name;
  reason_ = "picked " + target_ + (options.target.empty() ? ": the first that this CPU runs" : ", as was asked for");
  if (!reasons.empty()) reason_ += " (" + listed(reasons, "; ") + ")";
}

// The bytes of a section, once they are known to be those that were written.
std::string Model::section(const std::string& name) const {
  const auto about = manifest_.sections.find(name);
  const StoredTensor* stored = container_->find(name);
  if (about == manifest_.sections.end() || stored == nullptr) damaged("it has no section '" + name + "'");
  // A copy: the file may change while it is read.
  std::string bytes(stored->bytes);
  if (sha256(bytes) != about->second.sha256) damaged("the section '" + name + "' has another digest than the manifest says");
  return bytes;
}

void Model::read_entries(const Options& options) {
  const Json programs = Json::parse(section(chosen_->programs), "the programs");
  code_ = std::make_unique<Code>(options.calls_kernels);
  const Json::List& modules = list_of(member(programs, "modules", "the programs"), "the modules");
  for (const Json& module : modules) {
    const std::string name = text_of(module, "a module");
    code_->add(section(name), name);
  }
  const Json& layouts = member(programs, "entries", "the programs");
  written_.assign(manifest_.weights.size(), false);
  for (const EntryManifest& about : manifest_.entries) {
    auto entry = std::make_unique<Entry>();
    entry->about = &about;
    const Json& json = member(layouts, about.name.c_str(), "the programs' entries");
    entry->layout = Layout::read(json, about.numbers, modules.size(), about.inputs.size(), about.weights.size());
    complete(about, *entry->layout);
    const Layout& layout = *entry->layout;
    if (layout.outputs.size() != about.outputs.size())
      damaged("the program of '" + about.name + "' has other outputs than the manifest says");
    for (size_t i = 0; i < layout.outputs.size(); ++i) {
      const ValueLayout& value = layout.values[static_cast<size_t>(layout.outputs[i])];
      if (value.dtype != about.outputs[i].dtype || value.shape.size() != about.outputs[i].shape.size())
        damaged("an output of '" + about.name + "' is of another dtype than the manifest says");
    }
    check_weights(*entry, layout, Kind::Bound);
    if (layout.constants != nullptr) check_weights(*entry, *layout.constants, Kind::Input);
    list_calls(layout, entry->aten);
    note_writes(*entry);
    if (layout.constants != nullptr) {
      const Json& constants = *json.find("constants");
      for (const std::shared_ptr<Maker>& maker : makers_) {
        if (maker->weights == about.weights && maker->json == constants) entry->maker = maker;
      }
      if (entry->maker == nullptr) {
        entry->maker = makers_.emplace_back(std::make_shared<Maker>());
        entry->maker->weights = about.weights;
        entry->maker->layout = layout.constants.get();
        entry->maker->json = constants;
        const Json* prepacked = optional_member(programs, "prepacked", "the programs");
        const Json* known = prepacked == nullptr ? nullptr : optional_member(*prepacked, about.name.c_str(), "what is prepacked");
        if (known != nullptr) entry->maker->known = read_known(*known, about, modules.size());
        list_calls(*layout.constants, entry->maker->aten);
      }
      const Known* known = entry->maker->known.get();
      if (known == nullptr) list_calls(*layout.constants, entry->aten);
      if (known != nullptr && known->rest != nullptr) list_calls(*known->rest, entry->aten);
    }
    entries_.push_back(std::move(entry));
  }
  watch_writes();
}

// What a call of any entry writes, constants are computed of anew: of what the file has prepacked, too.
void Model::watch_writes() {
  for (const std::shared_ptr<Maker>& maker : makers_) {
    for (size_t i = 0; i < maker->weights.size(); ++i) {
      if (maker->layout->reads[i] && written_[maker->weights[i]]) maker->watched.push_back(maker->weights[i]);
    }
  }
  for (const std::unique_ptr<Entry>& entry : entries_) {
    if (entry->maker != nullptr && !entry->maker->watched.empty()) list_calls(*entry->maker->layout, entry->aten);
  }
}

// What a program leaves to torch alone, such as complex numbers, it does not describe; inputs, weights and results are as the
// manifest says.
void Model::complete(const EntryManifest& about, Layout& layout) const {
  const auto complete_weight = [&](Layout& of, size_t number, int32_t position) {
    const Weight& weight = manifest_.weights[about.weights[static_cast<size_t>(position)]];
    std::vector<Index> shape, strides;
    for (const int64_t size : weight.shape) shape.emplace_back(size);
    for (const int64_t stride : weight.strides) strides.emplace_back(stride);
    of.describe(number, weight.dtype, shape, strides);
  };
  for (size_t number = 0; number < layout.values.size(); ++number) {
    const ValueLayout& value = layout.values[number];
    if (value.dtype != LW_NO_DTYPE) continue;
    if (value.kind == Kind::Bound) complete_weight(layout, number, value.position);
    if (value.kind != Kind::Input) continue;
    const Tensed& input = about.inputs[static_cast<size_t>(value.position)];
    layout.describe(number, input.dtype, input.shape, input.strides);
  }
  for (size_t i = 0; i < layout.outputs.size() && i < about.outputs.size(); ++i) {
    const auto number = static_cast<size_t>(layout.outputs[i]);
    const Tensed& output = about.outputs[i];
    if (layout.values[number].dtype == LW_NO_DTYPE && layout.values[number].kind == Kind::Aten)
      layout.describe(number, output.dtype, output.shape, output.strides);
  }
  if (layout.constants == nullptr) return;
  for (size_t number = 0; number < layout.constants->values.size(); ++number) {
    const ValueLayout& value = layout.constants->values[number];
    if (value.dtype == LW_NO_DTYPE && value.kind == Kind::Input) complete_weight(*layout.constants, number, value.position);
  }
}

// Weights are what the program takes them for: kernels rely on it. `kind`: of the values that stand for them.
void Model::check_weights(const Entry& entry, const Layout& layout, Kind kind) const {
  for (const ValueLayout& value : layout.values) {
    if (value.kind != kind || value.dtype == LW_NO_DTYPE) continue;
    const Weight& weight = manifest_.weights[entry.about->weights[static_cast<size_t>(value.position)]];
    std::vector<int64_t> shape(value.shape.size()), strides(value.shape.size());
    bool is_known = weight.dtype == value.dtype && weight.shape.size() == value.shape.size();
    for (size_t i = 0; is_known && i < shape.size(); ++i) {
      is_known = value.shape[i].is_constant() && value.strides[i].is_constant() && value.shape[i].evaluate(nullptr, shape[i]) &&
                 value.strides[i].evaluate(nullptr, strides[i]);
    }
    if (!is_known || shape != weight.shape || !same_layout(shape.data(), shape.size(), strides.data(), weight.strides.data()))
      damaged("the program of '" + entry.about->name + "' takes the weight '" + weight.name + "' for another tensor");
  }
}

void Model::note_writes(Entry& entry) {
  const Layout& layout = *entry.layout;
  const size_t n_inputs = layout.n_inputs;
  entry.written_inputs.assign(n_inputs, false);
  entry.written_by_program.assign(n_inputs + layout.n_bound, false);
  const auto note = [&](int32_t number) {
    const ValueLayout& root = layout.values[static_cast<size_t>(root_of(layout, number))];
    const auto position = static_cast<size_t>(root.position);
    if (root.kind == Kind::Input) entry.written_by_program[position] = true;
    if (root.kind == Kind::Bound) entry.written_by_program[n_inputs + position] = true;
    if (root.kind == Kind::Constant) damaged("a program writes to a constant");
  };
  for (const StepLayout& step : layout.steps) {
    if (const auto* kernel = std::get_if<KernelLayout>(&step)) {
      for (const int32_t number : kernel->outside) note(number);
    } else if (const auto* call = std::get_if<AtenLayout>(&step)) {
      if (Copy copy{}; is_copy(*call, layout, copy)) note(copy.to);
    }
  }
  std::vector<bool> all = entry.written_by_program;
  for (const auto& [written, output] : entry.about->writes) all[written] = true;
  for (size_t i = 0; i < all.size(); ++i) {
    if (!all[i]) continue;
    if (i < n_inputs) {
      entry.written_inputs[i] = true;
    } else {
      const size_t weight = entry.about->weights[i - n_inputs];
      written_[weight] = writes_weights_ = true;
      entry.written_weights.push_back(weight);
    }
  }
}

// --- weights -------------------------------------------------------------------------------------------------

// A file of weights has none that the model does not have: it would be that of another model.
void Model::check_names(const Container& container) const {
  std::set<std::string> names;
  for (const Weight& weight : manifest_.weights) {
    if (weight.kind != "constant") names.insert({weight.name, weight.tensor});
  }
  std::vector<std::string> unknown;
  for (const auto& [name, tensor] : container.tensors()) {
    if (!is_section(name) && !is_prepacked(name) && names.count(name) == 0) unknown.push_back("'" + name + "'");
  }
  if (unknown.empty()) return;
  const size_t n_unknown = unknown.size();
  unknown.resize(std::min(n_unknown, kMostNamed));
  fail(LW_WEIGHTS, "the file has " + listed(unknown, ", ") +
                       (n_unknown > kMostNamed ? " and " + std::to_string(n_unknown - kMostNamed) + " others" : "") +
                       ", which the model does not have. Give the weights of a model of the same class and sizes");
}

std::shared_ptr<Weights> Model::make_weights(const Container& container, bool is_own) const {
  auto made = std::make_shared<Weights>();
  made->are_own = is_own;
  made->versions = std::vector<std::atomic<uint64_t>>(manifest_.weights.size());
  const std::shared_ptr<Weights> before = is_own ? nullptr : weights();
  for (size_t i = 0; i < manifest_.weights.size(); ++i) {
    const Weight& weight = manifest_.weights[i];
    const auto refuse = [&](const std::string& why) {
      fail(is_own ? LW_FORMAT : LW_WEIGHTS, "the weight '" + weight.name + "' " + why);
    };
    const StoredTensor* stored = container.find(is_own ? weight.tensor : weight.name);
    if (stored == nullptr) stored = container.find(weight.tensor);
    if (!is_own && (weight.kind == "constant" || (stored == nullptr && !weight.is_persistent))) {
      made->data.push_back(before->data[i]);
      made->owners.push_back(before->owners[i]);
      continue;
    }
    if (stored == nullptr) refuse("is not in the file: it needs all weights of the model, under the names that it has there");
    if (stored->dtype != weight.dtype)
      refuse(std::string("is ") + name_of(stored->dtype) + " in the file, and the model needs " + name_of(weight.dtype));
    const std::vector<int64_t> rows = contiguous_strides(stored->shape);
    if (stored->shape != weight.shape) {
      refuse("has the shape " + shown(stored->shape.data(), stored->shape.size()) + " in the file, and the model needs " +
             shown(weight.shape.data(), weight.shape.size()));
    }
    // Never written to: what calls write is copied below.
    char* data = const_cast<char*>(stored->bytes.data());
    const bool fits = same_layout(weight.shape.data(), weight.shape.size(), rows.data(), weight.strides.data());
    if (fits && is_aligned(data, weight.dtype) && !written_[i]) {
      made->data.push_back(data);
      made->owners.push_back(container.bytes());
      continue;
    }
    auto copy = std::make_shared<Block>(static_cast<size_t>(spanned_bytes(weight.dtype, weight.shape, weight.strides)));
    copy_strided(copy->data(), weight.strides.data(), data, rows.data(), weight.shape, size_of(weight.dtype));
    made->data.push_back(copy->data());
    made->owners.push_back(std::move(copy));
  }
  return made;
}

std::shared_ptr<Weights> Model::weights() const {
  const std::lock_guard<std::mutex> lock(weights_mutex_);
  return weights_;
}

void Model::set_weights(const std::string& path) {
  try {
    set_weights(Bytes::map(path));
  } catch (const Error& error) {
    if (error.status == LW_FILE) throw;
    throw Error(error.status, "'" + path + "': " + error.what());
  }
}

void Model::set_weights(std::shared_ptr<const Bytes> bytes) {
  std::shared_ptr<Weights> made;
  try {
    const Container container(std::move(bytes));
    check_names(container);
    made = make_weights(container, false);
  } catch (const Damaged& error) {
    fail(LW_WEIGHTS, "the file of weights is damaged: " + error.cause + ". Fetch or write it again");
  }
  const std::lock_guard<std::mutex> lock(weights_mutex_);
  weights_ = std::move(made);
}

// --- programs ------------------------------------------------------------------------------------------------

size_t Model::find_entry(const std::string& name) const {
  std::vector<std::string> names;
  for (size_t i = 0; i < manifest_.n_called; ++i) {
    if (manifest_.entries[i].name == name) return i;
    names.push_back(manifest_.entries[i].name);
  }
  fail(LW_ARGUMENT, "there is no entry '" + name + "'; those that there are: " + listed(names, ", "));
}

const std::string& Model::aten_calls(size_t entry) const { return entries_.at(entry)->aten; }

std::shared_ptr<Program> Model::place_program(const Layout& layout, const int64_t* symbols) const {
  std::shared_ptr<Program> program = Program::place(layout, symbols, *code_);
  if (aten_ == nullptr) return program;
  for (Step& step : program->steps) {
    if (auto* aten = std::get_if<Aten>(&step)) aten->call = aten_->prepare(*program, *aten->layout, symbols);
  }
  return program;
}

std::shared_ptr<Model::Placed> Model::placed(Entry& entry, const std::vector<int64_t>& symbols) {
  const std::vector<size_t>& keys = entry.layout->keys;
  const std::lock_guard<std::mutex> lock(entry.mutex);
  for (auto at = entry.placed.begin(); at != entry.placed.end(); ++at) {
    bool is_same = true;
    for (size_t i = 0; is_same && i < keys.size(); ++i) is_same = (*at)->key[i] == symbols[keys[i]];
    if (!is_same) continue;
    if (at != entry.placed.begin()) entry.placed.splice(entry.placed.begin(), entry.placed, at);
    return entry.placed.front();
  }
  auto made = std::make_shared<Placed>();
  for (const size_t key : keys) made->key.push_back(symbols[key]);
  made->program = place_program(*entry.layout, symbols.data());
  check_placed(entry, *made->program, symbols);
  entry.placed.push_front(made);
  if (entry.placed.size() > kMostPlaced) entry.placed.pop_back();
  return made;
}

// Inputs and outputs are as large as the program takes them for.
void Model::check_placed(const Entry& entry, const Program& program, const std::vector<int64_t>& symbols) const {
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    if (program.inputs[i] < 0) continue;
    const Tensed& input = entry.about->inputs[i];
    const Value& value = program.values[static_cast<size_t>(program.inputs[i])];
    const int64_t bytes =
        spanned_bytes(input.dtype, numbers_of(input.shape, symbols.data()), numbers_of(input.strides, symbols.data()));
    if (value.dtype != input.dtype || value.nbytes > bytes) damaged("the program takes the input '" + input.name + "' for another tensor");
  }
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    const Value& value = program.values[static_cast<size_t>(program.outputs[i])];
    if (value.shape != numbers_of(entry.about->outputs[i].shape, symbols.data()))
      damaged("an output of '" + entry.about->name + "' has another shape than the manifest says");
  }
  if (entry.maker == nullptr) return;
  for (size_t i = 0; i < program.constants.size(); ++i) {
    if (program.constants[i] < 0) continue;
    const Value& value = program.values[static_cast<size_t>(program.constants[i])];
    const Program& maker = *entry.maker->program;
    const Value& made = maker.values[static_cast<size_t>(maker.outputs[i])];
    if (value.dtype != made.dtype || value.nbytes > made.nbytes) damaged("the program takes a constant for another tensor");
  }
}

void Model::prepare(size_t number) {
  Entry& entry = *entries_.at(number);
  if (!entry.aten.empty() && aten_ == nullptr) {
    fail(LW_NEEDS_ATEN, "the entry '" + entry.about->name + "' calls operators of torch: " + entry.aten +
                            ". Run it with liblampwork_torch, or export it with require=\"standalone\"");
  }
  if (entry.maker != nullptr) (void)constants(*entry.maker, weights());
}

// --- calls ---------------------------------------------------------------------------------------------------

// The entry that serves a call: another one for sizes of 1. If none fits, the first one says why.
size_t Model::serving(size_t number, const std::vector<Given>& inputs) const {
  const EntryManifest& about = manifest_.entries[number];
  if (about.otherwise.empty() || fits(about, inputs)) return number;
  for (const size_t other : about.otherwise) {
    if (fits(manifest_.entries[other], inputs)) return other;
  }
  return number;
}

// Memory of the caller, for the results that can be made there.
std::vector<char*> Model::results(const EntryManifest& about, const Program& program, const std::vector<Given>& inputs,
                                  const std::vector<Given>& into) const {
  if (!into.empty() && into.size() != about.leaves.size()) {
    fail(LW_INPUT, "'" + about.name + "' gives " + std::to_string(about.leaves.size()) + " results, and got memory for " +
                       std::to_string(into.size()));
  }
  std::vector<char*> found(program.outputs.size(), nullptr);
  for (size_t i = 0; i < into.size(); ++i) {
    const Leaf& leaf = about.leaves[i];
    const Given& given = into[i];
    const auto output = static_cast<size_t>(std::max<int64_t>(leaf.output, 0));
    const Value* value = leaf.output < 0 ? nullptr : &program.values[static_cast<size_t>(program.outputs[output])];
    const lw_dtype dtype = value == nullptr ? LW_INT64 : value->dtype;
    const std::vector<int64_t> shape = value == nullptr ? std::vector<int64_t>{} : value->shape;
    if (given.dtype != dtype || given.ndim != shape.size() || !std::equal(shape.begin(), shape.end(), given.shape)) {
      fail(LW_INPUT, "the memory for the result '" + leaf.name + "' of '" + about.name + "' is for " + name_of(given.dtype) + " " +
                         shown(given.shape, given.ndim) + "; " + name_of(dtype) + " " + shown(shape.data(), shape.size()) +
                         " was expected");
    }
    const std::string what = "the memory for the result '" + leaf.name + "' of '" + about.name + "'";
    const Range range = range_of(given, what);
    const std::vector<int64_t> strides = strides_of(given);
    if (overlaps(given.shape, strides.data(), given.ndim)) {
      fail(LW_INPUT, what + " has the strides " + shown(strides.data(), given.ndim) + " for the shape " +
                         shown(given.shape, given.ndim) + ", where elements are in one another's place");
    }
    for (size_t other = 0; other < i; ++other) {
      if (range.begin != range.end && into[other].data == given.data)
        fail(LW_INPUT, what + " is that for the result '" + about.leaves[other].name + "', too");
    }
    const bool is_empty = std::find(shape.begin(), shape.end(), 0) != shape.end();
    if (given.data == nullptr && !is_empty) fail(LW_INPUT, "there is no memory for the result '" + leaf.name + "' of '" + about.name + "'");
    if (value == nullptr || is_empty || value->kind != Kind::Fresh || !is_aligned(given.data, dtype)) continue;
    if (!same_layout(shape.data(), shape.size(), strides.data(), value->strides.data())) continue;
    bool is_free = true;
    for (const Given& input : inputs) is_free = is_free && !range.meets(range_of(input, "an input"));
    if (is_free) found[output] = given.data;
  }
  return found;
}

void Model::write_back(const Entry& entry, const Program& program, const std::vector<Given>& inputs, const std::vector<Held>& held,
                       const Weights& weights) const {
  const EntryManifest& about = *entry.about;
  for (const auto& [written, output] : about.writes) {
    if (entry.written_by_program[written]) continue;
    const Value& value = program.values[static_cast<size_t>(program.outputs[output])];
    if (written < inputs.size()) {
      if (value.shape != std::vector<int64_t>(inputs[written].shape, inputs[written].shape + inputs[written].ndim) ||
          value.dtype != inputs[written].dtype) {
        damaged("what is written to the input '" + about.inputs[written].name + "' is another tensor");
      }
      copy_strided(inputs[written].data, strides_of(inputs[written]).data(), held[output].data, value.strides.data(), value.shape,
                   size_of(value.dtype));
    } else {
      const size_t at = about.weights[written - inputs.size()];
      const Weight& weight = manifest_.weights[at];
      if (value.shape != weight.shape || value.dtype != weight.dtype)
        damaged("what is written to the weight '" + weight.name + "' is another tensor");
      copy_strided(weights.data[at], weight.strides.data(), held[output].data, value.strides.data(), value.shape, size_of(value.dtype));
    }
  }
}

namespace {

// Lets a result lie in an input; one that would, but cannot, gets memory of its own.
void show(Output& output, std::optional<Alias> alias, const std::vector<Given>& inputs) {
  const size_t size = size_of(output.dtype);
  if (alias) {
    output.held = {inputs[alias->input].data + alias->offset * static_cast<int64_t>(size), nullptr, nullptr};
    output.strides = alias->strides;
    output.alias = std::move(alias);
  } else if (output.held.owner == nullptr) {
    auto copy = std::make_shared<Block>(static_cast<size_t>(spanned_bytes(output.dtype, output.shape, output.strides)));
    copy_strided(copy->data(), output.strides.data(), output.held.data, output.strides.data(), output.shape, size);
    output.held = {copy->data(), copy, nullptr};
  }
}

}  // namespace

std::vector<Output> Model::run(size_t called, const std::vector<Given>& inputs, const std::vector<int64_t>& numbers,
                               const std::vector<Given>& into) {
  const size_t number = serving(called, inputs);
  Entry& entry = *entries_.at(number);
  const EntryManifest& about = *entry.about;
  if (!entry.aten.empty() && aten_ == nullptr) prepare(number);
  const std::vector<int64_t> symbols = solve(manifest_, about, inputs, numbers);
  check_written(about, inputs, entry.written_inputs);

  std::unique_lock<std::shared_mutex> alone(writing_, std::defer_lock);
  std::shared_lock<std::shared_mutex> shared(writing_, std::defer_lock);
  if (!entry.written_weights.empty()) {
    alone.lock();
  } else if (writes_weights_) {
    shared.lock();
  }
  const std::shared_ptr<Weights> weights = this->weights();
  const std::shared_ptr<const Constants> constants = entry.maker == nullptr ? nullptr : this->constants(*entry.maker, weights);
  const std::shared_ptr<Placed> placed = this->placed(entry, symbols);
  const Program& program = *placed->program;

  // Inputs in the layouts that the program was made for.
  std::vector<char*> data(inputs.size());
  std::vector<std::shared_ptr<void>> objects(inputs.size());
  std::vector<std::unique_ptr<Block>> copies(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Given& given = inputs[i];
    const std::vector<int64_t> wanted = numbers_of(about.inputs[i].strides, symbols.data());
    const std::vector<int64_t> there = strides_of(given);
    data[i] = given.data;
    objects[i] = given.object;
    const bool is_same = same_layout(given.shape, given.ndim, there.data(), wanted.data());
    if (is_same && is_aligned(given.data, given.dtype)) continue;
    if (!is_same && overlaps(given.shape, wanted.data(), given.ndim)) {
      fail(LW_INPUT, "the input '" + about.inputs[i].name + "' of '" + about.name + "' has the strides " +
                         shown(there.data(), given.ndim) + "; " + shown(wanted.data(), given.ndim) +
                         " were expected, where elements are in one another's place. Export the model again, with an example "
                         "that is contiguous");
    }
    const std::vector<int64_t> shape(given.shape, given.shape + given.ndim);
    copies[i] = std::make_unique<Block>(static_cast<size_t>(spanned_bytes(given.dtype, shape, wanted)));
    copy_strided(copies[i]->data(), wanted.data(), given.data, there.data(), shape, size_of(given.dtype));
    data[i] = copies[i]->data();
    objects[i] = nullptr;
  }

  std::vector<char*> results = this->results(about, program, inputs, into);
  std::vector<char*> bound;
  for (const size_t weight : about.weights) bound.push_back(weights->data[weight]);
  static const std::vector<Held> no_constants;
  Lease lease(*placed, arenas_);
  const Call call{symbols.data(), data.data(), bound, constants == nullptr ? no_constants : constants->held,
                  into.empty() ? nullptr : results.data(), *pool_, aten_, lease.arena(), objects.data(),
                  into.empty() ? &entry.written_inputs : nullptr};
  std::vector<Held> held;
  const auto count_writes = [&] {
    for (const size_t weight : entry.written_weights) weights->versions[weight].fetch_add(1);
  };
  try {
    held = execute(lease.frame(), call, false);
  } catch (...) {
    count_writes();
    throw;
  }

  write_back(entry, program, inputs, held, *weights);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (copies[i] == nullptr || !entry.written_by_program[i]) continue;
    copy_strided(inputs[i].data, strides_of(inputs[i]).data(), copies[i]->data(),
                 numbers_of(about.inputs[i].strides, symbols.data()).data(),
                 {inputs[i].shape, inputs[i].shape + inputs[i].ndim}, size_of(inputs[i].dtype));
  }
  count_writes();

  std::vector<Output> outputs;
  for (size_t i = 0; i < about.leaves.size(); ++i) {
    const Leaf& leaf = about.leaves[i];
    Output output{};
    if (leaf.output < 0) {
      int64_t value = 0;
      if (!leaf.number.evaluate(symbols.data(), value)) fail(LW_INPUT, "the number '" + leaf.name + "' leaves int64");
      auto block = std::make_shared<Block>(sizeof value);
      std::memcpy(block->data(), &value, sizeof value);
      output.held.data = block->data();
      output.held.owner = std::move(block);
      output.dtype = LW_INT64;
    } else {
      const auto at = static_cast<size_t>(leaf.output);
      const Value& value = program.values[static_cast<size_t>(program.outputs[at])];
      output.held = held[at];
      output.dtype = value.dtype;
      output.shape = value.shape;
      output.strides = value.strides;
      if (into.empty()) show(output, find_alias(about, entry.written_inputs, lease.frame(), inputs, at, aten_), inputs);
    }
    if (!into.empty() && output.held.data != into[i].data) {
      copy_strided(into[i].data, strides_of(into[i]).data(), output.held.data, output.strides.data(), output.shape,
                   size_of(output.dtype));
    }
    outputs.push_back(std::move(output));
  }
  return outputs;
}

}  // namespace lampwork::runtime
