// A family of Hugging Face models as data: the keys of its config.json and the names of its tensors. docs/models.md
// shows how one is added.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "pharos/config/model_config.h"
#include "pharos/hf/families/name_rule.h"

namespace pharos::hf {

class Reader;  // families/parts/reader.h

/// What one key of config.json (or several that belong together) means, in both directions.
struct Row {
  std::function<void(Reader&, config::ModelConfig&)> read;
  /// May be empty: a field that has one value in the whole family. What a row cannot write, reading it back tells.
  std::function<void(const config::ModelConfig&, nlohmann::json&)> write = {};
};

struct Family {
  const char* model_type;                     ///< of config.json; also the name in messages
  std::vector<const char*> architectures;     ///< that are read; the first is written
  std::vector<const char*> other_types = {};  ///< further values of model_type that mean the same model
  std::vector<Row> rows;                      ///< in order: a later one may change what an earlier one has set
  const char* prefix = "model.";              ///< of every tensor but the head
  std::vector<NameRule> names;                ///< may have lines for pieces that a model lacks
  std::vector<NameRule> copies = {};          ///< see NameTable::copies
  std::vector<const char*> ignorable = {};    ///< buffers that some checkpoints store, as patterns
  bool has_prediction_layers = false;         ///< names of multi-token prediction are known
};

/// Every family, in the order in which one is looked for that can hold a given model.
const std::vector<const Family*>& families();

const Family& gpt2();
const Family& llama();
const Family& mistral();
const Family& qwen2();
const Family& qwen3();
const Family& mixtral();
const Family& qwen3_moe();
const Family& deepseek_v2();
const Family& deepseek_v3();
const Family& gemma2();
const Family& gpt_oss();

}  // namespace pharos::hf
