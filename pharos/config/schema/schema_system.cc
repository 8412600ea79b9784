// Sections ddp, dist, mixed_precision, comm_overlap.
#include "pharos/config/schema/schema_builder.h"

namespace pharos::config {

void declare_system(std::vector<Field>& fields) {
  SectionBuilder ddp(fields, "ddp", &RunConfig::ddp);
  using D = DdpConfig;
  ddp.field("use_distributed_optimizer", &D::use_distributed_optimizer,
            "shard optimizer state over data-parallel ranks")
      .one_rank();
  ddp.field("grad_reduce_in_fp32", &D::grad_reduce_in_fp32,
            "reduce gradients in fp32; else in the type of the model. They are kept in fp32 in both cases")
      .one_rank();
  ddp.field("overlap_grad_reduce", &D::overlap_grad_reduce, "reduce buckets while the backward pass runs").one_rank();
  ddp.field("overlap_param_gather", &D::overlap_param_gather, "gather parameters while the forward pass runs")
      .one_rank();
  ddp.field("align_param_gather", &D::align_param_gather, "all stages gather at the same time").no_effect();
  ddp.field("average_in_collective", &D::average_in_collective, "average in the collective instead of scaling before")
      .one_rank();
  ddp.field("bucket_size", &D::bucket_size, "size of a gradient bucket").unit("elements").min(1).one_rank();
  ddp.field("num_buckets", &D::num_buckets, "number of gradient buckets; excludes bucket_size").min(1).one_rank();
  ddp.field("check_for_nan_in_grad", &D::check_for_nan_in_grad, "a NaN or infinite gradient ends the run");
  ddp.field("check_for_large_grads", &D::check_for_large_grads,
            "a huge gradient ends the run; optimizer.grad_norm_skip_threshold skips its step")
      .no_effect();
  ddp.field("num_distributed_optimizer_instances", &D::num_distributed_optimizer_instances, "partial sharding")
      .min(1)
      .later("partial optimizer sharding");
  ddp.field("data_parallel_sharding_strategy", &D::data_parallel_sharding_strategy,
            "what is divided over data-parallel ranks: nothing, optimizer, with gradients, with parameters (ZeRO 0-3)")
      .one_rank();

  SectionBuilder dist(fields, "dist", &RunConfig::dist);
  using C = DistConfig;
  dist.field("device", &C::device, "where tensors live").own();
  dist.field("num_threads", &C::num_threads, "compute threads of a process; 0: all cores").min(0).max(4096).own();
  dist.field("distributed_backend", &C::distributed_backend, "transport of collectives; here gloo on CPU, nccl on CUDA")
      .hint();
  dist.field("distributed_timeout_minutes", &C::distributed_timeout_minutes, "longest wait for a collective")
      .unit("minutes")
      .min(1)
      .one_rank();
  dist.field("distributed_timeout_seconds_after_init", &C::distributed_timeout_seconds_after_init,
             "the same after the first step")
      .unit("seconds")
      .min(1)
      .one_rank();
  dist.field("local_rank", &C::local_rank, "rank within the node; unset: from the environment").min(0).one_rank();
  dist.field("align_grad_reduce", &C::align_grad_reduce, "all stages reduce at the same time").no_effect();
  dist.field("use_tp_pp_dp_mapping", &C::use_tp_pp_dp_mapping, "rank order tp, cp, ep, pp, dp").one_rank();
  dist.field("use_gloo_process_groups", &C::use_gloo_process_groups,
             "also create Gloo groups; here they are made where needed")
      .hint();
  dist.field("high_priority_stream_groups", &C::high_priority_stream_groups, "groups on high-priority streams")
      .no_effect();
  dist.field("external_gpu_device_mapping", &C::external_gpu_device_mapping, "each process sees one device, index 0")
      .one_rank();
}

void declare_precision(std::vector<Field>& fields) {
  SectionBuilder precision(fields, "mixed_precision", &RunConfig::mixed_precision);
  using P = MixedPrecisionConfig;
  precision.field("name", &P::name, "named precision recipe; `mixed_precision: bf16_mixed` sets it").own();
  precision.field("fp32", &P::fp32, "compute in fp32");
  precision.field("fp16", &P::fp16, "compute in fp16");
  precision.field("bf16", &P::bf16, "compute in bf16");
  precision.field("params_dtype", &P::params_dtype, "type of the weights");
  precision.field("pipeline_dtype", &P::pipeline_dtype, "type of tensors between stages");
  precision.field("grad_reduce_in_fp32", &P::grad_reduce_in_fp32, "main gradients and their reduction in fp32");
  precision.field("fp8", &P::fp8, "fp8 format").one_of({"e4m3", "hybrid"}).later("fp8");
  precision.field("fp8_recipe", &P::fp8_recipe, "scaling of fp8")
      .one_of({"tensorwise", "delayed", "blockwise", "mxfp8"})
      .with("mixed_precision.fp8");
  precision.field("fp4", &P::fp4, "fp4 format").one_of({"e2m1"}).later("fp4");
  precision.field("loss_scale", &P::loss_scale, "constant loss scale for fp16; unset: dynamic").above(0);
  precision.field("initial_loss_scale", &P::initial_loss_scale, "first dynamic loss scale").above(0);
  precision.field("min_loss_scale", &P::min_loss_scale, "smallest dynamic loss scale").above(0);
  precision.field("loss_scale_window", &P::loss_scale_window, "overflow-free steps before the loss scale doubles")
      .unit("steps")
      .min(1);
  precision.field("hysteresis", &P::hysteresis, "overflows before the loss scale halves").min(1);

  SectionBuilder overlap(fields, "comm_overlap", &RunConfig::comm_overlap);
  using O = CommOverlapConfig;
  overlap
      .field("tp_comm_overlap", &O::tp_comm_overlap,
             "GEMM beside tensor-parallel collectives; required in this section")
      .one_rank();
  overlap.field("overlap_p2p_comm", &O::overlap_p2p_comm, "stage transfers beside computation").one_rank();
  overlap.field("batch_p2p_comm", &O::batch_p2p_comm, "send and receive in one call").one_rank();
  overlap.field("overlap_grad_reduce", &O::overlap_grad_reduce, "as in ddp").one_rank();
  overlap.field("overlap_param_gather", &O::overlap_param_gather, "as in ddp").one_rank();
  overlap.field("align_param_gather", &O::align_param_gather, "as in ddp").one_rank();
  overlap.field("bucket_size", &O::bucket_size, "as in ddp").unit("elements").min(1).one_rank();
  overlap.field("overlap_moe_expert_parallel_comm", &O::overlap_moe_expert_parallel_comm, "as in model").one_rank();
  overlap.field("delay_wgrad_compute", &O::delay_wgrad_compute, "as in model").one_rank();
}

}  // namespace pharos::config
