// Llama 2, 3, 3.1 and 3.2.
#include "pharos/hf/families/parts/names.h"
#include "pharos/hf/families/parts/rows.h"

namespace pharos::hf {
const Family& llama() {
  static const Family family{
      .model_type = "llama",
      .architectures = {"LlamaForCausalLM", "LlamaModel"},
      .rows = joined(llama_like({}), {attention_bias(false), mlp_bias(false), must_be("sliding_window", nullptr)}),
      .names = llama_names(),
      .ignorable = inverse_frequencies(),
  };
  return family;
}

}  // namespace pharos::hf
