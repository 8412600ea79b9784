#include "pharos/plan/memory.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "pharos/base/error.h"
#include "pharos/config/derived.h"
#include "pharos/pipeline/schedule.h"
#include "pharos/plan/activations.h"
#include "pharos/plan/estimate_setup.h"
#include "pharos/plan/parallel/sharding.h"
#include "pharos/plan/pipeline/boundary_tensors.h"
#include "pharos/plan/pipeline/kept.h"
#include "pharos/plan/pipeline/pipeline_plan.h"

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

/// A stage of a rank, and what a microbatch keeps on it.
struct HeldStage {
  ModelChunk chunk;
  KeptByStage kept;
  Deferred last_layer;  ///< put off by the stage's last layer
};

/// The largest moment of one backward pass, `held` being everything kept when it begins.
void visit_backward(Moment& largest, const ModelConfig& model, const LayerShape& shape, const HeldStage& stage,
                    const Moment& held) {
  const KeptByStage& kept = stage.kept;
  Moment below = held;  // once the output layer is behind
  if (stage.chunk.output) {
    keep_largest(largest, {"loss", held.activations, held.logits - kept.logits + logits_bytes(model, shape),
                           output_backward_bytes(model, shape), held.communication});
    below.activations += kept.deferred_head - kept.head;
    below.logits += kept.deferred_logits - kept.logits;
  }
  const std::int64_t num_layers = stage.chunk.num_layers;
  if (num_layers == 0) return;
  const std::int64_t last = stage.chunk.first_layer + num_layers - 1;
  const double mlp = mlp_backward_bytes(model, shape, last), attention = attention_backward_bytes(model, shape, last);
  const double mlp_kept = kept_by_layer(model, shape, last).mlp;
  const auto visit = [&](const char* mlp_phase, const char* attention_phase, double activations) {
    keep_largest(largest, {mlp_phase, activations, below.logits, mlp, held.communication});
    keep_largest(largest, {attention_phase, activations - mlp_kept + stage.last_layer.mlp, below.logits, attention,
                           held.communication});
  };
  if (!kept.ends_with_recomputation) visit("mlp backward", "attention backward", below.activations);
  if (kept.while_recomputing > 0)
    visit("backward of recomputed mlp", "backward of recomputed attention",
          below.activations - kept.layers + kept.while_recomputing);
}

/// The moment of a pipeline rank's training step with most bytes alive: its actions in order.
Moment training_peak(const RunConfig& config, const pipeline::Schedule& schedule, const std::vector<ModelChunk>& chunks,
                     std::int64_t rank, RoutingBalance balance) {
  const ModelConfig& model = config.model;
  LayerShape shape = layer_shape(config);
  shape.balance = balance;
  const bool defers = pipeline::last_phase(schedule) == pipeline::Phase::kWeight;
  std::vector<HeldStage> stages;
  for (const int stage : schedule.stage_of[static_cast<std::size_t>(rank)]) {
    const ModelChunk& chunk = chunks[static_cast<std::size_t>(stage)];
    const std::int64_t last = chunk.first_layer + chunk.num_layers - 1;
    stages.push_back({chunk, kept_by_stage(model, shape, chunk, defers),
                      chunk.num_layers > 0 ? deferred_by_layer(model, shape, last, defers) : Deferred{}});
  }
  const std::vector<int> tensors = boundary_tensors(schedule, static_cast<int>(rank));
  const double tensor_bytes = boundary_bytes(config);
  Moment largest, held;
  for (std::size_t position = 0; position < tensors.size(); ++position) {
    const pipeline::Action& action = schedule.actions[static_cast<std::size_t>(rank)][position];
    held.communication = tensors[position] * tensor_bytes;
    const HeldStage& stage = stages[static_cast<std::size_t>(action.chunk)];
    const KeptByStage& kept = stage.kept;
    switch (action.phase) {
      case pipeline::Phase::kForward:
        held.activations += kept.layers + kept.head;
        held.logits += kept.logits;
        keep_largest(largest, {"forward", held.activations, held.logits, 0, held.communication});
        break;
      case pipeline::Phase::kBackward:
        visit_backward(largest, model, shape, stage, held);
        held.activations += kept.deferred_layers + kept.deferred_head - kept.layers - kept.head;
        held.logits += kept.deferred_logits - kept.logits;
        keep_largest(largest, {"backward", held.activations, held.logits, 0, held.communication});
        break;
      case pipeline::Phase::kWeight:
        held.activations -= kept.deferred_layers + kept.deferred_head;
        held.logits -= kept.deferred_logits;
        break;
    }
  }
  return largest;
}

