#include "trust.h"

#include "crypto.h"
#include "error.h"
#include "sha256.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <thread>

namespace lampwork::runtime {

namespace {

using namespace std::string_view_literals;

constexpr std::string_view kPrefix = "lampwork artifact signature 1\0"sv;
constexpr std::string_view kBefore = "\"signature\":\"";  // in the header, as it is written there
constexpr size_t kLength = 88;                            // of 64 bytes in base64
constexpr size_t kPiece = size_t{1} << 24;
constexpr size_t kMostKey = size_t{1} << 16;
constexpr size_t kMostThreads = 8;

constexpr std::string_view kBegin = "-----BEGIN PUBLIC KEY-----", kEnd = "-----END PUBLIC KEY-----";
// What DER has before the 32 bytes: an algorithm, 1.3.101.112, and a string of bits.
constexpr std::string_view kDer = "\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00"sv;

// Of canonical base64; false for anything else.
bool decode(std::string_view text, std::string& bytes) {
  static constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  bytes.clear();
  if (text.size() % 4 != 0) return false;
  size_t padding = 0;
  while (padding < 2 && padding < text.size() && text[text.size() - 1 - padding] == '=') ++padding;
  uint32_t bits = 0;
  int count = 0;
  for (const char letter : text.substr(0, text.size() - padding)) {
    const size_t value = kLetters.find(letter);
    if (value == std::string_view::npos) return false;
    bits = bits << 6 | static_cast<uint32_t>(value);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes += static_cast<char>(bits >> count & 0xFFU);
    bits &= (1U << count) - 1;
  }
  return bits == 0;  // what is left of the last letter
}

size_t threads_for(size_t pieces) {
  cpu_set_t set;
  const int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  return std::min({pieces, kMostThreads, static_cast<size_t>(std::max(cores, 1))});
}

// The sha256 of the sha256s of its pieces: several threads compute it, as it is what verifying waits for.
std::string digest_of(std::string_view data) {
  std::vector<std::string> digests((data.size() + kPiece - 1) / kPiece);
  std::atomic<size_t> next{0};
  std::atomic<bool> failed{false};
  const auto work = [&] {
    try {
      for (size_t at = next++; at < digests.size(); at = next++) digests[at] = crypto::sha256(data.substr(at * kPiece, kPiece));
    } catch (...) {
      failed = true;
    }
  };
  {
    std::vector<std::jthread> threads;
    for (size_t i = 1; i < threads_for(digests.size()); ++i) threads.emplace_back(work);
    work();
  }
  if (failed) fail(LW_INTERNAL, "a digest of the file could not be computed");
  std::string all;
  for (const std::string& digest : digests) all += digest;
  return crypto::sha256(all);
}

// Where the signature begins in the header; npos unless it is at one place.
size_t place_of(std::string_view header, const std::string& signature) {
  const size_t found = header.find(kBefore);
  if (found == std::string_view::npos || header.find(kBefore, found + 1) != std::string_view::npos) return std::string_view::npos;
  const size_t begin = found + kBefore.size();
  return header.substr(begin, signature.size() + 1) == signature + "\"" ? begin : std::string_view::npos;
}

// Where the sections begin in the data. LW_FORMAT if a weight comes after one.
size_t sections_of(const Container& container) {
  const char* data = container.data().data();
  size_t begin = container.data().size();
  for (const auto& [name, tensor] : container.tensors()) {
    if (is_section(name)) begin = std::min(begin, static_cast<size_t>(tensor.bytes.data() - data));
  }
  for (const auto& [name, tensor] : container.tensors()) {
    if (!is_section(name) && static_cast<size_t>(tensor.bytes.data() - data) + tensor.bytes.size() > begin)
      damaged("the tensor '" + name.substr(0, 80) + "' comes after a section, where no signature has it");
  }
  return begin;
}

std::string message_of(std::string header, std::string_view weights, std::string_view sections) {
  std::string length;
  for (size_t i = 0; i < 8; ++i) length += static_cast<char>(static_cast<uint64_t>(header.size()) >> (8 * i));
  return std::string(kPrefix) + crypto::sha256(length + header) + digest_of(weights) + digest_of(sections);
}

std::string content_of(const std::string& path) {
  try {
    const std::shared_ptr<const Bytes> file = Bytes::map(path);
    if (file->view().size() > kMostKey) fail(LW_ARGUMENT, "it has more than " + std::to_string(kMostKey) + " bytes, which no key has");
    return std::string(file->view());
  } catch (const Error& error) {
    fail(error.status, "the key '" + path + "' cannot be read: " + error.what() + ". Give the path of a PEM file");
  }
}

}  // namespace

PublicKey read_public_key(const std::string& given) {
  crypto::check_available();
  const bool is_content = given.find("-----BEGIN ") != std::string::npos;
  const std::string content = is_content ? given : content_of(given);
  const std::string where = is_content ? "the key" : "the key '" + given + "'";
  if (content.find("PRIVATE KEY") != std::string::npos)
    fail(LW_ARGUMENT, where + ": expected a public key; came a private one, which whoever signs keeps. Give the file that ends in .pub.pem");
  std::string text, der;
  const size_t begin = content.find(kBegin);
  const size_t end = begin == std::string::npos ? begin : content.find(kEnd, begin);
  if (end != std::string::npos) {
    for (const char letter : std::string_view(content).substr(begin + kBegin.size(), end - begin - kBegin.size())) {
      if (" \t\r\n"sv.find(letter) == std::string_view::npos) text += letter;
    }
  }
  if (text.find(':') != std::string::npos) {
    fail(LW_ARGUMENT, where + ": expected a public Ed25519 key in PEM; came one with header lines. Take out the lines between its first "
                              "one and the empty one");
  }
  const bool is_pem = !text.empty() && decode(text, der);
  if (!is_pem || der.size() != kDer.size() + 32 || der.compare(0, kDer.size(), kDer) != 0) {
    fail(LW_ARGUMENT, where + ": expected a public Ed25519 key in PEM; came " +
                          (is_pem ? "another kind of key" : "something else") +
                          ". Give the file that lampwork keygen wrote beside the private key, which ends in .pub.pem");
  }
  const std::string bytes = der.substr(kDer.size());
  return {bytes, sha256(bytes).substr(0, 16)};
}

std::string verify(Container& container, const std::vector<PublicKey>& keys) {
  crypto::check_available();
  std::string names;
  for (const PublicKey& key : keys) names += (names.empty() ? "" : " or ") + key.id;
  const std::string expected = "expected a signature by " + names;
  const std::string *signature = container.metadata("signature"), *signer = container.metadata("signer");
  if (signature == nullptr || signer == nullptr) {
    fail(LW_TRUST, expected + "; came no signature. Sign it: lampwork sign FILE.lamp --key KEY.pem; or load it with `trust` and "
                              "without keys, if you know who made it");
  }
  std::string bytes;
  const bool is_signature = signature->size() == kLength && decode(*signature, bytes) && bytes.size() == 64;
  const size_t place = is_signature ? place_of(container.header(), *signature) : std::string_view::npos;
  if (place == std::string_view::npos) {
    fail(LW_TRUST, expected + ", " + std::to_string(kLength) + " characters of base64 at one place of the header; came " +
                       std::to_string(signature->size()) + " characters: '" + signature->substr(0, 100) +
                       "'. Sign the file again, or fetch it again from where it was signed");
  }
  const auto key = std::find_if(keys.begin(), keys.end(), [&](const PublicKey& one) { return one.id == *signer; });
  if (key == keys.end()) {
    fail(LW_TRUST, expected + "; came one by '" + signer->substr(0, 100) +
                       "'. Give the public key of whoever signs your artifacts, or have them sign this one");
  }
  const size_t begin = sections_of(container);
  container.keep(begin);
  std::string header(container.header());
  header.replace(place, kLength, kLength, 'A');
  if (!crypto::ed25519_holds(key->bytes, bytes, message_of(std::move(header), container.data().substr(0, begin), container.kept()))) {
    fail(LW_TRUST, "expected the bytes that " + key->id + " signed; came others: the file was changed after it was signed, or has the "
                   "signature of another file. Fetch it again from where it was signed; do not load it");
  }
  return key->id;
}

}  // namespace lampwork::runtime
