// The file: a safetensors file whose tensors are the weights and, as bytes, sections of Lampwork's.
#pragma once

#include "dtype.h"
#include "json.h"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace lampwork::runtime {

// Bytes that stay as they are while this lives: of a mapped file, or of memory of our own.
class Bytes {
 public:
  // LW_FILE.
  static std::shared_ptr<const Bytes> map(const std::string& path);
  static std::shared_ptr<const Bytes> copy(std::string_view bytes);
  ~Bytes();
  Bytes(const Bytes&) = delete;

  std::string_view view() const { return {data_, size_}; }

 private:
  Bytes() = default;
  char* data_ = nullptr;
  size_t size_ = 0;
  bool mapped_ = false;
};

// What the names begin with of sections, and of tensors that are computed of others.
constexpr std::string_view kSection = "lampwork.";
constexpr std::string_view kPrepacked = "lampwork-prepacked.";
inline bool is_section(std::string_view name) { return name.substr(0, kSection.size()) == kSection; }
inline bool is_prepacked(std::string_view name) { return name.substr(0, kPrepacked.size()) == kPrepacked; }

struct StoredTensor {
  lw_dtype dtype;
  std::vector<int64_t> shape;
  std::string_view bytes;
};

class Container {
 public:
  // Reads the header and checks that the tensors lie in the file one behind the other, and are as large as their shapes
  // say. LW_FORMAT.
  explicit Container(std::shared_ptr<const Bytes> bytes);

  const StoredTensor* find(const std::string& name) const;
  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }
  // A text in `__metadata__`, or nullptr.
  const std::string* metadata(const std::string& name) const;
  const std::shared_ptr<const Bytes>& bytes() const { return bytes_; }
  // The header as it was read, without its length: a copy, as a mapped file may change.
  std::string_view header() const { return header_; }
  // All bytes of tensors.
  std::string_view data() const { return bytes_->view().substr(sizeof(uint64_t) + header_.size()); }

  // Copies the data from `begin` on, where a tensor begins, to memory of our own: tensors there are these bytes from then on.
  void keep(size_t begin);
  std::string_view kept() const { return kept_ == nullptr ? std::string_view() : kept_->view(); }

 private:
  std::shared_ptr<const Bytes> bytes_;
  std::shared_ptr<const Bytes> kept_;
  std::string header_;
  std::map<std::string, StoredTensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace lampwork::runtime
