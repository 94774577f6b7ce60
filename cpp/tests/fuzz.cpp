// Damaged artifacts: loads, links, places and interprets files with seeded mutations, without calling their kernels. Whatever
// comes is an Error; what else goes wrong the sanitizers tell.
//
//     lampwork_fuzz COUNT SEED FILE...
#include "model.h"
#include "sha256.h"

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace {

using namespace lampwork::runtime;
using Random = std::mt19937_64;

struct Part {
  std::string name;
  std::string dtype;
  std::string shape;  // as JSON
  std::string bytes;
};

struct File {
  std::string whole;
  std::string manifest;
  std::vector<Part> parts;
};

size_t below(Random& random, size_t count) { return count == 0 ? 0 : static_cast<size_t>(random() % count); }

File read(const std::string& path) {
  File file;
  const auto bytes = Bytes::map(path);
  file.whole = std::string(bytes->view());
  const Container container(bytes);
  file.manifest = *container.metadata("manifest");
  for (const auto& [name, tensor] : container.tensors()) {
    std::string shape = "[";
    for (const int64_t size : tensor.shape) shape += (shape.size() > 1 ? "," : "") + std::to_string(size);
    const DType* dtype = find_dtype(tensor.dtype);
    file.parts.push_back({name, dtype->stored, shape + "]", std::string(tensor.bytes)});
  }
  return file;
}

std::string quoted(const std::string& text) {
  std::string found = "\"";
  for (const char each : text) {
    if (each == '"' || each == '\\') found += '\\';
    if (static_cast<unsigned char>(each) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", each);
      found += escape;
    } else {
      found += each;
    }
  }
  return found + "\"";
}

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) text.replace(at, from.size(), to);
}

