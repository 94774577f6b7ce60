#include "content.h"

#include <ATen/Parallel.h>

#include <cstring>
#include <vector>

namespace lampwork {

namespace {

constexpr size_t kLanes = 8;
constexpr size_t kStripe = kLanes * 16;        // bytes of a step: two words for each lane
constexpr size_t kChunk = size_t{512} << 10;  // bytes that one thread hashes at a time

// Odd numbers without pattern, from the digits of pi.
constexpr uint64_t kSecret[kLanes + 2] = {0x243F6A8885A308D3, 0x13198A2E03707345, 0xA4093822299F31D1,
                                          0x082EFA98EC4E6C89, 0x452821E638D01377, 0xBE5466CF34E90C6D,
                                          0xC0AC29B7C97C50DD, 0x3F84D5B5B5470917, 0x9216D5D98979FB1B,
                                          0xD1310BA698DFB5AD};

uint64_t word_at(const char* data) {
  uint64_t word;
  std::memcpy(&word, data, sizeof word);
  return word;
}

// The product of two words, folded: every bit of both reaches all parts of the result, as in wyhash.
uint64_t mix(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

uint64_t hash_chunk(const char* data, size_t bytes) {
  uint64_t lanes[kLanes];
  for (size_t i = 0; i < kLanes; ++i) lanes[i] = kSecret[i];
  size_t at = 0;
  // Lanes do not wait for each other.
  for (; at + kStripe <= bytes; at += kStripe) {
    for (size_t i = 0; i < kLanes; ++i) {
      const char* here = data + at + i * 16;
      lanes[i] = mix(word_at(here) ^ kSecret[i], word_at(here + 8) ^ lanes[i]);
    }
  }
  if (at < bytes) {
    char rest[kStripe] = {};
    std::memcpy(rest, data + at, bytes - at);
    for (size_t i = 0; i < kLanes; ++i) {
      lanes[i] = mix(word_at(rest + i * 16) ^ kSecret[i], word_at(rest + i * 16 + 8) ^ lanes[i]);
    }
  }
  uint64_t hash = bytes ^ kSecret[kLanes];
  for (const uint64_t lane : lanes) hash = mix(hash ^ kSecret[kLanes + 1], lane ^ kSecret[kLanes]);
  return hash;
}

}  // namespace

uint64_t hash_content(const char* data, size_t bytes) {
  if (bytes <= kChunk) return hash_chunk(data, bytes);
  const size_t chunks = (bytes + kChunk - 1) / kChunk;
  std::vector<uint64_t> hashes(chunks);
  at::parallel_for(0, static_cast<int64_t>(chunks), 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const size_t from = static_cast<size_t>(i) * kChunk;
      hashes[i] = hash_chunk(data + from, std::min(kChunk, bytes - from));
    }
  });
  return hash_chunk(reinterpret_cast<const char*>(hashes.data()), chunks * sizeof(uint64_t));
}

}  // namespace lampwork
