// Parts of the runtime that files and calls do not reach one by one.
#include "alias.h"
#include "arena.h"
#include "cpu.h"
#include "crypto.h"
#include "execute.h"
#include "json.h"
#include "pool.h"
#include "sha256.h"
#include "trust.h"

#include <atomic>
#include <cstdio>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace lampwork::runtime;

int failures = 0;

#define CHECK(condition)                                                   \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::printf("%s:%d: %s\n", __FILE__, __LINE__, #condition);          \
      ++failures;                                                          \
    }                                                                      \
  } while (false)

template <class Work>
bool refuses(const Work& work) {
  try {
    work();
    return false;
  } catch (const Error&) {
    return true;
  }
}

void digests() {
  // Of FIPS 180-4's examples.
  CHECK(sha256("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(sha256("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(sha256(std::string(1000000, 'a')) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

std::string bytes_of(std::string_view digits) {
  std::string bytes;
  for (size_t i = 0; i < digits.size(); i += 2) bytes += static_cast<char>(std::stoi(std::string(digits.substr(i, 2)), nullptr, 16));
  return bytes;
}

// The second test of RFC 8032; a library without libcrypto says so.
void signatures() {
  const std::string key = bytes_of("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c");
  std::string signature = bytes_of(
      "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
      "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00");
  try {
    crypto::check_available();
  } catch (const Error& error) {
    CHECK(error.status == LW_TRUST && std::string(error.what()).find("built without OpenSSL") != std::string::npos);
    CHECK(refuses([] { (void)read_public_key("any.pem"); }) && refuses([&] { (void)crypto::ed25519_holds(key, signature, "\x72"); }));
    return;
  }
  CHECK(crypto::sha256("abc") == bytes_of(sha256("abc")));
  CHECK(crypto::ed25519_holds(key, signature, "\x72"));
  CHECK(!crypto::ed25519_holds(key, signature, "\x73"));
  signature[0] ^= 1;
  CHECK(!crypto::ed25519_holds(key, signature, "\x72"));
}

void json() {
  const Json value = Json::parse(R"( {"a": [1, -2.5e1, true, null, "x\n\u00e9\ud83d\ude00"], "b": {}} )", "it");
  const Json::List& items = *value.find("a")->list();
  CHECK(*items[0].integer() == 1 && *items[1].real() == -25 && *items[2].boolean() && items[3].is_null());
  CHECK(*items[4].text() == "x\n\xc3\xa9\xf0\x9f\x98\x80");
  CHECK(*Json::parse("9223372036854775807", "it").integer() == INT64_MAX);
  CHECK(Json::parse("9223372036854775808", "it").integer() == nullptr);
  for (const char* bad : {"", "{", "[1,]", "{\"a\":1,\"a\":2}", "01", "1.", "nul", "\"\\x\"", "\"\\u12\"", "\"a", "[1] 2", "NaN", "'a'", "\"\n\"", "-"})
    CHECK(refuses([&] { (void)Json::parse(bad, "it"); }));
  CHECK(refuses([] { (void)Json::parse(std::string(100000, '['), "it"); }));
}

void indices() {
  const SymbolNumbers symbols = {{"s0", 0}, {"s1", 1}};
  const auto value = [&](const char* text, int64_t s0, int64_t s1, int64_t& found) {
    const int64_t numbers[] = {s0, s1};
    return Index::read(Json::parse(text, "it"), symbols, "it").evaluate(numbers, found);
  };
  int64_t found = 0;
  CHECK(value("7", 0, 0, found) && found == 7);
  CHECK(value("[]", 0, 0, found) && found == 0);
  CHECK(value(R"([[1, ["s0"]]])", 5, 0, found) && found == 5);
  CHECK(value(R"([[3, ["s0", "s1"]], [-2, []]])", 5, 7, found) && found == 103);
  CHECK(value(R"([[1, [["//", [[1, ["s0"]]], 4]]], [100, [["%", [[1, ["s0"]]], 4]]]])", -5, 0, found) && found == -2 + 300);
  CHECK(!value(R"([[1, [["//", 1, [[1, ["s0"]]]]]]])", 0, 0, found));
  CHECK(!value(R"([[1, ["s0", "s0"]]])", INT64_C(1) << 40, 0, found));
  CHECK(!value(R"([[1, ["s0"]], [1, ["s0"]]])", INT64_MAX, 0, found));
  CHECK(refuses([&] { (void)value(R"([[1, ["s2"]]])", 0, 0, found); }));
  CHECK(refuses([&] { (void)value(R"([[1, [["**", 1, 2]]]])", 0, 0, found); }));
}

// What lives at the same time lies apart.
void arenas() {
  std::mt19937 random(1);
  for (int turn = 0; turn < 200; ++turn) {
    std::vector<std::pair<bool, int32_t>> memory;
    std::vector<int64_t> nbytes;
    std::vector<int32_t> living;
    std::vector<std::pair<size_t, size_t>> lives;
    for (int step = 0; step < 60; ++step) {
      if (living.empty() || random() % 2 == 0) {
        living.push_back(static_cast<int32_t>(nbytes.size()));
        memory.emplace_back(true, living.back());
        lives.emplace_back(memory.size(), 1000);
        nbytes.push_back(static_cast<int64_t>(random() % (turn % 2 == 0 ? 500 : 5000000)));
      } else {
        const size_t at = random() % living.size();
        memory.emplace_back(false, living[at]);
        lives[static_cast<size_t>(living[at])].second = memory.size();
        living.erase(living.begin() + static_cast<std::ptrdiff_t>(at));
      }
    }
    const Placement placement = place_in_arena(memory, nbytes);
    for (size_t a = 0; a < nbytes.size(); ++a) {
      const int64_t begin = placement.offsets.at(static_cast<int32_t>(a));
      CHECK(begin % kAlignment == 0 && begin + nbytes[a] <= placement.bytes);
      for (size_t b = 0; b < a; ++b) {
        if (lives[a].first >= lives[b].second || lives[b].first >= lives[a].second) continue;
        const int64_t other = placement.offsets.at(static_cast<int32_t>(b));
        CHECK(begin + nbytes[a] <= other || other + nbytes[b] <= begin);
      }
    }
  }
  CHECK(refuses([] { (void)place_in_arena({{true, 0}, {true, 0}}, {8}); }));
  CHECK(refuses([] { (void)place_in_arena({{false, 0}}, {8}); }));
}

struct Counts {
  std::vector<std::atomic<int>> times;
  explicit Counts(size_t n) : times(n) {}
  static void add(void* context, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) ++static_cast<Counts*>(context)->times[static_cast<size_t>(i)];
  }
};

// Each iteration is done once, whoever calls at the same time.
void pools() {
  Pool pool(4);
  const auto work = [&pool](unsigned seed) {
    std::mt19937 random(seed);
    for (int turn = 0; turn < 300; ++turn) {
      const auto extent = static_cast<int64_t>(1 + random() % 100);
      Counts counts(static_cast<size_t>(extent));
      pool.share(extent, static_cast<int64_t>(1 + random() % 9), random() % 2 == 0, &Counts::add, &counts);
      for (const std::atomic<int>& times : counts.times) CHECK(times.load() == 1);
      if (turn % 100 == 99) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  };
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 3; ++seed) threads.emplace_back(work, seed);
  for (std::thread& thread : threads) thread.join();
}

void copies() {
  std::vector<int> from(24), to(24, -1);
  for (int i = 0; i < 24; ++i) from[static_cast<size_t>(i)] = i;
  const std::vector<int64_t> shape = {2, 3, 4}, rows = {12, 4, 1}, turned = {1, 8, 2};
  copy_strided(reinterpret_cast<char*>(to.data()), turned.data(), reinterpret_cast<char*>(from.data()), rows.data(), shape, 4);
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 3; ++j) {
      for (int k = 0; k < 4; ++k) CHECK(to[static_cast<size_t>(i + 8 * j + 2 * k)] == 12 * i + 4 * j + k);
    }
  }
}

// Views of a tensor in one layout, found again in another, hold the same elements.
void views() {
  const std::vector<int64_t> shape = {3, 4, 5}, rows = {20, 5, 1}, gaps = {40, 5, 1};
  const std::vector<std::vector<int64_t>> layouts = {rows, {1, 3, 12}, {4, 1, 12}, gaps, {200, 50, 3}};
  std::mt19937 random(5);
  size_t found = 0, refused = 0;
  for (int turn = 0; turn < 20000; ++turn) {
    const auto& from = layouts[random() % layouts.size()];
    const auto& to = layouts[random() % layouts.size()];
    std::vector<int64_t> sizes, strides;
    for (size_t i = 0; i < 1 + random() % 3; ++i) {
      sizes.push_back(1 + static_cast<int64_t>(random() % 5));
      strides.push_back(random() % 2 == 0 ? from[random() % 3] : static_cast<int64_t>(random() % 25));
    }
    const auto offset = static_cast<int64_t>(random() % 130);
    const std::optional<Alias> alias = moved_view({shape, from, to}, offset, sizes, strides);
    if (!alias) {
      ++refused;
      continue;
    }
    ++found;
    // Where each element of the whole is in memory, by its number; -1: a gap.
    const auto filled = [&](const std::vector<int64_t>& layout) {
      std::vector<int> memory(1000, -1);
      for (int64_t i = 0; i < 60; ++i)
        memory.at(static_cast<size_t>(i / 20 * layout[0] + i / 5 % 4 * layout[1] + i % 5 * layout[2])) = static_cast<int>(i);
      return memory;
    };
    const std::vector<int> before = filled(from), after = filled(to);
    std::vector<int64_t> index(sizes.size(), 0);
    for (bool more = true; more;) {
      int64_t here = offset, there = alias->offset;
      for (size_t i = 0; i < sizes.size(); ++i) {
        here += index[i] * strides[i];
        there += index[i] * alias->strides[i];
      }
      CHECK(before.at(static_cast<size_t>(here)) == after.at(static_cast<size_t>(there)));
      more = false;
      for (size_t i = 0; i < sizes.size() && !more; ++i) {
        more = ++index[i] < sizes[i];
        if (!more) index[i] = 0;
      }
    }
  }
  CHECK(found > 500 && refused > 500);
  // Rows that are read as one are no view of columns; what has no elements, or leaves the tensor, is none of anything.
  CHECK(!moved_view({shape, rows, {1, 3, 12}}, 0, {60}, {1}));
  CHECK(moved_view({shape, rows, rows}, 0, {60}, {1})->strides == std::vector<int64_t>{1});
  CHECK(moved_view({shape, rows, {120, 30, 6}}, 1, {50}, {1})->strides == std::vector<int64_t>{6});
  CHECK(moved_view({shape, rows, {1, 3, 12}}, 5, {3, 5}, {20, 1})->offset == 3);
  CHECK(!moved_view({shape, rows, rows}, 1, {60}, {1}));
  CHECK(!moved_view({shape, rows, rows}, -1, {2}, {1}));
  CHECK(!moved_view({shape, rows, rows}, 0, {0}, {1}));
  CHECK(!moved_view({shape, rows, rows}, 0, {3, INT64_MAX}, {INT64_MAX, INT64_MAX}));
}

}  // namespace

int main() {
  digests();
  signatures();
  json();
  indices();
  arenas();
  pools();
  copies();
  views();
  CHECK(!cpu_has("antigravity"));
  if (failures == 0) std::printf("all right\n");
  return failures == 0 ? 0 : 1;
}
