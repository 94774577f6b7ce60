// Results that are views of what a call wrote to.
#pragma once

#include "execute.h"
#include "signature.h"

#include <optional>
#include <vector>

namespace lampwork::runtime {

// How a result lies in an input: from which of its elements on, counted in memory from its first one.
struct Alias {
  size_t input;
  int64_t offset;
  std::vector<int64_t> strides;
  bool is_input;  // it is the input itself
};

// Tensors of one shape in two places.
struct Moved {
  const std::vector<int64_t>& shape;
  const std::vector<int64_t>& from;  // strides
  const std::vector<int64_t>& to;
};

// Where a view of a tensor lies once that has been moved. `offset`, `shape`, `strides`: of the view, in the tensor as it was.
// Nothing if it is no view of the tensor as it is now.
std::optional<Alias> moved_view(const Moved& whole, int64_t offset, const std::vector<int64_t>& shape,
                                const std::vector<int64_t>& strides);

// Which input an output of a call is, or is a view of. `written`: inputs that calls write to, the only ones.
std::optional<Alias> find_alias(const EntryManifest& about, const std::vector<bool>& written, const Frame& frame,
                                const std::vector<Given>& inputs, size_t output, const AtenLibrary* aten);

}  // namespace lampwork::runtime
