#include "pharos/cli/run_source.h"

#include "pharos/base/error.h"
#include "pharos/config/derived.h"
#include "pharos/config/schema/schema.h"
#include "pharos/hf/hf_names.h"
#include "pharos/plan/plan.h"
#include "pharos/train/make_tokenizer.h"

namespace pharos::cli {
namespace {

std::int64_t entry_ns = 0;

/// Other tokenizers are a matter of `train`, which refuses them; `plan` works from model.vocab_size.
void complete_vocabulary(config::ResolvedConfig& resolved) {
  const auto type = resolved.config.tokenizer.tokenizer_type.value_or(config::TokenizerType::kByteLevel);
  if (type != config::TokenizerType::kByteLevel && type != config::TokenizerType::kNull) return;
  config::RunConfig completed = resolved.config;
  config::apply_vocab_rule(completed, train::make_tokenizer(completed.tokenizer)->vocab_size());
  if (completed.model.vocab_size == resolved.config.model.vocab_size) return;
  config::set_derived(resolved, "model.vocab_size", config::Value::of_integer(*completed.model.vocab_size),
                      "size of the tokenizer");
  config::set_derived(resolved, "model.should_pad_vocab", config::Value::of_bool(completed.model.should_pad_vocab),
                      "size of the tokenizer");
}

/// Geometry of the folder model.hf_path names, for every field that nobody set, and the size of its vocabulary.
void complete_from_hugging_face(config::ResolvedConfig& resolved) {
  if (!resolved.config.model.hf_path) return;
  const std::string folder = *resolved.config.model.hf_path;
  config::RunConfig imported;
  const hf::HfModel source_model = hf::read_hf_model(folder);
  imported.model = source_model.model;
  const config::RunConfig defaults;
  for (const config::Field& field : config::schema().fields()) {
    if (field.section != "model" || !field.member || resolved.is_explicit(field.name)) continue;
    if (field.name == "model.seq_length" && resolved.is_explicit("dataset.seq_length")) continue;
    const config::Value value = field.read(imported);
    if (!(value == field.read(defaults))) config::set_derived(resolved, field.name, value, "config.json of " + folder);
  }
  const std::string source = "vocabulary of " + folder;
  if (!resolved.is_explicit("model.should_pad_vocab"))
    config::set_derived(resolved, "model.should_pad_vocab", config::Value::of_bool(true), source);
  const config::TokenizerConfig& tokenizer = resolved.config.tokenizer;
  if (tokenizer.tokenizer_type != config::TokenizerType::kNull) return;
  if (resolved.config.model.vocab_size && !tokenizer.vocab_size)
    config::set_derived(resolved, "tokenizer.vocab_size", config::Value::of_integer(*resolved.config.model.vocab_size),
                        source);
  const auto end = source_model.end_of_document;
  if (end && *end < tokenizer.vocab_size.value_or(0) && !tokenizer.null_tokenizer_eod_id)
    config::set_derived(resolved, "tokenizer.null_tokenizer_eod_id", config::Value::of_integer(*end),
                        "eos_token_id in config.json of " + folder);
}

}  // namespace

std::int64_t main_entry_ns() { return entry_ns; }
void set_main_entry_ns(std::int64_t monotonic_ns) { entry_ns = monotonic_ns; }

void complete_config(config::ResolvedConfig& resolved) {
  complete_from_hugging_face(resolved);
  complete_vocabulary(resolved);
}

std::int64_t smallest_world_size(const config::ResolveRequest& request) {
  std::int64_t world_size = 1;
  const auto look = [&](config::ResolvedConfig& resolved) {
    world_size = plan::smallest_world_size(resolved.config.model);
  };
  try {
    config::prepare(request, 1, config::Purpose::kPlan, look);
  } catch (const base::UserError&) {
  }
  return world_size;
}

}  // namespace pharos::cli
