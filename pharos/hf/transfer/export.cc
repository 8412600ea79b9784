#include "pharos/hf/transfer/export.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/base/json.h"
#include "pharos/base/text.h"
#include "pharos/checkpoint/folder.h"
#include "pharos/checkpoint/manifest.h"
#include "pharos/checkpoint/parts/stored_tensors.h"
#include "pharos/comm/mesh.h"
#include "pharos/config/recipe/run_yaml.h"
#include "pharos/hf/hf_config.h"
#include "pharos/hf/hf_names.h"
#include "pharos/hf/transfer/hf_config_file.h"
#include "pharos/hf/transfer/new_folder.h"
#include "pharos/hf/transfer/shards.h"
#include "pharos/hf/transfer/whole_model.h"
#include "pharos/hf/weights.h"

namespace pharos::hf {
namespace {

namespace fs = std::filesystem;
using checkpoint::ElementType;
using checkpoint::shape_text;

constexpr const char* kWords = "embedding.word_embeddings.weight";
constexpr const char* kOutput = "output_layer.weight";

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

fs::path checkpoints_of(const fs::path& path) {
  if (!is_there(path / "run.yaml")) return path;
  const auto save = config::load_run_yaml(path / "run.yaml").config.checkpoint.save;
  return save ? fs::path(*save) : path / "checkpoints";
}

/// The checkpoint to be exported: its folder, what is in it, and the model it says it is.
struct Checkpoint {
  fs::path folder;
  checkpoint::Manifest manifest;
  config::RunConfig config;
  std::vector<std::string> warnings;
};

Checkpoint open_checkpoint(const fs::path& path) {
  const fs::path place = checkpoints_of(path);
  const auto found = checkpoint::find_checkpoint(place);
  if (!found) {
    throw base::UserError({.what = "There is no checkpoint in '" + place.string() + "'.",
                           .where = path.string(),
                           .fix = "Give a run folder, a folder of checkpoints, or one checkpoint (iter_0000100)."});
  }
  Checkpoint result{found->folder, checkpoint::read_manifest(found->folder), {}, found->warnings};
  result.config = config::load_run_yaml(found->folder / checkpoint::kRunConfigFile).config;
  // What the run took from its tokenizer.
  const auto words = result.manifest.tensors.find(kWords);
  if (words != result.manifest.tensors.end() && !words->second.shape.empty())
    result.config.model.vocab_size = words->second.shape[0];
  return result;
}

/// The pieces of the model must be those of the checkpoint.
void check_pieces(const Checkpoint& from, const std::vector<const tensor::Piece*>& pieces) {
  std::vector<std::string> problems;
  std::set<std::string> names;
  for (const tensor::Piece* piece : pieces) {
    names.insert(piece->name);
    const auto stored = from.manifest.tensors.find(piece->name);
    if (stored == from.manifest.tensors.end()) {
      problems.push_back(piece->name + " is missing");
    } else if (stored->second.shape != piece->shape) {
      problems.push_back(piece->name + " is " + shape_text(stored->second.shape) + ", the model has " +
                         shape_text(piece->shape));
    }
  }
  for (const auto& [name, stored] : from.manifest.tensors) {
    if (name.find('/') == std::string::npos && !names.contains(name)) problems.push_back(name + " is not in the model");
  }
  if (problems.empty()) return;
  throw base::UserError({.what = "The checkpoint '" + from.folder.string() + "' does not fit its own configuration.",
                         .where = (from.folder / checkpoint::kRunConfigFile).string(),
                         .why = base::join(problems, "; "),
                         .fix = "Restore its run_config.yaml."});
}

ElementType element_type_of(config::DType type) {
  if (type == config::DType::kBFloat16) return ElementType::kBF16;
  return type == config::DType::kFloat16 ? ElementType::kF16 : ElementType::kF32;
}

config::DType dtype_of(ElementType type) {
  if (type == ElementType::kBF16) return config::DType::kBFloat16;
  return type == ElementType::kF16 ? config::DType::kFloat16 : config::DType::kFloat32;
}

/// The source folder, open.
struct Source {
  explicit Source(const fs::path& folder)
      : folder(folder),
        hf(read_hf_config(folder)),
        tensors(folder),
        config(base::read_json_file(folder / "config.json")) {
    drop_absent_prediction_layers(hf, tensors.names());
  }
  ShardMap shards() const {
    ShardMap result;
    for (const std::string& name : tensors.names()) result[name] = tensors.file_name_of(name);
    return result;
  }
  fs::path folder;
  HfModel hf;
  checkpoint::SafetensorsSet tensors;
  nlohmann::json config;
};

class Export {
 public:
  explicit Export(const ExportOptions& options) : options_(options), from_(open_checkpoint(options.checkpoint)) {
    result_.warnings = from_.warnings;
    find_source();
    model_ = declare_whole(from_.config.model);
    pieces_ = pieces_of(*model_);
    check_pieces(from_, pieces_);
    hf_ = hf_model();
    result_.family = family_name(*hf_->family);
    stored_ = std::make_unique<checkpoint::StoredTensors>(from_.manifest, from_.folder, true);
    list_outputs();
  }

