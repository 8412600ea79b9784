#include "pharos/hf/families/parts/rows.h"

#include <array>

namespace pharos::hf {
namespace {

using config::Activation;
using config::ModelConfig;
using nlohmann::json;

struct ActivationName {
  const char* name;
  Activation activation;
};

/// The first name of an activation is the one that is written.
constexpr std::array<ActivationName, 11> kActivations{{{"gelu", Activation::kGelu},
                                                       {"gelu_new", Activation::kGeluTanh},
                                                       {"gelu_pytorch_tanh", Activation::kGeluTanh},
                                                       {"gelu_fast", Activation::kGeluTanh},
                                                       {"quick_gelu", Activation::kQuickGelu},
                                                       {"relu", Activation::kRelu},
                                                       {"relu2", Activation::kSquaredRelu},
                                                       {"silu", Activation::kSilu},
                                                       {"swish", Activation::kSilu},
                                                       {"sigmoid", Activation::kSigmoid},
                                                       {"tanh", Activation::kTanh}}};

std::optional<Activation> parse_activation(const std::string& name) {
  for (const ActivationName& row : kActivations) {
    if (name == row.name) return row.activation;
  }
  return std::nullopt;
}

}  // namespace

Row positive(const char* key, double ModelConfig::*member, double otherwise) {
  return {[=](Reader& reader, ModelConfig& model) { model.*member = reader.positive(key, otherwise); },
          [=](const ModelConfig& model, json& written) { written[key] = model.*member; }};
}

Row not_negative(const char* key, double ModelConfig::*member, double otherwise) {
  return {[=](Reader& reader, ModelConfig& model) { model.*member = reader.not_negative(key, otherwise); },
          [=](const ModelConfig& model, json& written) { written[key] = model.*member; }};
}

Row dropout(const char* key, double ModelConfig::*member, double otherwise) {
  return {[=](Reader& reader, ModelConfig& model) { model.*member = reader.dropout(key, otherwise); },
          [=](const ModelConfig& model, json& written) { written[key] = model.*member; }};
}

Row flag(const char* key, bool ModelConfig::*member, bool otherwise) {
  return {[=](Reader& reader, ModelConfig& model) { model.*member = reader.flag(key, otherwise); },
          [=](const ModelConfig& model, json& written) { written[key] = model.*member; }};
}

Row positive_or_null(const char* key, std::optional<double> ModelConfig::*member, std::optional<double> otherwise) {
  return {
      [=](Reader& reader, ModelConfig& model) {
        if (!reader.has(key)) {
          model.*member = otherwise;
        } else {
          model.*member = std::nullopt;
          if (reader.find(key) != nullptr) model.*member = reader.positive(key, 1);
        }
      },
      [=](const ModelConfig& model, json& written) { written[key] = model.*member ? json(*(model.*member)) : json(); }};
}

Row must_be(const char* key, json value) {
  return {[=](Reader& reader, ModelConfig&) { reader.expect(key, value); },
          [=](const ModelConfig&, json& written) {
            if (!value.is_null()) written[key] = value;
          }};
}

Row activation(const char* key, const char* otherwise) {
  return {[=](Reader& reader, ModelConfig& model) {
            const std::string name = reader.text(key, otherwise);
            if (const auto found = parse_activation(name)) {
              model.activation_func = *found;
              return;
            }
            reader.report(std::string(key) + " = " + name +
                          " is not supported (gelu, gelu_new, gelu_pytorch_tanh, quick_gelu, relu, relu2, silu, "
                          "sigmoid, tanh)");
          },
          [=](const ModelConfig& model, json& written) {
            written[key] = otherwise;
            if (parse_activation(otherwise) == model.activation_func) return;
            for (const ActivationName& row : kActivations) {
              if (row.activation != model.activation_func) continue;
              written[key] = row.name;
              return;
            }
          }};
}

Row attention_bias(bool otherwise) {
  return {[=](Reader& reader, ModelConfig& model) {
            if (!reader.flag("attention_bias", otherwise)) return;
            model.add_qkv_bias = true;
            model.add_attention_output_bias = true;
          },
          [](const ModelConfig& model, json& written) {
            written["attention_bias"] = model.add_qkv_bias || model.add_bias_linear;
          }};
}

Row mlp_bias(bool otherwise) {
  return {[=](Reader& reader, ModelConfig& model) {
            if (reader.flag("mlp_bias", otherwise)) model.add_mlp_bias = true;
          },
          [](const ModelConfig& model, json& written) {
            written["mlp_bias"] = model.add_mlp_bias.value_or(model.add_bias_linear);
          }};
}

}  // namespace pharos::hf
