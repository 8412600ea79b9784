#include "pharos/checkpoint/manifest.h"

#include <zlib.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <utility>

#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/base/json.h"
#include "pharos/base/pages.h"

namespace pharos::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kFormat = "pharos-checkpoint";

[[noreturn]] void fail(const std::string& where, const std::string& why) {
  throw base::UserError({.what = "'" + where + "' is not a readable checkpoint description.",
                         .where = where,
                         .why = why,
                         .fix = "Load another iteration with checkpoint.ckpt_step; `pharos` versions older than the "
                                "one that saved cannot read it."});
}

std::string hex(std::uint32_t value) {
  char text[9];
  std::snprintf(text, sizeof text, "%08x", value);
  return text;
}

std::uint32_t from_hex(const std::string& text, const std::string& where) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc() || end != text.data() + text.size() || text.empty())
    fail(where, "'" + text + "' is not a checksum");
  return value;
}

void check_file_name(const std::string& name, const std::string& where) {
  if (name.empty() || name == "." || name == ".." || fs::path(name).filename() != fs::path(name))
    fail(where, "'" + name + "' is not a plain file name");
}

bool overlap(const StoredSlice& a, const StoredSlice& b) {
  for (std::size_t axis = 0; axis < a.shape.size(); ++axis) {
    if (a.offset[axis] + a.shape[axis] <= b.offset[axis] || b.offset[axis] + b.shape[axis] <= a.offset[axis])
      return false;
  }
  return true;
}

bool lies_inside(const StoredSlice& slice, const StoredTensor& tensor) {
  bool inside = slice.offset.size() == tensor.shape.size() && slice.shape.size() == tensor.shape.size();
  for (std::size_t axis = 0; inside && axis < tensor.shape.size(); ++axis) {
    inside = slice.offset[axis] >= 0 && slice.shape[axis] >= 0 && slice.offset[axis] <= tensor.shape[axis] &&
             slice.shape[axis] <= tensor.shape[axis] - slice.offset[axis];
  }
  return inside;
}

/// Of `slices`, which lie inside their tensor and are not empty. In the order of the first axis each is compared only
/// with those that begin before it ends: a tensor may have as many parts as there are ranks.
bool any_overlap(std::vector<const StoredSlice*> slices) {
  if (slices.size() > 1 && slices.front()->shape.empty()) return true;  // a scalar has room for one
  std::sort(slices.begin(), slices.end(),
            [](const StoredSlice* a, const StoredSlice* b) { return a->offset < b->offset; });
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const std::int64_t end = slices[i]->offset.empty() ? 0 : slices[i]->offset[0] + slices[i]->shape[0];
    for (std::size_t other = i + 1; other < slices.size() && slices[other]->offset[0] < end; ++other) {
      if (overlap(*slices[i], *slices[other])) return true;
    }
  }
  return false;
}

/// The parts lie inside, do not overlap and together have as many elements as the tensor.
void check_coverage(const StoredTensor& tensor, const std::string& where) {
  if (!tensor_size_bytes(tensor.type, tensor.shape)) fail(where, "the shape of '" + tensor.name + "' is impossible");
  std::int64_t covered = 0;
  std::vector<const StoredSlice*> filled;
  for (const StoredSlice& slice : tensor.slices) {
    if (!lies_inside(slice, tensor))
      fail(where, "a part of '" + tensor.name + "' in " + slice.file + " lies outside the tensor");
    if (num_elements(slice.shape) > 0) filled.push_back(&slice);
  }
  if (any_overlap(filled)) fail(where, "two parts of '" + tensor.name + "' overlap");
  for (const StoredSlice* slice : filled) covered += num_elements(slice->shape);
  if (covered != num_elements(tensor.shape)) fail(where, "the parts of '" + tensor.name + "' do not cover it");
}

StoredTensor parse_tensor(const std::string& name, const json& value, const std::string& where) {
  StoredTensor tensor{name, value.at("shape").get<std::vector<std::int64_t>>(), ElementType::kF32, {}};
  const auto type = element_type_from_name(value.at("dtype").get<std::string>());
  if (!type) fail(where, "the dtype of '" + name + "' is unknown");
  tensor.type = *type;
  for (const json& slice : value.at("slices")) {
    tensor.slices.push_back({slice.at("file").get<std::string>(), slice.at("offset").get<std::vector<std::int64_t>>(),
                             slice.at("shape").get<std::vector<std::int64_t>>(), slice.value("entry", std::string())});
    check_file_name(tensor.slices.back().file, where);
  }
  return tensor;
}

}  // namespace

const StoredFile* Manifest::find_file(const std::string& name) const {
  const auto found =
      std::find_if(files.begin(), files.end(), [&](const StoredFile& file) { return file.name == name; });
  return found == files.end() ? nullptr : &*found;
}

std::uint32_t update_crc32(std::uint32_t crc, const void* data, std::size_t num_bytes) {
  return static_cast<std::uint32_t>(::crc32_z(crc, static_cast<const unsigned char*>(data), num_bytes));
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const std::int64_t length : shape) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(length);
  }
  return text += "]";
}

std::int64_t num_elements(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (const std::int64_t length : shape) count *= length;
  return count;
}

json to_json(const Manifest& manifest) {
  json tensors = json::object(), files = json::array();
  for (const auto& [name, tensor] : manifest.tensors) {
    json slices = json::array();
    for (const StoredSlice& slice : tensor.slices) {
      slices.push_back({{"file", slice.file}, {"offset", slice.offset}, {"shape", slice.shape}});
      if (!slice.entry.empty()) slices.back()["entry"] = slice.entry;
    }
    tensors[name] = {{"shape", tensor.shape}, {"dtype", element_type_name(tensor.type)}, {"slices", std::move(slices)}};
  }
  for (const StoredFile& file : manifest.files)
    files.push_back({{"name", file.name}, {"size_bytes", file.size_bytes}, {"crc32", hex(file.crc32)}});
  return {{"format", kFormat},
          {"format_version", kFormatVersion},
          {"iteration", manifest.iteration},
          {"parallel", manifest.parallel},
          {"state_kinds", manifest.state_kinds},
          {"tensors", std::move(tensors)},
          {"files", std::move(files)}};
}

