#include <ATen/Functions.h>

#include <algorithm>
#include <set>

#include "pharos/base/error.h"
#include "pharos/base/json.h"
#include "pharos/base/text.h"
#include "pharos/checkpoint/checkpoint.h"
#include "pharos/checkpoint/manifest.h"
#include "pharos/checkpoint/parts/parts.h"
#include "pharos/checkpoint/parts/stored_tensors.h"
#include "pharos/lens/span.h"

namespace pharos::checkpoint {
namespace {

namespace fs = std::filesystem;
using comm::MeshDim;

/// Fills held.values; those of tensors that the checkpoint lacks stay as they are. Main parameters of weights that were
/// not trained are the weights.
void fill(const Held& held, const Manifest& manifest, StoredTensors& tensors, const comm::Mesh& mesh,
          std::int64_t rank) {
  const Parts parts = parts_of(held, mesh, rank);
  for (const Part& part : parts.parts) {
    auto stored = manifest.tensors.find(stored_name(held.kind, *part.piece));
    if (stored == manifest.tensors.end() && held.kind == "main_param")
      stored = manifest.tensors.find(stored_name("", *part.piece));
    if (stored == manifest.tensors.end()) continue;
    tensors.copy_to(stored->second, part.offset, part.values);
  }
  for (const at::Tensor& padding : parts.padding) padding.zero_();
}

/// Every difference between what is wanted and what is there.
struct Differences {
  std::vector<std::string> missing, surplus, misshapen;

  std::string text() const {
    std::vector<std::string> lines;
    const auto add = [&](const char* title, const std::vector<std::string>& names) {
      if (!names.empty()) lines.push_back(std::to_string(names.size()) + " " + title + ": " + base::join(names, ", "));
    };
    add("missing in the checkpoint", missing);
    add("not in the model", surplus);
    add("of another shape", misshapen);
    return base::join(lines, "; ");
  }
};

/// `elsewhere`: pieces that may lie on other ranks; null: any.
Differences compare(const Contents& contents, const Manifest& manifest, const std::set<std::string>* elsewhere) {
  Differences differences;
  std::set<std::string> names, pieces, frozen, asked_kinds{""}, kinds_in_fragments;
  for (const Held& held : contents) {
    asked_kinds.insert(held.kind);
    if (held.is_fragment) kinds_in_fragments.insert(held.kind);
    for (const tensor::Piece& piece : held.parameter->pieces) {
      pieces.insert(piece.name);
      if (!held.parameter->trainable) frozen.insert(piece.name);
      const std::string name = stored_name(held.kind, piece);
      if (!held.values.defined() || !names.insert(name).second) continue;
      const auto stored = manifest.tensors.find(name);
      if (stored == manifest.tensors.end()) {
        // A weight without its state was not trained: see TrainingChange.
        const bool has_weight = !held.kind.empty() && manifest.tensors.contains(piece.name);
        if (!has_weight) differences.missing.push_back(name);
      } else if (stored->second.shape != piece.shape) {
        differences.misshapen.push_back(name + " (checkpoint " + shape_text(stored->second.shape) + ", model " +
                                        shape_text(piece.shape) + ")");
      }
    }
  }
  for (const auto& [name, stored] : manifest.tensors) {
    const std::size_t slash = name.find('/');
    const std::string kind = slash == std::string::npos ? "" : name.substr(0, slash);
    const std::string piece = slash == std::string::npos ? name : name.substr(slash + 1);
    if (!asked_kinds.contains(kind) || names.contains(name)) continue;
    if (!kind.empty() && frozen.contains(piece)) continue;
    // State in fragments: that of some parameters lies on other ranks alone.
    const bool is_known = elsewhere == nullptr || elsewhere->contains(piece) ||
                          (kinds_in_fragments.contains(kind) && pieces.contains(piece));
    if (!is_known) differences.surplus.push_back(name);
  }
  return differences;
}

/// Pieces of the whole model whose weights are in both: without state in the checkpoint, with state there that is not
/// asked for.
struct TrainingChange {
  std::set<std::string> newly_trained, no_longer_trained;
};

std::set<std::string> pieces_of(const Contents& contents, bool trained_alone) {
  std::set<std::string> pieces;
  for (const Held& held : contents) {
    if (trained_alone && !held.parameter->trainable) continue;
    for (const tensor::Piece& piece : held.parameter->pieces) pieces.insert(piece.name);
  }
  return pieces;
}

/// Kinds of state that every trained weight has: fp32 weights have no main parameter.
std::vector<std::string> moment_kinds(const Manifest& manifest) {
  std::vector<std::string> kinds = manifest.state_kinds;
  std::erase(kinds, "main_param");
  return kinds;
}

/// `pieces`: of the model.
TrainingChange training_change(const std::set<std::string>& pieces, const std::set<std::string>& trained,
                               const Manifest& manifest) {
  TrainingChange change;
  const std::vector<std::string> kinds = moment_kinds(manifest);
  for (const std::string& piece : pieces) {
    if (!manifest.tensors.contains(piece)) continue;
    tensor::Piece named;
    named.name = piece;
    for (const std::string& kind : kinds) {
      const bool is_stored = manifest.tensors.contains(stored_name(kind, named));
      if (is_stored != trained.contains(piece))
        (is_stored ? change.no_longer_trained : change.newly_trained).insert(piece);
    }
  }
  return change;
}

void report_change(const TrainingChange& change, const Manifest& manifest, std::vector<std::string>& warnings) {
  const auto list = [](const std::set<std::string>& pieces, const char* after) {
    return std::to_string(pieces.size()) + (pieces.size() == 1 ? " weight" : " weights") + after + ": " +
           base::join({pieces.begin(), pieces.end()}, ", ") + ".";
  };
  if (!change.newly_trained.empty()) {
    warnings.push_back("The checkpoint of iteration " + std::to_string(manifest.iteration) + " has no " +
                       base::join(moment_kinds(manifest), ", ") + " of " + list(change.newly_trained, "") +
                       " They were not trained then and begin with fresh state.");
  }
  if (!change.no_longer_trained.empty()) {
    warnings.push_back("The optimizer state of " +
                       list(change.no_longer_trained, change.no_longer_trained.size() == 1
                                                          ? " that is not trained now is left out"
                                                          : " that are not trained now is left out"));
  }
}

/// Errors for kinds of state the checkpoint lacks altogether: one clear message instead of a list of names.
void check_state_kinds(const Contents& contents, const Manifest& manifest, const fs::path& folder) {
  std::vector<std::string> absent;
  for (const std::string& kind : state_kinds(contents)) {
    const auto& kinds = manifest.state_kinds;
    if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) absent.push_back(kind);
  }
  if (absent.empty()) return;
  throw base::UserError(
      {.what = "The checkpoint '" + folder.string() + "' holds no optimizer state " + base::join(absent, ", ") + ".",
       .where = folder.string(),
       .why = "It was saved without it (checkpoint.save_optim = false), or with another optimizer or precision.",
       .fix = "Load the weights alone with checkpoint.load_optim=false, or run with the optimizer and precision it was "
              "saved with."});
}

}  // namespace

