#include "program.h"

#include "arena.h"
#include "strides.h"

#include <algorithm>

namespace lampwork::runtime {

namespace {

class Placer {
 public:
  Placer(const Layout& layout, const int64_t* symbols, const Functions& functions)
      : layout_(layout), symbols_(symbols), functions_(functions), program_(std::make_shared<Program>()) {
    for (const auto& [name, place] : layout.symbols) {
      if (!std::binary_search(layout.keys.begin(), layout.keys.end(), place)) late_.insert(place);
    }
  }

  std::shared_ptr<Program> place() {
    program_->layout = &layout_;
    for (const ValueLayout& value : layout_.values) program_->values.push_back(place_value(value));
    find_roots();
    place_arena();
    for (const StepLayout& step : layout_.steps) program_->steps.push_back(place_step(step));
    for (const UndoLayout& undo : layout_.undo) program_->undo.push_back({undo.at, kernel(undo.kernel)});
    program_->outputs = layout_.outputs;
    number_values();
    for (const Step& step : program_->steps) {
      const auto* one = std::get_if<Kernel>(&step);
      if (one != nullptr && one->extent > one->grain) program_->grains += one->extent / one->grain;
    }
    return std::move(program_);
  }

 private:
  int64_t number(const Index& index) const {
    int64_t value = 0;
    if (!index.evaluate(symbols_, value)) fail(LW_INPUT, "a size that follows from those of the inputs does not fit int64");
    return value;
  }

  std::vector<int64_t> sizes(const std::vector<Index>& indices) const {
    std::vector<int64_t> found;
    for (const Index& index : indices) {
      found.push_back(number(index));
      if (found.back() < 0) damaged("a size or stride of a program is negative");
    }
    return found;
  }

  Value place_value(const ValueLayout& layout) const {
    Value value{};
    value.kind = layout.kind;
    value.dtype = layout.dtype;
    value.position = layout.position;
    value.shape = sizes(layout.shape);
    value.strides = sizes(layout.strides);
    value.nbytes = layout.dtype == LW_NO_DTYPE ? 0 : spanned_bytes(layout.dtype, value.shape, value.strides);
    return value;
  }

  // Finds the memory that every value lies in. Views lie inside of it, which is checked here, where sizes are numbers.
  void find_roots() {
    std::vector<Value>& values = program_->values;
    for (size_t number = 0; number < values.size(); ++number) {
      Value& value = values[number];
      size_t at = number;
      int64_t bytes = 0;
      while (values[at].kind == Kind::View) {
        const ValueLayout& view = layout_.values[at];
        int64_t step = 0;
        if (__builtin_mul_overflow(this->number(view.offset), static_cast<int64_t>(size_of(view.dtype)), &step) ||
            __builtin_add_overflow(bytes, step, &bytes)) {
          damaged("the offset of a view leaves int64");
        }
        at = static_cast<size_t>(view.base);
      }
      value.root = static_cast<int32_t>(at);
      value.root_bytes = bytes;
      if (value.kind != Kind::View) continue;
      const Value& root = values[at];
      if (value.nbytes == 0) {
        value.root_bytes = 0;
        continue;
      }
      if (root.dtype == LW_NO_DTYPE) damaged("a view of memory that is known to torch alone");
      if (bytes < 0 || bytes > root.nbytes || value.nbytes > root.nbytes - bytes)
        damaged("a view reaches beyond the memory that it is of");
    }
  }

  void place_arena() {
    std::vector<int64_t> nbytes;
    for (const Value& value : program_->values) nbytes.push_back(value.nbytes);
    const Placement placement = place_in_arena(layout_.memory, nbytes);
    program_->arena_bytes = static_cast<size_t>(placement.bytes);
    for (size_t number = 0; number < program_->values.size(); ++number) {
      Value& value = program_->values[number];
      if (value.kind != Kind::Arena) continue;
      const auto found = placement.offsets.find(static_cast<int32_t>(number));
      if (found == placement.offsets.end()) damaged("a value of the arena has no place in it");
      value.offset = found->second;
      program_->arena.push_back(static_cast<int32_t>(number));
    }
  }

  Kernel kernel(const KernelLayout& layout) const {
    Kernel made{};
    made.layout = &layout;
    made.function = functions_.find(layout.module, layout.function);
    for (const int32_t buffer : layout.buffers) {
      const Value& value = program_->values[static_cast<size_t>(buffer)];
      if (value.dtype == LW_NO_DTYPE) damaged("a kernel takes what is known to torch alone");
      made.buffers.push_back({value.root, value.root_bytes});
    }
    for (const Index& size : layout.sizes) {
      std::set<size_t> needed;
      size.collect(needed);
      const bool is_late = std::any_of(needed.begin(), needed.end(), [&](size_t each) { return late_.count(each) != 0; });
      if (is_late) made.late.push_back({made.sizes.size(), &size});
      made.sizes.push_back(is_late ? 0 : number(size));
    }
    made.extent = number(layout.extent);
    const int64_t work = std::max<int64_t>(1, number(layout.work));
    made.grain = std::max<int64_t>(1, layout.chunk / work + (layout.chunk % work != 0 ? 1 : 0));
    return made;
  }

