// Damaged artifacts, and what is done with them: shared by the fuzzer with seeds (fuzz.cpp) and the one that coverage guides
// (fuzz_guided.cpp).
#pragma once

#include "lampwork/lampwork.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace lampwork::fuzzing {

using Random = std::mt19937_64;
// Changes bytes somehow.
using Change = std::function<void(std::string& bytes, Random& random)>;

struct Part {
  std::string name;
  std::string dtype;
  std::string shape;  // as JSON
  std::string bytes;
};

// An artifact in its parts, so that one can be changed while lengths, offsets and digests stay right.
struct File {
  std::string manifest;
  std::vector<Part> parts;

  // Nothing if these are no bytes of an artifact.
  static std::optional<File> split(std::string_view bytes);
  std::string assemble() const;
};

size_t below(Random& random, size_t count);
// Flips, cuts, moves, and numbers at the edge of something.
void change_bytes(std::string& bytes, Random& random);
// Other numbers, texts and parts, brackets that do not close.
void change_json(std::string& text, Random& random);
// One to four changes: by the two above, or by `change` if it is given.
void change_file(File& file, Random& random, const Change& change = nullptr);
// Parts of `other` in place of those of `file`.
void mix_files(File& file, const File& other, Random& random);

// Loads an artifact from memory of exactly its size, calls its entries with inputs that fit and such that do not, sets its
// own weights anew, and calls them again. Kernels are linked, but not run: the memory that they get is touched in their
// place, and operators of torch give zeros. What an Error says of the file; it lets all else through.
lw_status exercise(std::string_view bytes);

}  // namespace lampwork::fuzzing
