// What a checkpoint folder holds: every logical tensor, where its parts lie, and a checksum per file. Knows no torch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "pharos/checkpoint/safetensors_header.h"

namespace pharos::checkpoint {

inline constexpr std::int64_t kFormatVersion = 2;  ///< 1: without StoredSlice::entry
inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr const char* kMetadataFile = "metadata.json";
inline constexpr const char* kTrainStateFile = "train_state.json";
inline constexpr const char* kRunConfigFile = "run_config.yaml";

/// A rectangular part of a logical tensor, stored in `file`.
struct StoredSlice {
  std::string file;
  std::vector<std::int64_t> offset;
  std::vector<std::int64_t> shape;
  std::string entry = {};  ///< name within the file; empty: that of the tensor
};

/// A logical tensor: a piece ("decoder.layers.0.mlp.gate.weight") or its state ("exp_avg/decoder.…").
struct StoredTensor {
  std::string name;
  std::vector<std::int64_t> shape;  ///< global, without padding
  ElementType type = ElementType::kF32;
  std::vector<StoredSlice> slices;
};

struct StoredFile {
  std::string name;
  std::size_t size_bytes = 0;
  std::uint32_t crc32 = 0;
};

struct Manifest {
  std::int64_t iteration = 0;
  std::map<std::string, std::int64_t> parallel;  ///< sizes at the time of saving, by mesh dimension; only for people
  std::vector<std::string> state_kinds;          ///< "exp_avg", …
  std::map<std::string, StoredTensor> tensors;
  std::vector<StoredFile> files;

  const StoredFile* find_file(const std::string& name) const;
};

nlohmann::json to_json(const Manifest& manifest);

/// One rank's or the whole manifest. UserError naming `where` when the JSON is none, or of a version this program does
/// not read; names of files are plain.
Manifest parse_manifest(const nlohmann::json& json, const std::string& where);

/// UserError naming `where` when the whole manifest is not consistent: parts lie inside their tensors, cover them
/// exactly, and have a file that is listed and an entry of it to themselves.
void check_manifest(const Manifest& manifest, const std::string& where);

/// Adds the tensors and files of `other`, another rank's part of the same checkpoint.
void merge(Manifest& manifest, const Manifest& other);

/// Writes manifest.json and metadata.json (which holds the manifest's checksum) into `folder`.
void write_manifest(const Manifest& manifest, const std::filesystem::path& folder);

/// Reads both and compares the checksum. UserError when the folder is no checkpoint of Pharos or they are damaged.
Manifest read_manifest(const std::filesystem::path& folder);

/// CRC-32 (zlib) of `num_bytes` at `data`, continuing from `crc`.
std::uint32_t update_crc32(std::uint32_t crc, const void* data, std::size_t num_bytes);

/// Size and checksum of a file.
StoredFile describe_file(const std::filesystem::path& path);

/// What differs between `file` and the one in `folder` ("is missing", …), or an empty text.
std::string compare_file(const StoredFile& file, const std::filesystem::path& folder, bool with_checksum);

/// "[4, 6]".
std::string shape_text(const std::vector<std::int64_t>& shape);

/// Number of elements of `shape`; 1 for a scalar.
std::int64_t num_elements(const std::vector<std::int64_t>& shape);

}  // namespace pharos::checkpoint
