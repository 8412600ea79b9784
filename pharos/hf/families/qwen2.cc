// Qwen 2 and 2.5: Llama with a bias on q, k and v.
#include "pharos/hf/families/parts/names.h"
#include "pharos/hf/families/parts/rows.h"

namespace pharos::hf {

const Family& qwen2() {
  static const Family family{
      .model_type = "qwen2",
      .architectures = {"Qwen2ForCausalLM", "Qwen2Model"},
      .rows = joined(llama_like({.num_key_value_heads = 32}),
                     {constant(&config::ModelConfig::add_qkv_bias, true), window_in_upper_layers()}),
      .names = llama_names(),
      .ignorable = inverse_frequencies(),
  };
  return family;
}

}  // namespace pharos::hf
