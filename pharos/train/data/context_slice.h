// The part of a microbatch that one context-parallel rank computes.
#pragma once

#include <cstdint>

#include "pharos/train/data/microbatch.h"

namespace pharos::train {

/// Of `whole`, which every rank of a context-parallel group reads, the tokens of rank `rank` of `size` in the order of
/// nn::zigzag_ranges(): tokens, labels, loss_mask and positions. Segments and num_loss_tokens stay those of the whole
/// sequences. Returns `whole` itself when size is 1.
///
/// A rank's loss is then a sum over its own tokens, while a microbatch's mean is over all N = num_loss_tokens of them.
/// Gradients are averaged over data x context ranks (D C of them), the samples of a step over D only:
///     g = 1/D Σ_d 1/N_d Σ_c g_dc = 1/(D C) Σ_dc (C / N_d) g_dc.
/// So whoever scales the loss before the backward pass multiplies it by C / N; with model.calculate_per_token_loss
/// gradients are summed and divided by the tokens of all ranks, and the factor is 1.
Microbatch slice_context(const Microbatch& whole, std::int64_t rank, std::int64_t size);

}  // namespace pharos::train
