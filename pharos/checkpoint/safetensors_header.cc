#include "pharos/checkpoint/safetensors_header.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "pharos/base/error.h"

namespace pharos::checkpoint {
namespace {

using nlohmann::json;

constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kMaxAxes = 32;
constexpr int kMaxDepth = 4;  // top object, tensor object, shape list, and the elements in it

struct TypeRow {
  ElementType type;
  const char* name;
  std::size_t size_bytes;
};

constexpr std::array<TypeRow, 15> kTypes{{{ElementType::kBool, "BOOL", 1},
                                          {ElementType::kU8, "U8", 1},
                                          {ElementType::kI8, "I8", 1},
                                          {ElementType::kF8E4M3, "F8_E4M3", 1},
                                          {ElementType::kF8E5M2, "F8_E5M2", 1},
                                          {ElementType::kI16, "I16", 2},
                                          {ElementType::kU16, "U16", 2},
                                          {ElementType::kF16, "F16", 2},
                                          {ElementType::kBF16, "BF16", 2},
                                          {ElementType::kI32, "I32", 4},
                                          {ElementType::kU32, "U32", 4},
                                          {ElementType::kF32, "F32", 4},
                                          {ElementType::kI64, "I64", 8},
                                          {ElementType::kU64, "U64", 8},
                                          {ElementType::kF64, "F64", 8}}};

const TypeRow& type_row(ElementType type) {
  for (const TypeRow& row : kTypes) {
    if (row.type == type) return row;
  }
  throw base::InternalError("element type " + std::to_string(static_cast<int>(type)) + " is not in the table");
}

/// The file being read, for messages.
struct Source {
  const std::string& where;
  std::string_view text;  ///< the JSON

  [[noreturn]] void fail(std::size_t byte, const std::string& why) const {
    throw base::UserError({.what = "'" + where + "' is not a valid safetensors file.",
                           .where = where + ", byte " + std::to_string(byte),
                           .why = why,
                           .fix = "The file is damaged or cut short: fetch or write it again."});
  }

  /// Offset in the file of the entry called `name`.
  std::size_t entry_offset(const std::string& name) const {
    const std::size_t found = text.find('"' + name + '"');
    return kLengthBytes + (found == std::string_view::npos ? 0 : found);
  }

  [[noreturn]] void fail_entry(const std::string& name, const std::string& why) const {
    fail(entry_offset(name), "tensor '" + name + "': " + why);
  }
};

/// Reads the JSON and refuses what the library would let pass: repeated keys and needless depth.
json parse_strictly(const Source& source) {
  std::set<std::string> names, fields;
  const auto check = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > kMaxDepth) source.fail(kLengthBytes, "the header nests deeper than the format does");
    if (event != json::parse_event_t::key) return true;
    const std::string key = parsed.get<std::string>();
    if (depth == 1) {
      fields.clear();
      if (!names.insert(key).second) source.fail_entry(key, "the name appears twice");
    } else if (!fields.insert(key).second) {
      source.fail(source.entry_offset(key), "the key '" + key + "' appears twice in one object");
    }
    return true;
  };
  try {
    return json::parse(source.text, check);
  } catch (const json::parse_error& error) {
    source.fail(kLengthBytes + (error.byte > 0 ? error.byte - 1 : 0),
                std::string("the header is not valid JSON: ") + error.what());
  } catch (const json::exception& error) {
    source.fail(kLengthBytes, std::string("the header is not valid JSON: ") + error.what());
  }
}

/// A whole number in [0, 2^63).
std::optional<std::int64_t> as_count(const json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  const auto number = value.get<std::uint64_t>();
  if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return std::nullopt;
  return static_cast<std::int64_t>(number);
}

TensorEntry parse_entry(const Source& source, const std::string& name, const json& value) {
  if (!value.is_object()) source.fail_entry(name, "its entry is not an object");
  for (const auto& [key, unused] : value.items()) {
    if (key != "dtype" && key != "shape" && key != "data_offsets")
      source.fail_entry(name, "the key '" + key + "' is unknown");
  }
  const auto dtype = value.find("dtype"), shape = value.find("shape"), offsets = value.find("data_offsets");
  if (dtype == value.end() || !dtype->is_string()) source.fail_entry(name, "dtype is missing or not a string");
  if (shape == value.end() || !shape->is_array() || shape->size() > kMaxAxes)
    source.fail_entry(name, "shape is missing or not a list of at most 32 lengths");
  if (offsets == value.end() || !offsets->is_array() || offsets->size() != 2)
    source.fail_entry(name, "data_offsets is missing or not a pair");

  TensorEntry entry;
  entry.name = name;
  const auto type = element_type_from_name(dtype->get_ref<const std::string&>());
  if (!type) source.fail_entry(name, "the dtype '" + dtype->get<std::string>() + "' is not known");
  entry.type = *type;
  for (const json& length : *shape) {
    const auto count = as_count(length);
    if (!count) source.fail_entry(name, "a length in shape is not a whole number below 2^63");
    entry.shape.push_back(*count);
  }
  const auto begin = as_count((*offsets)[0]), end = as_count((*offsets)[1]);
  if (!begin || !end || *begin > *end) source.fail_entry(name, "data_offsets are not two ascending whole numbers");
  entry.begin_bytes = static_cast<std::size_t>(*begin);
  entry.end_bytes = static_cast<std::size_t>(*end);
  const auto size = tensor_size_bytes(entry.type, entry.shape);
  if (!size) source.fail_entry(name, "the product of its shape does not fit in 63 bits");
  if (*size != entry.end_bytes - entry.begin_bytes) {
    source.fail_entry(name, "shape and dtype need " + std::to_string(*size) + " bytes, data_offsets give " +
                                std::to_string(entry.end_bytes - entry.begin_bytes));
  }
  return entry;
}

