#include "pharos/plan/memory.h"

#include <algorithm>
#include <numeric>

#include "pharos/base/error.h"
#include "pharos/config/derived.h"
#include "pharos/model/theoretical_memory.h"
#include "pharos/plan/activations.h"
#include "pharos/plan/estimate_setup.h"
#include "pharos/plan/parallel/sharding.h"

namespace pharos::plan {
namespace {

using config::ModelConfig;
using config::RunConfig;

constexpr double kMebibyte = 1024.0 * 1024.0;
constexpr double kFloatBytes = 4;
/// Resident size of a process that has run a step of a model with hardly any parameters: program, libtorch, its kernels
/// and the matrix library's buffers.
constexpr double kProcessBytes = 145 * kMebibyte;

/// What is alive at one moment beside parameters, gradients and optimizer.
struct Moment {
  std::string phase;
  double activations = 0;
  double logits = 0;
  double transient = 0;
  double communication = 0;
  double total() const { return activations + logits + transient + communication; }
};

void keep_largest(Moment& largest, Moment moment) {
  if (moment.total() > largest.total()) largest = std::move(moment);
}

/// Layers recomputed together, as model::Transformer does it (bridge-config 1.6).
struct RecomputePlan {
  bool full = false;
  bool uniform = true;
  std::int64_t length = 1;  ///< layers of a unit (uniform), or recomputed layers of a chunk (block)
};

RecomputePlan recompute_plan(const ModelConfig& model) {
  return {model.recompute_granularity == config::RecomputeGranularity::kFull,
          model.recompute_method != config::RecomputeMethod::kBlock, model.recompute_num_layers.value_or(1)};
}

/// What one pass through a chunk keeps.
struct KeptByChunk {
  double bytes = 0;
  /// Most bytes alive when a unit is recomputed: what the units up to it keep, and the unit. Those behind it have been
  /// through their backward pass. 0 without recomputation.
  double while_recomputing = 0;
  bool ends_with_recomputation = false;
};

KeptByChunk kept_by_chunk(const ModelConfig& model, const LayerShape& shape, const ModelChunk& chunk) {
  const RecomputePlan recompute = recompute_plan(model);
  KeptByChunk kept;
  for (std::int64_t begin = 0; begin < chunk.num_layers;) {
    const bool is_unit = recompute.full && (recompute.uniform || begin < recompute.length);
    const std::int64_t end =
        is_unit && recompute.uniform ? std::min(chunk.num_layers, begin + recompute.length) : begin + 1;
    double unit = 0;
    for (std::int64_t i = begin; i < end; ++i) unit += kept_by_layer(model, shape, chunk.first_layer + i).total();
    kept.bytes += is_unit ? kept_by_layer(model, shape, chunk.first_layer + begin).input : unit;
    kept.ends_with_recomputation = is_unit;
    // The unit's input is there already; its output, of the same size, comes once more.
    if (is_unit) kept.while_recomputing = std::max(kept.while_recomputing, kept.bytes + unit);
    begin = end;
  }
  return kept;
}

/// The moment of a pipeline rank's training step with most bytes alive.
Moment training_peak(const RunConfig& config, const std::vector<ModelChunk>& chunks, std::int64_t num_microbatches) {
  const ModelConfig& model = config.model;
  const LayerShape shape = layer_shape(model, *config.train.micro_batch_size);
  const auto num_chunks = static_cast<std::int64_t>(chunks.size());
  const std::int64_t in_flight =
      chunks_in_flight(chunks.front().pipeline_rank, model.pipeline_model_parallel_size, num_chunks, num_microbatches);
  double kept = 0;
  for (const ModelChunk& chunk : chunks) kept += kept_by_chunk(model, shape, chunk).bytes;
  kept *= static_cast<double>(in_flight) / static_cast<double>(num_chunks);

  Moment largest;
  if (chunks.back().output) {
    keep_largest(largest, {"loss", kept + kept_by_head(model, shape), logits_bytes(model, shape),
                           output_backward_bytes(model, shape)});
  }
  const double mlp = mlp_backward_bytes(model, shape), attention = attention_backward_bytes(model, shape);
  for (const ModelChunk& chunk : chunks) {
    if (chunk.num_layers == 0) continue;
    const KeptByChunk one = kept_by_chunk(model, shape, chunk);
    const double mlp_kept = kept_by_layer(model, shape, chunk.first_layer + chunk.num_layers - 1).mlp;
    if (!one.ends_with_recomputation) {
      keep_largest(largest, {"mlp backward", kept, 0, mlp});
      keep_largest(largest, {"attention backward", kept - mlp_kept, 0, attention});
    }
    if (one.while_recomputing > 0) {
      const double alive = kept - one.bytes + one.while_recomputing;
      keep_largest(largest, {"backward of recomputed mlp", alive, 0, mlp});
      keep_largest(largest, {"backward of recomputed attention", alive - mlp_kept, 0, attention});
    }
  }
  return largest;
}

Moment evaluation_peak(const RunConfig& config, const ModelChunk& last) {
  const LayerShape shape = layer_shape(config.model, config::eval_micro_batch_size_or_default(config));
  const double whole = shape.tokens() * shape.hidden * shape.element_bytes, stream = whole / shape.parts;
  Moment largest{"evaluation", stream, 0, layer_forward_bytes(config.model, shape)};
  if (last.output)
    keep_largest(largest,
                 {"evaluation", stream, logits_bytes(config.model, shape), shape.parts > 1 ? stream + whole : stream});
  return largest;
}

Moment peak_by_formula(const RunConfig& config, const comm::Mesh& mesh) {
  const double scale =
      config::compute_dtype(config.model) == config::DType::kFloat32 ? 2 : 1;  // Megatron counts 16 bits
  return {"by formula",
          scale * model::estimate_memory(config.model, estimate_setup(config, mesh)).activations.total_bytes, 0, 0};
}

double num_moments(const RunConfig& config) {
  return config.optimizer.optimizer == config::OptimizerKind::kAdam ? 2 : 1;
}

/// Threads, sockets and the transport's own buffers of a process with peers (CPU).
constexpr double kTransportBytes = 8 * kMebibyte;

/// What a reduction of `elements` gradients needs beside them: a copy in a narrower type, and on a CPU the parts that
/// the other ranks send to be added up.
double reduction_bytes(const RunConfig& config, const Sharding& sharding, double elements) {
  const double width = sharding.gradient_bytes_per_element;
  double bytes = width < kFloatBytes ? elements * width : 0;
  if (sharding.divides_state() && config.dist.device == config::DeviceKind::kCpu)
    bytes += elements * width * (sharding.shards() - 1) / sharding.shards();
  return bytes;
}

/// Elements gathered or reduced at once where gradients or weights are divided. With a size or number of buckets given,
/// a bucket ends behind the parameter that fills it.
double unit_elements(const RunConfig& config, const RankParameters& held) {
  const std::int64_t all = held.buffer_elements, one = held.largest_linear;
  std::int64_t unit = held.largest_unit;
  if (config.ddp.bucket_size) unit = std::min(all, *config.ddp.bucket_size + one);
  if (config.ddp.num_buckets) unit = std::min(all, all / std::max<std::int64_t>(1, *config.ddp.num_buckets) + one);
  return static_cast<double>(unit);
}

/// Gradients are reduced when the last microbatch's backward pass has freed the activations, in one go: a moment of its
/// own. Divided gradients are reduced unit by unit in all of the backward pass instead, one unit while the next one's
/// gradients come in if that overlaps.
void add_reductions(Moment& peak, const RunConfig& config, const Sharding& sharding, const RankParameters& held) {
  if (sharding.ranks == 1) return;
  if (sharding.divides_gradients()) {
    peak.communication = reduction_bytes(config, sharding, unit_elements(config, held));
  } else {
    const double all = reduction_bytes(config, sharding, static_cast<double>(held.buffer_elements));
    keep_largest(peak, {.phase = "gradient reduction", .communication = all});
  }
}

std::vector<MemoryPart> parts_of(const RunConfig& config, const comm::Mesh& mesh, const RankParameters& held,
                                 const Moment& moment, double data_bytes) {
  const Sharding sharding = sharding_of(config, mesh);
  const bool cuda = config.dist.device == config::DeviceKind::kCuda;
  const double weight_bytes = weight_bytes_per_element(config), shards = sharding.shards();
  const auto buffer = static_cast<double>(held.buffer_elements), unit = unit_elements(config, held);
  const double state = sharding.divides_state() ? buffer / shards : buffer;
  double weights = static_cast<double>(held.elements), gradients = buffer;
  // With one rank there is nothing to divide, and the buffers are whole.
  if (sharding.divides_gradients() && sharding.ranks > 1)
    gradients = buffer / shards + std::min(buffer, (config.ddp.overlap_grad_reduce ? 2 : 1) * unit);
  if (sharding.divides_weights() && sharding.ranks > 1)
    weights = buffer / shards + std::min(buffer, (config.ddp.overlap_param_gather ? 2 : 1) * unit);
  return {{"process", cuda ? "process (CUDA context not counted)" : "process and libraries", cuda ? 0 : kProcessBytes},
          {"weights", "weights", weights * weight_bytes},
          {"main_parameters", "fp32 main parameters", weight_bytes == kFloatBytes ? 0 : state * kFloatBytes},
          {"gradients", "fp32 gradients", gradients * kFloatBytes},
          {"optimizer", "optimizer moments", state * kFloatBytes * num_moments(config)},
          {"activations", "activations kept", moment.activations},
          {"logits", "logits and loss", moment.logits},
          {"transient", "gradients on their way, temporaries", moment.transient},
          {"communication", "communication buffers",
           moment.communication + (cuda || mesh.world_size() == 1 ? 0 : kTransportBytes)},
          {"data", "data index and mapped pages", cuda ? 0 : data_bytes}};
}

double sum_of(const std::vector<MemoryPart>& parts) {
  return std::accumulate(parts.begin(), parts.end(), 0.0,
                         [](double sum, const MemoryPart& part) { return sum + part.bytes; });
}

}  // namespace

double MemoryPlan::part(const std::string& key) const {
  for (const MemoryPart& one : parts) {
    if (one.key == key) return one.bytes;
  }
  throw base::InternalError("no part of memory is called " + key);
}

MemoryPlan plan_memory(const RunConfig& config, const comm::Mesh& mesh, const ParameterPlan& parameters,
                       double data_bytes) {
  const std::int64_t num_microbatches = estimate_setup(config, mesh).num_microbatches;
  const std::vector<ModelChunk> chunks = model_chunks(config.model);
  MemoryPlan plan;
  for (std::int64_t rank = 0; rank < config.model.pipeline_model_parallel_size; ++rank) {
    const auto mine = chunks_of(chunks, rank);
    const RankParameters& held = parameters.ranks[static_cast<std::size_t>(rank)];
    Moment moment;
    if (parameters.by_formula) {
      moment = peak_by_formula(config, mesh);
    } else {
      if (!config.validation.skip_train) moment = training_peak(config, mine, num_microbatches);
    }
    if (!config.validation.skip_train) add_reductions(moment, config, sharding_of(config, mesh), held);
    if (!parameters.by_formula && config.validation.eval_iters > 0)
      keep_largest(moment, evaluation_peak(config, mine.back()));
    std::vector<MemoryPart> parts = parts_of(config, mesh, held, moment, data_bytes);
    plan.peak_bytes_of_ranks.push_back(sum_of(parts));
    if (plan.parts.empty() || plan.peak_bytes_of_ranks.back() > plan.peak_bytes) {
      plan.pipeline_rank = rank;
      plan.phase = moment.phase;
      plan.peak_bytes = plan.peak_bytes_of_ranks.back();
      plan.parts = std::move(parts);
    }
  }
  return plan;
}

}  // namespace pharos::plan
