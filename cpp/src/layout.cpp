#include "layout.h"

#include <algorithm>

namespace lampwork::runtime {

namespace {

constexpr size_t kMostDimensions = 64;

Kind kind_of(const std::string& name) {
  static const std::map<std::string, Kind> kinds = {
      {"input", Kind::Input}, {"bound", Kind::Bound}, {"constant", Kind::Constant}, {"arena", Kind::Arena},
      {"heap", Kind::Heap},   {"fresh", Kind::Fresh}, {"aten", Kind::Aten},         {"view", Kind::View}};
  const auto found = kinds.find(name);
  if (found == kinds.end()) fail(LW_VERSION, "a program has a value of the kind '" + name + "', which this library does not know");
  return found->second;
}

class Reader {
 public:
  Reader(Layout& layout, bool is_constants) : layout_(layout), is_constants_(is_constants) {}

  void read(const Json& json, const SymbolNumbers& symbols, size_t n_inputs, size_t n_bound) {
    const std::string what = is_constants_ ? "the program of constants" : "a program";
    layout_.symbols = symbols;
    if (const Json* device = optional_member(json, "device", what); device != nullptr && text_of(*device, "the device of " + what) != "cpu")
      fail(LW_VERSION, what + " runs on the device " + device->shown() + "; this library runs those of the CPU");
    layout_.n_inputs = count(json, "n_inputs", what);
    layout_.n_bound = count(json, "n_bound", what);
    if (layout_.n_inputs != n_inputs || layout_.n_bound != n_bound) damaged(what + " has other inputs or weights than the entry");
    for (const Json& value : list_of(member(json, "values", what), "the values of " + what)) read_value(value);
    check_values();
    for (const Json& item : list_of(member(json, "memory", what), "the memory of " + what)) {
      const Json::List& event = pair_of(item, "an item of the memory of " + what);
      const int32_t number = value_number(event[1], "the memory of " + what);
      if (layout_.values[static_cast<size_t>(number)].kind != Kind::Arena)
        damaged("the memory of " + what + " names a value that does not lie in the arena");
      layout_.memory.emplace_back(truth_of(event[0], "the memory of " + what), number);
    }
    for (const Json& step : list_of(member(json, "steps", what), "the steps of " + what)) read_step(step);
    for (const Json& output : list_of(member(json, "outputs", what), "the outputs of " + what))
      layout_.outputs.push_back(value_number(output, "an output of " + what));
    if (const Json* undo = optional_member(json, "undo", what)) {
      for (const Json& item : list_of(*undo, "the undoing steps of " + what)) {
        const Json::List& pair = pair_of(item, "an undoing step of " + what);
        const int64_t at = integer_of(pair[0], "a step to undo", 0, static_cast<int64_t>(layout_.steps.size()) - 1);
        layout_.undo.push_back({static_cast<size_t>(at), kernel(pair[1])});
      }
    }
    for (const Json& key : list_of(member(json, "keys", what), "the keys of " + what)) {
      const auto found = symbols.find(text_of(key, "a key of " + what));
      if (found == symbols.end()) damaged(what + " depends on the symbol " + key.shown() + ", which there is not");
      layout_.keys.push_back(found->second);
    }
    std::sort(layout_.keys.begin(), layout_.keys.end());
    check_keys();
    check_lives();
    if (const Json* constants = optional_member(json, "constants", what)) {
      if (is_constants_) damaged("the program of constants has constants");
      layout_.constants = std::make_unique<Layout>();
      layout_.constants->n_modules = layout_.n_modules;
      Reader(*layout_.constants, true).read(*constants, {}, n_bound, 0);
    }
    const size_t made = layout_.constants == nullptr ? 0 : layout_.constants->outputs.size();
    if (layout_.n_constants > made) damaged(what + " reads constants that nothing computes");
  }

 private:
  static size_t count(const Json& json, const char* name, const std::string& what) {
    return static_cast<size_t>(integer_of(member(json, name, what), std::string("'") + name + "' of " + what, 0, kMostCount));
  }

  Index index(const Json& json, const std::string& what) const { return Index::read(json, layout_.symbols, what); }

  std::vector<Index> indices(const Json& json, const std::string& what) const {
    std::vector<Index> found;
    for (const Json& each : list_of(json, what)) found.push_back(index(each, what));
    return found;
  }

