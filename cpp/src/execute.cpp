#include "execute.h"

#include "error.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>

namespace lampwork::runtime {

namespace {

using Clock = std::chrono::steady_clock;

// Grains of work, of about 2 us each, that are worth waking threads for.
constexpr int64_t kWorthWaking = 64;

struct Shared {
  KernelFunction function;
  void** buffers;
  const int64_t* sizes;
  std::atomic<bool> failed{false};

  static void work(void* context, int64_t begin, int64_t end) {
    auto& self = *static_cast<Shared*>(context);
    if (self.function(self.buffers, self.sizes, begin, end) != 0) self.failed.store(true, std::memory_order_relaxed);
  }
};

class Run {
 public:
  Run(Frame& frame, const Call& call) : program_(frame.program), frame_(frame), call_(call) {}

  void begin() {
    frame_.symbols = call_.symbols;
    frame_.arena = call_.arena;
    for (const int32_t number : program_.arena)
      frame_.data[at(number)] = call_.arena + program_.values[at(number)].offset;
    for (size_t i = 0; i < program_.inputs.size(); ++i) {
      if (program_.inputs[i] < 0) continue;
      frame_.data[at(program_.inputs[i])] = call_.inputs[i];
      if (call_.input_objects != nullptr) frame_.objects[at(program_.inputs[i])] = call_.input_objects[i];
    }
    for (size_t i = 0; i < program_.bound.size(); ++i) {
      if (program_.bound[i] >= 0) frame_.data[at(program_.bound[i])] = call_.weights[i];
    }
    for (size_t i = 0; i < program_.constants.size(); ++i) {
      if (program_.constants[i] < 0) continue;
      frame_.data[at(program_.constants[i])] = call_.constants[i].data;
      frame_.objects[at(program_.constants[i])] = call_.constants[i].object;
    }
    if (call_.results != nullptr) {
      for (size_t i = 0; i < program_.outputs.size(); ++i) {
        const size_t number = at(program_.outputs[i]);
        if (program_.values[number].kind == Kind::Fresh && frame_.data[number] == nullptr)
          frame_.data[number] = call_.results[i];
      }
    }
    for (const int32_t number : program_.fresh) {
      if (frame_.data[at(number)] == nullptr) own(number);
    }
  }

  void steps() {
    size_t at_step = 0;
    try {
      for (; at_step < program_.steps.size(); ++at_step) step(program_.steps[at_step]);
    } catch (...) {
      for (size_t i = program_.undo.size(); i-- > 0;) {
        if (program_.undo[i].at <= at_step) kernel(program_.undo[i].kernel);
      }
      throw;
    }
  }

  std::vector<Held> outputs(bool shares) {
    std::vector<Held> found;
    for (const int32_t number : program_.outputs) found.push_back(output(number, shares));
    return found;
  }

 private:
  static size_t at(int32_t number) { return static_cast<size_t>(number); }

  void own(int32_t number) {
    frame_.blocks[at(number)] = std::make_shared<Block>(static_cast<size_t>(program_.values[at(number)].nbytes));
    frame_.data[at(number)] = frame_.blocks[at(number)]->data();
  }

  void step(const Step& step) {
    if (const auto* one = std::get_if<Kernel>(&step)) {
      kernel(*one);
    } else if (const auto* aten = std::get_if<Aten>(&step)) {
      if (call_.aten == nullptr) fail(LW_NEEDS_ATEN, "it calls " + aten->layout->op + " of torch: run it with liblampwork_torch");
      call_.aten->call(*aten, frame_);
    } else if (const auto* copied = std::get_if<Copy>(&step)) {
      copy(*copied);
    } else if (const auto* release = std::get_if<Release>(&step)) {
      for (const int32_t number : release->values) {
        frame_.objects[at(number)] = nullptr;
        frame_.blocks[at(number)] = nullptr;
        const Kind kind = program_.values[at(number)].kind;
        if (kind == Kind::Heap || kind == Kind::Fresh) frame_.data[at(number)] = nullptr;
      }
    } else {
      for (const int32_t number : std::get<Take>(step).values) {
        if (frame_.data[at(number)] == nullptr) own(number);  // else it is a result in memory of the caller
      }
    }
  }

  void kernel(const Kernel& kernel) {
    if (kernel.extent <= 0) return;
    constexpr size_t kFew = 32;
    std::array<void*, kFew> few;
    std::vector<void*> many;
    void** buffers = few.data();
    if (kernel.buffers.size() > kFew) {
      many.resize(kernel.buffers.size());
      buffers = many.data();
    }
    for (size_t i = 0; i < kernel.buffers.size(); ++i)
      buffers[i] = frame_.data[at(kernel.buffers[i].root)] + kernel.buffers[i].bytes;
    const int64_t* sizes = kernel.sizes.data();
    std::vector<int64_t> filled;
    if (!kernel.late.empty()) {
      filled = kernel.sizes;
      for (const LateSize& late : kernel.late) {
        if (!late.index->evaluate(call_.symbols, filled[late.position])) fail(LW_INPUT, "a number of a kernel leaves int64");
      }
      sizes = filled.data();
    }
    if (kernel.function == nullptr) return touch(kernel);
    bool failed = false;
    if (kernel.extent > kernel.grain && call_.pool.threads() > 1) {
      Shared shared{kernel.function, buffers, sizes};
      call_.pool.share(kernel.extent, kernel.grain, program_.grains >= kWorthWaking, &Shared::work, &shared);
      failed = shared.failed.load(std::memory_order_relaxed);
    } else {
      failed = kernel.function(buffers, sizes, 0, kernel.extent) != 0;
    }
    if (failed) {
      fail(LW_KERNEL, "the kernel '" + kernel.layout->name +
                          "' failed: an index in the inputs is out of range, or there was no memory. Check indices against the "
                          "sizes of the tables that they index");
    }
  }

