// Who signed a file: Ed25519 signatures, as `lampwork sign` writes and `lampwork verify` checks them.
#pragma once

#include "container.h"

#include <string>
#include <vector>

namespace lampwork::runtime {

struct PublicKey {
  std::string bytes;  // 32
  std::string id;     // the first 16 hexadecimal digits of their sha256
};

// `given`: the path of a PEM file, or its content. LW_FILE if it cannot be read, LW_ARGUMENT if it is no public Ed25519 key,
// LW_TRUST in a library without libcrypto.
PublicKey read_public_key(const std::string& given);

// Which of the keys signed a file, by its id. The sections of the container are those that were signed from then on, in
// memory that no other process can write to. LW_TRUST if none of them signed it, or if it was changed since.
std::string verify(Container& container, const std::vector<PublicKey>& keys);

}  // namespace lampwork::runtime
