// CRC-32C (Castagnoli), which zlib does not have: polynomial 0x1EDC6F41, reflected 0x82F63B78, initial value and final
// xor all ones (RFC 3720 section 12.1). One table look-up a byte: event files see a few kilobytes a step.
#pragma once

#include <cstdint>
#include <string_view>

namespace pharos::lens {

std::uint32_t crc32c(std::string_view data);

/// As TFRecord files store it: rotated right by 15 bits, plus 0xa282ead8, so that a checksum of data that holds
/// checksums is sound.
std::uint32_t masked_crc32c(std::string_view data);

}  // namespace pharos::lens
