// lampwork::sort and lampwork::topk: rows of floats, sorted by their bits.
//
// A float becomes an unsigned key that compares as torch compares floats: nan is the largest and equals nan, -0.0 equals
// 0.0. Short rows are sorted by rank: for each element, in vectors, how many go before it. Longer ones by digits, least
// significant first (LSD radix sort). topk of a long row takes the first of each of 256
// columns, of which the k-th bounds what has to be looked at.
//
// Where elements are equal, the order of a stable sort is defined. ATen's other sorts leave it to std::sort,
// std::partial_sort and std::nth_element, whose order depends on comparisons only: rows with equal elements are done by
// them here too. Before its first use in a process each operator is compared with ATen; where ATen does otherwise, it is
// called.
#include "vectors.h"

#if LAMPWORK_X86
#include <immintrin.h>
#endif

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#pragma GCC optimize("O3")

namespace lampwork {

namespace {

constexpr int64_t kRanked = 128;   // elements of a row that is sorted by rank
constexpr int64_t kNarrow = 4096;  // elements up to which a digit has 8 bits, else 11

using Key = uint32_t;

struct Item {
  Key key;
  uint32_t place;
};

// What the rows are worked on with.
struct Scratch {
  std::vector<Key> keys;
  std::vector<Key> ranks;
  std::vector<Item> items, others;
};

// Smaller keys go first: `flip` has all bits for a descending order.
inline __attribute__((always_inline)) Key key_of(float value, Key flip) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const uint32_t size = bits & 0x7fffffffu;
  const uint32_t sign = 0u - (bits >> 31);
  // Zero has no sign, and nan none either.
  const Key ordered = size > 0x7f800000u ? 0xffffffffu : (size ^ sign) - sign + 0x80000000u;
  return ordered ^ flip;
}

LAMPWORK_CLONES void to_keys(const float* __restrict__ row, Key* __restrict__ keys, int64_t count, Key flip) {
  for (int64_t i = 0; i < count; ++i) keys[i] = key_of(row[i], flip);
}

#if LAMPWORK_X86
// ranks[i]: how many elements go before i, those before it that are equal among them. Whole vectors are read and
// written; keys past the end are the largest.
template <int kVectors>
__attribute__((target("avx512f"))) void rank_vectors(const Key* keys, Key* ranks, int64_t count) {
  constexpr int kLanes = 16;
  const __m512i one = _mm512_set1_epi32(1);
  __m512i all[kVectors], found[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    all[v] = _mm512_loadu_si512(keys + v * kLanes);
    found[v] = _mm512_setzero_si512();
  }
  for (int own = 0; own < kVectors; ++own) {
    const int64_t until = std::min<int64_t>(kLanes, count - own * kLanes);
    for (int64_t i = 0; i < until; ++i) {
      const __m512i key = _mm512_set1_epi32(static_cast<int>(keys[own * kLanes + i]));
      for (int v = 0; v < kVectors; ++v) {
        // Elements behind count those that equal them.
        __mmask16 counts = v > own ? _mm512_cmple_epu32_mask(key, all[v]) : _mm512_cmplt_epu32_mask(key, all[v]);
        if (v == own) counts |= _mm512_cmpeq_epu32_mask(key, all[v]) & static_cast<__mmask16>(0xfffe << i);
        found[v] = _mm512_mask_add_epi32(found[v], counts, found[v], one);
      }
    }
  }
  for (int v = 0; v < kVectors; ++v) _mm512_storeu_si512(ranks + v * kLanes, found[v]);
}

bool can_rank() { return __builtin_cpu_supports("avx512f"); }
#else
template <int kVectors>
void rank_vectors(const Key*, Key*, int64_t) {}
bool can_rank() { return false; }
#endif

void rank(const Key* keys, Key* ranks, int64_t count) {
  if (count <= 16) {
    rank_vectors<1>(keys, ranks, count);
  } else if (count <= 32) {
    rank_vectors<2>(keys, ranks, count);
  } else if (count <= 64) {
    rank_vectors<4>(keys, ranks, count);
  } else {
    rank_vectors<8>(keys, ranks, count);
  }
}

// Whether a row is sorted by rank.
bool is_ranked(int64_t count) {
  static const bool can = can_rank();
  return can && count <= kRanked;
}

constexpr auto by_key = [](const Item& a, const Item& b) { return a.key < b.key; };

// Sorts scratch.items by key, stably. Digits that all keys have in common are left out.
template <int kBits>
void sort_digits(Scratch& scratch, int64_t count) {
  constexpr int kDigits = (32 + kBits - 1) / kBits;
  constexpr Key kMask = (1u << kBits) - 1;
  uint32_t counts[kDigits][1 << kBits] = {};
  for (int64_t i = 0; i < count; ++i) {
    const Key key = scratch.items[i].key;
    for (int digit = 0; digit < kDigits; ++digit) ++counts[digit][(key >> (digit * kBits)) & kMask];
  }
  Item* from = scratch.items.data();
  Item* to = scratch.others.data();
  for (int digit = 0; digit < kDigits; ++digit) {
    uint32_t* starts = counts[digit];
    const int shift = digit * kBits;
    if (starts[(from[0].key >> shift) & kMask] == count) continue;
    uint32_t sum = 0;
    for (Key each = 0; each <= kMask; ++each) {
      const uint32_t here = starts[each];
      starts[each] = sum;
      sum += here;
    }
    for (int64_t i = 0; i < count; ++i) to[starts[(from[i].key >> shift) & kMask]++] = from[i];
    std::swap(from, to);
  }
  if (from != scratch.items.data()) std::swap(scratch.items, scratch.others);
}

void to_items(Scratch& scratch, int64_t count) {
  for (int64_t i = 0; i < count; ++i) scratch.items[i] = {scratch.keys[i], static_cast<uint32_t>(i)};
}

bool has_equal(const Item* items, int64_t count) {
  int equal = 0;
  for (int64_t i = 1; i < count; ++i) equal |= items[i - 1].key == items[i].key;
  return equal != 0;
}

// Whether a stable order of the items may differ from std::sort's: in places, or, without `places`, in the bits of
// values, where a zero has a sign or a nan is another.
bool may_differ(const Item* items, const float* row, int64_t count, bool places) {
  // Up to 16 elements std::sort inserts one after another, which is stable.
  if (count <= 16 || !has_equal(items, count)) return false;
  if (places) return true;
  for (int64_t i = 1; i < count; ++i) {
    if (items[i - 1].key == items[i].key && std::memcmp(row + items[i - 1].place, row + items[i].place, 4) != 0) {
      return true;
    }
  }
  return false;
}

// Sorts scratch.keys, of a row, into scratch.items.
void sort_row(Scratch& scratch, const float* row, int64_t count, bool stable, bool places) {
  if (is_ranked(count)) {
    rank(scratch.keys.data(), scratch.ranks.data(), count);
    for (int64_t i = 0; i < count; ++i) {
      scratch.items[scratch.ranks[i]] = {scratch.keys[i], static_cast<uint32_t>(i)};
    }
  } else {
    to_items(scratch, count);
    if (count <= kNarrow) {
      sort_digits<8>(scratch, count);
    } else {
      sort_digits<11>(scratch, count);
    }
  }
  if (stable || !may_differ(scratch.items.data(), row, count, places)) return;
  to_items(scratch, count);
  std::sort(scratch.items.begin(), scratch.items.begin() + count, by_key);
}

// work(scratch, row, keys of the row in scratch) for all rows of x, by the threads.
template <typename Work>
void for_rows(const at::Tensor& x, Key flip, const Work& work) {
  const int64_t size = x.size(-1), rows = x.numel() / size;
  const auto* data = x.const_data_ptr<float>();
  at::parallel_for(0, rows, std::max<int64_t>(1, 4096 / size), [&](int64_t begin, int64_t end) {
    Scratch scratch;
    const auto room = static_cast<size_t>(std::max<int64_t>(size, kRanked));
    scratch.keys.resize(room, std::numeric_limits<Key>::max());
    scratch.ranks.resize(room);
    scratch.items.resize(room);
    if (!is_ranked(size)) scratch.others.resize(room);
    for (int64_t row = begin; row < end; ++row) {
      to_keys(data + row * size, scratch.keys.data(), size, flip);
      work(scratch, row);
    }
  });
}

at::Tensor places_like(const at::Tensor& values) { return at::empty(values.sizes(), values.options().dtype(at::kLong)); }

std::tuple<at::Tensor, at::Tensor> own_sort(const at::Tensor& x, bool descending, bool stable, bool wanted = true) {
  at::Tensor values = at::empty(x.sizes(), x.options()), places = places_like(values);
  const int64_t size = x.size(-1);
  const auto* data = x.const_data_ptr<float>();
  auto* value = values.mutable_data_ptr<float>();
  auto* place = places.mutable_data_ptr<int64_t>();
  for_rows(x, descending ? ~Key{0} : 0, [&](Scratch& scratch, int64_t row) {
    sort_row(scratch, data + row * size, size, stable, wanted);
    const int64_t first = row * size;
    for (int64_t i = 0; i < size; ++i) {
      const int64_t from = scratch.items[i].place;
      value[first + i] = data[first + from];
      place[first + i] = from;
    }
  });
  return {values, places};
}

// --- topk ----------------------------------------------------------------------------------------------------------------

constexpr int64_t kColumns = 256;  // columns of which each has a first key
constexpr int64_t kFew = 64;       // the same for few wanted keys
constexpr int64_t kSome = 32;      // keys that are looked at together

// The first key of each column of whole rows of `columns`.
LAMPWORK_CLONES void first_of_columns(const Key* __restrict__ keys, Key* __restrict__ first, int64_t count,
                                      int64_t columns) {
  for (int64_t i = 0; i < columns; ++i) first[i] = keys[i];
  for (int64_t from = columns; from + columns <= count; from += columns) {
    for (int64_t i = 0; i < columns; ++i) first[i] = std::min(first[i], keys[from + i]);
  }
}

LAMPWORK_CLONES bool any_up_to(const Key* keys, Key limit) {
  Key found = 0;
  for (int64_t i = 0; i < kSome; ++i) found |= keys[i] <= limit;
  return found != 0;
}

// The keys up to `limit`; more than `room` are not looked for.
int64_t collect(Scratch& scratch, int64_t count, Key limit, int64_t room) {
  const Key* keys = scratch.keys.data();
  int64_t held = 0;
  for (int64_t from = 0; from < count; from += kSome) {
    const int64_t until = std::min(from + kSome, count);
    if (until - from == kSome && !any_up_to(keys + from, limit)) continue;
    if (held + kSome > room) return room + 1;
    for (int64_t i = from; i < until; ++i) {
      scratch.items[held] = {keys[i], static_cast<uint32_t>(i)};
      held += keys[i] <= limit;
    }
  }
  return held;
}

// The k keys of a row that go first, in order, at the head of scratch.items. Whether no two that matter are equal.
bool first_of(Scratch& scratch, int64_t count, int64_t k) {
  const Key* keys = scratch.keys.data();
  if (is_ranked(count)) {
    rank(keys, scratch.ranks.data(), count);
    for (int64_t i = 0; i < count; ++i) {
      scratch.items[scratch.ranks[i]] = {keys[i], static_cast<uint32_t>(i)};
    }
    return !has_equal(scratch.items.data(), std::min(k + 1, count));
  }
  // At least k keys are up to the k-th of the columns' first ones: few others are.
  Key first[kColumns];
  const int64_t columns = k <= kFew / 8 ? kFew : kColumns;
  first_of_columns(keys, first, count, columns);
  std::partial_sort(first, first + k, first + columns);
  if (std::adjacent_find(first, first + k) != first + k) return false;
  const int64_t room = std::min(count, 4 * columns);
  const int64_t held = collect(scratch, count, first[k - 1], room);
  if (held > room) return false;
  const auto begin = scratch.items.begin();
  std::partial_sort(begin, begin + std::min(k + 1, held), begin + held, by_key);
  return !has_equal(scratch.items.data(), std::min(k + 1, held));
}

// Whether a row is so long, or so short, that the above is faster than ATen.
bool is_fast(int64_t count, int64_t k) {
  return is_ranked(count) || (k <= kFew / 8 ? count >= 8 * kFew : count >= 4 * kColumns && k <= kColumns / 4);
}

std::tuple<at::Tensor, at::Tensor> own_topk(const at::Tensor& x, int64_t k, bool largest) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = k;
  at::Tensor values = at::empty(sizes, x.options()), places = places_like(values);
  const int64_t size = x.size(-1);
  const auto* data = x.const_data_ptr<float>();
  auto* value = values.mutable_data_ptr<float>();
  auto* place = places.mutable_data_ptr<int64_t>();
  for_rows(x, largest ? ~Key{0} : 0, [&](Scratch& scratch, int64_t row) {
    if (!first_of(scratch, size, k)) {
      to_items(scratch, size);
      const auto begin = scratch.items.begin(), end = begin + size;
      if (k * 64 <= size) {
        std::partial_sort(begin, begin + k, end, by_key);
      } else {
        std::nth_element(begin, begin + k - 1, end, by_key);
        std::sort(begin, begin + k - 1, by_key);
      }
    }
    for (int64_t i = 0; i < k; ++i) {
      const int64_t from = scratch.items[i].place;
      value[row * k + i] = data[row * size + from];
      place[row * k + i] = from;
    }
  });
  return {values, places};
}

