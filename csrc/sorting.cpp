// lampwork::sort and lampwork::topk: rows of numbers, sorted by their bits.
//
// A number becomes an unsigned key that compares as torch compares numbers: nan is the largest and equals nan, -0.0 equals
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
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <type_traits>
#include <vector>

#pragma GCC optimize("O3")

namespace lampwork {

namespace {

constexpr int64_t kNarrow = 4096;  // elements up to which a digit has 8 bits, else 11
constexpr int64_t kTied = 1 << 15;  // elements from which on some are equal, but for float64

template <typename Key>
struct Item {
  Key key;
  uint32_t place;
};

// Memory that is made when it is first asked for, and holds anything.
template <typename Part>
class Lazy {
 public:
  explicit Lazy(int64_t room) : room_(room) {}
  Part* get() {
    if (!parts_) parts_ = std::make_unique_for_overwrite<Part[]>(room_);
    return parts_.get();
  }
  void swap(Lazy& other) { std::swap(parts_, other.parts_); }

 private:
  size_t room_;
  std::unique_ptr<Part[]> parts_;
};

// What the rows are worked on with.
template <typename Key>
struct Scratch {
  explicit Scratch(int64_t room) : keys(room), ranks(room), items(room), others(room) {}
  Lazy<Key> keys, ranks;
  Lazy<Item<Key>> items, others;
};

// How numbers of type T become keys: by their bits, as floats whose infinity is `kInfinity`, or as integers.
template <typename T, typename BitsOf, typename KeyOf, uint64_t kInfinityBits>
struct Float {
  using Bits = BitsOf;
  using Key = KeyOf;
  static inline __attribute__((always_inline)) Key key(Bits bits) {
    constexpr Bits kSign = Bits{1} << (8 * sizeof(Bits) - 1);
    const Bits size = bits & static_cast<Bits>(~kSign);
    const Bits sign = bits & kSign ? ~Bits{0} : Bits{0};
    // Zero has no sign, and nan none either.
    const Bits ordered = static_cast<Bits>(static_cast<Bits>((size ^ sign) - sign) + kSign);
    return size > kInfinityBits ? static_cast<Bits>(~Bits{0}) : ordered;
  }
};

template <typename T, typename KeyOf>
struct Whole {
  using Bits = std::make_unsigned_t<T>;
  using Key = KeyOf;
  static inline __attribute__((always_inline)) Key key(Bits bits) {
    constexpr Bits kSign = std::is_signed_v<T> ? Bits{1} << (8 * sizeof(Bits) - 1) : 0;
    return static_cast<Bits>(bits ^ kSign);
  }
};

template <typename T>
struct Order : Whole<T, std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>> {};
template <>
struct Order<double> : Float<double, uint64_t, uint64_t, 0x7ff0000000000000u> {};
template <>
struct Order<float> : Float<float, uint32_t, uint32_t, 0x7f800000u> {};
template <>
struct Order<at::Half> : Float<at::Half, uint16_t, uint32_t, 0x7c00u> {};
template <>
struct Order<at::BFloat16> : Float<at::BFloat16, uint16_t, uint32_t, 0x7f80u> {};

template <typename T>
using KeyOf = typename Order<T>::Key;

// Smaller keys go first: `flip` has all bits for a descending order.
template <typename T>
LAMPWORK_CLONES void to_keys(const T* __restrict__ row, KeyOf<T>* __restrict__ keys, int64_t count, KeyOf<T> flip) {
  using Bits = typename Order<T>::Bits;
  for (int64_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, row + i, sizeof bits);
    keys[i] = Order<T>::key(bits) ^ flip;
  }
}

// Elements of a row that is sorted by rank: eight vectors of keys.
template <typename Key>
constexpr int64_t kRanked = 8 * 64 / sizeof(Key);

#if LAMPWORK_X86
#pragma GCC push_options
#pragma GCC target("avx512f")
inline __m512i broadcast(uint32_t key) { return _mm512_set1_epi32(static_cast<int>(key)); }
inline __m512i broadcast(uint64_t key) { return _mm512_set1_epi64(static_cast<int64_t>(key)); }

// In which lanes `all` counts `key`: it is larger, or, behind it, equal.
template <typename Key>
inline uint32_t larger(__m512i key, __m512i all, bool or_equal) {
  if constexpr (sizeof(Key) == 4) {
    return or_equal ? _mm512_cmple_epu32_mask(key, all) : _mm512_cmplt_epu32_mask(key, all);
  } else {
    return or_equal ? _mm512_cmple_epu64_mask(key, all) : _mm512_cmplt_epu64_mask(key, all);
  }
}

template <typename Key>
inline __m512i increased(__m512i number, uint32_t lanes) {
  if constexpr (sizeof(Key) == 4) {
    return _mm512_mask_add_epi32(number, static_cast<__mmask16>(lanes), number, _mm512_set1_epi32(1));
  } else {
    return _mm512_mask_add_epi64(number, static_cast<__mmask8>(lanes), number, _mm512_set1_epi64(1));
  }
}

// ranks[i]: how many elements go before i, those before it that are equal among them. Whole vectors are read and
// written; keys past the end are the largest.
template <int kVectors, typename Key>
void rank_vectors(const Key* keys, Key* ranks, int64_t count) {
  constexpr int kLanes = 64 / sizeof(Key);
  __m512i all[kVectors], found[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    all[v] = _mm512_loadu_si512(keys + v * kLanes);
    found[v] = _mm512_setzero_si512();
  }
  for (int own = 0; own < kVectors; ++own) {
    const int64_t until = std::min<int64_t>(kLanes, count - own * kLanes);
    for (int64_t i = 0; i < until; ++i) {
      const __m512i key = broadcast(keys[own * kLanes + i]);
      for (int v = 0; v < kVectors; ++v) {
        // Elements behind count those that equal them.
        uint32_t counts = larger<Key>(key, all[v], v > own);
        if (v == own) counts |= larger<Key>(key, all[v], true) & (0xfffeu << i);
        found[v] = increased<Key>(found[v], counts);
      }
    }
  }
  for (int v = 0; v < kVectors; ++v) _mm512_storeu_si512(ranks + v * kLanes, found[v]);
}
#pragma GCC pop_options

bool can_rank() { return __builtin_cpu_supports("avx512f"); }
#else
template <int kVectors, typename Key>
void rank_vectors(const Key*, Key*, int64_t) {}
bool can_rank() { return false; }
#endif

template <typename Key>
void rank(const Key* keys, Key* ranks, int64_t count) {
  constexpr int64_t kLanes = 64 / sizeof(Key);
  if (count <= kLanes) {
    rank_vectors<1>(keys, ranks, count);
  } else if (count <= 2 * kLanes) {
    rank_vectors<2>(keys, ranks, count);
  } else if (count <= 4 * kLanes) {
    rank_vectors<4>(keys, ranks, count);
  } else {
    rank_vectors<8>(keys, ranks, count);
  }
}

// Whether a row is sorted by rank.
template <typename Key>
bool is_ranked(int64_t count) {
  static const bool can = can_rank();
  return can && count <= kRanked<Key>;
}

constexpr auto by_key = [](const auto& a, const auto& b) { return a.key < b.key; };

// Sorts scratch.items by the lower `kUsed` bits of their keys, stably. Digits that all keys have in common are left out.
template <int kBits, int kUsed, typename Key>
void sort_digits(Scratch<Key>& scratch, int64_t count) {
  constexpr int kDigits = (kUsed + kBits - 1) / kBits;
  constexpr Key kMask = (Key{1} << kBits) - 1;
  uint32_t counts[kDigits][1 << kBits] = {};
  Item<Key>* from = scratch.items.get();
  Item<Key>* to = scratch.others.get();
  for (int64_t i = 0; i < count; ++i) {
    const Key key = from[i].key;
    for (int digit = 0; digit < kDigits; ++digit) ++counts[digit][(key >> (digit * kBits)) & kMask];
  }
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
  if (from != scratch.items.get()) scratch.items.swap(scratch.others);
}

template <typename Key>
void to_items(Scratch<Key>& scratch, int64_t count) {
  const Key* keys = scratch.keys.get();
  Item<Key>* items = scratch.items.get();
  for (int64_t i = 0; i < count; ++i) items[i] = {keys[i], static_cast<uint32_t>(i)};
}

// Sorts scratch.keys, of so few, into scratch.items.
template <typename Key>
void sort_by_rank(Scratch<Key>& scratch, int64_t count) {
  const Key* keys = scratch.keys.get();
  Key* ranks = scratch.ranks.get();
  Item<Key>* items = scratch.items.get();
  rank(keys, ranks, count);
  for (int64_t i = 0; i < count; ++i) items[ranks[i]] = {keys[i], static_cast<uint32_t>(i)};
}

template <typename Key>
bool has_equal(const Item<Key>* items, int64_t count) {
  int equal = 0;
  for (int64_t i = 1; i < count; ++i) equal |= items[i - 1].key == items[i].key;
  return equal != 0;
}

// Whether a stable order of the items may differ from std::sort's: in places, or, without `places`, in the bits of
// values, where a zero has a sign or a nan is another.
template <typename T, typename Key>
bool may_differ(const Item<Key>* items, const T* row, int64_t count, bool places) {
  // Up to 16 elements std::sort inserts one after another, which is stable.
  if (count <= 16 || (std::is_integral_v<T> && !places) || !has_equal(items, count)) return false;
  if (places) return true;
  for (int64_t i = 1; i < count; ++i) {
    if (items[i - 1].key == items[i].key &&
        std::memcmp(row + items[i - 1].place, row + items[i].place, sizeof(T)) != 0) {
      return true;
    }
  }
  return false;
}

// Sorts scratch.keys, of a row, into scratch.items.
template <typename T, typename Key>
void sort_row(Scratch<Key>& scratch, const T* row, int64_t count, bool stable, bool places) {
  constexpr int kUsed = 8 * sizeof(T);
  if (is_ranked<Key>(count)) {
    sort_by_rank(scratch, count);
  } else {
    to_items(scratch, count);
    if (count <= kNarrow) {
      sort_digits<8, kUsed>(scratch, count);
    } else {
      sort_digits<11, kUsed>(scratch, count);
    }
  }
  if (stable || !may_differ(scratch.items.get(), row, count, places)) return;
  to_items(scratch, count);
  std::sort(scratch.items.get(), scratch.items.get() + count, by_key);
}

// work(scratch, row, keys of the row in scratch) for `rows` rows of `size` elements, by the threads.
template <typename T, typename Work>
void for_rows(const T* data, int64_t rows, int64_t size, bool reversed, const Work& work) {
  using Key = KeyOf<T>;
  const Key flip = reversed ? ~Key{0} : 0;
  at::parallel_for(0, rows, std::max<int64_t>(1, 4096 / size), [&](int64_t begin, int64_t end) {
    Scratch<Key> scratch(std::max<int64_t>(size, kRanked<Key>));
    Key* keys = scratch.keys.get();
    if (size < kRanked<Key>) std::fill(keys + size, keys + kRanked<Key>, std::numeric_limits<Key>::max());
    for (int64_t row = begin; row < end; ++row) {
      to_keys(data + row * size, keys, size, flip);
      work(scratch, row);
    }
  });
}

at::Tensor places_like(const at::Tensor& values) { return at::empty(values.sizes(), values.options().dtype(at::kLong)); }

template <typename T>
std::tuple<at::Tensor, at::Tensor> own_sort(const at::Tensor& x, bool descending, bool stable, bool wanted = true) {
  at::Tensor values = at::empty(x.sizes(), x.options()), places = places_like(values);
  const int64_t size = x.size(-1);
  const auto* data = x.const_data_ptr<T>();
  auto* value = values.mutable_data_ptr<T>();
  auto* place = places.mutable_data_ptr<int64_t>();
  for_rows(data, x.numel() / size, size, descending, [&](auto& scratch, int64_t row) {
    sort_row(scratch, data + row * size, size, stable, wanted);
    const auto* items = scratch.items.get();
    const int64_t first = row * size;
    for (int64_t i = 0; i < size; ++i) {
      const int64_t from = items[i].place;
      value[first + i] = data[first + from];
      place[first + i] = from;
    }
  });
  return {values, places};
}

// --- topk ----------------------------------------------------------------------------------------------------------------

constexpr int64_t kSortColumns = 256;  // columns of which each has a first key
constexpr int64_t kSortFew = 64;       // the same for few wanted keys
constexpr int64_t kSome = 32;      // keys that are looked at together
constexpr int64_t kPartial = 64;   // elements for each wanted one from which ATen calls std::partial_sort

// The first key of each column of whole rows of `columns`, of which there is one at least.
template <typename Key>
LAMPWORK_CLONES void first_of_columns(const Key* __restrict__ keys, Key* __restrict__ first, int64_t count,
                                      int64_t columns) {
  for (int64_t i = 0; i < columns; ++i) first[i] = keys[i];
  for (int64_t from = columns; from + columns <= count; from += columns) {
    for (int64_t i = 0; i < columns; ++i) first[i] = std::min(first[i], keys[from + i]);
  }
}

template <typename Key>
LAMPWORK_CLONES bool any_up_to(const Key* keys, Key limit) {
  Key found = 0;
  for (int64_t i = 0; i < kSome; ++i) found |= keys[i] <= limit;
  return found != 0;
}

// The keys up to `limit`; more than `room` are not looked for.
template <typename Key>
int64_t collect(Scratch<Key>& scratch, int64_t count, Key limit, int64_t room) {
  const Key* keys = scratch.keys.get();
  Item<Key>* items = scratch.items.get();
  int64_t held = 0;
  for (int64_t from = 0; from < count; from += kSome) {
    const int64_t until = std::min(from + kSome, count);
    if (until - from == kSome && !any_up_to(keys + from, limit)) continue;
    if (held + kSome > room) return room + 1;
    for (int64_t i = from; i < until; ++i) {
      items[held] = {keys[i], static_cast<uint32_t>(i)};
      held += keys[i] <= limit;
    }
  }
  return held;
}

// The k keys of a row that go first, in order, at the head of scratch.items. False if two that matter may be equal, or
// the row is too short for columns: the items are then no result.
template <typename Key>
bool first_of(Scratch<Key>& scratch, int64_t count, int64_t k) {
  const Key* keys = scratch.keys.get();
  if (is_ranked<Key>(count)) {
    sort_by_rank(scratch, count);
    return !has_equal(scratch.items.get(), std::min(k + 1, count));
  }
  // At least k keys are up to the k-th of the columns' first ones: few others are.
  Key first[kSortColumns];
  const int64_t columns = k <= kSortFew / 8 ? kSortFew : kSortColumns;
  if (count < columns || k > columns) return false;
  first_of_columns(keys, first, count, columns);
  std::partial_sort(first, first + k, first + columns);
  if (std::adjacent_find(first, first + k) != first + k) return false;
  const int64_t room = std::min(count, 4 * columns);
  const int64_t held = collect(scratch, count, first[k - 1], room);
  if (held > room) return false;
  auto* begin = scratch.items.get();
  std::partial_sort(begin, begin + std::min(k + 1, held), begin + held, by_key);
  return !has_equal(scratch.items.get(), std::min(k + 1, held));
}

// Whether a row is so long, or so short, that the above is faster than ATen. In long rows of short numbers some of the
// first ones are equal.
template <typename T>
bool is_fast(int64_t count, int64_t k) {
  if (is_ranked<KeyOf<T>>(count)) return k * kPartial > count;
  if (sizeof(T) <= 2 && (std::is_integral_v<T> || count > kNarrow)) return false;
  return k <= kSortFew / 8 ? count >= 8 * kSortFew : count >= 4 * kSortColumns && k <= kSortColumns / 4;
}

template <typename T>
std::tuple<at::Tensor, at::Tensor> own_topk(const at::Tensor& x, int64_t k, bool largest) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = k;
  at::Tensor values = at::empty(sizes, x.options()), places = places_like(values);
  const int64_t size = x.size(-1);
  TORCH_INTERNAL_ASSERT(0 < k && k <= size);
  const auto* data = x.const_data_ptr<T>();
  auto* value = values.mutable_data_ptr<T>();
  auto* place = places.mutable_data_ptr<int64_t>();
  for_rows(data, x.numel() / size, size, largest, [&](auto& scratch, int64_t row) {
    if (!first_of(scratch, size, k)) {
      to_items(scratch, size);
      auto *begin = scratch.items.get(), *end = begin + size;
      if (k * kPartial <= size) {
        std::partial_sort(begin, begin + k, end, by_key);
      } else {
        std::nth_element(begin, begin + k - 1, end, by_key);
        std::sort(begin, begin + k - 1, by_key);
      }
    }
    const auto* items = scratch.items.get();
    for (int64_t i = 0; i < k; ++i) {
      const int64_t from = items[i].place;
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
at::Tensor tied(int64_t size, at::ScalarType dtype) {
  return at::arange(3 * size, at::kLong).mul(7919).remainder(std::min<int64_t>(size / 3 + 1, 100)).to(dtype).view({3, size});
}

template <typename T>
bool sort_agrees(at::ScalarType dtype) {
  for (const int64_t size : {14, 100, 1000}) {
    for (const bool descending : {false, true}) {
      const at::Tensor x = tied(size, dtype);
      if (!same(own_sort<T>(x, descending, false), at::sort(x, false, -1, descending))) return false;
    }
  }
  return true;
}

template <typename T>
bool topk_agrees(at::ScalarType dtype) {
  for (const int64_t size : {14, 100, 1500}) {
    for (const int64_t k : {2, 13}) {
      for (const bool largest : {false, true}) {
        const at::Tensor x = tied(size, dtype);
        if (!same(own_topk<T>(x, k, largest), at::topk(x, k, -1, largest, true))) return false;
      }
    }
  }
  return true;
}

bool fits(const at::Tensor& x) {
  return x.dim() > 0 && x.numel() > 0 && x.size(-1) <= std::numeric_limits<int32_t>::max();
}

// Whether the first row has so many equal elements that some are among its first ones. It stands for the others: rows
// with equal elements are no faster here than in ATen, and would be sorted twice.
template <typename T>
bool is_crowded(const at::Tensor& x) {
  constexpr int64_t kLook = 64;
  const int64_t count = std::min(x.size(-1), kLook);
  KeyOf<T> keys[kLook];
  to_keys(x.const_data_ptr<T>(), keys, count, KeyOf<T>{0});
  std::sort(keys, keys + count);
  return std::adjacent_find(keys, keys + count) != keys + count;
}

template <typename T>
bool sorts(const at::Tensor& x, bool stable, bool places) {
  if (!fits(x)) return false;
  if (stable || x.size(-1) <= 16) return true;
  static const bool agrees = sort_agrees<T>(x.scalar_type());
  // Among so many some are equal.
  const bool certain = !std::is_same_v<T, double> && x.size(-1) > kTied;
  return agrees && (!places || !(certain || is_crowded<T>(x)));
}

// Whether the first row has equal elements that matter.
template <typename T>
bool is_tied(const at::Tensor& x, int64_t k, bool largest) {
  bool tied = false;
  const int64_t size = x.size(-1);
  for_rows(x.const_data_ptr<T>(), 1, size, largest, [&](auto& scratch, int64_t) { tied = !first_of(scratch, size, k); });
  return tied;
}

template <typename T>
bool chooses(const at::Tensor& x, int64_t k, bool largest) {
  if (!fits(x) || k < 1 || k > x.size(-1) || !is_fast<T>(x.size(-1), k)) return false;
  static const bool agrees = topk_agrees<T>(x.scalar_type());
  if (!agrees || (!is_ranked<KeyOf<T>>(x.size(-1)) && is_crowded<T>(x))) return false;
  return x.numel() == x.size(-1) || !is_tied<T>(x, k, largest);
}

std::tuple<at::Tensor, at::Tensor> contiguous(const std::tuple<at::Tensor, at::Tensor>& found) {
  return {std::get<0>(found).contiguous(), std::get<1>(found).contiguous()};
}

std::tuple<at::Tensor, at::Tensor> sort(const at::Tensor& given, bool descending, bool stable, bool places) {
  const at::Tensor x = given.contiguous();
  return AT_DISPATCH_ALL_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "sort", [&] {
    return sorts<scalar_t>(x, stable, places) ? own_sort<scalar_t>(x, descending, stable, places)
                                              : contiguous(at::sort(x, stable, -1, descending));
  });
}

std::tuple<at::Tensor, at::Tensor> topk(const at::Tensor& given, int64_t k, bool largest) {
  const at::Tensor x = given.contiguous();
  return AT_DISPATCH_ALL_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "topk", [&] {
    return chooses<scalar_t>(x, k, largest) ? own_topk<scalar_t>(x, k, largest)
                                            : contiguous(at::topk(x, k, -1, largest, true));
  });
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(lampwork, m) {
  m.def("sort(Tensor x, bool descending, bool stable, bool places) -> (Tensor, Tensor)", TORCH_FN(sort));
  m.def("topk(Tensor x, int k, bool largest) -> (Tensor, Tensor)", TORCH_FN(topk));
}

}  // namespace lampwork
