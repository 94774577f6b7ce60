#include "arena.h"

#include "error.h"

#include <algorithm>
#include <iterator>
#include <map>

namespace lampwork::runtime {

namespace {

constexpr int64_t kWorthASecondLook = int64_t{1} << 20;  // bytes of an arena whose gaps are worth it
constexpr size_t kMostBuffers = 512;
constexpr int64_t kMostBytes = int64_t{1} << 46;  // of an arena: no machine has more, and sums stay in int64

struct Span {
  int64_t begin;
  int64_t bytes;
};

struct Life {
  size_t first;
  size_t last;
};

// Best fit; free neighbours are merged.
class Arena {
 public:
  Span take(int64_t bytes) {
    auto best = free_.end();
    for (auto at = free_.begin(); at != free_.end(); ++at) {
      if (at->second >= bytes && (best == free_.end() || at->second < best->second)) best = at;
    }
    if (best != free_.end()) {
      const Span found{best->first, bytes};
      const int64_t left = best->second - bytes;
      free_.erase(best);
      if (left > 0) free_.emplace(found.begin + bytes, left);
      return found;
    }
    int64_t begin = size_;
    if (!free_.empty() && free_.rbegin()->first + free_.rbegin()->second == size_) {
      // The last free block touches the end: it grows.
      begin = free_.rbegin()->first;
      free_.erase(std::prev(free_.end()));
    }
    size_ = begin + bytes;
    if (size_ > kMostBytes) fail(LW_MEMORY, "a call with these sizes needs more memory than any machine has");
    return {begin, bytes};
  }

  void give(Span block) {
    auto at = free_.emplace(block.begin, block.bytes).first;
    if (const auto next = std::next(at); next != free_.end() && at->first + at->second == next->first) {
      at->second += next->second;
      free_.erase(next);
    }
    if (at == free_.begin()) return;
    if (const auto before = std::prev(at); before->first + before->second == at->first) {
      before->second += at->second;
      free_.erase(at);
    }
  }

  int64_t size() const { return size_; }

 private:
  int64_t size_ = 0;
  std::map<int64_t, int64_t> free_;  // begin -> bytes
};

// The largest first, each in the lowest gap between those that live when it does (Pisarchyk and Lee, 2020).
Placement largest_first(const std::unordered_map<int32_t, Span>& blocks, const std::unordered_map<int32_t, Life>& lives) {
  std::vector<int32_t> order;
  for (const auto& [number, block] : blocks) order.push_back(number);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const int64_t left = blocks.at(a).bytes, right = blocks.at(b).bytes;
    return left != right ? left > right : lives.at(a).first < lives.at(b).first;
  });
  struct Placed {
    int64_t begin, end;
    Life life;
  };
  std::vector<Placed> placed;  // by `begin`
  Placement found;
  for (const int32_t number : order) {
    const Life life = lives.at(number);
    const int64_t bytes = blocks.at(number).bytes;
    int64_t offset = 0;
    for (const Placed& other : placed) {
      if (other.life.first >= life.last || life.first >= other.life.last) continue;
      if (other.begin - offset >= bytes) break;
      offset = std::max(offset, other.end);
    }
    found.offsets[number] = offset;
    found.bytes = std::max(found.bytes, offset + bytes);
    const Placed one{offset, offset + bytes, life};
    placed.insert(std::upper_bound(placed.begin(), placed.end(), one,
                                   [](const Placed& a, const Placed& b) { return a.begin < b.begin; }),
                  one);
  }
  return found;
}

}  // namespace

Placement place_in_arena(const std::vector<std::pair<bool, int32_t>>& memory, const std::vector<int64_t>& nbytes) {
  Arena arena;
  Placement first;
  std::unordered_map<int32_t, Span> blocks;
  std::unordered_map<int32_t, Life> lives;
  int64_t living = 0, most = 0;
  for (size_t at = 0; at < memory.size(); ++at) {
    const auto [is_taken, number] = memory[at];
    if (is_taken) {
      if (blocks.count(number) != 0) damaged("memory of a value is taken twice");
      const int64_t bytes = nbytes[static_cast<size_t>(number)];
      if (bytes > kMostBytes) fail(LW_MEMORY, "a call with these sizes needs more memory than any machine has");
      const Span block = arena.take(std::max(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment));
      blocks[number] = block;
      first.offsets[number] = block.begin;
      lives[number] = {at, memory.size()};
      living += block.bytes;
      most = std::max(most, living);
    } else {
      const auto life = lives.find(number);
      if (life == lives.end() || life->second.last != memory.size()) damaged("memory is given back that was not taken");
      life->second.last = at;
      arena.give(blocks[number]);
      living -= blocks[number].bytes;
    }
  }
  first.bytes = arena.size();
  // No placement is smaller than what lives at once.
  if (first.bytes < kWorthASecondLook || first.bytes < most + most / 50 || blocks.size() > kMostBuffers) return first;
  Placement second = largest_first(blocks, lives);
  return second.bytes < first.bytes ? second : first;
}

}  // namespace lampwork::runtime