// A file of these parts, with lengths and offsets that are right.
std::string assemble(const std::string& manifest, const std::vector<Part>& parts) {
  std::string header = "{\"__metadata__\":{\"format\":\"lampwork\",\"manifest\":" + quoted(manifest) + "}", data;
  for (const Part& part : parts) {
    header += "," + quoted(part.name) + ":{\"dtype\":\"" + part.dtype + "\",\"shape\":" + part.shape + ",\"data_offsets\":[" +
              std::to_string(data.size()) + "," + std::to_string(data.size() + part.bytes.size()) + "]}";
    data += part.bytes;
  }
  header += "}";
  while ((header.size() + 8) % 64 != 0) header += ' ';
  std::string file(8, '\0');
  for (size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(static_cast<uint64_t>(header.size()) >> (8 * i));
  return file + header + data;
}

// Numbers that are at the edge of something.
int64_t edge(Random& random) {
  static constexpr int64_t kEdges[] = {0, 1, -1, 2, 3, 4, 7, 8, 63, 64, 65, 127, 255, 256, 4096, 65535, 65536, 1 << 20, INT32_MAX,
                                       INT64_C(1) << 31, INT64_C(1) << 32, INT64_C(1) << 40, INT64_C(1) << 62, INT64_MAX, INT64_MIN};
  return kEdges[below(random, sizeof kEdges / sizeof *kEdges)];
}

bool is_digit(char each) { return each >= '0' && each <= '9'; }

// A place in `text` where a number, or a text, begins.
std::string::size_type token(const std::string& text, Random& random, bool number) {
  const size_t start = below(random, text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const size_t at = (start + i) % text.size();
    if (number && is_digit(text[at]) && (at == 0 || !(is_digit(text[at - 1]) || std::isalpha(static_cast<unsigned char>(text[at - 1]))))) return at;
    if (!number && text[at] == '"') return at;
  }
  return std::string::npos;
}

void change_json(std::string& text, Random& random) {
  if (text.empty()) return;
  switch (below(random, 6)) {
    case 0:
    case 1:
    case 2: {  // another number
      const size_t at = token(text, random, true);
      if (at == std::string::npos) return;
      size_t end = at;
      while (end < text.size() && is_digit(text[end])) ++end;
      const int64_t before = std::strtoll(text.substr(at, end - at).c_str(), nullptr, 10);
      const int64_t near = static_cast<int64_t>(static_cast<uint64_t>(before) + (random() % 2 == 0 ? 1 : UINT64_MAX));
      text.replace(at, end - at, std::to_string(random() % 2 == 0 ? near : edge(random)));
      return;
    }
    case 3: {  // another text
      const size_t at = token(text, random, false), other = token(text, random, false);
      if (at == std::string::npos || other == std::string::npos) return;
      const size_t end = text.find('"', at + 1), last = text.find('"', other + 1);
      if (end == std::string::npos || last == std::string::npos) return;
      const std::string taken = text.substr(other, last - other + 1);
      text.replace(at, end - at + 1, taken);
      return;
    }
    case 4: {  // an item less, or twice
      const size_t at = text.find(',', below(random, text.size()));
      if (at == std::string::npos) return;
      const size_t end = text.find_first_of(",]}", at + 1);
      if (end == std::string::npos) return;
      const std::string item = text.substr(at, end - at);
      if (random() % 2 == 0) {
        text.erase(at, item.size());
      } else {
        text.insert(at, item);
      }
      return;
    }
    default:  // any byte
      text[below(random, text.size())] = "{}[]\",:0-x"[below(random, 10)];
  }
}

void change_bytes(std::string& bytes, Random& random) {
  if (bytes.empty()) return;
  switch (below(random, 5)) {
    case 0:
      bytes[below(random, bytes.size())] = static_cast<char>(random());
      return;
    case 1:
      bytes[below(random, bytes.size())] ^= static_cast<char>(1U << below(random, 8));
      return;
    case 2:
      bytes.resize(below(random, bytes.size()));
      return;
    case 3: {  // a number of a table
      if (bytes.size() < 16) return;
      const int64_t value = edge(random);
      const size_t width = size_t{2} << below(random, 3);
      std::memcpy(&bytes[below(random, bytes.size() / 8 - 1) * 8], &value, std::min<size_t>(width, 8));
      return;
    }
    default: {  // a piece of it elsewhere
      const size_t from = below(random, bytes.size()), count = std::min(bytes.size() - from, below(random, 64));
      const std::string piece = bytes.substr(from, count);
      const size_t to = below(random, bytes.size() - count + 1);
      bytes.replace(to, count, piece);
    }
  }
}

std::string mutated(const File& file, Random& random) {
  const size_t changes = size_t{1} << below(random, 3);
  if (below(random, 4) == 0) {  // blind
    std::string whole = file.whole;
    for (size_t i = 0; i < changes; ++i) change_bytes(whole, random);
    return whole;
  }
  std::string manifest = file.manifest;
  std::vector<Part> parts = file.parts;
  for (size_t i = 0; i < changes; ++i) {
    Part& part = parts[below(random, parts.size())];
    const size_t kind = below(random, 8);
    if (kind < 3) {
      change_json(manifest, random);
    } else if (kind < 4) {
      change_json(random() % 2 == 0 ? part.shape : part.name, random);
    } else {
      for (Part& one : parts) {
        const bool is_code = one.name.rfind("lampwork.code", 0) == 0;
        if (one.name.rfind("lampwork.programs", 0) != 0 && !is_code) continue;
        if (below(random, 2) == 0) continue;
        const std::string before = sha256(one.bytes), size = std::to_string(one.bytes.size());
        if (is_code) {
          change_bytes(one.bytes, random);
        } else {
          change_json(one.bytes, random);
        }
        one.shape = "[" + std::to_string(one.bytes.size()) + "]";
        // With the digest of what it has become, so that it is read.
        const size_t at = manifest.find(before);
        if (at == std::string::npos) continue;
        manifest.replace(at, before.size(), sha256(one.bytes));
        const size_t bytes = manifest.find(size, at + before.size());
        if (bytes != std::string::npos && bytes < at + before.size() + 16) manifest.replace(bytes, size.size(), std::to_string(one.bytes.size()));
      }
    }
  }
  return assemble(manifest, parts);
}

constexpr int64_t kMostInput = 1 << 20;

// Calls every entry with the least sizes that it takes.
void call_all(Model& model) {
  for (size_t entry = 0; entry < model.manifest().n_called; ++entry) {
    const EntryManifest& about = model.manifest().entries[entry];
    std::vector<int64_t> symbols, numbers;
    for (const Symbol& symbol : about.symbols) {
      symbols.push_back(std::max<int64_t>(symbol.min, 2));
      if (symbol.kind == SymbolKind::Number) numbers.push_back(symbols.back());
    }
    std::vector<std::vector<int64_t>> shapes;
    std::vector<std::unique_ptr<Block>> memory;
    std::vector<Given> inputs;
    bool is_small = true;
    for (const Tensed& input : about.inputs) {
      std::vector<int64_t>& shape = shapes.emplace_back();
      int64_t bytes = static_cast<int64_t>(size_of(input.dtype));
      for (const Index& size : input.shape) {
        int64_t value = 0;
        is_small = is_small && size.evaluate(symbols.data(), value) && value >= 0 && !__builtin_mul_overflow(bytes, value, &bytes) &&
                   bytes <= kMostInput;
        shape.push_back(value);
      }
      if (!is_small) break;
      memory.push_back(std::make_unique<Block>(static_cast<size_t>(bytes)));
      std::memset(memory.back()->data(), 0, static_cast<size_t>(bytes));
      inputs.push_back({memory.back()->data(), input.dtype, shape.size(), nullptr, nullptr, nullptr});
    }
    if (!is_small) continue;
    for (size_t i = 0; i < inputs.size(); ++i) inputs[i].shape = shapes[i].data();
    try {
      (void)model.run(entry, inputs, numbers, {});
    } catch (const Error&) {
    }
  }
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
  std::vector<File> files;
  for (int i = 3; i < count; ++i) files.push_back(read(arguments[i]));
  Options options;
  options.trusts = true;
  options.threads = 1;
  options.calls_kernels = false;
  std::map<int, uint64_t> statuses;
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
    try {
      // In memory of exactly that size.
      const std::unique_ptr<Model> model = Model::load(Bytes::copy(bytes), options);
      call_all(*model);
      model->set_weights(Bytes::copy(bytes));
      call_all(*model);
      ++statuses[LW_OK];
    } catch (const Error& error) {
      ++statuses[error.status];
    }
  }
  for (const auto& [status, times] : statuses) std::printf("%s %" PRIu64 "\n", lw_status_name(static_cast<lw_status>(status)), times);
  return 0;
}
