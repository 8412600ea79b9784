// A Hugging Face folder as a checkpoint of Pharos.
#pragma once

#include <filesystem>

#include "pharos/hf/transfer/export.h"

namespace pharos::hf {

struct ImportOptions {
  std::filesystem::path source;  ///< config.json and safetensors files
  std::filesystem::path target;  ///< the new folder of checkpoints
  bool replaces = false;         ///< an earlier import at `target`
};

/// Writes `target`/iter_0000000 with the tracker file: the weights in their own types, no optimizer state, and a
/// run_config.yaml with the architecture and `source` as checkpoint.hf_source_path. A few MiB are in memory at a time;
/// the folder appears whole or not at all. UserError naming every missing, surplus and misshapen tensor, and for a
/// target that is in use.
TransferResult import_folder(const ImportOptions& options);

}  // namespace pharos::hf
