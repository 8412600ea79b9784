// Name of the file that holds one rank's tensors.
#pragma once

#include <cstdint>
#include <string>

namespace pharos::checkpoint {

/// "rank_00003.safetensors".
inline std::string rank_file_name(std::int64_t rank) {
  const std::string digits = std::to_string(rank);
  return "rank_" + std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0') + digits + ".safetensors";
}

}  // namespace pharos::checkpoint
