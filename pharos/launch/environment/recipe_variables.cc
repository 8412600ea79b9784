#include "pharos/launch/environment/recipe_variables.h"

#include <algorithm>
#include <set>

#include "pharos/base/error.h"
#include "pharos/config/recipe/recipe.h"

namespace pharos::launch {
namespace {

using config::FlexBackend;
using config::TokenDispatcher;

constexpr const char* kTransformerEngine = "Transformer Engine";
constexpr const char* kCudnnFrontend = "cuDNN's front end";

/// A field that Pharos stores without a member of its own.
std::string stored(const config::RunConfig& config, const std::string& name) {
  const auto found = config.stored.find(name);
  return found == config.stored.end() ? "" : found->second;
}

bool is_stored_true(const config::RunConfig& config, const std::string& name) { return stored(config, name) == "true"; }

/// The names of the recipe and its bases, nearest first.
std::vector<std::string> recipe_names(const config::ResolvedConfig& resolved) {
  std::vector<std::string> names;
  if (!resolved.recipe_path.empty()) {
    std::vector<config::Problem> problems;
    for (const config::Recipe& recipe : config::load_recipe_chain(resolved.recipe_path.string(), problems))
      names.insert(names.begin(), recipe.name);
  } else if (!resolved.recipe_name.empty()) {
    names.push_back(resolved.recipe_name);
  }
  return names;
}

bool is_llama(const config::ResolvedConfig& resolved) {
  const auto names = recipe_names(resolved);
  return std::any_of(names.begin(), names.end(), [](const std::string& name) { return name.starts_with("llama"); });
}

bool is_full_iteration_graph(const config::RunConfig& config) {
  return stored(config, "model.cuda_graph_scope").find("full_iteration") != std::string::npos ||
         stored(config, "model.cuda_graph_impl") == "full_iteration";
}

/// The facts that several rules ask for.
struct Facts {
  const config::ResolvedConfig& resolved;
  const config::RunConfig& config;
  std::string gpu;

  Facts(const config::ResolvedConfig& of, const NodeShape& node) : resolved(of), config(of.config), gpu(node.gpu) {}

  /// Blackwell and what came after it.
  bool is_blackwell() const {
    static const std::set<std::string> kNames = {"b200", "b300", "gb200", "gb300", "vr200"};
    return kNames.contains(gpu);
  }
  /// 72 GPUs in one NVLink domain.
  bool is_nvl72() const { return gpu == "gb200" || gpu == "gb300" || gpu == "vr200"; }
  bool is_flex(FlexBackend backend) const {
    return config.model.num_moe_experts && config.model.moe_token_dispatcher_type == TokenDispatcher::kFlex &&
           config.model.moe_flex_dispatcher_backend == backend;
  }
  bool is_expert_overlap() const { return config.model.overlap_moe_expert_parallel_comm; }
  bool is_fsdp() const {
    return config.ddp.data_parallel_sharding_strategy == config::ShardingStrategy::kOptimGradsParams ||
           is_stored_true(config, "ddp.use_megatron_fsdp") || is_stored_true(config, "dist.use_megatron_fsdp") ||
           is_stored_true(config, "dist.use_torch_fsdp2");
  }
};

class Rules {
 public:
  void add(const std::string& name, const std::string& value, const std::string& reason) {
    variables_.push_back(
        {.name = name, .value = value, .reason = reason, .source = VariableSource::kRecipe, .origin = "rule"});
  }
  std::vector<PlannedVariable> take() { return std::move(variables_); }

