#include <unistd.h>

#include <algorithm>
#include <exception>
#include <map>
#include <system_error>

#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/base/json.h"
#include "pharos/checkpoint/checkpoint.h"
#include "pharos/checkpoint/manifest.h"
#include "pharos/checkpoint/parts/parts.h"
#include "pharos/checkpoint/rank_file.h"
#include "pharos/checkpoint/safetensors.h"
#include "pharos/lens/span.h"

namespace pharos::checkpoint {
namespace {

namespace fs = std::filesystem;
using comm::MeshDim;

/// A part this rank writes.
struct WrittenPart {
  std::string name;  ///< of the logical tensor
  Part part;
};

/// In the order of the file: wide types first, so that every tensor in it is aligned and can be read in place.
std::vector<WrittenPart> collect_parts(const Contents& contents, const comm::Mesh& mesh, std::int64_t rank) {
  std::vector<WrittenPart> written;
  for (const Held& held : contents) {
    if (!held.values.defined() || held.parameter->tie == tensor::Parameter::Tie::kCopy) continue;
    for (Part& part : parts_of(held, mesh, rank).parts) {
      if (is_writer(*part.piece, held.is_fragment, mesh, rank))
        written.push_back({stored_name(held.kind, *part.piece), std::move(part)});
    }
  }
  std::stable_sort(written.begin(), written.end(), [](const WrittenPart& a, const WrittenPart& b) {
    return a.part.values.element_size() > b.part.values.element_size();
  });
  return written;
}

/// "decoder.layers.0.mlp.down.weight@3,0": the name of one of several parts in a file.
std::string entry_name(const std::string& name, const std::vector<std::int64_t>& offset) {
  std::string text = name + "@";
  for (std::size_t axis = 0; axis < offset.size(); ++axis) text += (axis > 0 ? "," : "") + std::to_string(offset[axis]);
  return text;
}

/// Writes this rank's tensors and returns its share of the manifest.
Manifest write_rank_file(const std::vector<WrittenPart>& parts, const Contents& contents, const fs::path& folder,
                         std::int64_t rank) {
  Manifest manifest;
  const std::string file = rank_file_name(rank);
  std::map<std::string, int> num_parts;
  for (const WrittenPart& one : parts) ++num_parts[one.name];
  std::vector<TensorEntry> entries;
  for (const auto& [name, part] : parts) {
    const ElementType type = element_type(part.values.scalar_type());
    const std::vector<std::int64_t> shape = part.values.sizes().vec();
    const std::string entry = num_parts[name] > 1 ? entry_name(name, part.offset) : "";
    entries.push_back({entry.empty() ? name : entry, type, shape});
    StoredTensor& tensor =
        manifest.tensors.try_emplace(name, StoredTensor{name, part.piece->shape, type, {}}).first->second;
    tensor.slices.push_back({file, part.offset, shape, entry});
  }
  manifest.state_kinds = state_kinds(contents);
  SafetensorsWriter writer(folder / file, std::move(entries), {{"format", "pharos"}});
  for (const WrittenPart& one : parts) writer.write(one.part.values);
  writer.close();
  manifest.files.push_back({file, writer.size_bytes(), writer.crc32()});
  return manifest;
}

std::string share_file_name(std::int64_t rank) { return rank_file_name(rank) + ".json"; }

/// Rank 0: everything but the tensors of the other ranks.
void complete_folder(Manifest manifest, const TrainState& state, const SaveOptions& options, const comm::Mesh& mesh,
                     const fs::path& folder) {
  for (std::int64_t other = 1; other < mesh.world_size(); ++other) {
    const fs::path share = folder / share_file_name(other);
    merge(manifest, parse_manifest(base::read_json_file(share), share.string()));
    fs::remove(share);
  }
  for (const MeshDim dim : {MeshDim::kTensor, MeshDim::kContext, MeshDim::kData, MeshDim::kPipeline,
                            MeshDim::kExpertTensor, MeshDim::kExpert}) {
    manifest.parallel[comm::mesh_dim_name(dim)] = mesh.size(dim);
  }
  manifest.iteration = state.step;
  base::write_file_atomically(folder / kTrainStateFile, to_json(state).dump(1) + "\n");
  base::write_file_atomically(folder / kRunConfigFile, options.run_config_yaml);
  manifest.files.push_back(describe_file(folder / kTrainStateFile));
  manifest.files.push_back(describe_file(folder / kRunConfigFile));
  check_manifest(manifest, (folder / kManifestFile).string());
  write_manifest(manifest, folder);
  base::sync_directory(folder);
}

[[noreturn]] void throw_save_failure(const SaveOptions& options, std::int64_t step, const std::string& reason) {
  const auto complete = complete_iterations(options.save);
  const std::string last =
      complete.empty()
          ? "There is no earlier checkpoint in that folder."
          : "The last good checkpoint is " + (options.save / iteration_folder_name(complete.back())).string() + ".";
  throw base::TrainingError("The checkpoint of iteration " + std::to_string(step) + " could not be saved. " + reason +
                            "\n  " + last);
}

/// The steps of one save, each agreed on by all ranks.
class AgreedSteps {
 public:
  explicit AgreedSteps(const SaveOptions& options) : options_(options) {}

