// Damaged artifacts by seeds: loads, links, places and interprets them. Whatever comes is an Error; what else goes wrong the
// sanitizers tell.
//
//     lampwork_fuzz COUNT SEED FILE...
#include "container.h"
#include "fuzzing.h"

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

namespace {

using namespace lampwork::fuzzing;

std::string mutated(const std::string& bytes, Random& random) {
  std::optional<File> file = below(random, 4) == 0 ? std::nullopt : File::split(bytes);
  if (file) {
    change_file(*file, random);
    return file->assemble();
  }
  std::string blind = bytes;
  const size_t changes = size_t{1} << below(random, 3);
  for (size_t i = 0; i < changes; ++i) change_bytes(blind, random);
  return blind;
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 4) {
    std::fprintf(stderr, "usage: lampwork_fuzz COUNT SEED FILE...\n");
    return 2;
  }
  const uint64_t turns = std::strtoull(arguments[1], nullptr, 10), seed = std::strtoull(arguments[2], nullptr, 10);
  const char* only = std::getenv("LAMPWORK_FUZZ_ONLY");  // the number of a turn
  const char* stops = std::getenv("LAMPWORK_FUZZ_WRITE");  // writes the file of that turn here
  std::vector<std::string> files;
  for (int i = 3; i < count; ++i) files.emplace_back(lampwork::runtime::Bytes::map(arguments[i])->view());
  std::map<lw_status, uint64_t> statuses;
  const uint64_t first = only == nullptr ? 0 : std::strtoull(only, nullptr, 10), last = only == nullptr ? turns : first + 1;
  for (uint64_t turn = first; turn < last; ++turn) {
    Random random(seed * 1000003 + turn);
    const std::string bytes = mutated(files[below(random, files.size())], random);
    if (stops != nullptr) {
      std::FILE* file = std::fopen(stops, "wb");
      if (file == nullptr) return 2;
      std::fwrite(bytes.data(), 1, bytes.size(), file);
      std::fclose(file);
    }
    if (std::getenv("LAMPWORK_FUZZ_SHOW") != nullptr) std::fprintf(stderr, "turn %" PRIu64 "\n", turn);
    ++statuses[exercise(bytes)];
  }
  for (const auto& [status, times] : statuses) std::printf("%s %" PRIu64 "\n", lw_status_name(status), times);
  return 0;
}
