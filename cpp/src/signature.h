// What an entry takes, held against what a call gives.
#pragma once

#include "manifest.h"

#include <memory>
#include <vector>

namespace lampwork::runtime {

// A tensor that the caller gives.
struct Given {
  char* data;
  lw_dtype dtype;
  size_t ndim;
  const int64_t* shape;
  const int64_t* strides;        // nullptr: contiguous
  std::shared_ptr<void> object;  // at::Tensor, or nullptr
};

// The memory that a tensor of the caller's lies in.
struct Range {
  const char* begin;
  const char* end;
  bool meets(const Range& other) const { return begin < other.end && other.begin < end; }
};

std::vector<int64_t> strides_of(const Given& given);

// LW_INPUT, with `what` it is, if such a tensor cannot be.
Range range_of(const Given& given, const std::string& what);

// Whether the sizes of inputs are such as an entry is for.
bool fits(const EntryManifest& about, const std::vector<Given>& inputs);

// The numbers of an entry's symbols in a call; LW_INPUT if it does not take such inputs. `manifest`: of all entries.
std::vector<int64_t> solve(const Manifest& manifest, const EntryManifest& about, const std::vector<Given>& inputs,
                           const std::vector<int64_t>& numbers);

// Sizes or strides for the numbers of a call: LW_INPUT if one has no value.
std::vector<int64_t> numbers_of(const std::vector<Index>& indices, const int64_t* symbols);

// LW_INPUT unless elements of inputs that a call writes to (`written`) have places of their own.
void check_written(const EntryManifest& about, const std::vector<Given>& inputs, const std::vector<bool>& written);

}  // namespace lampwork::runtime
