#include "pharos/hf/families/family.h"

namespace pharos::hf {

const std::vector<const Family*>& families() {
  static const std::vector<const Family*> all = {&gpt2(),        &llama(),   &mistral(),   &qwen2(),
                                                 &qwen3(),       &mixtral(), &qwen3_moe(), &deepseek_v2(),
                                                 &deepseek_v3(), &gemma2(),  &gpt_oss()};
  return all;
}

}  // namespace pharos::hf
