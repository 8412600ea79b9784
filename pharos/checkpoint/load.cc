#include <ATen/Functions.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "pharos/base/error.h"
#include "pharos/base/json.h"
#include "pharos/base/text.h"
#include "pharos/checkpoint/checkpoint.h"
#include "pharos/checkpoint/manifest.h"
#include "pharos/checkpoint/safetensors.h"
#include "pharos/lens/span.h"

namespace pharos::checkpoint {
namespace {

namespace fs = std::filesystem;
using comm::MeshDim;

[[noreturn]] void throw_damaged(const fs::path& folder, const std::vector<std::string>& problems) {
  throw base::UserError({.what = "The checkpoint '" + folder.string() + "' is damaged.",
                         .where = folder.string(),
                         .why = base::join(problems, "; "),
                         .fix = "Load an earlier iteration with checkpoint.ckpt_step, or copy this one again."});
}

/// The files of one checkpoint, opened and checked on first use.
class FileCache {
 public:
  FileCache(const Manifest& manifest, fs::path folder, bool with_checksums)
      : manifest_(manifest), folder_(std::move(folder)), with_checksums_(with_checksums) {}

  const SafetensorsFile& open(const std::string& name) {
    auto& file = files_[name];
    if (file == nullptr) {
      const std::string problem = compare_file(*manifest_.find_file(name), folder_, with_checksums_);
      if (!problem.empty()) throw_damaged(folder_, {problem});
      file = std::make_unique<SafetensorsFile>(folder_ / name);
    }
    return *file;
  }

  /// The stored values of `slice`; a file that disagrees with the manifest is damage.
  at::Tensor values(const StoredTensor& stored, const StoredSlice& slice) {
    const SafetensorsFile& file = open(slice.file);
    const TensorEntry* entry = file.header().find(stored.name);
    if (entry == nullptr || entry->shape != slice.shape || entry->type != stored.type) {
      throw_damaged(folder_, {"'" + slice.file + "' does not hold '" + stored.name + "' as the manifest describes it"});
    }
    return file.view(stored.name);
  }