LoadResult load(const Contents& contents, const fs::path& folder, const LoadOptions& options, const comm::Mesh& mesh,
                std::int64_t rank) {
  LoadResult result;
  Manifest manifest;
  {
    PHAROS_SPAN(span, lens::Group::kLoadCheckpoint, "megatron.checkpoint.load.io_read", {lens::kGoodput, true});
    PHAROS_TRACE_REGION("dcp.read_metadata");
    manifest = read_manifest(folder);
    result.train_state = read_train_state(folder);
  }
  check_state_kinds(contents, manifest, folder);
  const std::set<std::string> none;
  const bool is_staged = mesh.size(MeshDim::kPipeline) > 1;
  const Differences differences = compare(contents, manifest,
                                          options.model_pieces ? &*options.model_pieces
                                          : is_staged          ? nullptr
                                                               : &none);
  const bool differs = !differences.missing.empty() || !differences.surplus.empty();
  if (!differences.misshapen.empty() || (options.strict && differs)) {
    throw base::UserError({.what = "The checkpoint '" + folder.string() + "' does not fit the model.",
                           .where = folder.string(),
                           .why = differences.text(),
                           .fix = "Use the model settings of its " + std::string(kRunConfigFile) + "."});
  }
  if (options.trained_pieces || !state_kinds(contents).empty()) {
    const TrainingChange change = training_change(options.model_pieces.value_or(pieces_of(contents, false)),
                                                  options.trained_pieces.value_or(pieces_of(contents, true)), manifest);
    report_change(change, manifest, result.warnings);
    result.newly_trained = change.newly_trained;
  }
  if (differs) result.warnings.push_back("Checkpoint '" + folder.string() + "': " + differences.text() + ".");

  PHAROS_TRACE_REGION("dcp.read_data");
  const at::NoGradGuard no_grad;
  StoredTensors tensors(manifest, folder, options.verify_checksums);
  for (const Held& held : contents) {
    if (held.values.defined()) fill(held, manifest, tensors, mesh, rank);
  }
  return result;
}

TrainState read_train_state(const fs::path& folder) {
  const fs::path path = folder / kTrainStateFile;
  const Manifest manifest = read_manifest(folder);
  const StoredFile* file = manifest.find_file(kTrainStateFile);
  const std::string problem =
      file == nullptr ? std::string("the manifest does not list train_state.json") : compare_file(*file, folder, true);
  if (!problem.empty()) throw_damaged(folder, {problem});
  return parse_train_state(base::read_json_file(path), path.string());
}

VerifyReport verify(const fs::path& folder) {
  const Manifest manifest = read_manifest(folder);
  VerifyReport report{manifest.iteration, manifest.tensors.size(), manifest.files.size(), 0, {}};
  std::set<std::string> damaged;
  for (const StoredFile& file : manifest.files) {
    report.size_bytes += file.size_bytes;
    const std::string problem = compare_file(file, folder, true);
    if (problem.empty()) continue;
    report.problems.push_back(problem);
    damaged.insert(file.name);
  }
  StoredTensors tensors(manifest, folder, false);
  for (const auto& [name, stored] : manifest.tensors) {
    for (const StoredSlice& slice : stored.slices) {
      if (damaged.contains(slice.file)) continue;
      try {
        tensors.check(stored, slice);
      } catch (const base::UserError& error) {
        report.problems.push_back(error.parts().why);
      }
    }
  }
  return report;
}

}  // namespace pharos::checkpoint
