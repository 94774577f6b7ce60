#include "container.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace lampwork::runtime {

namespace {

constexpr uint64_t kMostHeader = 100'000'000;  // of safetensors

std::string system_error() { return std::strerror(errno); }

}  // namespace

std::shared_ptr<const Bytes> Bytes::map(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe without a writer is opened, too
  if (file < 0) fail(LW_FILE, "'" + path + "' cannot be opened: " + system_error());
  struct stat about {};
  if (::fstat(file, &about) != 0 || !S_ISREG(about.st_mode)) {
    ::close(file);
    fail(LW_FILE, "'" + path + "' is no file");
  }
  std::shared_ptr<Bytes> bytes(new Bytes);
  bytes->size_ = static_cast<size_t>(about.st_size);
  if (bytes->size_ > 0) {
    void* data = ::mmap(nullptr, bytes->size_, PROT_READ, MAP_PRIVATE, file, 0);
    if (data == MAP_FAILED) {
      const std::string why = system_error();
      ::close(file);
      fail(LW_FILE, "'" + path + "' cannot be mapped: " + why);
    }
    bytes->data_ = static_cast<char*>(data);
    bytes->mapped_ = true;
  }
  ::close(file);
  return bytes;
}

std::shared_ptr<const Bytes> Bytes::copy(std::string_view given) {
  std::shared_ptr<Bytes> bytes(new Bytes);
  if (::posix_memalign(reinterpret_cast<void**>(&bytes->data_), 64, std::max<size_t>(given.size(), 1)) != 0) {
    bytes->data_ = nullptr;
    fail(LW_MEMORY, "there is no memory for " + std::to_string(given.size()) + " bytes");
  }
  if (!given.empty()) std::memcpy(bytes->data_, given.data(), given.size());
  bytes->size_ = given.size();
  return bytes;
}

Bytes::~Bytes() {
  if (data_ == nullptr) return;
  if (mapped_) {
    ::munmap(data_, size_);
  } else {
    std::free(data_);
  }
}

Container::Container(std::shared_ptr<const Bytes> given) : bytes_(std::move(given)) {
  const std::string_view all = bytes_->view();
  uint64_t length = 0;
  if (all.size() < sizeof length) damaged("it has no header");
  for (size_t i = 0; i < sizeof length; ++i)
    length |= static_cast<uint64_t>(static_cast<unsigned char>(all[i])) << (8 * i);
  if (length > kMostHeader || length > all.size() - sizeof length) damaged("it is shorter than its header says");
  header_ = all.substr(sizeof length, length);
  const Json header = Json::parse(header_, "the header");
  const std::string_view data = this->data();
  std::vector<std::pair<uint64_t, uint64_t>> places;
  for (const auto& [name, about] : members_of(header, "the header")) {
    if (name == "__metadata__") {
      for (const auto& [key, value] : members_of(about, "__metadata__")) metadata_[key] = text_of(value, "__metadata__." + key);
      continue;
    }
    const std::string what = "the tensor '" + name + "'";
    const std::string stored = text_of(member(about, "dtype", what), "the dtype of " + what);
    const DType* dtype = find_stored(stored);
    if (dtype == nullptr) fail(LW_VERSION, what + " has the dtype " + stored + ", which this library does not know");
    StoredTensor tensor{dtype->dtype, {}, {}};
    int64_t wanted = static_cast<int64_t>(dtype->size);
    for (const Json& size : list_of(member(about, "shape", what), "the shape of " + what)) {
      tensor.shape.push_back(integer_of(size, "a size of " + what, 0));
      if (__builtin_mul_overflow(wanted, tensor.shape.back(), &wanted)) damaged(what + " is larger than any memory");
    }
    const Json::List& offsets = pair_of(member(about, "data_offsets", what), "the offsets of " + what);
    const int64_t begin = integer_of(offsets[0], "an offset of " + what, 0, static_cast<int64_t>(data.size()));
    const int64_t end = integer_of(offsets[1], "an offset of " + what, begin, static_cast<int64_t>(data.size()));
    if (end - begin != wanted) damaged(what + " has " + std::to_string(end - begin) + " bytes instead of " + std::to_string(wanted));
    tensor.bytes = data.substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    places.emplace_back(begin, end);
    tensors_.emplace(name, std::move(tensor));
  }
  std::sort(places.begin(), places.end());
  uint64_t reached = 0;
  for (const auto& [begin, end] : places) {
    if (begin != reached) damaged("its tensors overlap, or leave holes");
    reached = end;
  }
  if (reached != data.size()) damaged("it ends before or behind its last tensor");
}

void Container::keep(size_t begin) {
  const std::string_view data = this->data();
  kept_ = Bytes::copy(data.substr(begin));
  for (auto& [name, tensor] : tensors_) {
    const auto at = static_cast<size_t>(tensor.bytes.data() - data.data());
    if (at >= begin) tensor.bytes = kept_->view().substr(at - begin, tensor.bytes.size());
  }
}

const StoredTensor* Container::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

const std::string* Container::metadata(const std::string& name) const {
  const auto found = metadata_.find(name);
  return found == metadata_.end() ? nullptr : &found->second;
}

}  // namespace lampwork::runtime
