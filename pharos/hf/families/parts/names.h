// Lines that tables of names share.
#pragma once

#include <vector>

#include "pharos/hf/families/name_rule.h"

namespace pharos::hf {

/// Embedding, head and final norm; norms before attention and MLP.
std::vector<NameRule> backbone_names();
/// q, k, v and output projections with every bias a relative of Llama has.
std::vector<NameRule> attention_names();
/// Norms of heads of q and k.
std::vector<NameRule> head_norm_names();
/// A gated MLP with biases.
std::vector<NameRule> mlp_names();
/// Router and experts under "mlp.gate" and "mlp.experts.N".
std::vector<NameRule> expert_names();
/// backbone, attention and mlp: Llama.
std::vector<NameRule> llama_names();
/// Tables of frequencies that old checkpoints store.
std::vector<const char*> inverse_frequencies();

}  // namespace pharos::hf