  TransferResult run() {
    std::vector<fs::path> inputs{options_.checkpoint, from_.folder};
    if (source_) inputs.push_back(source_->folder);
    check_apart(options_.target, inputs);
    NewFolder folder(options_.target, options_.replaces,
                     [](const fs::path& path) { return is_there(path / "config.json"); });
    const WrittenShards written = write_shards(outputs_, shards(), folder.path());
    result_.num_tensors = outputs_.size();
    result_.num_files = written.num_files;
    result_.size_bytes = written.size_bytes;
    hf_->model.params_dtype = dtype_of(main_type());
    const nlohmann::json config = source_ ? change_hf_config(source_->config, source_->hf, *hf_) : to_hf_config(*hf_);
    base::write_file_atomically(folder.path() / "config.json", config.dump(2) + "\n");
    if (source_) copy_companions(folder.path());
    folder.finish();
    return std::move(result_);
  }

 private:
  void find_source() {
    if (options_.source) {
      source_ = std::make_unique<Source>(*options_.source);
      return;
    }
    const auto& of_run =
        from_.config.checkpoint.hf_source_path ? from_.config.checkpoint.hf_source_path : from_.config.model.hf_path;
    if (!of_run) return;
    if (is_there(fs::path(*of_run) / "config.json")) {
      source_ = std::make_unique<Source>(*of_run);
    } else {
      result_.warnings.push_back("The Hugging Face folder of the run, '" + *of_run +
                                 "', is not here: config.json is made anew, no tokenizer is copied (--hf-path).");
    }
  }

  HfModel hf_model() {
    const Family* family = source_ ? source_->hf.family : nullptr;
    if (options_.family) {
      const Family& named = find_family(*options_.family);
      if (family != nullptr && family != &named) {
        throw base::UserError({.what = "The family " + *options_.family + " is not that of '" +
                                       source_->folder.string() + "', which is " + family_name(*family) + ".",
                               .where = "--family",
                               .fix = "Leave one of --family and --hf-path out."});
      }
      family = &named;
    }
    return express_undropped(family);
  }

  /// A family may have no dropout: it says how a model was trained, and nothing about what it computes now.
  HfModel express_undropped(const Family* family) {
    config::ModelConfig model = from_.config.model;
    try {
      return express(model, family);
    } catch (const base::UserError&) {
      if (model.hidden_dropout == 0 && model.attention_dropout == 0) throw;
    }
    model.hidden_dropout = model.attention_dropout = 0;
    HfModel expressed = express(model, family);
    result_.warnings.push_back(std::string("A ") + family_name(*expressed.family) +
                               " cannot say with what dropout this model was trained: config.json has none.");
    return expressed;
  }

  /// The tensor of the checkpoint that a piece's values come from.
  const checkpoint::StoredTensor& stored_piece(const std::string& piece) const {
    if (options_.dtype == config::DType::kFloat32) {
      const auto main = from_.manifest.tensors.find("main_param/" + piece);
      if (main != from_.manifest.tensors.end()) return main->second;
    }
    return from_.manifest.tensors.at(piece);
  }

  ElementType type_of(const StoredTensor& tensor) const {
    if (options_.dtype) return tensor.is_fp32 ? ElementType::kF32 : element_type_of(*options_.dtype);
    at::ScalarType type = checkpoint::scalar_type(stored_piece(pieces_[tensor.sources[0].piece]->name).type);
    for (const StoredTensor::Source& source : tensor.sources) {
      type = at::promote_types(type, checkpoint::scalar_type(stored_piece(pieces_[source.piece]->name).type));
    }
    return checkpoint::element_type(type);
  }

  /// UserError when a conversion made values infinite.
  void check_range(const StoredTensor& tensor, const at::Tensor& values) const {
    const at::ScalarType type = values.scalar_type();
    const bool may_overflow =
        std::any_of(tensor.sources.begin(), tensor.sources.end(), [&](const StoredTensor::Source& source) {
          const at::ScalarType from = checkpoint::scalar_type(stored_piece(pieces_[source.piece]->name).type);
          return at::promote_types(from, type) != type;
        });
    if (!may_overflow || !at::isinf(values).any().item<bool>()) return;
    const std::string name = checkpoint::element_type_name(checkpoint::element_type(type));
    throw base::UserError({.what = "'" + tensor.name + "' holds values that are infinite in " + name + ".",
                           .where = "--dtype",
                           .why = name == "F16" ? "F16 ends at 65504." : "",
                           .fix = "Leave --dtype out, or use a type with a larger range (bf16, fp32)."});
  }

  void add_output(const StoredTensor& tensor) {
    const auto fill = [this, tensor](const at::Tensor& values) {
      for (const StoredTensor::Source& source : tensor.sources) {
        at::Tensor part = values;
        for (std::size_t axis = 0; axis < tensor.shape.size(); ++axis) {
          part = part.narrow(static_cast<std::int64_t>(axis), source.fragment.stored.offset[axis],
                             source.fragment.stored.shape[axis]);
        }
        stored_->copy_to(stored_piece(pieces_[source.piece]->name), source.fragment.piece.offset,
                         as_piece(part, source.fragment));
      }
      check_range(tensor, values);
    };
    outputs_.push_back({tensor.name, type_of(tensor), tensor.shape, fill});
  }