  /// False when `work` has failed on any rank: failure() then says why, as far as this rank knows. What the agreement
  /// itself throws (a rank is gone) is passed on.
  bool run(const std::function<void()>& work) {
    std::exception_ptr error;
    try {
      work();
    } catch (const std::exception& caught) {
      error = std::current_exception();
      failure_ = caught.what();
    }
    const bool ok = options_.all_agree ? options_.all_agree(error == nullptr) : error == nullptr;
    if (!ok && error == nullptr) failure_ = "It failed on another rank, whose message says why.";
    return ok;
  }

  const std::string& failure() const { return failure_; }

 private:
  const SaveOptions& options_;
  std::string failure_;
};

/// The files of one checkpoint, in `temporary`. False when any rank failed.
bool write_folder(AgreedSteps& steps, SaveResult& result, const Contents& contents, const TrainState& state,
                  const SaveOptions& options, const comm::Mesh& mesh, std::int64_t rank, const fs::path& temporary) {
  std::vector<WrittenPart> parts;
  const bool is_prepared = steps.run([&] {
    PHAROS_SPAN(span, lens::Group::kCheckpoint, "megatron.checkpoint.save.state_dict", {lens::kGoodput, true});
    PHAROS_TRACE_REGION("generate_state_dict");
    parts = collect_parts(contents, mesh, rank);
    if (rank == 0) base::make_directories(temporary);
  });
  if (!is_prepared) return false;
  PHAROS_SPAN(span, lens::Group::kCheckpoint, "megatron.checkpoint.save.io_write", {lens::kGoodput, true});
  Manifest share;
  const bool is_written = steps.run([&] {
    PHAROS_TRACE_REGION("dcp.write_data");
    share = write_rank_file(parts, contents, temporary, rank);
    if (rank != 0) base::write_file_atomically(temporary / share_file_name(rank), to_json(share).dump());
    result.size_bytes = share.files.front().size_bytes;
  });
  return is_written && steps.run([&] {
    if (rank != 0) return;
    PHAROS_TRACE_REGION("dcp.finish");
    complete_folder(std::move(share), state, options, mesh, temporary);
    move_into_place(temporary, result.folder);
    write_tracker(options.save, state.step);
    std::vector<fs::path> keep{result.folder};
    if (options.loaded_from) keep.push_back(*options.loaded_from);
    result.removed = remove_old_checkpoints(options.save, options.most_recent_k, keep);
  });
}

}  // namespace

SaveResult save(const Contents& contents, const TrainState& state, const SaveOptions& options, const comm::Mesh& mesh,
                std::int64_t rank) {
  PHAROS_CHECK(mesh.world_size() == 1 || (options.all_agree && options.writer != 0),
               "several ranks need an agreement and a common writer");
  SaveResult result{options.save / iteration_folder_name(state.step), 0, {}};
  const fs::path temporary =
      options.save / temporary_folder_name(state.step, options.writer != 0 ? options.writer : ::getpid());
  AgreedSteps steps(options);
  const bool has_folder = steps.run([&] {
    if (rank != 0) return;
    base::make_directories(options.save);
    remove_leftovers(options.save);
  });
  if (!has_folder) {
    throw base::UserError({.what = "The folder of checkpoints '" + options.save.string() + "' cannot be made.",
                           .where = options.save.string(),
                           .why = steps.failure(),
                           .fix = "Point checkpoint.save to a folder that can be written to."});
  }
  if (write_folder(steps, result, contents, state, options, mesh, rank, temporary)) return result;
  // Every rank has stopped writing.
  std::error_code ignored;
  if (rank == 0) fs::remove_all(temporary, ignored);
  throw_save_failure(options, state.step, steps.failure());
}

}  // namespace pharos::checkpoint
