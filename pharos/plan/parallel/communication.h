// Bytes that ranks move in one training step.
//
// Of a collective over N ranks with a whole of V bytes a rank sends, and receives as many, with rings or with parts
// sent straight to their owners:
//     all-gather, reduce-scatter   (N - 1) / N × V
//     all-to-all of V bytes sent   (N - 1) / N × V
//     all-reduce                   2 (N - 1) / N × V
// G, W: bytes of a rank's gradients and weights; M: microbatches of a step; S = batch × tokens × hidden of a
// microbatch.
//
// Data parallel (Rajbhandari et al. 2020, section 7), a step:
//     no_shard               all-reduce G
//     optim                  reduce-scatter G, all-gather W
//     optim_grads            M × reduce-scatter G, all-gather W (gradients are kept by no rank between microbatches)
//     optim_grads_params     M × (reduce-scatter G, 2 × all-gather W: forward and backward pass)
// Tensor parallel, a layer and microbatch (Narayanan et al. 2021, section 3.2): 4 × all-reduce S, one of attention and
// one of the MLP in each pass; a layer recomputed in full has its forward pass twice. With sequence parallelism
// (Korthikanti et al. 2022, section 4.2.2) each all-reduce is a reduce-scatter and an all-gather; the inputs of the two
// column-parallel linears, kept divided, are gathered once more in the backward pass: 2 × all-gather S. The vocabulary:
// embedding forward, output layer backward, each as above; the loss: 3 fp32 numbers a token all-reduced.
// Context parallel, a layer and microbatch: keys and values K of the whole sequences gathered in each pass (also in a
// pass that is recomputed), their fp32 gradients reduce-scattered. A ring sends as much, a block at a time.
// Multi-latent attention gathers latents instead of the stream, and adds up the gradients of latents.
// Experts, a layer and microbatch, with as many tokens each: dispatcher alltoall 4 × all-to-all of topk rows a token
// (forward and backward, there and back) and over ETP ranks as many gathers or reduce-scatters; allgather 2 ×
// all-gather and 2 × reduce-scatter of the stream over ETP × EP; flex 4 × all-to-all of one row for each rank that a
// token has experts on. Their data parallelism as above, over the expert-data-parallel ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pharos/comm/mesh.h"
#include "pharos/config/run_config.h"
#include "pharos/plan/parameters.h"

namespace pharos::plan {

struct CommunicationPart {
  std::string dimension;  ///< name of the groups: "dp", "dp-cp", "edp", "tp", "cp", "ep", "etp", "etp-ep"
  std::int64_t ranks = 1;
  std::string purpose;     ///< "gradients", "weights", "layers", …
  std::string operation;   ///< "all_reduce", "all_gather", "reduce_scatter", "all_to_all"
  double calls = 0;        ///< a step; of wholes, however they are cut into buckets
  double whole_bytes = 0;  ///< V
  /// Sent by one rank in a step; as many are received.
  double bytes() const;
};

struct CommunicationPlan {
  std::int64_t pipeline_rank = 0;  ///< whose: the one that sends most
  std::vector<CommunicationPart> parts;
  double bytes() const;  ///< a step
};

/// Without evaluation and pipeline transfers.
CommunicationPlan plan_communication(const config::RunConfig& config, const comm::Mesh& mesh,
                                     const ParameterPlan& parameters, std::int64_t num_microbatches);

}  // namespace pharos::plan
