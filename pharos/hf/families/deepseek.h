// What DeepSeek-V2 and V3 have in common: multi-latent attention, a few dense layers in front, shared experts.
#pragma once

#include <vector>

#include "pharos/hf/families/family.h"

namespace pharos::hf {

/// Of a file without the key.
struct DeepSeek {
  std::int64_t first_k_dense_replace = 0;
  double routed_scaling_factor = 1;
  double aux_loss_alpha = 0.001;  ///< transformers has none; V2's own code and Megatron-Bridge have
};
std::vector<Row> deepseek_rows(const DeepSeek& defaults);

std::vector<NameRule> deepseek_names();

}  // namespace pharos::hf
