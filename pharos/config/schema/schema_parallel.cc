// Section model: parallelism and mixture of experts.
#include "pharos/config/grammar/pipeline_layout.h"
#include "pharos/config/schema/schema_builder.h"

namespace pharos::config {
namespace {

using C = ModelConfig;
constexpr const char* kExperts = "model.num_moe_experts";

void declare_router(SectionBuilder<C>& model) {
  model.field("moe_router_topk", &C::moe_router_topk, "experts a token is sent to").min(1).with(kExperts);
  model.field("moe_router_load_balancing_type", &C::moe_router_load_balancing_type, "balancing losses")
      .one_of({"aux_loss", "seq_aux_loss", "global_aux_loss", "sinkhorn", "quantile_balancing", "none"})
      .with(kExperts);
  model.field("moe_aux_loss_coeff", &C::moe_aux_loss_coeff, "weight of each balancing loss").min(0).with(kExperts);
  model.field("moe_z_loss_coeff", &C::moe_z_loss_coeff, "weight of the router's z loss").min(0).with(kExperts);
  model.field("moe_router_score_function", &C::moe_router_score_function, "scores from router logits").with(kExperts);
  model.field("moe_router_pre_softmax", &C::moe_router_pre_softmax, "softmax before the top-k choice").with(kExperts);
  model.field("moe_router_topk_scaling_factor", &C::moe_router_topk_scaling_factor, "factor on the chosen scores")
      .above(0)
      .with(kExperts);
  model.field("moe_router_num_groups", &C::moe_router_num_groups, "expert groups of group-limited routing")
      .min(1)
      .with("model.moe_router_group_topk");
  model.field("moe_router_group_topk", &C::moe_router_group_topk, "groups a token may use").min(1).with(kExperts);
  model.field("moe_router_enable_expert_bias", &C::moe_router_enable_expert_bias, "balance by a bias on the scores")
      .with(kExperts);
  model.field("moe_router_bias_update_rate", &C::moe_router_bias_update_rate, "step of that bias")
      .min(0)
      .with("model.moe_router_enable_expert_bias");
  model
      .field("moe_router_group_score", &C::moe_router_group_score,
             "score of a group: sum of its best topk / group_topk experts (Megatron), its best, or sum of its best two")
      .own()
      .with("model.moe_router_group_topk");
  model
      .field("moe_router_norm_topk_prob", &C::moe_router_norm_topk_prob,
             "divide the chosen scores by their sum; unset: sigmoid scores with topk > 1 only")
      .own()
      .with(kExperts);
  model.field("moe_router_dtype", &C::moe_router_dtype, "type the router computes in").with(kExperts);
  model.field("moe_input_jitter_eps", &C::moe_input_jitter_eps, "jitter on the router's input").min(0).with(kExperts);
  model.field("moe_router_fusion", &C::moe_router_fusion, "fused router kernel").hint();
  model.field("moe_router_padding_for_quantization", &C::moe_router_padding_for_quantization, "pad rows per expert")
      .with(kExperts);
  model
      .field("moe_router_force_load_balancing", &C::moe_router_force_load_balancing,
             "random balanced routing (benchmarks)")
      .with(kExperts);
  model.field("moe_router_force_biased", &C::moe_router_force_biased, "biased routing (benchmarks)").with(kExperts);
}

/// How layers are split over stages, and what overlaps with their transfers.
void declare_stages(SectionBuilder<C>& model) {
  model
      .field("pipeline_model_parallel_layout", &C::pipeline_model_parallel_layout,
             "what sits on which stage: E embedding, t layer, m MTP, L loss, | next stage, x*n repeats")
      .normalized_by(&layout_text_of)
      .one_rank();
  model
      .field("num_layers_in_first_pipeline_stage", &C::num_layers_in_first_pipeline_stage,
             "layers of the first pipeline rank")
      .min(0)
      .one_rank();
  model
      .field("num_layers_in_last_pipeline_stage", &C::num_layers_in_last_pipeline_stage,
             "layers of the last pipeline rank")
      .min(0)
      .one_rank();
  model
      .field("account_for_embedding_in_pipeline_split", &C::account_for_embedding_in_pipeline_split,
             "count the embedding as a layer in the split")
      .one_rank();
  model
      .field("account_for_loss_in_pipeline_split", &C::account_for_loss_in_pipeline_split,
             "count the loss as a layer in the split")
      .one_rank();
  model
      .field("microbatch_group_size_per_vp_stage", &C::microbatch_group_size_per_vp_stage,
             "microbatches in a row of one chunk; unset: pipeline size")
      .min(1)
      .one_rank();
  model.field("overlap_p2p_comm", &C::overlap_p2p_comm, "stage transfers beside computation").one_rank();
  model.field("batch_p2p_comm", &C::batch_p2p_comm, "send and receive in one call").one_rank();
  model
      .field("overlap_moe_expert_parallel_comm", &C::overlap_moe_expert_parallel_comm,
             "dispatch of one microbatch beside computation of another")
      .hint();
  model.field("delay_wgrad_compute", &C::delay_wgrad_compute, "weight gradients later, to fill bubbles").hint();
}

}  // namespace

void declare_parallelism(std::vector<Field>& fields) {
  SectionBuilder model(fields, "model", &RunConfig::model);
  model.field("tensor_model_parallel_size", &C::tensor_model_parallel_size, "ranks a layer is split over")
      .min(1)
      .one_rank();
  model.field("pipeline_model_parallel_size", &C::pipeline_model_parallel_size, "pipeline ranks").min(1).one_rank();
  model
      .field("pipeline_schedule", &C::pipeline_schedule,
             "gpipe, 1f1b, interleaved, zb1p, zbv, dualpipev, or a file; unset: 1f1b, with several chunks interleaved")
      .own()
      .one_rank();
  model.field("context_parallel_size", &C::context_parallel_size, "ranks a sequence is split over").min(1).one_rank();
  model.field("expert_model_parallel_size", &C::expert_model_parallel_size, "ranks the experts are split over")
      .min(1)
      .one_rank();
  model
      .field("virtual_pipeline_model_parallel_size", &C::virtual_pipeline_model_parallel_size,
             "model chunks of a pipeline rank")
      .min(1)
      .one_rank();
  model
      .field("expert_tensor_parallel_size", &C::expert_tensor_parallel_size,
             "ranks an expert is split over; unset: 1 with expert parallelism, else the tensor parallel size")
      .min(1)
      .one_rank();
  model
      .field("sequence_parallel", &C::sequence_parallel, "split activations along the sequence inside the tensor group")
      .one_rank();
  model.field("cp_comm_type", &C::cp_comm_type, "transport of context parallelism, for all layers or each")
      .one_of({"p2p", "all_gather", "a2a", "a2a+p2p"})
      .one_rank();
  declare_stages(model);
}

void declare_experts(std::vector<Field>& fields) {
  SectionBuilder model(fields, "model", &RunConfig::model);
  model.field("num_moe_experts", &C::num_moe_experts, "experts of a mixture layer; unset: dense model").min(1);
  declare_router(model);
  model.field("moe_ffn_hidden_size", &C::moe_ffn_hidden_size, "width of one expert; unset: ffn_hidden_size")
      .min(1)
      .with(kExperts);
  model
      .field("moe_layer_freq", &C::moe_layer_freq,
             "n: layer i (0-based) has experts when i % n == 0; or a 0/1 list by layer")
      .with(kExperts);
  model
      .field("moe_shared_expert_intermediate_size", &C::moe_shared_expert_intermediate_size,
             "width of all shared experts together")
      .min(1)
      .with(kExperts);
  model.field("moe_shared_expert_gate", &C::moe_shared_expert_gate, "gate on the shared experts")
      .with("model.moe_shared_expert_intermediate_size");
  model.field("moe_shared_expert_overlap", &C::moe_shared_expert_overlap, "shared experts beside the dispatch")
      .with(kExperts);
  model
      .field("moe_expert_capacity_factor", &C::moe_expert_capacity_factor,
             "drop tokens beyond this share of the mean, above 0; negative: never")
      .with(kExperts);
  model
      .field("moe_pad_expert_input_to_capacity", &C::moe_pad_expert_input_to_capacity,
             "every expert gets exactly its capacity")
      .with(kExperts);
  model.field("moe_token_drop_policy", &C::moe_token_drop_policy, "which tokens are kept")
      .with("model.moe_expert_capacity_factor");
  model.field("moe_token_dispatcher_type", &C::moe_token_dispatcher_type, "how tokens reach experts").with(kExperts);
  model
      .field("moe_flex_dispatcher_backend", &C::moe_flex_dispatcher_backend,
             "transport of the flex dispatcher; native is Pharos' own")
      .with(kExperts);
  model.field("moe_permute_fusion", &C::moe_permute_fusion, "fused permutation kernel").hint();
  model.field("moe_grouped_gemm", &C::moe_grouped_gemm, "one GEMM over all local experts").hint();
  model.field("moe_per_layer_logging", &C::moe_per_layer_logging, "log balancing losses by layer").with(kExperts);
}

}  // namespace pharos::config