  void list_outputs() {
    const NameTable table = name_table(*hf_);
    const bool with_prefix = !source_ || has_prefix(source_->tensors, table);
    std::set<std::string> names;
    std::map<std::string, StoredTensor> by_piece;
    for (const StoredTensor& tensor : stored_tensors(table, pieces_, with_prefix)) {
      // A copy of another tensor is stored if the source stores it.
      const bool is_absent = source_ && source_->tensors.find(tensor.name) == nullptr;
      if (is_absent && is_ignorable(table, tensor.name, with_prefix)) continue;
      add_output(tensor);
      names.insert(tensor.name);
      by_piece.emplace(pieces_[tensor.sources[0].piece]->name, tensor);
    }
    if (source_) add_from_source(table, with_prefix, names, by_piece.at(kWords));
  }

  /// Tensors that the source has beside the model's: buffers, and the output layer of a tied model.
  void add_from_source(const NameTable& table, bool with_prefix, const std::set<std::string>& names,
                       StoredTensor words) {
    std::vector<std::string> surplus;
    const std::string head = locate(table, kOutput, with_prefix)->tensor;
    for (const std::string& name : source_->tensors.names()) {
      if (names.contains(name)) continue;
      if (hf_->model.share_embeddings_and_output_weights && name == head) {
        words.name = head;
        add_output(words);
      } else if (is_ignorable(table, name, with_prefix)) {
        const checkpoint::TensorEntry& entry = *source_->tensors.find(name);
        outputs_.push_back({name, entry.type, entry.shape, [this, name](const at::Tensor& values) {
                              source_->tensors.copy_to(
                                  name, std::vector<std::int64_t>(static_cast<std::size_t>(values.dim()), 0), values);
                            }});
      } else {
        surplus.push_back(name);
      }
    }
    if (surplus.empty()) return;
    throw base::UserError(
        {.what = "'" + source_->folder.string() + "' is not like the model in '" + from_.folder.string() + "'.",
         .where = source_->folder.string(),
         .why = "The model has no " + base::join(surplus, ", ") + ".",
         .fix = "Name the folder the model came from with --hf-path, or none and --family."});
  }

  ShardMap shards() const {
    const bool is_like_source = source_ && !options_.max_shard_bytes;
    if (is_like_source) return divide_like(outputs_, source_->shards());
    return divide_into_shards(outputs_, options_.max_shard_bytes.value_or(kDefaultShardBytes));
  }

  /// Of most of the values.
  ElementType main_type() const {
    std::map<ElementType, std::size_t> sizes;
    for (const OutputTensor& tensor : outputs_) sizes[tensor.type] += tensor.size_bytes();
    return std::max_element(sizes.begin(), sizes.end(),
                            [](const auto& a, const auto& b) { return a.second < b.second; })
        ->first;
  }

  /// Tokenizer, generation settings, templates, code: everything small that is not weights or config.json.
  static bool is_companion(const fs::path& path) {
    static const std::set<std::string> names{"merges.txt", "vocab.txt", "vocab.json", "LICENSE", "LICENSE.txt"};
    const std::string name = path.filename().string(), extension = path.extension().string();
    const bool is_weights = name.ends_with(".index.json") || name == "config.json";
    return !is_weights &&
           (names.contains(name) || extension == ".py" || extension == ".jinja" || extension == ".tiktoken" ||
            extension == ".model" || name.starts_with("tokenizer") || name == "generation_config.json" ||
            name == "special_tokens_map.json" || name == "added_tokens.json" || name.starts_with("chat_template") ||
            name == "preprocessor_config.json");
  }

  void copy_companions(const fs::path& folder) {
    const auto copy_all = [&](const fs::path& from, const std::string& inside) {
      for (const auto& item : fs::directory_iterator(from)) {
        if (!item.is_regular_file() || !is_companion(item.path())) continue;
        if (!inside.empty()) base::make_directories(folder / inside);
        const std::string name = inside + item.path().filename().string();
        hf::copy_file(item.path(), folder / name);
        result_.copied.push_back(name);
      }
    };
    copy_all(source_->folder, "");
    const std::string more = "additional_chat_templates/";
    if (fs::is_directory(source_->folder / more)) copy_all(source_->folder / more, more);
    std::sort(result_.copied.begin(), result_.copied.end());
  }

  const ExportOptions& options_;
  Checkpoint from_;
  TransferResult result_;
  std::unique_ptr<Source> source_;
  std::unique_ptr<model::Transformer> model_;
  std::vector<const tensor::Piece*> pieces_;
  std::optional<HfModel> hf_;
  std::unique_ptr<checkpoint::StoredTensors> stored_;
  std::vector<OutputTensor> outputs_;
};

}  // namespace

TransferResult export_checkpoint(const ExportOptions& options) { return Export(options).run(); }

}  // namespace pharos::hf