Manifest parse_manifest(const json& parsed, const std::string& where) {
  try {
    if (parsed.at("format") != kFormat)
      fail(where, "its format is " + parsed.at("format").dump() + ", not \"pharos-checkpoint\"");
    const json& version = parsed.at("format_version");
    if (version != 1 && version != kFormatVersion)
      fail(where, "its format_version is " + version.dump() + ", this program reads 1 and 2");
    Manifest manifest;
    manifest.iteration = parsed.at("iteration").get<std::int64_t>();
    manifest.parallel = parsed.at("parallel").get<std::map<std::string, std::int64_t>>();
    manifest.state_kinds = parsed.at("state_kinds").get<std::vector<std::string>>();
    for (const auto& [name, value] : parsed.at("tensors").items())
      manifest.tensors[name] = parse_tensor(name, value, where);
    for (const json& file : parsed.at("files")) {
      manifest.files.push_back({file.at("name").get<std::string>(), file.at("size_bytes").get<std::size_t>(),
                                from_hex(file.at("crc32").get<std::string>(), where)});
      check_file_name(manifest.files.back().name, where);
    }
    return manifest;
  } catch (const json::exception& error) {
    fail(where, error.what());
  }
}

void check_manifest(const Manifest& manifest, const std::string& where) {
  std::set<std::pair<std::string, std::string>> entries;
  for (const auto& [name, tensor] : manifest.tensors) {
    check_coverage(tensor, where);
    for (const StoredSlice& slice : tensor.slices) {
      const std::string& entry = slice.entry.empty() ? name : slice.entry;
      if (manifest.find_file(slice.file) == nullptr)
        fail(where, "'" + name + "' lies in '" + slice.file + "', which is not listed");
      if (!entries.emplace(slice.file, entry).second)
        fail(where, "two parts are said to be the entry '" + entry + "' of '" + slice.file + "'");
    }
  }
}

void merge(Manifest& manifest, const Manifest& other) {
  for (const auto& [name, tensor] : other.tensors) {
    const auto [place, is_new] = manifest.tensors.emplace(name, tensor);
    if (is_new) continue;
    PHAROS_CHECK(place->second.shape == tensor.shape && place->second.type == tensor.type,
                 "ranks disagree about " + name);
    place->second.slices.insert(place->second.slices.end(), tensor.slices.begin(), tensor.slices.end());
  }
  for (const std::string& kind : other.state_kinds) {
    if (std::find(manifest.state_kinds.begin(), manifest.state_kinds.end(), kind) == manifest.state_kinds.end())
      manifest.state_kinds.push_back(kind);
  }
  manifest.files.insert(manifest.files.end(), other.files.begin(), other.files.end());
}

void write_manifest(const Manifest& manifest, const fs::path& folder) {
  const std::string text = to_json(manifest).dump(1) + "\n";
  base::write_file_atomically(folder / kManifestFile, text);
  const json metadata = {{"sharded_backend", "pharos"},
                         {"sharded_backend_version", kFormatVersion},
                         {"manifest_crc32", hex(update_crc32(0, text.data(), text.size()))}};
  base::write_file_atomically(folder / kMetadataFile, metadata.dump(1) + "\n");
}

Manifest read_manifest(const fs::path& folder) {
  const std::string where = (folder / kManifestFile).string();
  const json metadata = base::read_json_file(folder / kMetadataFile);
  if (!metadata.is_object() || metadata.value("sharded_backend", json()) != "pharos") {
    fail((folder / kMetadataFile).string(), "its sharded_backend is not \"pharos\"");
  }
  const std::string text = base::read_regular_file(folder / kManifestFile);
  const json expected = metadata.value("manifest_crc32", json());
  if (expected != hex(update_crc32(0, text.data(), text.size())))
    fail(where, "its checksum is not the one in metadata.json: one of the two is damaged");
  Manifest manifest = parse_manifest(base::parse_json(text, where), where);
  check_manifest(manifest, where);
  return manifest;
}

StoredFile describe_file(const fs::path& path) {
  const base::MappedFile file(path);
  std::uint32_t crc = 0;
  for (std::size_t begin = 0; begin < file.size_bytes(); begin += base::kMappedBlockBytes) {
    const std::size_t block = std::min(base::kMappedBlockBytes, file.size_bytes() - begin);
    base::load_pages(file.data() + begin, block);
    crc = update_crc32(crc, file.data() + begin, block);
    base::release_pages(file.data() + begin, block);
  }
  return {path.filename().string(), file.size_bytes(), crc};
}

std::string compare_file(const StoredFile& file, const fs::path& folder, bool with_checksum) {
  std::error_code error;
  const auto size = fs::file_size(folder / file.name, error);
  if (error) return "'" + file.name + "' is missing or cannot be read (" + error.message() + ")";
  if (size != file.size_bytes)
    return "'" + file.name + "' has " + std::to_string(size) + " bytes, " + std::to_string(file.size_bytes) +
           " were written";
  if (!with_checksum) return "";
  const StoredFile found = describe_file(folder / file.name);
  if (found.crc32 == file.crc32) return "";
  return "'" + file.name + "' has the checksum " + hex(found.crc32) + ", " + hex(file.crc32) + " was written";
}

}  // namespace pharos::checkpoint