  int32_t value_number(const Json& json, const std::string& what) const {
    return static_cast<int32_t>(integer_of(json, what, 0, static_cast<int64_t>(layout_.values.size()) - 1));
  }

  std::vector<int32_t> value_numbers(const Json& json, const std::string& what) const {
    std::vector<int32_t> found;
    for (const Json& each : list_of(json, what)) found.push_back(value_number(each, what));
    return found;
  }

  void read_value(const Json& json) {
    const std::string what = "value " + std::to_string(layout_.values.size()) + " of a program";
    ValueLayout value;
    value.kind = kind_of(text_of(member(json, "kind", what), "the kind of " + what));
    if (const Json* device = optional_member(json, "device", what); device != nullptr && text_of(*device, "the device of " + what) != "cpu")
      fail(LW_VERSION, what + " lies on the device " + device->shown() + "; this library knows the CPU alone");
    if (const Json* dtype = optional_member(json, "dtype", what)) {
      const std::string name = text_of(*dtype, "the dtype of " + what);
      const DType* found = find_dtype(name);
      if (found == nullptr) fail(LW_VERSION, what + " has the dtype " + name + ", which this library does not know");
      value.dtype = found->dtype;
    }
    if (const Json* shape = optional_member(json, "shape", what)) value.shape = indices(*shape, "the shape of " + what);
    if (const Json* strides = optional_member(json, "strides", what)) value.strides = indices(*strides, "the strides of " + what);
    if (value.shape.size() != value.strides.size() || value.shape.size() > kMostDimensions)
      damaged("shape and strides of " + what + " differ in length, or are too long");
    if (const Json* offset = optional_member(json, "offset", what)) value.offset = index(*offset, "the offset of " + what);
    if (const Json* base = optional_member(json, "base", what))
      value.base = static_cast<int32_t>(integer_of(*base, "the base of " + what, -1, kMostCount - 1));
    if (const Json* position = optional_member(json, "position", what))
      value.position = static_cast<int32_t>(integer_of(*position, "the position of " + what, -1, kMostCount - 1));
    layout_.values.push_back(std::move(value));
  }

  void check_values() {
    const auto n_values = static_cast<int32_t>(layout_.values.size());
    std::vector<bool> inputs(layout_.n_inputs), bound(layout_.n_bound);
    std::set<int32_t> constants;
    for (const ValueLayout& value : layout_.values) {
      const bool owns_memory = value.kind == Kind::Arena || value.kind == Kind::Heap || value.kind == Kind::Fresh;
      if ((owns_memory || value.kind == Kind::View) && value.dtype == LW_NO_DTYPE) damaged("a value of a program has no dtype");
      if (value.kind == Kind::View) {
        if (value.base < 0 || value.base >= n_values) damaged("a view has no base");
      } else if (value.kind == Kind::Input || value.kind == Kind::Bound) {
        std::vector<bool>& seen = value.kind == Kind::Input ? inputs : bound;
        const auto at = static_cast<size_t>(value.position);
        if (value.position < 0 || at >= seen.size() || seen[at]) damaged("an input or weight of a program has no position of its own");
        seen[at] = true;
      } else if (value.kind == Kind::Constant) {
        if (value.position < 0 || !constants.insert(value.position).second) damaged("a constant has no position of its own");
        layout_.n_constants = std::max(layout_.n_constants, static_cast<size_t>(value.position) + 1);
      }
    }
    check_bases();
  }

  // Views end at something that is none.
  void check_bases() const {
    std::vector<char> ends(layout_.values.size(), 0);  // 1: looked at, 2: it does
    for (size_t start = 0; start < ends.size(); ++start) {
      std::vector<size_t> way;
      size_t at = start;
      while (layout_.values[at].kind == Kind::View && ends[at] != 2) {
        if (ends[at] == 1) damaged("a view is a view of itself");
        ends[at] = 1;
        way.push_back(at);
        at = static_cast<size_t>(layout_.values[at].base);
      }
      for (const size_t each : way) ends[each] = 2;
    }
  }

