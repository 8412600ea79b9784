// A checkpoint of Pharos as a Hugging Face folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "pharos/config/enums.h"

namespace pharos::hf {

struct ExportOptions {
  std::filesystem::path checkpoint;  ///< a run folder, a folder of checkpoints (the newest), or one checkpoint
  std::filesystem::path target;      ///< the new folder
  /// The Hugging Face folder that the model came from or is like; without it that of the run
  /// (checkpoint.hf_source_path, model.hf_path), if it is there.
  std::optional<std::filesystem::path> source = {};
  std::optional<std::string> family = {};           ///< model_type; without it the source's, else the first that fits
  std::optional<config::DType> dtype = {};          ///< of the weights; without it as they are in the checkpoint
  std::optional<std::size_t> max_shard_bytes = {};  ///< without it as in the source, else kDefaultShardBytes
  bool replaces = false;                            ///< an earlier export at `target`
};

inline constexpr std::size_t kDefaultShardBytes = 5'000'000'000;

struct TransferResult {
  std::string family;
  std::size_t num_tensors = 0;
  std::size_t num_files = 0;             ///< of tensors
  std::size_t size_bytes = 0;            ///< of tensors
  std::vector<std::string> copied = {};  ///< names of other files, from the source
  std::vector<std::string> warnings = {};
};

/// Writes safetensors files (with an index if there are several), config.json, and with a source its tokenizer,
/// generation_config.json, chat templates and custom *.py. config.json is the source's with what differs changed. One
/// tensor is in memory at a time; the folder appears whole or not at all. Padding of the vocabulary is cut, tied
/// weights are stored once (twice if the source has them twice), buffers that the source lists are copied. With
/// dtype = fp32 the optimizer's fp32 weights are taken where the checkpoint has them. UserError for a checkpoint, a
/// family or a source that does not fit the model (with everything that does not), and for a target that is in use.
TransferResult export_checkpoint(const ExportOptions& options);

}  // namespace pharos::hf