/// In a pipeline a tensor being sent and those for the next two forwards coming in are beside.
Moment evaluation_peak(const RunConfig& config, const ModelChunk& last) {
  LayerShape shape = layer_shape(config);
  shape.batch = static_cast<double>(config::eval_micro_batch_size_or_default(config));
  const double whole = shape.tokens() * shape.hidden * shape.element_bytes, stream = whole / shape.parts;
  const double boundary = config.model.pipeline_model_parallel_size > 1 ? 3 * boundary_bytes(config) : 0;
  Moment largest{"evaluation", stream, 0, layer_forward_bytes(config.model, shape), boundary};
  if (last.output)
    keep_largest(largest, {"evaluation", stream, logits_bytes(config.model, shape),
                           shape.parts > 1 ? stream + whole : stream, boundary});
  return largest;
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
double unit_elements(const RunConfig& config, const RankParameters& held, const BufferPart& part) {
  const std::int64_t all = part.elements, one = held.largest_linear;
  std::int64_t unit = part.largest_unit;
  if (config.ddp.bucket_size) unit = std::min(all, *config.ddp.bucket_size + one);
  if (config.ddp.num_buckets) unit = std::min(all, all / std::max<std::int64_t>(1, *config.ddp.num_buckets) + one);
  return static_cast<double>(unit);
}

/// What is trained on a rank, and the ranks that have copies of it.
struct DividedPart {
  BufferPart part;
  Sharding sharding;
  double elements() const { return static_cast<double>(part.elements); }
};

std::vector<DividedPart> divided_parts(const RunConfig& config, const comm::Mesh& mesh, const RankParameters& held) {
  std::vector<DividedPart> parts{{held.others, sharding_of(config, mesh)}};
  if (held.experts.elements > 0) parts.push_back({held.experts, expert_sharding_of(config, mesh)});
  return parts;
}

/// Gradients are reduced when the last microbatch's backward pass has freed the activations, in one go: a moment of its
/// own. Divided gradients are reduced unit by unit in all of the backward pass instead, one unit while the next one's
/// gradients come in if that overlaps.
void add_reductions(Moment& peak, const RunConfig& config, const std::vector<DividedPart>& parts,
                    const RankParameters& held) {
  double units = 0, all = 0;
  for (const auto& [part, sharding] : parts) {
    if (sharding.ranks == 1) continue;
    if (sharding.divides_gradients()) {
      units = std::max(units, reduction_bytes(config, sharding, unit_elements(config, held, part)));
    } else {
      all += reduction_bytes(config, sharding, static_cast<double>(part.elements));
    }
  }
  peak.communication += units;
  if (all > 0) keep_largest(peak, {.phase = "gradient reduction", .communication = all});
}

/// Bytes of an element of gradients and of each moment: the precision-aware optimizer has types of its own for them.
double bytes_of(config::DType type) { return type == config::DType::kFloat32 ? kFloatBytes : 2; }

std::vector<MemoryPart> parts_of(const RunConfig& config, const comm::Mesh& mesh, const RankParameters& held,
                                 const std::vector<DividedPart>& divided, const Moment& moment, double data_bytes) {
  const bool cuda = config.dist.device == config::DeviceKind::kCuda;
  const double weight_bytes = weight_bytes_per_element(config);
  double state = 0, gradients = 0, weights = static_cast<double>(held.elements);
  for (const DividedPart& one : divided) {
    const Sharding& sharding = one.sharding;
    const double buffer = one.elements(), share = buffer / sharding.shards();
    const double unit = unit_elements(config, held, one.part);
    state += sharding.divides_state() ? share : buffer;
    // With one rank there is nothing to divide, and the buffers are whole.
    const bool is_divided = sharding.ranks > 1;
    gradients += is_divided && sharding.divides_gradients()
                     ? share + std::min(buffer, (config.ddp.overlap_grad_reduce ? 2 : 1) * unit)
                     : buffer;
    if (is_divided && sharding.divides_weights())
      weights += share + std::min(buffer, (config.ddp.overlap_param_gather ? 2 : 1) * unit) - buffer;
  }
  const auto floats = static_cast<double>(held.float_elements);
  const config::OptimizerConfig& optimizer = config.optimizer;
  const double moments = bytes_of(optimizer.exp_avg_dtype) + bytes_of(optimizer.exp_avg_sq_dtype);
  const bool adam = optimizer.optimizer == config::OptimizerKind::kAdam;
  return {{"process", cuda ? "process (CUDA context not counted)" : "process and libraries", cuda ? 0 : kProcessBytes},
          {"weights", "weights", (weights - floats) * weight_bytes + floats * kFloatBytes},
          {"main_parameters", "main parameters",
           weight_bytes == kFloatBytes ? 0 : state * bytes_of(optimizer.main_params_dtype)},
          {"gradients", "gradients", gradients * bytes_of(optimizer.main_grads_dtype)},
          {"optimizer", "optimizer moments", state * (adam ? moments : kFloatBytes)},
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
  const std::vector<ModelChunk> chunks = model_chunks(config.model);
  std::optional<pipeline::Schedule> schedule;
  if (!config.validation.skip_train) schedule = planned_schedule(config, mesh);
  MemoryPlan plan;
  for (std::int64_t rank = 0; rank < config.model.pipeline_model_parallel_size; ++rank) {
    const auto mine = chunks_of(chunks, rank);
    const RankParameters& held = parameters.ranks[static_cast<std::size_t>(rank)];
    const std::vector<DividedPart> divided = divided_parts(config, mesh, held);
    const auto parts_with = [&](RoutingBalance balance, std::string& phase) {
      Moment moment;
      if (schedule) {
        moment = training_peak(config, *schedule, chunks, rank, balance);
        add_reductions(moment, config, divided, held);
      }
      if (config.validation.eval_iters > 0) keep_largest(moment, evaluation_peak(config, mine.back()));
      phase = moment.phase;
      return parts_of(config, mesh, held, divided, moment, data_bytes);
    };
    std::string phase, ignored;
    std::vector<MemoryPart> parts = parts_with(RoutingBalance::kEven, phase);
    if (config.model.num_moe_experts && schedule)
      plan.worst_peak_bytes = std::max(plan.worst_peak_bytes, sum_of(parts_with(RoutingBalance::kWorst, ignored)));
    plan.peak_bytes_of_ranks.push_back(sum_of(parts));
    if (plan.parts.empty() || plan.peak_bytes_of_ranks.back() > plan.peak_bytes) {
      plan.pipeline_rank = rank;
      plan.phase = phase;
      plan.peak_bytes = plan.peak_bytes_of_ranks.back();
      plan.parts = std::move(parts);
    }
  }
  return plan;
}

}  // namespace pharos::plan