/// The byte ranges, sorted, must follow each other from 0 to the end of the file.
void check_coverage(const Source& source, const std::vector<TensorEntry>& tensors, std::size_t data_offset,
                    std::size_t file_size) {
  std::size_t next = 0;
  for (const TensorEntry& entry : tensors) {
    if (entry.begin_bytes != next) {
      source.fail(data_offset + std::min(next, entry.begin_bytes),
                  "tensor '" + entry.name +
                      (entry.begin_bytes < next ? "' overlaps the tensor before it" : "' leaves a hole before it"));
    }
    next = entry.end_bytes;
    if (next > file_size - data_offset) {
      source.fail(file_size, "tensor '" + entry.name + "' ends at byte " + std::to_string(data_offset + next) +
                                 ", the file at byte " + std::to_string(file_size));
    }
  }
  if (next != file_size - data_offset) {
    source.fail(data_offset + next,
                std::to_string(file_size - data_offset - next) + " bytes at the end belong to no tensor");
  }
}

void parse_metadata(const Source& source, const json& value, std::map<std::string, std::string>& metadata) {
  if (!value.is_object()) source.fail_entry("__metadata__", "it is not an object");
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) source.fail_entry("__metadata__", "the value of '" + key + "' is not a string");
    metadata[key] = text.get<std::string>();
  }
}

}  // namespace

const char* element_type_name(ElementType type) { return type_row(type).name; }

std::optional<ElementType> element_type_from_name(std::string_view name) {
  for (const TypeRow& row : kTypes) {
    if (name == row.name) return row.type;
  }
  return std::nullopt;
}

std::size_t element_size_bytes(ElementType type) { return type_row(type).size_bytes; }

std::optional<std::size_t> tensor_size_bytes(ElementType type, const std::vector<std::int64_t>& shape) {
  auto size = static_cast<std::int64_t>(element_size_bytes(type));
  for (const std::int64_t length : shape) {
    if (length < 0 || __builtin_mul_overflow(size, length, &size)) return std::nullopt;
  }
  return static_cast<std::size_t>(size);
}

const TensorEntry* SafetensorsHeader::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors[found->second];
}

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file, const std::string& where) {
  Source source{where, {}};
  if (file.size() < kLengthBytes) {
    source.fail(file.size(),
                "the file has " + std::to_string(file.size()) + " bytes, the length of the header alone takes 8");
  }
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) length |= static_cast<std::uint64_t>(file[i]) << (8 * i);
  if (length > kMaxHeaderBytes)
    source.fail(0, "the header claims " + std::to_string(length) + " bytes, at most 100 000 000 are allowed");
  if (length > file.size() - kLengthBytes) {
    source.fail(file.size(), "the header claims " + std::to_string(length) + " bytes, the file ends after " +
                                 std::to_string(file.size() - kLengthBytes));
  }
  source.text = {reinterpret_cast<const char*>(file.data()) + kLengthBytes, static_cast<std::size_t>(length)};
  if (source.text.empty() || source.text.front() != '{')
    source.fail(kLengthBytes, "the header does not start with '{'");

  const json parsed = parse_strictly(source);
  SafetensorsHeader header;
  header.data_offset_bytes = kLengthBytes + static_cast<std::size_t>(length);
  for (const auto& [name, value] : parsed.items()) {
    if (name == "__metadata__") {
      parse_metadata(source, value, header.metadata);
    } else {
      header.tensors.push_back(parse_entry(source, name, value));
    }
  }
  std::stable_sort(header.tensors.begin(), header.tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::pair(a.begin_bytes, a.end_bytes) < std::pair(b.begin_bytes, b.end_bytes);
  });
  check_coverage(source, header.tensors, header.data_offset_bytes, file.size());
  for (std::size_t i = 0; i < header.tensors.size(); ++i) header.by_name_[header.tensors[i].name] = i;
  return header;
}

std::string render_safetensors_header(std::vector<TensorEntry>& tensors,
                                      const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json parsed = nlohmann::ordered_json::object();
  if (!metadata.empty()) parsed["__metadata__"] = metadata;
  std::size_t next = 0;
  for (TensorEntry& entry : tensors) {
    const auto size = tensor_size_bytes(entry.type, entry.shape);
    PHAROS_CHECK(size.has_value(), "size of tensor " + entry.name);
    PHAROS_CHECK(!parsed.contains(entry.name), "tensor " + entry.name + " is written twice");
    entry.begin_bytes = next;
    entry.end_bytes = next += *size;
    parsed[entry.name] = {{"dtype", element_type_name(entry.type)},
                          {"shape", entry.shape},
                          {"data_offsets", {entry.begin_bytes, entry.end_bytes}}};
  }
  std::string text = parsed.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string header(kLengthBytes, '\0');
  for (std::size_t i = 0; i < kLengthBytes; ++i) header[i] = static_cast<char>(text.size() >> (8 * i) & 0xff);
  return header + text;
}

}  // namespace pharos::checkpoint
