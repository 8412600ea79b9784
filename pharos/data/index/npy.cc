#include "pharos/data/index/npy.h"

#include <charconv>
#include <cstring>
#include <limits>
#include <string_view>
#include <vector>

namespace pharos::data {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kPreludeBytes = 10;  // magic, two version bytes, u16 header length

std::string_view descriptor(IntegerType type) {
  switch (type) {
    case IntegerType::kInt16:
      return "<i2";
    case IntegerType::kInt32:
      return "<i4";
    case IntegerType::kUint32:
      return "<u4";
    default:
      return "<i8";
  }
}

/// What follows `key` and its colon in the header's dictionary.
std::string_view value_after(std::string_view header, std::string_view key) {
  const std::size_t at = header.find(key);
  if (at == std::string_view::npos) throw NpyFault("its header has no " + std::string(key) + " (byte 10)");
  std::string_view rest = header.substr(at + key.size());
  while (!rest.empty() && (rest.front() == ':' || rest.front() == ' ')) rest.remove_prefix(1);
  return rest;
}

std::vector<std::int64_t> parse_shape(std::string_view text) {
  std::vector<std::int64_t> shape;
  if (text.empty() || text.front() != '(') throw NpyFault("its shape is not a tuple");
  text.remove_prefix(1);
  while (!text.empty() && text.front() != ')') {
    if (text.front() == ',' || text.front() == ' ') {
      text.remove_prefix(1);
      continue;
    }
    std::int64_t extent = 0;
    const auto result = std::from_chars(text.data(), text.data() + text.size(), extent);
    if (result.ec != std::errc() || extent < 0) throw NpyFault("its shape is not made of whole numbers");
    shape.push_back(extent);
    text.remove_prefix(static_cast<std::size_t>(result.ptr - text.data()));
  }
  if (shape.empty() || shape.size() > 2)
    throw NpyFault("it has " + std::to_string(shape.size()) + " dimensions, not 1 or 2");
  if (shape.size() == 1) shape.push_back(1);
  return shape;
}

IntegerType parse_type(std::string_view text) {
  for (const IntegerType type : {IntegerType::kInt16, IntegerType::kInt32, IntegerType::kUint32, IntegerType::kInt64}) {
    if (text.size() >= 5 && text.substr(1, 3) == descriptor(type)) return type;
  }
  throw NpyFault("its element type is not a little-endian integer of 2, 4 or 8 bytes");
}

}  // namespace

IntegerArray read_npy(const std::filesystem::path& path) {
  base::MappedFile file(path);
  const std::string_view content(reinterpret_cast<const char*>(file.data()), file.size_bytes());
  if (content.size() < kPreludeBytes)
    throw NpyFault("it ends at byte " + std::to_string(content.size()) + ", inside the header");
  if (content.substr(0, kMagic.size()) != kMagic) throw NpyFault("it does not start with numpy's magic bytes (byte 0)");
  if (content[6] != 1) throw NpyFault("its format version is not 1 (byte 6)");
  std::uint16_t header_bytes = 0;
  std::memcpy(&header_bytes, content.data() + 8, sizeof header_bytes);
  const std::size_t offset = kPreludeBytes + header_bytes;
  if (content.size() < offset)
    throw NpyFault("it ends at byte " + std::to_string(content.size()) + ", inside the header");

  const std::string_view header = content.substr(kPreludeBytes, header_bytes);
  const IntegerType type = parse_type(value_after(header, "'descr'"));
  if (!value_after(header, "'fortran_order'").starts_with("False")) throw NpyFault("it is in Fortran order");
  const std::vector<std::int64_t> shape = parse_shape(value_after(header, "'shape'"));
  const unsigned __int128 needed =
      static_cast<unsigned __int128>(shape[0]) * static_cast<std::uint64_t>(shape[1]) * size_bytes(type);
  if (needed != content.size() - offset) {
    throw NpyFault("it has " + std::to_string(content.size()) + " bytes, which is not what its shape (" +
                   std::to_string(shape[0]) + ", " + std::to_string(shape[1]) + ") needs");
  }
  if (offset % size_bytes(type) != 0) throw NpyFault("its data is not aligned (byte " + std::to_string(offset) + ")");
  return IntegerArray(std::move(file), offset, type, shape[0], shape[1]);
}

std::string npy_header(const IntegerArray& array) {
  std::string shape = std::to_string(array.rows());
  shape += array.columns() == 1 ? "," : ", " + std::to_string(array.columns());
  std::string dictionary =
      "{'descr': '" + std::string(descriptor(array.type())) + "', 'fortran_order': False, 'shape': (" + shape + "), }";
  while ((kPreludeBytes + dictionary.size() + 1) % 64 != 0) dictionary += ' ';
  dictionary += '\n';
  const auto length = static_cast<std::uint16_t>(dictionary.size());
  std::string header(kMagic);
  header += '\x01';
  header += '\x00';
  header.append(reinterpret_cast<const char*>(&length), sizeof length);
  return header + dictionary;
}

}  // namespace pharos::data