 private:
  const Manifest& manifest_;
  fs::path folder_;
  bool with_checksums_;
  std::map<std::string, std::unique_ptr<SafetensorsFile>> files_;
};

/// A local tensor to fill: the part at slice.offset of the logical tensor `name`.
struct Wanted {
  std::string name;
  std::vector<std::int64_t> global_shape;
  tensor::Slice slice;
  at::Tensor target;
  at::Tensor padding;  ///< rows to zero, or undefined
};

void add_wanted(std::vector<Wanted>& wanted, const std::string& prefix, const tensor::Parameter& parameter,
                const at::Tensor& values, const comm::Mesh& mesh, std::int64_t rank) {
  if (!values.defined()) return;
  PHAROS_CHECK(values.sizes() == parameter.data.sizes(), prefix + parameter.name + " is not shaped like its parameter");
  for (std::size_t i = 0; i < parameter.pieces.size(); ++i) {
    const tensor::Piece& piece = parameter.pieces[i];
    const tensor::Slice slice = tensor::local_slice(piece, mesh, rank);
    at::Tensor padding;
    if (slice.padding_rows > 0) {
      PHAROS_CHECK(parameter.pieces.size() == 1, piece.name + " has padding inside a fused parameter");
      padding = values.detach().narrow(0, slice.shape[0], slice.padding_rows);
    }
    wanted.push_back(
        {prefix + piece.name, piece.shape, slice, tensor::piece_view(parameter, values, i, mesh, rank), padding});
  }
}

/// Copies what `stored` and `wanted` have in common.
void copy_overlap(const Wanted& wanted, const StoredSlice& slice, FileCache& files, const StoredTensor& stored) {
  std::vector<std::int64_t> begin(slice.shape.size()), length(slice.shape.size());
  for (std::size_t axis = 0; axis < slice.shape.size(); ++axis) {
    begin[axis] = std::max(slice.offset[axis], wanted.slice.offset[axis]);
    length[axis] =
        std::min(slice.offset[axis] + slice.shape[axis], wanted.slice.offset[axis] + wanted.slice.shape[axis]) -
        begin[axis];
    if (length[axis] <= 0) return;
  }
  at::Tensor source = files.values(stored, slice), target = wanted.target;
  for (std::size_t axis = 0; axis < slice.shape.size(); ++axis) {
    const auto dim = static_cast<std::int64_t>(axis);
    source = source.narrow(dim, begin[axis] - slice.offset[axis], length[axis]);
    target = target.narrow(dim, begin[axis] - wanted.slice.offset[axis], length[axis]);
  }
  target.copy_(source);
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

Differences compare(const std::vector<Wanted>& wanted, const Contents& contents, const Manifest& manifest,
                    bool judge_surplus) {
  Differences differences;
  std::set<std::string> names;
  for (const Wanted& item : wanted) {
    names.insert(item.name);
    const auto stored = manifest.tensors.find(item.name);
    if (stored == manifest.tensors.end()) {
      differences.missing.push_back(item.name);
    } else if (stored->second.shape != item.global_shape) {
      differences.misshapen.push_back(item.name + " (checkpoint " + shape_text(stored->second.shape) + ", model " +
                                      shape_text(item.global_shape) + ")");
    }
  }
  const auto kind_is_wanted = [&](const std::string& kind) {
    return std::any_of(contents.state.begin(), contents.state.end(),
                       [&](const StateTensors& state) { return state.kind == kind; });
  };
  for (const auto& [name, stored] : manifest.tensors) {
    const std::size_t slash = name.find('/');
    const bool is_asked = slash == std::string::npos || kind_is_wanted(name.substr(0, slash));
    if (judge_surplus && is_asked && !names.contains(name)) differences.surplus.push_back(name);
  }
  return differences;
}

/// Errors for kinds of state the checkpoint lacks altogether: one clear message instead of a list of names.
void check_state_kinds(const Contents& contents, const Manifest& manifest, const fs::path& folder) {
  std::vector<std::string> absent;
  for (const StateTensors& state : contents.state) {
    const auto& kinds = manifest.state_kinds;
    if (std::find(kinds.begin(), kinds.end(), state.kind) == kinds.end()) absent.push_back(state.kind);
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
  std::vector<Wanted> wanted;
  for (const auto* parameter : contents.parameters) add_wanted(wanted, "", *parameter, parameter->data, mesh, rank);
  for (const StateTensors& state : contents.state) {
    PHAROS_CHECK(state.tensors.size() == contents.parameters.size(),
                 state.kind + " has another number of tensors than there are parameters");
    for (std::size_t i = 0; i < state.tensors.size(); ++i)
      add_wanted(wanted, state.kind + "/", *contents.parameters[i], state.tensors[i], mesh, rank);
  }
  const Differences differences = compare(wanted, contents, manifest, mesh.size(MeshDim::kPipeline) == 1);
  const bool differs = !differences.missing.empty() || !differences.surplus.empty();
  if (!differences.misshapen.empty() || (options.strict && differs)) {
    throw base::UserError({.what = "The checkpoint '" + folder.string() + "' does not fit the model.",
                           .where = folder.string(),
                           .why = differences.text(),
                           .fix = "Use the model settings of its " + std::string(kRunConfigFile) + "."});
  }
  if (differs) result.warnings.push_back("Checkpoint '" + folder.string() + "': " + differences.text() + ".");

  PHAROS_TRACE_REGION("dcp.read_data");
  const at::NoGradGuard no_grad;
  FileCache files(manifest, folder, options.verify_checksums);
  for (const Wanted& item : wanted) {
    const auto stored = manifest.tensors.find(item.name);
    if (stored == manifest.tensors.end()) continue;
    if (item.padding.defined()) item.padding.zero_();
    for (const StoredSlice& slice : stored->second.slices) copy_overlap(item, slice, files, stored->second);
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
  FileCache files(manifest, folder, false);
  for (const auto& [name, stored] : manifest.tensors) {
    for (const StoredSlice& slice : stored.slices) {
      if (damaged.contains(slice.file)) continue;
      try {
        files.values(stored, slice);
      } catch (const base::UserError& error) {
        report.problems.push_back(error.parts().why);
      }
    }
  }
  return report;
}

}  // namespace pharos::checkpoint
