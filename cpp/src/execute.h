// The interpreter: runs a program on a frame.
#pragma once

#include "memory.h"
#include "pool.h"
#include "program.h"

#include <memory>
#include <vector>

namespace lampwork::runtime {

struct Frame;

// Operators of torch, in a library that has torch.
class AtenLibrary {
 public:
  virtual ~AtenLibrary() = default;
  // Reads the arguments of a step of a placed program. LW_FORMAT, LW_VERSION if there is no such operator.
  virtual std::shared_ptr<AtenCall> prepare(const Program& program, const AtenLayout& layout, const int64_t* symbols) = 0;
  // Gives the results their place in the frame: `data`, and `objects` which own it.
  virtual void call(const Aten& step, Frame& frame) = 0;
  // How many bytes one tensor lies behind another in the same memory; false if they are not in the same.
  virtual bool distance(const std::shared_ptr<void>& one, const std::shared_ptr<void>& other, int64_t& bytes) const = 0;
};

// A tensor that somebody owns: a constant, or a result.
struct Held {
  char* data = nullptr;
  std::shared_ptr<const void> owner;  // of the memory, or of what is known to torch alone
  std::shared_ptr<void> object;       // at::Tensor, where it comes of torch
};

// The memory of one running call.
struct Frame {
  explicit Frame(const Program& program)
      : program(program), data(program.values.size(), nullptr), blocks(program.values.size()), objects(program.values.size()) {}
  // Drops what a call made, also when it ended by an exception.
  void clear();

  const Program& program;
  std::vector<char*> data;                     // of root values
  std::vector<std::shared_ptr<Block>> blocks;  // of heap and fresh values
  std::vector<std::shared_ptr<void>> objects;  // of values that torch made, or was shown
  const int64_t* symbols = nullptr;
  char* arena = nullptr;
};

struct Call {
  const int64_t* symbols;              // the numbers of all symbols
  char* const* inputs;                 // by position
  const std::vector<char*>& weights;   // by position
  const std::vector<Held>& constants;  // by position
  char* const* results;                // by output: memory of the caller that it can be made in, or nullptr
  Pool& pool;
  AtenLibrary* aten;
  char* arena;                         // program.arena_bytes, at least
  std::shared_ptr<void> const* input_objects;  // at::Tensors of the inputs, or nullptr
  const std::vector<bool>* shown = nullptr;    // inputs that outputs may lie in
};

// Runs all steps, and gives the outputs: each has memory of its own, but for views of one another and of inputs that are
// shown, and but for inputs, weights and constants if `shares` (what a program of constants gives). LW_KERNEL, and what operators of torch throw.
std::vector<Held> execute(Frame& frame, const Call& call, bool shares);

// Copies a tensor between two layouts of the same shape.
void copy_strided(char* to, const int64_t* to_strides, const char* from, const int64_t* from_strides,
                  const std::vector<int64_t>& shape, size_t itemsize);

}  // namespace lampwork::runtime
