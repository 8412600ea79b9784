// Mistral: Llama with a sliding window. With layer_types it is what transformers calls Ministral.
#include "pharos/hf/families/parts/names.h"
#include "pharos/hf/families/parts/rows.h"

namespace pharos::hf {

const Family& mistral() {
  static const Family family{
      .model_type = "mistral",
      .architectures = {"MistralForCausalLM", "MistralModel"},
      .rows = joined(llama_like({.num_key_value_heads = 8}), {window_by_layer_or_in_every(4096)}),
      .names = llama_names(),
      .ignorable = inverse_frequencies(),
  };
  return family;
}

}  // namespace pharos::hf
