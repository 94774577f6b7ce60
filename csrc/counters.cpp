#include "counters.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

namespace lampwork {

namespace {

constexpr size_t kLeastWords = 128;  // torch's allocator gives 512 bytes at least
constexpr size_t kMostStreams = 256;

}  // namespace

// The words of each stream, by context and number: the driver numbers streams, so that one whose handle was another's
// is not taken for it. What is replaced or forgotten lives until the last call that took it has queued its kernels;
// after that torch's allocator gives its memory to later work of the same stream.
struct Counters::Kept {
  using Stream = std::pair<CUcontext, unsigned long long>;
  struct Entry {
    std::shared_ptr<const Words> words;
    uint64_t used;
  };

  static Kept& here() {
    static auto* kept = new Kept();  // never deleted: the allocator may be gone when the process ends
    return *kept;
  }

  std::shared_ptr<const Words> find(const Stream& stream, size_t count) {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = entries.find(stream);
    if (found == entries.end() || found->second.words->count < count) return nullptr;
    found->second.used = ++uses;
    return found->second.words;
  }

  // Keeps `words` for a stream, if no other thread has kept as many meanwhile. Gives what goes, to be freed without the
  // lock: the allocator may call Python.
  std::shared_ptr<const Words> keep(const Stream& stream, std::shared_ptr<const Words> words) {
    const std::lock_guard<std::mutex> lock(mutex);
    Entry& entry = entries[stream];
    entry.used = ++uses;
    if (entry.words == nullptr || entry.words->count < words->count) std::swap(entry.words, words);
    if (words != nullptr || entries.size() <= kMostStreams) return words;
    const auto oldest = std::min_element(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
      return a.second.used < b.second.used;
    });
    std::swap(words, oldest->second.words);
    entries.erase(oldest);
    return words;
  }

  std::mutex mutex;
  std::map<Stream, Entry> entries;
  uint64_t uses = 0;
};

CUresult Counters::make(const Driver& driver, c10::Device device, CUstream stream, size_t count,
                        std::shared_ptr<const Words>& made) {
  c10::DataPtr memory = c10::GetAllocator(device.type())->allocate(count * sizeof(uint32_t));
  auto words = std::make_shared<Words>(Words{std::move(memory), count});
  const auto address = reinterpret_cast<CUdeviceptr>(words->memory.get());
  const CUresult error = driver.set_words(address, 0, count, stream);
  if (error == kSuccess) made = std::move(words);
  return error;
}

CUresult Counters::take(const Driver& driver, c10::Device device, CUstream stream, bool captures, size_t count) {
  Kept::Stream key{};
  const bool is_known = !captures && driver.stream_id != nullptr && driver.get_context(&key.first) == kSuccess &&
                        driver.stream_id(stream, &key.second) == kSuccess;
  // A graph may run beside what is queued on the stream that it was captured on. A stream that has no number may be
  // another than the one that had its handle before.
  if (!is_known) return make(driver, device, stream, count, words_);
  words_ = Kept::here().find(key, count);
  if (words_ != nullptr) return kSuccess;
  const CUresult error = make(driver, device, stream, std::max(std::bit_ceil(count), kLeastWords), words_);
  if (error == kSuccess) Kept::here().keep(key, words_);
  return error;
}

}  // namespace lampwork