 private:
  std::vector<PlannedVariable> variables_;
};

void add_connections(const Facts& facts, Rules& rules) {
  const char* name = "CUDA_DEVICE_MAX_CONNECTIONS";
  const auto& model = facts.config.model;
  const bool is_split = model.tensor_model_parallel_size > 1 || model.context_parallel_size > 1;
  if (facts.is_flex(FlexBackend::kDeepEp) || facts.is_flex(FlexBackend::kHybridEp)) {
    rules.add(name, "32", "The flex dispatcher runs its kernels beside others: they need queues of their own.");
  } else if (facts.is_expert_overlap()) {
    rules.add(name, "32", "Expert collectives run beside computation: they need queues of their own.");
  } else if (facts.is_blackwell()) {
    rules.add(name, "32", "Blackwell keeps the order of kernels across queues, so many queues cost nothing.");
  } else if (facts.is_fsdp()) {
    rules.add(name, "8", "With sharded parameters one queue would hold gathers behind computation: never 1.");
  } else if (is_split) {
    rules.add(name, "1", "Tensor or context parallel on Hopper: a collective starts before the GEMM that hides it.");
  } else {
    rules.add(name, "8", "No tensor, context or expert overlap asks for another number of queues.");
  }
}

void add_nccl(const Facts& facts, Rules& rules) {
  rules.add("NCCL_GRAPH_REGISTER", "0",
            "No buffers are registered for CUDA graphs: with expandable segments that fails.");
  if (is_stored_true(facts.config, "ddp.nccl_ub")) {
    rules.add("NCCL_NVLS_ENABLE", "1", "ddp.nccl_ub: registered buffers are reduced by the NVLink switch.");
    rules.add("NCCL_CTA_POLICY", "1", "ddp.nccl_ub: collectives on registered buffers need few multiprocessors.");
  } else {
    rules.add("NCCL_NVLS_ENABLE", "0", "Without ddp.nccl_ub the NVLink switch's buffers cost memory and gain little.");
  }
  if (facts.config.model.pipeline_model_parallel_size > 1 && is_llama(facts.resolved))
    rules.add("NCCL_P2P_NET_CHUNKSIZE", "2097152",
              "Llama over pipeline stages sends large activations: 2 MiB a message.");
  if (facts.gpu == "b300")
    rules.add("NCCL_IGNORE_CPU_AFFINITY", "1", "B300: NCCL places its threads by the GPU, not by the mask of the job.");
  if (facts.gpu == "gb200") {
    rules.add("NCCL_NET_GDR_LEVEL", "PHB", "GB200: the network reaches GPU memory through the host bridge too.");
    rules.add("NCCL_NET_GDR_C2C", "1", "GB200: GPU memory is reached over the link between CPU and GPU.");
  }
  if (facts.config.model.deterministic_mode) {
    rules.add("NCCL_ALGO", "Ring", "model.deterministic_mode: sums are taken in one order.");
    rules.add("CUBLAS_WORKSPACE_CONFIG", ":4096:8",
              "model.deterministic_mode: cuBLAS chooses the same kernels each time.");
  }
}

void add_torch(const Facts& facts, Rules& rules) {
  const bool is_graph = is_full_iteration_graph(facts.config);
  rules.add("PYTORCH_CUDA_ALLOC_CONF",
            is_graph ? "expandable_segments:True,graph_capture_record_stream_reuse:True" : "expandable_segments:True",
            "Memory grows in place, so that freed blocks of other sizes do not lie unused.");
  rules.add(
      "TORCH_NCCL_AVOID_RECORD_STREAMS", is_graph ? "0" : "1",
      "Memory of a collective is freed when it has ended, not when the host gets to it (default of newer libtorch).");
  rules.add("TORCH_NCCL_HIGH_PRIORITY", "1", "Collectives get multiprocessors before computation does.");
}

void add_hybrid_ep(const Facts& facts, Rules& rules) {
  if (!facts.is_flex(FlexBackend::kHybridEp)) return;
  const std::int64_t ranks = facts.config.model.expert_model_parallel_size;
  const std::int64_t domain = facts.is_nvl72() ? 72 : 8;
  if (facts.is_nvl72() && ranks > domain) {
    throw base::UserError({.what = "model.expert_model_parallel_size = " + std::to_string(ranks) +
                                   " is more than the 72 GPUs of an NVLink domain.",
                           .where = facts.resolved.origin_of("model.expert_model_parallel_size").text,
                           .why = "HybridEP on " + facts.gpu + " keeps an expert group within one domain.",
                           .fix = "Use at most 72, or another model.moe_flex_dispatcher_backend."});
  }
  rules.add("NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN", std::to_string(std::min(ranks, domain)),
            "HybridEP: expert ranks that reach each other over NVLink.");
  rules.add("NVLINK_DOMAIN_SIZE", std::to_string(domain), "HybridEP: GPUs that reach each other over NVLink.");
  rules.add("USE_MNNVL", facts.is_nvl72() ? "1" : "0", "HybridEP: whether an NVLink domain spans nodes.");
  rules.add("NUM_OF_TOKENS_PER_CHUNK_COMBINE_API", "128", "HybridEP: tokens of one piece of a combine.");
}

}  // namespace

const std::vector<std::string>& known_gpus() {
  static const std::vector<std::string> kGpus = {"a100", "h100", "h200", "b200", "b300", "gb200", "gb300", "vr200"};
  return kGpus;
}

std::string gpu_of_recipe(const config::ResolvedConfig& resolved) {
  for (const std::string& name : recipe_names(resolved)) {
    for (std::size_t begin = 0; begin < name.size();) {
      const std::size_t end = std::min(name.find('_', begin), name.size());
      const std::string part = name.substr(begin, end - begin);
      if (std::count(known_gpus().begin(), known_gpus().end(), part) > 0) return part;
      begin = end + 1;
    }
  }
  return "";
}

std::vector<PlannedVariable> recipe_variables(const config::ResolvedConfig& resolved, const NodeShape& node) {
  const Facts facts(resolved, node);
  Rules rules;
  add_connections(facts, rules);
  add_nccl(facts, rules);
  add_torch(facts, rules);
  add_hybrid_ep(facts, rules);
  return rules.take();
}

std::vector<PlannedVariable> unused_variables(const config::ResolvedConfig& resolved, const NodeShape& node) {
  const Facts facts(resolved, node);
  Rules rules;
  const auto add = [&](const std::string& name, const std::string& value, const std::string& cause) {
    rules.add(name, value, cause + "; only " + unused_reader(name) + " reads it, which Pharos does not use.");
  };
  const auto& ddp = facts.config.ddp;
  if (ddp.overlap_grad_reduce || ddp.overlap_param_gather || facts.is_expert_overlap()) {
    add("NVTE_FWD_LAYERNORM_SM_MARGIN", "20", "Norms leave multiprocessors to overlapped collectives");
    add("NVTE_BWD_LAYERNORM_SM_MARGIN", "20", "Norms leave multiprocessors to overlapped collectives");
  }
  if (facts.is_blackwell()) {
    add("NVTE_NORM_FWD_USE_CUDNN", "1", "Norms by cuDNN on Blackwell");
    add("NVTE_NORM_BWD_USE_CUDNN", "1", "Norms by cuDNN on Blackwell");
  }
  if (facts.config.mixed_precision.fp4) add("NVTE_USE_FAST_MATH", "1", "Faster scaling with nvfp4");
  if (facts.config.model.deterministic_mode)
    add("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "0", "model.deterministic_mode: the same bits each time");
  if (is_stored_true(facts.config, "model.cpu_offloading") ||
      is_stored_true(facts.config, "model.fine_grained_activation_offloading"))
    add("NVTE_CPU_OFFLOAD_V1", "1", "Activations are moved to the host");
  if (is_stored_true(facts.config, "model.moe_single_grouped_weight")) {
    add("NVTE_CUTEDSL_FUSED_GROUPED_MLP", "1", "Experts of a rank in one fused kernel");
    add("CUDNNFE_CLUSTER_OVERLAP_MARGIN", "8", "Experts of a rank in one fused kernel");
  }
  return rules.take();
}

std::string unused_reader(const std::string& name) {
  if (name.starts_with("NVTE_")) return kTransformerEngine;
  if (name.starts_with("CUDNNFE_")) return kCudnnFrontend;
  return "";
}

}  // namespace pharos::launch
