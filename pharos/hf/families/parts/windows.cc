// Sliding windows of families. The window of a layer is the same number everywhere; families differ in which layers
// have it.
#include <algorithm>

#include "pharos/hf/families/parts/rows.h"

namespace pharos::hf {
namespace {

using config::ModelConfig;
using nlohmann::json;
using Pattern = std::vector<std::int64_t>;  // per layer: 1 with a window

void set_window(ModelConfig& model, std::int64_t width) { model.window_size = Pattern{width - 1, 0}; }

/// Leaves the model without a window when no layer has one.
void set_pattern(ModelConfig& model, std::int64_t width, const Pattern& pattern) {
  const auto has = [&](std::int64_t entry) {
    return std::find(pattern.begin(), pattern.end(), entry) != pattern.end();
  };
  if (!has(1)) return;
  set_window(model, width);
  if (!has(0)) return;
  bool alternates = true;
  for (std::size_t i = 0; i < pattern.size(); ++i) alternates &= pattern[i] == (i % 2 == 0 ? 1 : 0);
  if (alternates) {
    model.window_attn_skip_freq = std::int64_t{2};
  } else {
    model.window_attn_skip_freq = pattern;
  }
}

json window_width(const ModelConfig& model) {
  if (!model.window_size || model.window_size->empty() || model.window_size->front() < 0) return {};
  return model.window_size->front() + 1;
}

bool has_window(const ModelConfig& model, std::int64_t layer) {
  if (window_width(model).is_null()) return false;
  if (!model.window_attn_skip_freq) return true;
  if (const auto* every = std::get_if<std::int64_t>(&*model.window_attn_skip_freq)) return (layer + 1) % *every != 0;
  const auto& pattern = std::get<Pattern>(*model.window_attn_skip_freq);
  return static_cast<std::size_t>(layer) < pattern.size() && pattern[static_cast<std::size_t>(layer)] != 0;
}

json layer_types(const ModelConfig& model) {
  json types = json::array();
  for (std::int64_t i = 0; i < model.num_layers.value_or(0); ++i)
    types.push_back(has_window(model, i) ? "sliding_attention" : "full_attention");
  return types;
}

/// layer_types, or nothing when it is absent. Faults are reported.
std::optional<Pattern> read_layer_types(Reader& reader, std::int64_t num_layers) {
  const json* types = reader.find("layer_types");
  if (types == nullptr) return std::nullopt;
  Pattern pattern;
  if (types->is_array()) {
    for (const json& type : *types) {
      if (type != "full_attention" && type != "sliding_attention") {
        reader.report("layer_types has " + type.dump() +
                      ", which is not supported (full_attention, sliding_attention)");
        return Pattern(static_cast<std::size_t>(num_layers), 0);
      }
      pattern.push_back(type == "sliding_attention" ? 1 : 0);
    }
  }
  if (pattern.size() != static_cast<std::size_t>(num_layers)) {
    reader.report("layer_types is not a list with one entry for each of " + std::to_string(num_layers) + " layers");
    pattern.assign(static_cast<std::size_t>(num_layers), 0);
  }
  return pattern;
}

void read_pattern(Reader& reader, ModelConfig& model, std::optional<std::int64_t> width, const Pattern& otherwise) {
  const Pattern pattern = read_layer_types(reader, model.num_layers.value_or(0)).value_or(otherwise);
  if (width) return set_pattern(model, *width, pattern);
  if (std::find(pattern.begin(), pattern.end(), 1) != pattern.end())
    reader.report("layer_types has sliding_attention, but sliding_window is not set");
}

std::optional<std::int64_t> window_or_default(Reader& reader, std::optional<std::int64_t> otherwise) {
  return reader.has("sliding_window") ? reader.count("sliding_window") : otherwise;
}

}  // namespace

Row window_by_layer_or_in_every(std::int64_t otherwise) {
  return {[=](Reader& reader, ModelConfig& model) {
            const auto width = window_or_default(reader, otherwise);
            const auto num_layers = static_cast<std::size_t>(model.num_layers.value_or(0));
            read_pattern(reader, model, width, Pattern(num_layers, width ? 1 : 0));
          },
          [](const ModelConfig& model, json& written) {
            written["sliding_window"] = window_width(model);
            if (model.window_attn_skip_freq) written["layer_types"] = layer_types(model);
          }};
}

Row window_in_every_layer(std::optional<std::int64_t> otherwise) {
  return {[=](Reader& reader, ModelConfig& model) {
            if (const auto width = window_or_default(reader, otherwise)) set_window(model, *width);
          },
          [](const ModelConfig& model, json& written) { written["sliding_window"] = window_width(model); }};
}

Row window_if_used() {
  return {[](Reader& reader, ModelConfig& model) {
            if (!reader.flag("use_sliding_window", false)) return;
            if (const auto width = window_or_default(reader, 4096)) set_window(model, *width);
          },
          [](const ModelConfig& model, json& written) {
            written["sliding_window"] = window_width(model);
            written["use_sliding_window"] = !window_width(model).is_null();
          }};
}

Row window_in_upper_layers() {
  return {[](Reader& reader, ModelConfig& model) {
            const bool is_used = reader.flag("use_sliding_window", false);
            const auto width = is_used ? window_or_default(reader, 4096) : std::nullopt;
            const std::int64_t first = reader.index("max_window_layers", 28);
            Pattern upper;
            for (std::int64_t i = 0; i < model.num_layers.value_or(0); ++i) upper.push_back(width && i >= first);
            read_pattern(reader, model, width, upper);
          },
          [](const ModelConfig& model, json& written) {
            written["sliding_window"] = window_width(model);
            written["use_sliding_window"] = !window_width(model).is_null();
            written["layer_types"] = layer_types(model);
          }};
}

Row window_in_other_layers(std::int64_t otherwise) {
  return {[=](Reader& reader, ModelConfig& model) {
            Pattern alternating;
            for (std::int64_t i = 0; i < model.num_layers.value_or(0); ++i) alternating.push_back((i + 1) % 2);
            read_pattern(reader, model, window_or_default(reader, otherwise), alternating);
          },
          [](const ModelConfig& model, json& written) {
            written["sliding_window"] = window_width(model);
            written["layer_types"] = layer_types(model);
          }};
}

}  // namespace pharos::hf
