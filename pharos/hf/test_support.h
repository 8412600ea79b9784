// Fixtures of tests/data/hf and changed copies of them.
#pragma once

#include <ATen/Functions.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>

#include "pharos/base/error.h"
#include "pharos/base/json.h"
#include "pharos/checkpoint/safetensors.h"

namespace pharos::hf::test {

/// One of every family, and variants.
inline constexpr const char* kFixtures[] = {
    "gpt2",       "llama",       "llama3_tied",        "mistral", "qwen2",   "qwen3",       "mixtral",
    "qwen3_moe",  "deepseek_v2", "deepseek_v2_groups", "gemma2",  "gpt_oss", "deepseek_v3", "llama_biases_linear",
    "gpt2_untied"};

inline std::filesystem::path fixture(const std::string& name) {
  return std::filesystem::path(PHAROS_TEST_DATA) / "hf" / name;
}

/// The spelling of config.json that the fixture has beside its own.
inline std::filesystem::path other_config(const std::string& name) {
  const auto legacy = fixture(name) / "config.legacy.json";
  return std::filesystem::exists(legacy) ? legacy : fixture(name) / "config.v5.json";
}

/// A copy of a fixture in a temporary folder, to be changed.
class FixtureCopy {
 public:
  explicit FixtureCopy(const std::string& name) {
    static int count = 0;
    path_ = std::filesystem::temp_directory_path() /
            ("pharos_hf_" + std::to_string(::getpid()) + "_" + std::to_string(count++));
    std::filesystem::remove_all(path_);
    std::filesystem::copy(fixture(name), path_);
    for (const auto& item : std::filesystem::directory_iterator(path_)) {
      std::filesystem::permissions(item.path(), std::filesystem::perms::owner_write,
                                   std::filesystem::perm_options::add);
    }
  }
  ~FixtureCopy() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path oracle() const { return path_ / "oracle.safetensors"; }

  using Weights = std::map<std::string, at::Tensor>;
  Weights weights() const {
    const checkpoint::SafetensorsFile file(path_ / "model.safetensors");
    Weights weights;
    for (const auto& entry : file.header().tensors) weights[entry.name] = file.view(entry.name).clone();
    return weights;
  }
  void write_weights(const Weights& weights) const {
    checkpoint::write_safetensors(path_ / "model.safetensors", {weights.begin(), weights.end()});
  }
  void change_weights(const std::function<void(Weights&)>& change) const {
    Weights changed = weights();
    change(changed);
    write_weights(changed);
  }
  void change_json(const std::string& name, const std::function<void(nlohmann::json&)>& change) const {
    nlohmann::json parsed = base::read_json_file(path_ / name);
    change(parsed);
    std::ofstream(path_ / name) << parsed.dump();
  }

 private:
  std::filesystem::path path_;
};

/// Gives a copy of deepseek_v3 (three layers) one layer of multi-token prediction, in the values of its last layer.
inline void add_prediction_layer(const FixtureCopy& copy) {
  copy.change_weights([](FixtureCopy::Weights& weights) {
    const std::string last = "model.layers.2.", added = "model.layers.3.";
    FixtureCopy::Weights more;
    for (const auto& [name, values] : weights) {
      if (name.starts_with(last)) more[added + name.substr(last.size())] = values;
    }
    weights.merge(more);
    const at::Tensor norm = weights.at("model.norm.weight");
    for (const char* name : {"enorm.weight", "hnorm.weight", "shared_head.norm.weight"})
      weights[added + name] = norm.clone();
    weights[added + "eh_proj.weight"] = at::full({norm.size(0), 2 * norm.size(0)}, 0.01);
    weights[added + "embed_tokens.weight"] = weights.at("model.embed_tokens.weight").clone();
    weights[added + "shared_head.head.weight"] = weights.at("lm_head.weight").clone();
  });
  copy.change_json("config.json", [](nlohmann::json& json) { json["num_nextn_predict_layers"] = 1; });
}

template <typename Function>
std::string error_of(const Function& function) {
  try {
    function();
  } catch (const base::UserError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace pharos::hf::test
