#include "fuzzing.h"

#include "model.h"
#include "sha256.h"
#include "strides.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

// Allocations of a size that a file made up fail as they do where memory is short. The rest is for speed: most of the time
// goes to small allocations.
extern "C" [[gnu::visibility("default")]] const char* __asan_default_options();
const char* __asan_default_options() {
  return "allocator_may_return_null=1:max_allocation_size_mb=64:malloc_context_size=3:quarantine_size_mb=8:"
         "detect_stack_use_after_return=0";
}
extern "C" [[gnu::visibility("default")]] const char* __ubsan_default_options();
const char* __ubsan_default_options() { return "print_stacktrace=1"; }

namespace lampwork::fuzzing {

using namespace lampwork::runtime;

namespace {

constexpr std::string_view kPrograms = "lampwork.programs", kCode = "lampwork.code";

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

// Numbers that are at the edge of something.
int64_t edge(Random& random) {
  static constexpr int64_t kEdges[] = {0, 1, -1, 2, 3, 4, 7, 8, 63, 64, 65, 127, 255, 256, 4096, 65535, 65536, 1 << 20, INT32_MAX,
                                       INT64_C(1) << 31, INT64_C(1) << 32, INT64_C(1) << 40, INT64_C(1) << 62, INT64_MAX, INT64_MIN};
  return kEdges[below(random, sizeof kEdges / sizeof *kEdges)];
}

bool is_digit(char each) { return each >= '0' && each <= '9'; }

// A place in `text` where a number, or a text, begins.
size_t token(const std::string& text, Random& random, bool number) {
  const size_t start = below(random, text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const size_t at = (start + i) % text.size();
    if (number && is_digit(text[at]) && (at == 0 || !(is_digit(text[at - 1]) || std::isalpha(static_cast<unsigned char>(text[at - 1]))))) return at;
    if (!number && text[at] == '"') return at;
  }
  return std::string::npos;
}

struct Span {
  size_t begin = 0;
  size_t size = 0;
};

// A list or an object somewhere in `text`, with its brackets; of size 0 if there is none.
Span bracketed(const std::string& text, Random& random) {
  const size_t begin = text.find_first_of("[{", below(random, text.size()));
  if (begin == std::string::npos) return {};
  int depth = 0;
  bool is_text = false;
  for (size_t at = begin; at < text.size(); ++at) {
    if (text[at] == '\\' && is_text) {
      ++at;
    } else if (text[at] == '"') {
      is_text = !is_text;
    } else if (!is_text && (text[at] == '[' || text[at] == '{')) {
      ++depth;
    } else if (!is_text && (text[at] == ']' || text[at] == '}') && --depth == 0) {
      return {begin, at + 1 - begin};
    }
  }
  return {};
}

// A list or an object of `other` in the place of one of `text`.
void transplant(std::string& text, const std::string& other, Random& random) {
  const Span to = bracketed(text, random), from = bracketed(other, random);
  if (to.size == 0 || from.size == 0 || text.size() + from.size > to.size + (size_t{1} << 16)) return;
  text.replace(to.begin, to.size, other.substr(from.begin, from.size));
}

bool is_section(const Part& part) { return part.name.rfind("lampwork.", 0) == 0; }
bool is_json(const Part& part) { return is_section(part) && part.name.rfind(kCode, 0) != 0; }

// The manifest gets the digest and the size of what a section has become, so that it is read.
void set_section(File& file, Part& part, std::string bytes) {
  const std::string before = sha256(part.bytes), size = std::to_string(part.bytes.size());
  part.bytes = std::move(bytes);
  part.shape = "[" + std::to_string(part.bytes.size()) + "]";
  const size_t at = file.manifest.find(before);
  if (at == std::string::npos) return;
  file.manifest.replace(at, before.size(), sha256(part.bytes));
  const size_t there = file.manifest.find(size, at + before.size());
  if (there == std::string::npos || there > at + before.size() + 16) return;
  file.manifest.replace(there, size.size(), std::to_string(part.bytes.size()));
}

}  // namespace

size_t below(Random& random, size_t count) { return count == 0 ? 0 : static_cast<size_t>(random() % count); }

std::optional<File> File::split(std::string_view bytes) {
  try {
    const Container container(Bytes::copy(bytes));
    const std::string* manifest = container.metadata("manifest");
    if (manifest == nullptr) return std::nullopt;
    File file{*manifest, {}};
    for (const auto& [name, tensor] : container.tensors()) {
      std::string shape = "[";
      for (const int64_t size : tensor.shape) shape += (shape.size() > 1 ? "," : "") + std::to_string(size);
      file.parts.push_back({name, find_dtype(tensor.dtype)->stored, shape + "]", std::string(tensor.bytes)});
    }
    return file;
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::string File::assemble() const {
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

void change_json(std::string& text, Random& random) {
  if (text.empty()) return;
  switch (below(random, 8)) {
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
    case 5: {  // a list or an object less, or twice
      const Span part = bracketed(text, random);
      if (part.size == 0) return;
      if (random() % 2 == 0) {
        text.replace(part.begin, part.size, text[part.begin] == '[' ? "[]" : "{}");
      } else if (text.size() + part.size < (size_t{1} << 16)) {
        text.insert(part.begin, text.substr(part.begin, part.size) + ",");
      }
      return;
    }
    case 6:
      transplant(text, std::string(text), random);
      return;
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

void change_file(File& file, Random& random, const Change& change) {
  const auto change_text = [&](std::string& text) { change == nullptr || random() % 2 == 0 ? change_json(text, random) : change(text, random); };
  const size_t changes = size_t{1} << below(random, 3);
  for (size_t i = 0; i < changes; ++i) {
    const size_t kind = below(random, 8);
    if (kind < 3 || file.parts.empty()) {
      change_text(file.manifest);
      continue;
    }
    Part& part = file.parts[below(random, file.parts.size())];
    if (kind == 3) {
      change_text(random() % 2 == 0 ? part.shape : part.name);
      continue;
    }
    std::vector<Part*> sections;
    for (Part& one : file.parts) {
      if (one.name.rfind(kPrograms, 0) == 0 || one.name.rfind(kCode, 0) == 0) sections.push_back(&one);
    }
    if (sections.empty()) continue;
    Part& section = *sections[below(random, sections.size())];
    std::string bytes = section.bytes;
    if (is_json(section)) {
      change_text(bytes);
    } else if (change == nullptr || random() % 2 == 0) {
      change_bytes(bytes, random);
    } else {
      change(bytes, random);
    }
    set_section(file, section, std::move(bytes));
  }
}

void mix_files(File& file, const File& other, Random& random) {
  if (random() % 2 == 0) transplant(file.manifest, other.manifest, random);
  for (Part& part : file.parts) {
    if (!is_section(part) || random() % 2 == 0) continue;
    for (const Part& theirs : other.parts) {
      if (theirs.name != part.name) continue;
      std::string bytes = part.bytes;
      if (is_json(part) && random() % 4 != 0) {
        transplant(bytes, theirs.bytes, random);
      } else {
        bytes = theirs.bytes;
      }
      set_section(file, part, std::move(bytes));
    }
  }
}

// --- calls -----------------------------------------------------------------------------------------------------

namespace {

constexpr int64_t kMostBytes = 1 << 16;   // of a tensor that is given
constexpr int64_t kMostResult = 1 << 20;  // of what an operator of torch gives

// In place of torch: reads its arguments, and gives results as large as the program says.
class Operators : public AtenLibrary {
 public:
  std::shared_ptr<AtenCall> prepare(const Program&, const AtenLayout&, const int64_t*) override { return std::make_shared<AtenCall>(); }
  void call(const Aten& step, Frame& frame) override {
    for (const Json& argument : step.layout->args) {
      const Json* ref = argument.find("ref");
      if (ref == nullptr) continue;
      const Value& value = frame.program.values.at(static_cast<size_t>(*ref->integer()));
      read(frame.data[static_cast<size_t>(value.root)] + value.root_bytes, value.nbytes);
    }
    for (const int32_t out : step.layout->outs) {
      if (out < 0) continue;
      const auto number = static_cast<size_t>(out);
      const int64_t bytes = frame.program.values[number].nbytes;
      if (bytes > kMostResult) fail(LW_MEMORY, "torch has no memory");
      const std::shared_ptr<char[]> memory(new char[static_cast<size_t>(bytes)]());
      frame.data[number] = memory.get();
      frame.objects[number] = memory;
    }
  }

  bool distance(const std::shared_ptr<void>& one, const std::shared_ptr<void>& other, int64_t& bytes) const override {
    bytes = 0;
    return one != nullptr && one == other;
  }

  static void read(const char* data, int64_t bytes) {
    volatile char sum = 0;
    for (int64_t at = 0; at < bytes; ++at) sum = static_cast<char>(sum ^ data[at]);
  }
};

// Tensors with memory of exactly what they span.
class Tensors {
 public:
  // Whether it was small enough; if not, it has no memory.
  bool add(lw_dtype dtype, std::vector<int64_t> shape, std::vector<int64_t> strides, size_t shift = 0) {
    int64_t bytes = 0;
    const bool is_small = size_of(dtype) > 0 && std::all_of(shape.begin(), shape.end(), [](int64_t size) { return size >= 0; }) &&
                          std::all_of(strides.begin(), strides.end(), [](int64_t stride) { return stride >= 0; }) &&
                          span(dtype, shape.data(), strides.data(), shape.size(), bytes) && bytes <= kMostBytes;
    char* data = nullptr;
    if (is_small) {
      memory_.emplace_back(new char[static_cast<size_t>(bytes) + shift]());
      data = memory_.back().get() + shift;
    }
    shapes_.push_back(std::make_unique<std::vector<int64_t>>(std::move(shape)));
    strides_.push_back(std::make_unique<std::vector<int64_t>>(std::move(strides)));
    given.push_back({data, dtype, shapes_.back()->size(), shapes_.back()->data(), strides_.back()->data(), nullptr});
    return is_small;
  }

  std::vector<Given> given;

 private:
  std::vector<std::unique_ptr<char[]>> memory_;
  std::vector<std::unique_ptr<std::vector<int64_t>>> shapes_, strides_;
};

void call(Model& model, size_t entry, const std::vector<Given>& inputs, const std::vector<int64_t>& numbers, const std::vector<Given>& into,
          std::vector<Output>* outputs = nullptr) {
  try {
    std::vector<Output> found = model.run(entry, inputs, numbers, into);
    for (const Output& output : found) {
      // What a result says that it is, is there.
      int64_t bytes = 0;
      if (output.held.data == nullptr || !span(output.dtype, output.shape.data(), output.strides.data(), output.shape.size(), bytes)) continue;
      Operators::read(output.held.data, bytes);
    }
    if (outputs != nullptr) *outputs = std::move(found);
  } catch (const Error&) {
    // As it should be.
  }
}

// With all symbols at `offset` above their least values. False if the inputs would be large.
bool call_with_sizes(Model& model, size_t entry, int64_t offset, Random& random) {
  const EntryManifest& about = model.manifest().entries[entry];
  std::vector<int64_t> symbols, numbers;
  for (const Symbol& symbol : about.symbols) {
    int64_t value = 0;
    if (symbol.kind == SymbolKind::Stride) {
      if (!symbol.stride.evaluate(symbols.data(), value)) return false;
    } else if (__builtin_add_overflow(std::max<int64_t>(symbol.min, 2), offset, &value)) {
      return false;
    }
    symbols.push_back(value);
    if (symbol.kind == SymbolKind::Number) numbers.push_back(value);
  }
  Tensors inputs, others;
  bool is_small = true;
  for (const Tensed& input : about.inputs) {
    std::vector<int64_t> shape, strides;
    for (const Index& size : input.shape) {
      int64_t value = 0;
      is_small = is_small && size.evaluate(symbols.data(), value) && value >= 0;
      shape.push_back(value);
    }
    for (const Index& stride : input.strides) {
      int64_t value = 0;
      is_small = is_small && stride.evaluate(symbols.data(), value);
      strides.push_back(value);
    }
    if (!is_small) return false;
    std::vector<int64_t> turned = contiguous_strides(shape);
    std::reverse(turned.begin(), turned.end());
    is_small = inputs.add(input.dtype, shape, random() % 4 == 0 ? contiguous_strides(shape) : strides);
    // Laid out otherwise, at an odd address.
    is_small = others.add(input.dtype, shape, turned, 1) && is_small;
    if (!is_small) return false;
  }
  std::vector<Output> outputs;
  call(model, entry, inputs.given, numbers, {}, &outputs);
  call(model, entry, others.given, numbers, {});
  if (!outputs.empty()) {
    Tensors into;
    for (const Output& output : outputs) {
      if (!into.add(output.dtype, output.shape, contiguous_strides(output.shape))) return true;
    }
    call(model, entry, inputs.given, numbers, into.given);
    into.given.pop_back();
    call(model, entry, inputs.given, numbers, into.given);
    call(model, entry, inputs.given, numbers, inputs.given);
  }
  return true;
}

// With inputs of any shape, stride and dtype. What is not small has no memory, and is to be refused.
void call_wrongly(Model& model, size_t entry, Random& random) {
  const EntryManifest& about = model.manifest().entries[entry];
  Tensors inputs;
  const size_t wrong = below(random, about.inputs.size() + 1);
  for (size_t i = 0; i < about.inputs.size(); ++i) {
    const Tensed& input = about.inputs[i];
    std::vector<int64_t> shape;
    for (const int64_t size : input.sizes) shape.push_back(size < 0 ? 2 + static_cast<int64_t>(below(random, 6)) : size);
    std::vector<int64_t> strides = contiguous_strides(shape);
    lw_dtype dtype = input.dtype;
    if (i == wrong) {
      const size_t kind = below(random, 5);
      const size_t d = below(random, shape.size());
      if (kind == 0) dtype = static_cast<lw_dtype>(below(random, 20));
      if (kind == 1 && !shape.empty()) shape[d] = edge(random);
      if (kind == 2 && !shape.empty()) strides[d] = edge(random);
      if (kind == 3) shape.push_back(edge(random)), strides.push_back(1);
      if (kind == 4 && !shape.empty()) shape.pop_back(), strides.pop_back();
    }
    (void)inputs.add(dtype, shape, strides);
  }
  std::vector<int64_t> numbers(about.arguments.size());
  for (int64_t& number : numbers) number = edge(random);
  if (below(random, 16) == 0) numbers.push_back(0);
  if (below(random, 16) == 0 && !inputs.given.empty()) inputs.given.pop_back();
  call(model, entry, inputs.given, numbers, {});
}

void call_all(Model& model, Random& random) {
  for (size_t entry = 0; entry < model.manifest().n_called; ++entry) {
    if (!call_with_sizes(model, entry, 0, random)) continue;
    (void)call_with_sizes(model, entry, 1 + static_cast<int64_t>(below(random, 8)), random);
    call_wrongly(model, entry, random);
  }
}

}  // namespace

lw_status exercise(std::string_view bytes) {
  Options options;
  options.trusts = true;
  options.threads = 1;
  options.calls_kernels = false;
  Random random(bytes.size());
  Operators operators;
  try {
    const std::unique_ptr<Model> model = Model::load(Bytes::copy(bytes), options, below(random, 4) == 0 ? nullptr : &operators);
    call_all(*model, random);
    model->set_weights(Bytes::copy(bytes));
    call_all(*model, random);
    return LW_OK;
  } catch (const Error& error) {
    return error.status;
  }
}

}  // namespace lampwork::fuzzing