  Step place_step(const StepLayout& step) const {
    if (const auto* one = std::get_if<KernelLayout>(&step)) return kernel(*one);
    if (const auto* aten = std::get_if<AtenLayout>(&step)) {
      if (Copy copy{}; is_copy(*aten, layout_, copy)) {
        const Value& to = program_->values[static_cast<size_t>(copy.to)];
        const Value& from = program_->values[static_cast<size_t>(copy.from)];
        int64_t bytes = static_cast<int64_t>(size_of(to.dtype));
        for (const int64_t size : to.shape) {
          if (__builtin_mul_overflow(bytes, size, &bytes)) damaged("a tensor that is copied to is larger than any memory");
        }
        if (to.shape != from.shape || bytes > to.nbytes) damaged("a tensor is copied to one of another shape, or that overlaps itself");
        const bool is_apart = to.root != from.root || to.root_bytes >= from.root_bytes + from.nbytes ||
                              from.root_bytes >= to.root_bytes + to.nbytes;
        const bool is_itself = to.root_bytes == from.root_bytes && to.strides == from.strides;
        if (!is_apart && !is_itself) damaged("a tensor is copied to another part of its own memory");
        return copy;
      }
      return Aten{aten, nullptr};
    }
    if (const auto* take = std::get_if<TakeLayout>(&step)) return Take{take->values};
    Release release;
    for (const int32_t number : std::get<ReleaseLayout>(step).values) {
      for (size_t other = 0; other < program_->values.size(); ++other) {
        if (program_->values[other].root == number) release.values.push_back(static_cast<int32_t>(other));
      }
    }
    return release;
  }

  void number_values() {
    Program& program = *program_;
    program.inputs.assign(layout_.n_inputs, -1);
    program.bound.assign(layout_.n_bound, -1);
    program.constants.assign(layout_.n_constants, -1);
    std::vector<bool> taken(program.values.size());
    for (const Step& step : program.steps) {
      const auto* take = std::get_if<Take>(&step);
      if (take == nullptr) continue;
      for (const int32_t number : take->values) taken[static_cast<size_t>(number)] = true;
    }
    for (size_t number = 0; number < program.values.size(); ++number) {
      const Value& value = program.values[number];
      const auto at = static_cast<size_t>(value.position);
      const auto as_int = static_cast<int32_t>(number);
      if (value.kind == Kind::Input) program.inputs[at] = as_int;
      if (value.kind == Kind::Bound) program.bound[at] = as_int;
      if (value.kind == Kind::Constant) program.constants[at] = as_int;
      if (value.kind == Kind::Heap && !taken[number]) damaged("a heap value is never taken");
      if (value.kind == Kind::Fresh && !taken[number]) program.fresh.push_back(as_int);
    }
  }

  const Layout& layout_;
  const int64_t* symbols_;
  const Functions& functions_;
  std::set<size_t> late_;
  std::shared_ptr<Program> program_;
};

}  // namespace

bool is_copy(const AtenLayout& call, const Layout& layout, Copy& copy) {
  if (call.op != "aten::copy_.default" || call.args.size() != 2 || !call.kwargs.empty()) return false;
  const Json* to_ref = call.args[0].find("ref");
  const Json* from_ref = call.args[1].find("ref");
  if (to_ref == nullptr || from_ref == nullptr) return false;
  const auto most = static_cast<int64_t>(layout.values.size()) - 1;
  copy.to = static_cast<int32_t>(integer_of(*to_ref, "what is copied to", 0, most));
  copy.from = static_cast<int32_t>(integer_of(*from_ref, "what is copied", 0, most));
  const ValueLayout& to = layout.values[static_cast<size_t>(copy.to)];
  const ValueLayout& from = layout.values[static_cast<size_t>(copy.from)];
  const bool is_used = std::any_of(call.outs.begin(), call.outs.end(), [](int32_t out) { return out >= 0; });
  return !is_used && to.dtype != LW_NO_DTYPE && to.dtype == from.dtype && to.shape.size() == from.shape.size();
}

std::shared_ptr<Program> Program::place(const Layout& layout, const int64_t* symbols, const Functions& functions) {
  return Placer(layout, symbols, functions).place();
}

}  // namespace lampwork::runtime
