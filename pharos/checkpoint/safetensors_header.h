// The header of a safetensors file, checked completely before anything behind it is believed. Works on bytes alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pharos::checkpoint {

/// Element types of the format, by the names written in files ("F32", "BF16", …).
enum class ElementType : std::uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E4M3,
  kF8E5M2,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kI64,
  kU64,
  kF64
};

/// "F32".
const char* element_type_name(ElementType type);
/// The type with that name, or nullopt.
std::optional<ElementType> element_type_from_name(std::string_view name);
std::size_t element_size_bytes(ElementType type);

/// One tensor as the header describes it; begin and end are bytes from the start of the data.
struct TensorEntry {
  std::string name;
  ElementType type = ElementType::kF32;
  std::vector<std::int64_t> shape;
  std::size_t begin_bytes = 0;
  std::size_t end_bytes = 0;
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  ///< in the order of their data
  std::map<std::string, std::string> metadata;
  std::size_t data_offset_bytes = 0;  ///< where the data starts in the file

  /// The entry of that name, or null.
  const TensorEntry* find(std::string_view name) const;

 private:
  friend SafetensorsHeader parse_safetensors_header(std::span<const std::byte>, const std::string&);
  std::map<std::string, std::size_t, std::less<>> by_name_;
};

/// Longest header that is accepted, as in the reference implementation.
inline constexpr std::size_t kMaxHeaderBytes = 100'000'000;

/// Parses the header of `file`, the whole content of a safetensors file called `where` in messages. The result is
/// consistent: known types, byte ranges that fit shape and type, inside the file, covering its data without holes or
/// overlaps, unique names. Every fault is a UserError naming `where` and a byte offset.
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file, const std::string& where);

/// Bytes of `shape` elements of `type`, or nullopt when that does not fit in 63 bits or a length is negative.
std::optional<std::size_t> tensor_size_bytes(ElementType type, const std::vector<std::int64_t>& shape);

/// The first bytes of a file of these tensors (length, JSON, spaces up to a multiple of 8). Assigns begin_bytes and
/// end_bytes in the given order.
std::string render_safetensors_header(std::vector<TensorEntry>& tensors,
                                      const std::map<std::string, std::string>& metadata);

}  // namespace pharos::checkpoint
