#include "pharos/hf/transfer/hf_config_file.h"

#include <algorithm>
#include <string>

#include "pharos/base/error.h"

namespace pharos::hf {
namespace {

using nlohmann::json;

/// Older names of a key, which mean nothing beside the new one.
void erase_older(json& object, const std::string& key) {
  if (key == "dtype") object.erase("torch_dtype");
  if (key != "rope_parameters") return;
  for (const char* older : {"rope_theta", "rope_scaling", "partial_rotary_factor"}) object.erase(older);
}

}  // namespace

json change_hf_config(json source, const HfModel& source_model, HfModel hf) {
  if (hf.model.position_embedding_type != config::PositionEmbedding::kLearnedAbsolute)
    hf.model.seq_length = std::max(hf.model.seq_length, source_model.model.seq_length);
  const json before = to_hf_config(source_model), after = to_hf_config(hf);
  for (const auto& [key, value] : after.items()) {
    if (before.contains(key) && before.at(key) == value) continue;
    const bool is_old_dtype = key == "dtype" && source.contains("torch_dtype") && !source.contains("dtype");
    source[is_old_dtype ? "torch_dtype" : key] = value;
    if (!is_old_dtype) erase_older(source, key);
  }
  for (const auto& [key, value] : before.items()) {
    if (after.contains(key)) continue;
    source.erase(key);
    erase_older(source, key);
  }
  // A layer's kind says nothing beside a window that is another one now, if the family does not write it.
  const auto window = [](const json& written) { return written.value("sliding_window", json()); };
  if (window(before) != window(after) && !after.contains("layer_types")) source.erase("layer_types");
  return source;
}

}  // namespace pharos::hf
