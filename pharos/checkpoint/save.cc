#include <unistd.h>

#include <algorithm>
#include <system_error>

#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/base/json.h"
#include "pharos/checkpoint/checkpoint.h"
#include "pharos/checkpoint/manifest.h"
#include "pharos/checkpoint/rank_file.h"
#include "pharos/checkpoint/safetensors.h"
#include "pharos/lens/span.h"

namespace pharos::checkpoint {
namespace {

namespace fs = std::filesystem;
using comm::MeshDim;

/// A part this rank writes.
struct Part {
  std::string name;
  std::vector<std::int64_t> global_shape;
  std::vector<std::int64_t> offset;
  at::Tensor values;
};

/// Of the ranks that hold the same part of `piece`, the first one writes it.
bool is_writer(const tensor::Piece& piece, const comm::Mesh& mesh, std::int64_t rank) {
  const auto is_expert = [](const tensor::Split& split) {
    return split.dim == MeshDim::kExpertTensor || split.dim == MeshDim::kExpert || split.dim == MeshDim::kExpertData;
  };
  const bool expert = std::any_of(piece.splits.begin(), piece.splits.end(), is_expert);
  const std::vector<MeshDim> dims =
      expert ? std::vector<MeshDim>{MeshDim::kExpertTensor, MeshDim::kExpert, MeshDim::kExpertData}
             : std::vector<MeshDim>{MeshDim::kTensor, MeshDim::kContext, MeshDim::kData};
  return std::all_of(dims.begin(), dims.end(), [&](MeshDim dim) {
    const auto split =
        std::find_if(piece.splits.begin(), piece.splits.end(), [&](const tensor::Split& s) { return s.dim == dim; });
    return mesh.coordinate(rank, dim) % (split == piece.splits.end() ? mesh.size(dim) : split->replicas) == 0;
  });
}

void add_parts(std::vector<Part>& parts, const std::string& prefix, const tensor::Parameter& parameter,
               const at::Tensor& values, const comm::Mesh& mesh, std::int64_t rank) {
  if (!values.defined()) return;
  PHAROS_CHECK(values.sizes() == parameter.data.sizes(), prefix + parameter.name + " is not shaped like its parameter");
  for (std::size_t i = 0; i < parameter.pieces.size(); ++i) {
    const tensor::Piece& piece = parameter.pieces[i];
    const tensor::Slice slice = tensor::local_slice(piece, mesh, rank);
    if (!is_writer(piece, mesh, rank) || num_elements(slice.shape) == 0) continue;
    parts.push_back(
        {prefix + piece.name, piece.shape, slice.offset, tensor::piece_view(parameter, values, i, mesh, rank)});
  }
}

std::vector<Part> collect_parts(const Contents& contents, const comm::Mesh& mesh, std::int64_t rank) {
  std::vector<Part> parts;
  for (const auto* parameter : contents.parameters) add_parts(parts, "", *parameter, parameter->data, mesh, rank);
  for (const StateTensors& state : contents.state) {
    PHAROS_CHECK(state.tensors.size() == contents.parameters.size(),
                 state.kind + " has another number of tensors than there are parameters");
    for (std::size_t i = 0; i < state.tensors.size(); ++i)
      add_parts(parts, state.kind + "/", *contents.parameters[i], state.tensors[i], mesh, rank);
  }
  return parts;
}

/// Writes this rank's tensors and returns its share of the manifest.
Manifest write_rank_file(const std::vector<Part>& parts, const Contents& contents, const fs::path& folder,
                         std::int64_t rank) {
  Manifest manifest;
  const std::string file = rank_file_name(rank);
  std::vector<TensorEntry> entries;
  for (const Part& part : parts) {
    const ElementType type = element_type(part.values.scalar_type());
    entries.push_back({part.name, type, part.values.sizes().vec()});
    manifest.tensors[part.name] = {
        part.name, part.global_shape, type, {{file, part.offset, part.values.sizes().vec()}}};
  }
  for (const StateTensors& state : contents.state) manifest.state_kinds.push_back(state.kind);
  SafetensorsWriter writer(folder / file, std::move(entries), {{"format", "pharos"}});
  for (const Part& part : parts) writer.write(part.values);
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

}  // namespace

SaveResult save(const Contents& contents, const TrainState& state, const SaveOptions& options, const comm::Mesh& mesh,
                std::int64_t rank) {
  PHAROS_CHECK(mesh.world_size() == 1 || (options.barrier && options.writer != 0),
               "several ranks need a barrier and a common writer");
  const auto wait_for_all = [&] {
    if (options.barrier) options.barrier();
  };
  const fs::path target = options.save / iteration_folder_name(state.step);
  const fs::path temporary =
      options.save / temporary_folder_name(state.step, options.writer != 0 ? options.writer : ::getpid());
  if (rank == 0) {
    base::make_directories(options.save);
    remove_leftovers(options.save);
  }
  std::vector<Part> parts;
  {
    PHAROS_SPAN(span, lens::Group::kCheckpoint, "megatron.checkpoint.save.state_dict", {lens::kGoodput, true});
    PHAROS_TRACE_REGION("generate_state_dict");
    parts = collect_parts(contents, mesh, rank);
  }
  SaveResult result{target, 0, {}};
  try {
    PHAROS_SPAN(span, lens::Group::kCheckpoint, "megatron.checkpoint.save.io_write", {lens::kGoodput, true});
    if (rank == 0) base::make_directories(temporary);
    wait_for_all();
    const Manifest share = [&] {
      PHAROS_TRACE_REGION("dcp.write_data");
      return write_rank_file(parts, contents, temporary, rank);
    }();
    result.size_bytes = share.files.front().size_bytes;
    if (rank != 0) base::write_file_atomically(temporary / share_file_name(rank), to_json(share).dump());
    wait_for_all();
    if (rank == 0) {
      PHAROS_TRACE_REGION("dcp.finish");
      complete_folder(share, state, options, mesh, temporary);
      move_into_place(temporary, target);
      write_tracker(options.save, state.step);
    }
  } catch (const std::exception& error) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    throw_save_failure(options, state.step, error.what());
  }
  if (rank == 0) {
    std::vector<fs::path> keep{target};
    if (options.loaded_from) keep.push_back(*options.loaded_from);
    result.removed = remove_old_checkpoints(options.save, options.most_recent_k, keep);
  }
  wait_for_all();
  return result;
}

}  // namespace pharos::checkpoint