  KernelLayout kernel(const Json& json) const {
    const std::string what = "a kernel's step";
    const Json::List& code = pair_of(member(json, "kernel", what), "the kernel of a step");
    KernelLayout made;
    made.module = static_cast<size_t>(
        integer_of(code[0], "the module of a kernel", 0, static_cast<int64_t>(layout_.n_modules) - 1));
    made.function = text_of(code[1], "the function of a kernel");
    made.buffers = value_numbers(member(json, "buffers", what), "a buffer of a kernel");
    made.sizes = indices(member(json, "sizes", what), "a size of a kernel");
    made.extent = index(member(json, "extent", what), "the extent of a kernel");
    made.work = index(member(json, "work", what), "the work of a kernel");
    made.chunk = integer_of(member(json, "chunk", what), "the chunk of a kernel", 0);
    if (const Json* name = optional_member(json, "name", what)) made.name = text_of(*name, "the name of a kernel");
    if (made.name.empty()) made.name = made.function;
    if (const Json* outside = optional_member(json, "outside", what)) {
      made.outside = value_numbers(*outside, "what a kernel writes to outside");
      for (const int32_t number : made.outside) {
        const Kind root = layout_.values[root_of(number)].kind;
        if (root != Kind::Input && root != Kind::Bound) damaged("memory outside that is none of an input");
      }
    }
    return made;
  }

  size_t root_of(int32_t number) const {
    auto at = static_cast<size_t>(number);
    while (layout_.values[at].kind == Kind::View) at = static_cast<size_t>(layout_.values[at].base);
    return at;
  }

  void read_step(const Json& json) {
    const std::string what = "a step of a program";
    if (optional_member(json, "kernel", what) != nullptr) {
      layout_.steps.emplace_back(kernel(json));
    } else if (const Json* op = optional_member(json, "aten", what)) {
      AtenLayout call;
      call.op = text_of(*op, "the operator of " + what);
      call.args = list_of(member(json, "args", what), "the arguments of " + call.op);
      for (const Json& item : list_of(member(json, "kwargs", what), "the arguments of " + call.op)) {
        const Json::List& pair = pair_of(item, "an argument of " + call.op);
        call.kwargs.emplace_back(text_of(pair[0], "the name of an argument of " + call.op), pair[1]);
      }
      for (const Json& out : list_of(member(json, "outs", what), "the results of " + call.op)) {
        const int64_t number = integer_of(out, "a result of " + call.op, -1, static_cast<int64_t>(layout_.values.size()) - 1);
        if (number >= 0 && layout_.values[static_cast<size_t>(number)].kind != Kind::Aten)
          damaged("the result of " + call.op + " is no value of such a call");
        call.outs.push_back(static_cast<int32_t>(number));
      }
      if (const Json* name = optional_member(json, "name", what)) call.name = text_of(*name, "the name of " + call.op);
      layout_.steps.emplace_back(std::move(call));
    } else if (const Json* released = optional_member(json, "release", what)) {
      layout_.steps.emplace_back(ReleaseLayout{value_numbers(*released, "a value that is released")});
    } else if (const Json* taken = optional_member(json, "take", what)) {
      TakeLayout take{value_numbers(*taken, "a value that memory is taken for")};
      for (const int32_t number : take.values) {
        const Kind kind = layout_.values[static_cast<size_t>(number)].kind;
        if (kind != Kind::Heap && kind != Kind::Fresh) damaged("memory is taken for what has none of its own");
      }
      layout_.steps.emplace_back(std::move(take));
    } else {
      fail(LW_VERSION, "a program has a step of a kind that this library does not know");
    }
  }

  // All that a program is placed by is known from its keys.
  void check_keys() const {
    std::set<size_t> needed;
    for (const ValueLayout& value : layout_.values) {
      for (const Index& each : value.shape) each.collect(needed);
      for (const Index& each : value.strides) each.collect(needed);
      value.offset.collect(needed);
    }
    const auto of_kernel = [&needed](const KernelLayout& kernel) {
      kernel.extent.collect(needed);
      kernel.work.collect(needed);
    };
    for (const StepLayout& step : layout_.steps) {
      if (const auto* kernel = std::get_if<KernelLayout>(&step)) of_kernel(*kernel);
    }
    for (const UndoLayout& undo : layout_.undo) of_kernel(undo.kernel);
    if (!std::includes(layout_.keys.begin(), layout_.keys.end(), needed.begin(), needed.end()))
      damaged("the size of something depends on a symbol that the program is not placed by");
  }

