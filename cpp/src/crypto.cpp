#include "crypto.h"

#include "error.h"

#ifdef LAMPWORK_SIGNATURES
#include <openssl/evp.h>

#include <memory>
#endif

namespace lampwork::runtime::crypto {

#ifdef LAMPWORK_SIGNATURES

namespace {

const unsigned char* bytes_of(std::string_view text) { return reinterpret_cast<const unsigned char*>(text.data()); }

[[noreturn]] void broken(const char* what) {
  fail(LW_INTERNAL, std::string("libcrypto computes no ") + what + ". Check which OpenSSL the program finds, and its configuration");
}

}  // namespace

void check_available() {}

std::string sha256(std::string_view bytes) {
  std::string digest(32, '\0');
  unsigned int size = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(digest.data()), &size, EVP_sha256(), nullptr) != 1 ||
      size != digest.size())
    broken("SHA-256");
  return digest;
}

bool ed25519_holds(std::string_view key, std::string_view signature, std::string_view message) {
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> made(
      EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nullptr, bytes_of(key), key.size()), &EVP_PKEY_free);
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  if (made == nullptr || context == nullptr || EVP_DigestVerifyInit(context.get(), nullptr, nullptr, nullptr, made.get()) != 1)
    broken("Ed25519");
  return EVP_DigestVerify(context.get(), bytes_of(signature), signature.size(), bytes_of(message), message.size()) == 1;
}

#else

void check_available() {
  fail(LW_TRUST,
       "this library was built without OpenSSL, and checks no signatures. Build it with -DLAMPWORK_SIGNATURES=ON where CMake finds "
       "OpenSSL (libssl-dev), or load the file with `trust` and without keys, if you know who made it");
}

std::string sha256(std::string_view) {
  check_available();
  return {};
}

bool ed25519_holds(std::string_view, std::string_view, std::string_view) {
  check_available();
  return false;
}

#endif

}  // namespace lampwork::runtime::crypto
