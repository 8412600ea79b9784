#include "pharos/plan/memory.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "pharos/base/error.h"
#include "pharos/config/derived.h"
#include "pharos/model/theoretical_memory.h"
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
};

/// The largest moment of one backward pass, `held` being everything kept when it begins.
void visit_backward(Moment& largest, const ModelConfig& model, const LayerShape& shape, const HeldStage& stage,
                    const Deferred& deferred, const Moment& held) {
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
  const double mlp = mlp_backward_bytes(model, shape), attention = attention_backward_bytes(model, shape);
  const double mlp_kept = kept_by_layer(model, shape, stage.chunk.first_layer + num_layers - 1).mlp;
  const auto visit = [&](const char* mlp_phase, const char* attention_phase, double activations) {
    keep_largest(largest, {mlp_phase, activations, below.logits, mlp, held.communication});
    keep_largest(largest,
                 {attention_phase, activations - mlp_kept + deferred.mlp, below.logits, attention, held.communication});
  };
  if (!kept.ends_with_recomputation) visit("mlp backward", "attention backward", below.activations);
  if (kept.while_recomputing > 0)
    visit("backward of recomputed mlp", "backward of recomputed attention",
          below.activations - kept.layers + kept.while_recomputing);
}

/// The moment of a pipeline rank's training step with most bytes alive: its actions in order.
Moment training_peak(const RunConfig& config, const pipeline::Schedule& schedule, const std::vector<ModelChunk>& chunks,
                     std::int64_t rank) {
  const ModelConfig& model = config.model;
  const LayerShape shape = layer_shape(model, *config.train.micro_batch_size);
  const bool defers = pipeline::last_phase(schedule) == pipeline::Phase::kWeight;
  const Deferred deferred = deferred_work(model, shape, defers);
  std::vector<HeldStage> stages;
  for (const int stage : schedule.stage_of[static_cast<std::size_t>(rank)]) {
    const ModelChunk& chunk = chunks[static_cast<std::size_t>(stage)];
    stages.push_back({chunk, kept_by_stage(model, shape, chunk, defers)});
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
        visit_backward(largest, model, shape, stage, deferred, held);
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
  const LayerShape shape = layer_shape(config.model, config::eval_micro_batch_size_or_default(config));
  const double whole = shape.tokens() * shape.hidden * shape.element_bytes, stream = whole / shape.parts;
  const double boundary = config.model.pipeline_model_parallel_size > 1 ? 3 * boundary_bytes(config) : 0;
  Moment largest{"evaluation", stream, 0, layer_forward_bytes(config.model, shape), boundary};
  if (last.output)
    keep_largest(largest, {"evaluation", stream, logits_bytes(config.model, shape),
                           shape.parts > 1 ? stream + whole : stream, boundary});
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
    peak.communication += reduction_bytes(config, sharding, unit_elements(config, held));
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
  const std::vector<ModelChunk> chunks = model_chunks(config.model);
  std::optional<pipeline::Schedule> schedule;
  if (!config.validation.skip_train && !parameters.by_formula) schedule = planned_schedule(config, mesh);
  MemoryPlan plan;
  for (std::int64_t rank = 0; rank < config.model.pipeline_model_parallel_size; ++rank) {
    const auto mine = chunks_of(chunks, rank);
    const RankParameters& held = parameters.ranks[static_cast<std::size_t>(rank)];
    Moment moment;
    if (parameters.by_formula) moment = peak_by_formula(config, mesh);
    if (schedule) moment = training_peak(config, *schedule, chunks, rank);
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