  // What steps and outputs use has been made, and is not released. Notes which inputs that is.
  void check_lives() {
    enum class Life : uint8_t { There, Coming, Gone };
    std::vector<Life> lives(layout_.values.size(), Life::There);
    for (const StepLayout& step : layout_.steps) {
      const auto* take = std::get_if<TakeLayout>(&step);
      if (take == nullptr) continue;
      for (const int32_t number : take->values) lives[static_cast<size_t>(number)] = Life::Coming;
    }
    for (size_t number = 0; number < lives.size(); ++number) {
      const Kind kind = layout_.values[number].kind;
      if (kind == Kind::Aten || kind == Kind::Heap) lives[number] = Life::Coming;
    }
    const auto expect = [&](int32_t number) {
      if (lives[root_of(number)] != Life::There) damaged("a step uses a value before it is made, or after it is released");
    };
    layout_.reads.assign(layout_.n_inputs, false);
    const auto use = [&](int32_t number) {
      expect(number);
      const ValueLayout& root = layout_.values[root_of(number)];
      if (root.kind == Kind::Input) layout_.reads[static_cast<size_t>(root.position)] = true;
    };
    for (const StepLayout& step : layout_.steps) {
      if (const auto* kernel = std::get_if<KernelLayout>(&step)) {
        for (const int32_t buffer : kernel->buffers) use(buffer);
      } else if (const auto* aten = std::get_if<AtenLayout>(&step)) {
        for (const Json& argument : aten->args) use_argument(argument, use);
        for (const auto& [name, argument] : aten->kwargs) use_argument(argument, use);
        for (const int32_t out : aten->outs) {
          if (out >= 0) lives[static_cast<size_t>(out)] = Life::There;
        }
      } else if (const auto* take = std::get_if<TakeLayout>(&step)) {
        for (const int32_t number : take->values) {
          if (lives[static_cast<size_t>(number)] != Life::Coming) damaged("memory is taken twice for a value");
          lives[static_cast<size_t>(number)] = Life::There;
        }
      } else {
        for (const int32_t number : std::get<ReleaseLayout>(step).values) {
          expect(number);
          const Kind kind = layout_.values[static_cast<size_t>(number)].kind;
          const bool is_owner = kind == Kind::Aten || kind == Kind::Heap || kind == Kind::Fresh || kind == Kind::Input;
          if (!is_owner) damaged("a value is released that has no memory of its own");
          lives[static_cast<size_t>(number)] = Life::Gone;
        }
      }
    }
    for (const int32_t output : layout_.outputs) use(output);
    // Undoing runs after any step: what it uses is there from the start to the end.
    for (const UndoLayout& undo : layout_.undo) {
      for (const int32_t buffer : undo.kernel.buffers) use(buffer);
    }
  }

  template <class Use>
  void use_argument(const Json& json, const Use& use) const {
    if (const Json* ref = json.find("ref")) use(value_number(*ref, "an argument of an operator"));
    for (const char* items : {"l", "t"}) {
      const Json* list = json.find(items);
      if (list == nullptr) continue;
      for (const Json& item : list_of(*list, "an argument of an operator")) use_argument(item, use);
    }
  }

  Layout& layout_;
  bool is_constants_;
};

}  // namespace

std::unique_ptr<Layout> Layout::read(const Json& json, const SymbolNumbers& symbols, size_t n_modules, size_t n_inputs,
                                     size_t n_bound) {
  auto layout = std::make_unique<Layout>();
  layout->n_modules = n_modules;
  Reader(*layout, false).read(json, symbols, n_inputs, n_bound);
  return layout;
}

void Layout::describe(size_t number, lw_dtype dtype, const std::vector<Index>& shape, const std::vector<Index>& strides) {
  ValueLayout& value = values[number];
  value.dtype = dtype;
  value.shape = shape;
  value.strides = strides;
  std::set<size_t> placed_by(keys.begin(), keys.end());
  for (const Index& each : shape) each.collect(placed_by);
  for (const Index& each : strides) each.collect(placed_by);
  keys.assign(placed_by.begin(), placed_by.end());
}

}  // namespace lampwork::runtime