  // All that the kernel may read, and all that it may write.
  void touch(const Kernel& kernel) {
    const auto root_of = [&](int32_t number) { return program_.values[at(number)].root; };
    for (const int32_t number : kernel.layout->buffers) {
      const Value& value = program_.values[at(number)];
      char* data = frame_.data[at(value.root)] + value.root_bytes;
      volatile char read = 0;
      for (int64_t i = 0; i < value.nbytes; ++i) read = data[i];
      const std::vector<int32_t>& outside = kernel.layout->outside;
      const bool is_written =
          program_.values[at(value.root)].owns_memory() ||
          std::any_of(outside.begin(), outside.end(), [&](int32_t other) { return root_of(other) == value.root; });
      if (is_written && value.nbytes > 0) std::memset(data, 0, static_cast<size_t>(value.nbytes));
      (void)read;
    }
  }

  void copy(const Copy& copy) {
    const Value& to = program_.values[at(copy.to)];
    const Value& from = program_.values[at(copy.from)];
    copy_strided(frame_.data[at(to.root)] + to.root_bytes, to.strides.data(),
                 frame_.data[at(from.root)] + from.root_bytes, from.strides.data(), to.shape, size_of(to.dtype));
  }

  Held output(int32_t number, bool shares) {
    const Value& value = program_.values[at(number)];
    const size_t root = at(value.root);
    Held held;
    held.object = value.kind == Kind::View ? nullptr : frame_.objects[at(number)];
    held.data = frame_.data[root] == nullptr ? nullptr : frame_.data[root] + value.root_bytes;
    const Kind kind = program_.values[root].kind;
    if (kind == Kind::Fresh || kind == Kind::Heap) {
      held.owner = frame_.blocks[root];  // none if it lies in memory of the caller
      return held;
    }
    if (kind == Kind::Input && call_.shown != nullptr && (*call_.shown)[at(program_.values[root].position)]) return held;
    const bool in_arena = kind == Kind::Arena || (held.data != nullptr && held.data >= frame_.arena &&
                                                  held.data < frame_.arena + program_.arena_bytes);
    if (kind == Kind::Aten && (!in_arena || value.dtype == LW_NO_DTYPE)) {
      held.owner = frame_.objects[root];
      return held;
    }
    if (shares && !in_arena) return held;
    auto copy = std::make_shared<Block>(static_cast<size_t>(value.nbytes));
    if (value.nbytes > 0) std::memcpy(copy->data(), held.data, static_cast<size_t>(value.nbytes));
    held.data = copy->data();
    held.owner = std::move(copy);
    held.object = nullptr;
    return held;
  }

  const Program& program_;
  Frame& frame_;
  const Call& call_;
};

void copy_from(char* to, const int64_t* to_strides, const char* from, const int64_t* from_strides, const int64_t* shape,
               size_t dimensions, size_t itemsize) {
  if (dimensions == 0) {
    std::memcpy(to, from, itemsize);
    return;
  }
  const auto step = static_cast<int64_t>(itemsize);
  if (dimensions == 1) {
    if (*to_strides == 1 && *from_strides == 1) {
      std::memcpy(to, from, itemsize * static_cast<size_t>(*shape));
      return;
    }
    for (int64_t i = 0; i < *shape; ++i)
      std::memcpy(to + i * *to_strides * step, from + i * *from_strides * step, itemsize);
    return;
  }
  for (int64_t i = 0; i < *shape; ++i) {
    copy_from(to + i * *to_strides * step, to_strides + 1, from + i * *from_strides * step, from_strides + 1, shape + 1,
              dimensions - 1, itemsize);
  }
}

}  // namespace

void Frame::clear() {
  for (size_t number = 0; number < blocks.size(); ++number) {
    if (blocks[number] == nullptr) continue;
    blocks[number] = nullptr;
    data[number] = nullptr;
  }
  for (std::shared_ptr<void>& object : objects) object = nullptr;
  for (const int32_t number : program.fresh) data[static_cast<size_t>(number)] = nullptr;
  for (const int32_t number : program.outputs) data[static_cast<size_t>(number)] = nullptr;
}

std::vector<Held> execute(Frame& frame, const Call& call, bool shares) {
  Run run(frame, call);
  run.begin();
  run.steps();
  return run.outputs(shares);
}

void copy_strided(char* to, const int64_t* to_strides, const char* from, const int64_t* from_strides,
                  const std::vector<int64_t>& shape, size_t itemsize) {
  for (const int64_t size : shape) {
    if (size == 0) return;
  }
  copy_from(to, to_strides, from, from_strides, shape.data(), shape.size(), itemsize);
}

}  // namespace lampwork::runtime
