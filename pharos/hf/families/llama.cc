// Llama 2, 3, 3.1 and 3.2.
#include "pharos/hf/families/parts/names.h"
#include "pharos/hf/families/parts/rows.h"

namespace pharos::hf {
namespace {

using config::ModelConfig;
using nlohmann::json;

Row mlp_bias() {
  return {[](Reader& reader, ModelConfig& model) {
            if (reader.flag("mlp_bias", false)) model.add_mlp_bias = true;
          },
          [](const ModelConfig& model, json& written) {
            written["mlp_bias"] = model.add_mlp_bias.value_or(model.add_bias_linear);
          }};
}

}  // namespace

const Family& llama() {
  static const Family family{
      .model_type = "llama",
      .architectures = {"LlamaForCausalLM", "LlamaModel"},
      .rows = joined(llama_like({}), {attention_bias(false), mlp_bias(), must_be("sliding_window", nullptr)}),
      .names = llama_names(),
      .ignorable = inverse_frequencies(),
  };
  return family;
}

}  // namespace pharos::hf
