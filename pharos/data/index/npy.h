// numpy's .npy files, integers only: the format of Megatron's index caches.
#pragma once

#include <filesystem>
#include <stdexcept>
#include <string>

#include "pharos/data/index/integer_array.h"

namespace pharos::data {

/// A .npy file that cannot be used; the message says what and at which byte. Callers rebuild what the file held.
class NpyFault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Maps a .npy file of one or two dimensions. Throws NpyFault on anything but a whole, C-ordered, little-endian integer
/// array, base::UserError if the file cannot be opened.
IntegerArray read_npy(const std::filesystem::path& path);

/// The header numpy.save writes before `array` (format 1.0, data aligned to 64 bytes). A one-column array is a vector.
std::string npy_header(const IntegerArray& array);

}  // namespace pharos::data
