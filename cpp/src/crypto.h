// What libcrypto of OpenSSL computes. A library that was built without it refuses: LW_TRUST.
#pragma once

#include <string>
#include <string_view>

namespace lampwork::runtime::crypto {

// Throws unless there is a libcrypto.
void check_available();

// Its 32 bytes.
std::string sha256(std::string_view bytes);

// Whether 64 bytes are the signature of a message by the Ed25519 key of these 32 bytes.
bool ed25519_holds(std::string_view key, std::string_view signature, std::string_view message);

}  // namespace lampwork::runtime::crypto