// --- operators -------------------------------------------------------------------------------------------------------------

bool same(const std::tuple<at::Tensor, at::Tensor>& a, const std::tuple<at::Tensor, at::Tensor>& b) {
  return at::equal(std::get<0>(a), std::get<0>(b)) && at::equal(std::get<1>(a), std::get<1>(b));
}

// Rows with many equal elements.
at::Tensor tied(int64_t size) {
  return at::arange(3 * size, at::kLong).mul(7919).remainder(size / 3 + 1).to(at::kFloat).view({3, size});
}

bool sort_agrees() {
  for (const int64_t size : {14, 100, 1000}) {
    for (const bool descending : {false, true}) {
      const at::Tensor x = tied(size);
      if (!same(own_sort(x, descending, false), at::sort(x, false, -1, descending))) return false;
    }
  }
  return true;
}

bool topk_agrees() {
  for (const int64_t size : {14, 100, 1500}) {
    for (const int64_t k : {2, 13}) {
      for (const bool largest : {false, true}) {
        const at::Tensor x = tied(size);
        if (!same(own_topk(x, k, largest), at::topk(x, k, -1, largest, true))) return false;
      }
    }
  }
  return true;
}

bool fits(const at::Tensor& x) {
  return x.scalar_type() == at::kFloat && x.dim() > 0 && x.numel() > 0 &&
         x.size(-1) <= std::numeric_limits<int32_t>::max();
}

