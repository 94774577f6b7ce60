// What an artifact says of itself, as far as running it needs.
#pragma once

#include "container.h"
#include "index.h"

#include <optional>
#include <string>
#include <vector>

namespace lampwork::runtime {

// A weight under its module path. `strides`: how programs expect it to lie in memory; in the file it lies row after row.
// `is_persistent`: in the state dict.
struct Weight {
  std::string name;
  std::string tensor;
  lw_dtype dtype;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
  std::string kind;
  bool is_persistent = true;
};

// What programs computed of the weights at the export, from the first byte of a tensor in the file on.
struct Prepacked {
  std::string tensor;
  lw_dtype dtype;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
};

// What an entry expects of an input, or gives for an output.
struct Tensed {
  std::string name;
  lw_dtype dtype;
  std::vector<Index> shape;
  std::vector<Index> strides;
  std::vector<int64_t> sizes;  // -1: another with each call
};

enum class SymbolKind : uint8_t { Size, Stride, Number };

struct Symbol {
  std::string name;
  SymbolKind kind;
  int64_t min;
  std::optional<int64_t> max;
  size_t input;  // or its place among the numbers of the call
  size_t dim;
  Index stride;  // of symbols before it, where the symbol is a stride
};

enum class Relation : uint8_t { Equal, NotEqual, NotNegative, Fits };

struct Condition {
  Relation relation;
  Index index;
  std::string text;
};

// A leaf of what a call returns: an output of the program, or a number.
struct Leaf {
  std::string name;
  int64_t output;  // -1: the number
  Index number;
};

struct EntryManifest {
  std::string name;
  std::vector<Tensed> inputs;
  std::vector<Symbol> symbols;
  SymbolNumbers numbers;               // of the symbols
  std::vector<std::string> arguments;  // names of the numbers that a call gives
  std::vector<Condition> conditions;
  std::vector<size_t> weights;
  std::vector<Tensed> outputs;
  std::vector<Leaf> leaves;
  std::vector<std::pair<size_t, size_t>> writes;  // number among inputs, then weights; output
  std::vector<std::pair<size_t, size_t>> views;   // output; number as in `writes`: it is a view of what is written there
  std::vector<size_t> otherwise;                  // entries for sizes of 1, where this one leaves sizes open
};

struct TargetManifest {
  std::string name;
  std::string machine;
  std::vector<std::string> needs;
  std::string programs;
  std::vector<std::string> code;
  std::map<std::string, std::vector<std::string>> calls;
};

struct Section {
  std::string sha256;
  int64_t bytes;
};

struct Manifest {
  std::string text;
  std::vector<Weight> weights;
  std::vector<EntryManifest> entries;  // those that are called by name first
  size_t n_called = 0;                 // of them
  std::vector<TargetManifest> targets;
  std::vector<Prepacked> prepacked;
  std::map<std::string, Section> sections;

  // LW_FORMAT if it has none, or says what is not so; LW_VERSION.
  static Manifest read(const Container& container);
};

}  // namespace lampwork::runtime
