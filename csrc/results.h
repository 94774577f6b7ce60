// Results of earlier calls that nobody refers to any more, for the next call to write to.
#pragma once

#include "program.h"

#include <array>

namespace lampwork {

// Keeps the tensors in fresh memory that a program gave back last, two of each, and lends those that only it still holds:
// tensor, Python object, storage and memory are made once, and no result changes that a caller can see. Needs the GIL.
class KeptResults {
 public:
  // For each of `code.fresh` a tensor that nobody else can reach, as new; an undefined one where there is none.
  void lend(const Code& code, std::vector<at::Tensor>& lent);
  // Keep what a call of `code` made, which is what was lent where something was.
  void keep(const Code& code, const std::vector<at::Tensor>& made);

 private:
  static constexpr size_t kEach = 2;  // what the caller has from the last call, and what this call gives
  struct Kept {
    at::Tensor tensor;
    c10::DispatchKeySet keys;  // as it was made
  };
  static bool is_free(const Kept& kept, const Value& value);
  std::vector<std::array<Kept, kEach>> kept_;
};

}  // namespace lampwork
