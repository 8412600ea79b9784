// Saving and loading a run. Tensors are stored per piece and part, so that a checkpoint loads into any layout.
//
//     <save>/latest_checkpointed_iteration.txt     the tracker
//     <save>/iter_0000100/manifest.json            what lies where, checksums
//                         metadata.json            sharded_backend "pharos"
//                         train_state.json         counters, scheduler, optimizer, seed
//                         run_config.yaml          the resolved configuration
//                         rank_00000.safetensors   the parts of rank 0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "pharos/checkpoint/folder.h"
#include "pharos/checkpoint/parts/contents.h"
#include "pharos/checkpoint/train_state.h"
#include "pharos/comm/mesh.h"

namespace pharos::checkpoint {

struct SaveOptions {
  std::filesystem::path save;  ///< folder of checkpoints; made if need be
  std::int64_t most_recent_k = -1;
  std::optional<std::filesystem::path> loaded_from = {};  ///< never removed
  std::string run_config_yaml = {};
  /// True when every rank has passed true. Needed with more than one rank; all call it the same number of times.
  std::function<bool(bool ok)> all_agree = {};
  std::int64_t writer = 0;  ///< process id of rank 0, the same on all ranks; 0 with one rank
};

struct SaveResult {
  std::filesystem::path folder;
  std::size_t size_bytes = 0;                  ///< of what this rank wrote
  std::vector<std::filesystem::path> removed;  ///< older checkpoints, by most_recent_k
};

/// Writes <save>/iter_<state.step>: into a temporary folder, synced, renamed; then moves the tracker and removes old
/// checkpoints. Called by every rank of `mesh`, on a file system that all of them see; a part held by several ranks is
/// written by the first of them, tied weights by the rank of the original. The ranks agree after each step, so that all
/// of them return or all of them throw: UserError when <save> cannot be made; TrainingError when writing fails on any
/// rank (which gives the reason): the temporary folder is then removed, and tracker and earlier checkpoints are as they
/// were.
SaveResult save(const Contents& contents, const TrainState& state, const SaveOptions& options, const comm::Mesh& mesh,
                std::int64_t rank);

struct LoadOptions {
  bool strict = true;            ///< missing and surplus tensors are errors; else they are warnings
  bool verify_checksums = true;  ///< of the files this rank reads
  /// Names of all pieces of the model, those on other pipeline ranks included. Without them surplus tensors are only
  /// judged without pipeline parallelism.
  std::optional<std::set<std::string>> model_pieces = {};
  /// Names of all pieces that are trained, those on other ranks included, when state is asked for. Without them those
  /// of `contents` are judged alone.
  std::optional<std::set<std::string>> trained_pieces = {};
};

struct LoadResult {
  TrainState train_state;
  std::vector<std::string> warnings;
  /// Pieces, also on other ranks, that are trained now and whose state the checkpoint lacks: they begin with none.
  std::set<std::string> newly_trained;
};

/// Fills `contents` (allocated) from the checkpoint in `folder` (see find_checkpoint), whatever layout it was saved in;
/// no more is read than is asked for, but for checksums. Values are converted when types differ; padding becomes zero.
/// Kinds of state that are not asked for are passed over. What is trained may have changed: a weight that has no state
/// in the checkpoint keeps what is in `contents` (a main parameter takes the weight), and state that is not asked for
/// is left out, each with a warning. UserError naming every missing, surplus and misshapen tensor, or the damaged file.
LoadResult load(const Contents& contents, const std::filesystem::path& folder, const LoadOptions& options,
                const comm::Mesh& mesh, std::int64_t rank);

/// The counters alone.
TrainState read_train_state(const std::filesystem::path& folder);

struct VerifyReport {
  std::int64_t iteration = 0;
  std::size_t num_tensors = 0;
  std::size_t num_files = 0;
  std::size_t size_bytes = 0;
  std::vector<std::string> problems;  ///< empty: sound
};

/// Reads a whole checkpoint: checksums of all files, headers, and that every listed part is there in its shape and
/// type. UserError only when the folder is no checkpoint of Pharos or its manifest is damaged.
VerifyReport verify(const std::filesystem::path& folder);

}  // namespace pharos::checkpoint