// Whether the first row has so many equal elements that some are among its first ones. It stands for the others: rows
// with equal elements are no faster here than in ATen, and would be sorted twice.
bool is_crowded(const at::Tensor& x) {
  constexpr int64_t kLook = 64;
  const int64_t count = std::min(x.size(-1), kLook);
  Key keys[kLook];
  to_keys(x.const_data_ptr<float>(), keys, count, 0);
  std::sort(keys, keys + count);
  return std::adjacent_find(keys, keys + count) != keys + count;
}

std::tuple<at::Tensor, at::Tensor> sort(const at::Tensor& given, bool descending, bool stable, bool places) {
  static const bool agrees = sort_agrees();
  const at::Tensor x = given.contiguous();
  const bool free = !fits(x) || stable || x.size(-1) <= 16 || (agrees && (!places || !is_crowded(x)));
  if (!fits(x) || !free) {
    auto [values, places] = at::sort(x, stable, -1, descending);
    return {values.contiguous(), places.contiguous()};
  }
  return own_sort(x, descending, stable, places);
}

// Whether the first row has equal elements that matter.
bool is_tied(const at::Tensor& x, int64_t k, bool largest) {
  bool tied = false;
  for_rows(x.view({-1, x.size(-1)}).narrow(0, 0, 1), largest ? ~Key{0} : 0,
           [&](Scratch& scratch, int64_t) { tied = !first_of(scratch, x.size(-1), k); });
  return tied;
}

std::tuple<at::Tensor, at::Tensor> topk(const at::Tensor& given, int64_t k, bool largest) {
  static const bool agrees = topk_agrees();
  const at::Tensor x = given.contiguous();
  if (!fits(x) || !agrees || k < 1 || k > x.size(-1) || !is_fast(x.size(-1), k) ||
      (x.numel() > x.size(-1) && is_tied(x, k, largest))) {
    auto [values, places] = at::topk(x, k, -1, largest, true);
    return {values.contiguous(), places.contiguous()};
  }
  return own_topk(x, k, largest);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(lampwork, m) {
  m.def("sort(Tensor x, bool descending, bool stable, bool places) -> (Tensor, Tensor)", TORCH_FN(sort));
  m.def("topk(Tensor x, int k, bool largest) -> (Tensor, Tensor)", TORCH_FN(topk));
}

}  // namespace lampwork
