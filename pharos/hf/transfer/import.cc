#include "pharos/hf/transfer/import.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <set>

#include "pharos/base/file.h"
#include "pharos/base/pages.h"
#include "pharos/base/text.h"
#include "pharos/checkpoint/folder.h"
#include "pharos/checkpoint/manifest.h"
#include "pharos/checkpoint/rank_file.h"
#include "pharos/checkpoint/safetensors.h"
#include "pharos/checkpoint/train_state.h"
#include "pharos/config/recipe/run_yaml.h"
#include "pharos/config/schema/schema.h"
#include "pharos/hf/hf_config.h"
#include "pharos/hf/hf_names.h"
#include "pharos/hf/transfer/new_folder.h"
#include "pharos/hf/transfer/whole_model.h"
#include "pharos/hf/weights.h"

namespace pharos::hf {
namespace {

namespace fs = std::filesystem;
using checkpoint::SafetensorsSet;

/// A piece and the tensors it comes from.
struct Incoming {
  const tensor::Piece* piece;
  Location location;
  at::ScalarType type;
};

/// Wide types first, so that every tensor of the file is aligned. Experts of one layer that have several types are
/// stored in one that holds all their values, with a warning.
std::vector<Incoming> list_incoming(const std::vector<const tensor::Piece*>& pieces, const NameTable& table,
                                    const SafetensorsSet& set, std::vector<std::string>& warnings) {
  const bool with_prefix = has_prefix(set, table);
  std::vector<Incoming> incoming;
  for (const tensor::Piece* piece : pieces) {
    Location location = *locate(table, piece->name, with_prefix);
    std::set<checkpoint::ElementType> types;
    for (const std::string& name : location.tensors(piece->shape)) types.insert(set.find(name)->type);
    at::ScalarType type = checkpoint::scalar_type(*types.begin());
    std::vector<std::string> type_names;
    for (const checkpoint::ElementType one : types) {
      type = at::promote_types(type, checkpoint::scalar_type(one));
      type_names.emplace_back(checkpoint::element_type_name(one));
    }
    if (types.size() > 1) {
      const std::string common = checkpoint::element_type_name(checkpoint::element_type(type));
      warnings.push_back("The experts of " + location.tensor + " have several types (" + base::join(type_names, ", ") +
                         "): all are stored, and exported again, as " + common + ", their values unchanged.");
    }
    incoming.push_back({piece, std::move(location), type});
  }
  std::stable_sort(incoming.begin(), incoming.end(), [](const Incoming& a, const Incoming& b) {
    return c10::elementSize(a.type) > c10::elementSize(b.type);
  });
  return incoming;
}

/// Row by row, as many at a time as a block holds; a longer row (the matrix of an expert) goes on its next axis.
void write_rows(const Incoming& incoming, const SafetensorsSet& set, const tensor::Slice& slice, std::size_t axis,
                checkpoint::SafetensorsWriter& writer) {
  const auto whole = static_cast<std::size_t>(checkpoint::num_elements(slice.shape)) * c10::elementSize(incoming.type);
  if (axis == slice.shape.size() || whole <= base::kMappedBlockBytes) {
    const at::Tensor values = at::empty(slice.shape, at::TensorOptions().dtype(incoming.type));
    read_piece(set, incoming.location, incoming.piece->shape, slice, values);
    writer.write_part(values);
    return;
  }
  const std::size_t row_bytes = whole / static_cast<std::size_t>(slice.shape[axis]);
  const auto step = static_cast<std::int64_t>(std::max<std::size_t>(1, base::kMappedBlockBytes / row_bytes));
  for (std::int64_t first = 0; first < slice.shape[axis]; first += step) {
    tensor::Slice rows = slice;
    rows.offset[axis] += first;
    rows.shape[axis] = std::min(step, slice.shape[axis] - first);
    write_rows(incoming, set, rows, axis + 1, writer);
  }
}

checkpoint::Manifest write_weights(const std::vector<Incoming>& incoming, const SafetensorsSet& set,
                                   const fs::path& folder) {
  checkpoint::Manifest manifest;
  const std::string file = checkpoint::rank_file_name(0);
  std::vector<checkpoint::TensorEntry> entries;
  for (const Incoming& one : incoming) {
    const std::string& name = one.piece->name;
    const std::vector<std::int64_t>& shape = one.piece->shape;
    const checkpoint::ElementType type = checkpoint::element_type(one.type);
    entries.push_back({name, type, shape});
    manifest.tensors[name] = {name, shape, type, {{file, std::vector<std::int64_t>(shape.size(), 0), shape, ""}}};
  }
  checkpoint::SafetensorsWriter writer(folder / file, std::move(entries), {{"format", "pharos"}});
  for (const Incoming& one : incoming)
    write_rows(one, set, {std::vector<std::int64_t>(one.piece->shape.size(), 0), one.piece->shape, 0}, 0, writer);
  writer.close();
  manifest.files.push_back({file, writer.size_bytes(), writer.crc32()});
  return manifest;
}

/// The architecture, where it came from, and a tokenizer of as many tokens: text is a matter of the source's own.
std::string run_config_yaml(const HfModel& hf, const fs::path& source) {
  config::ResolvedConfig resolved = config::resolve({});
  config::RunConfig imported;
  imported.model = hf.model;
  const config::RunConfig defaults;
  const std::string origin = "config.json of " + source.string();
  for (const config::Field& field : config::schema().fields()) {
    if (field.section != "model" || !field.member) continue;
    const config::Value value = field.read(imported);
    if (!(value == field.read(defaults))) config::set_derived(resolved, field.name, value, origin);
  }
  config::set_derived(resolved, "checkpoint.hf_source_path", config::Value::of_string(source.string()), "imported");
  constexpr std::int64_t kByteTokens = 257;  // those of the default tokenizer
  if (*hf.model.vocab_size != kByteTokens) {
    config::set_derived(resolved, "tokenizer.tokenizer_type", config::Value::of_string("NullTokenizer"), origin);
    config::set_derived(resolved, "tokenizer.vocab_size", config::Value::of_integer(*hf.model.vocab_size), origin);
    if (hf.end_of_document)
      config::set_derived(resolved, "tokenizer.null_tokenizer_eod_id", config::Value::of_integer(*hf.end_of_document),
                          origin);
  }
  return config::to_yaml(resolved);
}

void write_checkpoint(const std::vector<Incoming>& incoming, const SafetensorsSet& set, const HfModel& hf,
                      const fs::path& source, const fs::path& folder) {
  base::make_directories(folder);
  checkpoint::Manifest manifest = write_weights(incoming, set, folder);
  base::write_file_atomically(folder / checkpoint::kTrainStateFile,
                              checkpoint::to_json(checkpoint::TrainState{}).dump(1) + "\n");
  base::write_file_atomically(folder / checkpoint::kRunConfigFile, run_config_yaml(hf, source));
  for (const char* file : {checkpoint::kTrainStateFile, checkpoint::kRunConfigFile})
    manifest.files.push_back(checkpoint::describe_file(folder / file));
  checkpoint::check_manifest(manifest, (folder / checkpoint::kManifestFile).string());
  checkpoint::write_manifest(manifest, folder);
  base::sync_directory(folder);
}

bool is_folder_of_checkpoints(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path / checkpoint::kTrackerFile, ignored);
}

}  // namespace

