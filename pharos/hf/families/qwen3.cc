// Qwen 3: Llama with norms on the heads of q and k.
#include "pharos/hf/families/parts/names.h"
#include "pharos/hf/families/parts/rows.h"

namespace pharos::hf {

const Family& qwen3() {
  static const Family family{
      .model_type = "qwen3",
      .architectures = {"Qwen3ForCausalLM", "Qwen3Model"},
      .rows =
          joined(llama_like({.num_key_value_heads = 32, .head_dim = 128}),
                 {constant(&config::ModelConfig::qk_layernorm, true), attention_bias(false), window_in_upper_layers()}),
      .names = joined(llama_names(), head_norm_names()),
      .ignorable = inverse_frequencies(),
  };
  return family;
}

}  // namespace pharos::hf
