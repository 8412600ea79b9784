#include "pharos/cli/generate/generate_source.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "pharos/base/error.h"
#include "pharos/base/json.h"
#include "pharos/checkpoint/checkpoint.h"
#include "pharos/checkpoint/manifest.h"
#include "pharos/config/derived.h"
#include "pharos/config/recipe/run_yaml.h"
#include "pharos/hf/hf_config.h"
#include "pharos/hf/weights.h"
#include "pharos/train/make_tokenizer.h"

namespace pharos::cli {
namespace {

namespace fs = std::filesystem;

const comm::Mesh& one_rank() {
  static const comm::Mesh mesh(1, {});
  return mesh;
}

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

/// What only a parallel or training run needs is switched off, and the CPU computes in fp32: it has no fast half
/// precision, and every half-precision value is exact in fp32.
void adapt(config::ModelConfig& model, at::Device device) {
  model.tensor_model_parallel_size = model.pipeline_model_parallel_size = model.context_parallel_size = 1;
  model.recompute_granularity.reset();
  if (!device.is_cpu()) return;
  model.bf16 = model.fp16 = false;
  model.params_dtype = config::DType::kFloat32;
}

std::unique_ptr<model::Transformer> declare_model(config::ModelConfig config, at::Device device) {
  adapt(config, device);
  return std::make_unique<model::Transformer>(config, model::whole_model(config), one_rank(), 0);
}

std::unique_ptr<model::Transformer> allocate_model(const config::ModelConfig& config, at::Device device) {
  auto model = declare_model(config, device);
  model->allocate(device);
  return model;
}

at::Device choose_device(const config::RunConfig& config, std::vector<std::string>& warnings) {
  if (config.dist.device != config::DeviceKind::kCuda) return at::kCPU;
  if (at::hasCUDA()) return at::kCUDA;
  warnings.emplace_back("the run's device is cuda, which is not here; computing on the CPU.");
  return at::kCPU;
}

/// Completes what run.yaml may leave to the tokenizer, and refuses a file that describes no model.
void complete_model(config::RunConfig& config, const fs::path& path) {
  if (!config.model.vocab_size) config::apply_vocab_rule(config, train::make_tokenizer(config.tokenizer)->vocab_size());
  if (config.model.num_layers && config.model.hidden_size && config.model.num_attention_heads) return;
  throw base::UserError({.what = fmt::format("'{}' describes no whole model.", path.string()),
                         .where = path.string(),
                         .why = "model.num_layers, model.hidden_size and model.num_attention_heads are needed.",
                         .fix = "Point to the run.yaml of a run, or its folder."});
}

void set_tokenizer(GenerateSource& source, std::unique_ptr<data::Tokenizer> tokenizer) {
  const std::int64_t end = tokenizer->end_of_document();
  if (end < *source.model->config().vocab_size) source.stop_tokens = {end};
  source.tokenizer = std::move(tokenizer);
}

/// `config_fallback`: the run's run.yaml, for checkpoints that carry no configuration.
GenerateSource load_checkpoint(const fs::path& path, const std::optional<fs::path>& config_fallback) {
  const auto found = checkpoint::find_checkpoint(path);
  if (!found) {
    throw base::UserError({.what = fmt::format("There is no checkpoint in '{}'.", path.string()),
                           .where = path.string(),
                           .why = "A run writes its first one at checkpoint.save_interval or when it ends.",
                           .fix = "Let the run get that far, or point to another folder."});
  }
  GenerateSource source;
  source.warnings = found->warnings;
  fs::path config_path = found->folder / checkpoint::kRunConfigFile;
  if (!is_there(config_path) && config_fallback) config_path = *config_fallback;
  config::RunConfig config = config::load_run_yaml(config_path).config;
  complete_model(config, config_path);
  if (config.dist.num_threads > 0) at::set_num_threads(static_cast<int>(config.dist.num_threads));
  source.model = allocate_model(config.model, choose_device(config, source.warnings));
  const auto loaded =
      checkpoint::load(checkpoint::weights_of(source.model->parameters()), found->folder, {}, one_rank(), 0);
  source.warnings.insert(source.warnings.end(), loaded.warnings.begin(), loaded.warnings.end());
  source.iteration = loaded.train_state.step;
  set_tokenizer(source, train::make_tokenizer(config.tokenizer));
  return source;
}

GenerateSource load_run(const fs::path& path) {
  const fs::path run_yaml = path / "run.yaml";
  const auto save = config::load_run_yaml(run_yaml).config.checkpoint.save;
  return load_checkpoint(save ? fs::path(*save) : path / "checkpoints", run_yaml);
}

/// eos_token_id of `file`: one id, a list, or nothing.
std::vector<std::int64_t> end_tokens(const fs::path& file) {
  if (!is_there(file)) return {};
  const nlohmann::json json = base::read_json_file(file);
  const auto entry = json.is_object() ? json.find("eos_token_id") : json.end();
  if (entry == json.end() || entry->is_null()) return {};
  const nlohmann::json ids = entry->is_array() ? *entry : nlohmann::json::array({*entry});
  std::vector<std::int64_t> tokens;
  for (const auto& id : ids) {
    if (!id.is_number_integer()) {
      throw base::UserError(
          {.what = fmt::format("eos_token_id in '{}' is not a token id or a list of them.", file.string()),
           .where = file.string(),
           .fix = "Give a whole number, a list, or null."});
    }
    tokens.push_back(id.get<std::int64_t>());
  }
  return tokens;
}

GenerateSource load_hugging_face(const fs::path& path) {
  GenerateSource source;
  config::ModelConfig config = hf::read_hf_config(path).model;
  config.mtp_num_layers.reset();  // of no use here
  source.model = declare_model(config, at::kCPU);
  hf::check_weights(source.model->parameters(), path, one_rank(), 0);
  source.model->allocate(at::kCPU);
  hf::load_weights(source.model->parameters(), path, one_rank(), 0);
  if (*config.vocab_size == 256 || *config.vocab_size == 257)
    set_tokenizer(source, std::make_unique<data::ByteTokenizer>());
  std::vector<std::int64_t> ends = end_tokens(path / "generation_config.json");
  if (ends.empty()) ends = end_tokens(path / "config.json");
  std::erase_if(ends, [&](std::int64_t token) { return token < 0 || token >= *config.vocab_size; });
  if (!ends.empty()) source.stop_tokens = ends;
  return source;
}

bool is_checkpoint_folder(const fs::path& path) {
  if (is_there(path / checkpoint::kManifestFile) || is_there(path / checkpoint::kTrackerFile)) return true;
  return !checkpoint::complete_iterations(path).empty();
}

}  // namespace

GenerateSource load_generate_source(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) {
    throw base::UserError({.what = fmt::format("'{}' is not a folder.", path.string()),
                           .where = "command line",
                           .fix = "Give the folder of a run, of a checkpoint, or of a Hugging Face model."});
  }
  if (is_there(path / "run.yaml")) return load_run(path);
  if (is_checkpoint_folder(path)) return load_checkpoint(path, std::nullopt);
  if (is_there(path / "config.json")) return load_hugging_face(path);
  const std::string foreign = checkpoint::foreign_format(path);
  throw base::UserError(
      {.what = fmt::format("'{}' holds no model that Pharos reads.", path.string()),
       .where = path.string(),
       .why = foreign.empty()
                  ? "It has no run.yaml, no checkpoint (iter_0000100), and no config.json of a Hugging Face model."
                  : "It is a checkpoint of " + foreign + ".",
       .fix = "Give the folder of a run, of a checkpoint, or of a Hugging Face model."});
}

}  // namespace pharos::cli