TransferResult import_folder(const ImportOptions& options) {
  HfModel hf = read_hf_config(options.source);
  const SafetensorsSet set(options.source);
  drop_absent_prediction_layers(hf, set.names());
  const auto model = declare_whole(hf.model);
  check_weights(model->parameters(), options.source, model->mesh(), 0);
  check_apart(options.target, {options.source});
  TransferResult result{.family = family_name(*hf.family), .num_files = 1};
  if (!hf.model.mtp_num_layers && has_stored_prediction_layers(hf, set.names())) {
    result.warnings.push_back(
        "The files hold layers of multi-token prediction that config.json does not announce "
        "(num_nextn_predict_layers): the model is built without them.");
  }
  const std::vector<Incoming> incoming = list_incoming(pieces_of(*model), name_table(hf), set, result.warnings);

  NewFolder folder(options.target, options.replaces, is_folder_of_checkpoints);
  const fs::path inside = folder.path() / checkpoint::iteration_folder_name(0);
  write_checkpoint(incoming, set, hf, fs::absolute(options.source).lexically_normal(), inside);
  checkpoint::write_tracker(folder.path(), 0);
  folder.finish();
  result.num_tensors = incoming.size();
  for (const Incoming& one : incoming)
    result.size_bytes +=
        static_cast<std::size_t>(checkpoint::num_elements(one.piece->shape)) * c10::elementSize(one.type);
  return result;
}

}  // namespace pharos::hf
