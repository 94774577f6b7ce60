// Damaged artifacts that reach code which none before them has reached: for libFuzzer, under sanitizers.
//
//     lampwork_fuzz_guided [-runs=N] [-dict=fuzz.dict] CORPUS
#include "fuzzing.h"

#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t most);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed);
extern "C" size_t LLVMFuzzerCustomCrossOver(const uint8_t* one, size_t one_size, const uint8_t* other, size_t other_size, uint8_t* out,
                                            size_t most, unsigned seed);

namespace {

using namespace lampwork::fuzzing;

std::string_view view_of(const uint8_t* data, size_t size) { return {reinterpret_cast<const char*>(data), size}; }

// With words of the dictionary, and of comparisons that were made.
void change_guided(std::string& bytes, Random&) {
  const size_t before = bytes.size(), most = before + before / 4 + 64;
  bytes.resize(most);
  bytes.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(bytes.data()), before, most));
}

// Files by their bytes: they are drawn time and again, and parsing them takes as long as loading them.
class Splits {
 public:
  std::optional<File> find(std::string_view bytes) {
    const auto found = known_.find(std::hash<std::string_view>()(bytes));
    if (found != known_.end()) return found->second;
    std::optional<File> file = File::split(bytes);
    add(bytes, file);
    return file;
  }
  void add(std::string_view bytes, std::optional<File> file) {
    constexpr size_t kMost = 512;
    if (known_.size() >= kMost) known_.clear();
    known_[std::hash<std::string_view>()(bytes)] = std::move(file);
  }

 private:
  std::unordered_map<size_t, std::optional<File>> known_;
};

Splits splits;

size_t write(const std::string& bytes, uint8_t* to, size_t most) {
  if (bytes.size() > most) return 0;
  std::memcpy(to, bytes.data(), bytes.size());
  return bytes.size();
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  (void)exercise(view_of(data, size));
  return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
  Random random(seed);
  std::optional<File> file = below(random, 8) == 0 ? std::nullopt : splits.find(view_of(data, size));
  if (!file) return LLVMFuzzerMutate(data, size, most);
  change_file(*file, random, &change_guided);
  const size_t written = write(file->assemble(), data, most);
  if (written == 0) return LLVMFuzzerMutate(data, size, most);
  // Itself: names that were changed may be two of a kind, and a shape no JSON, and yet it can be changed further.
  splits.add(view_of(data, written), std::move(file));
  return written;
}

size_t LLVMFuzzerCustomCrossOver(const uint8_t* one, size_t one_size, const uint8_t* other, size_t other_size, uint8_t* out,
                                 size_t most, unsigned seed) {
  Random random(seed);
  std::optional<File> file = splits.find(view_of(one, one_size));
  const std::optional<File> theirs = splits.find(view_of(other, other_size));
  if (!file || !theirs) return 0;
  mix_files(*file, *theirs, random);
  const size_t written = write(file->assemble(), out, most);
  splits.add(view_of(out, written), std::move(file));
  return written;
}
