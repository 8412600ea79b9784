// How long the data of a run lasts, from the headers of its files alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pharos/config/run_config.h"

namespace pharos::plan {

/// What 34 bytes of a .idx file and the size of the .bin file say.
struct DataFile {
  std::string prefix;
  double weight = 1;  ///< share of the training samples
  bool found = false;
  std::int64_t sequences = 0;
  std::int64_t documents = 0;
  std::int64_t tokens = 0;
  std::int64_t token_bytes = 0;                 ///< bytes a token
  double train_tokens = 0;                      ///< of the training split
  std::optional<double> epochs = std::nullopt;  ///< passes of the run over them
};

struct DatasetPlan {
  bool is_mock = false;
  std::vector<DataFile> files;  ///< of the training data
  /// Resident bytes: index arrays, .idx files, and pages of .bin files the run touches (these at most 256 MiB a file:
  /// the kernel takes mapped pages back).
  double memory_bytes = 0;
};

/// Files that are not there are marked, not an error; a .idx file that is none is a UserError.
DatasetPlan plan_dataset(const config::RunConfig& config, std::int64_t data_parallel_size);

}  // namespace pharos::plan
