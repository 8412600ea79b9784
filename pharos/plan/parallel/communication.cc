#include "pharos/plan/parallel/communication.h"

#include <algorithm>

#include "pharos/plan/activations.h"
#include "pharos/plan/parallel/sharding.h"

namespace pharos::plan {
namespace {

using comm::MeshDim;
using config::RunConfig;

/// Layers of a chunk that pass forward twice.
std::int64_t layers_recomputed(const config::ModelConfig& model, const ModelChunk& chunk) {
  if (model.recompute_granularity != config::RecomputeGranularity::kFull) return 0;
  if (model.recompute_method != config::RecomputeMethod::kBlock) return chunk.num_layers;
  return std::min(chunk.num_layers, model.recompute_num_layers.value_or(1));
}

std::vector<CommunicationPart> of_data_parallel(const RunConfig& config, const comm::Mesh& mesh,
                                                const RankParameters& held, double num_microbatches) {
  const Sharding sharding = sharding_of(config, mesh);
  if (sharding.ranks == 1) return {};
  const std::string name = mesh.size(MeshDim::kContext) > 1 ? "dp-cp" : "dp";
  const double elements = static_cast<double>(held.buffer_elements);
  const double gradients = elements * sharding.gradient_bytes_per_element;
  const double weights = elements * weight_bytes_per_element(config);
  if (!sharding.divides_state()) return {{name, sharding.ranks, "gradients", "all_reduce", 1, gradients}};
  return {
      {name, sharding.ranks, "gradients", "reduce_scatter", sharding.divides_gradients() ? num_microbatches : 1,
       gradients},
      {name, sharding.ranks, "weights", "all_gather", sharding.divides_weights() ? 2 * num_microbatches : 1, weights}};
}

std::vector<CommunicationPart> of_tensor_parallel(const RunConfig& config, const comm::Mesh& mesh,
                                                  const std::vector<ModelChunk>& chunks, const RankParameters& held,
                                                  double num_microbatches) {
  const config::ModelConfig& model = config.model;
  const std::int64_t ranks = mesh.size(MeshDim::kTensor);
  if (ranks == 1) return {};
  const double tokens = static_cast<double>(*config.train.micro_batch_size * model.seq_length) /
                        static_cast<double>(mesh.size(MeshDim::kContext));
  const double stream = tokens * static_cast<double>(*model.hidden_size) * weight_bytes_per_element(config);
  std::vector<CommunicationPart> parts;
  const auto add = [&](const char* purpose, const char* operation, double calls, double bytes) {
    if (calls > 0 && bytes > 0) parts.push_back({"tp", ranks, purpose, operation, calls, bytes});
  };
  // `sums` all-reduces and, under sequence parallelism, `gathers` inputs gathered once more.
  const auto add_stream = [&](const char* purpose, double sums, double gathers) {
    if (!model.sequence_parallel) return add(purpose, "all_reduce", sums * num_microbatches, stream);
    add(purpose, "reduce_scatter", sums * num_microbatches, stream);
    add(purpose, "all_gather", (sums + gathers) * num_microbatches, stream);
  };
  double layers = 0, recomputed = 0;
  bool has_embedding = false, has_output = false;
  for (const ModelChunk& chunk : chunks) {
    layers += static_cast<double>(chunk.num_layers);
    recomputed += static_cast<double>(layers_recomputed(model, chunk));
    has_embedding = has_embedding || chunk.embedding;
    has_output = has_output || chunk.output;
  }
  add_stream("layers", 4 * layers + 2 * recomputed, 2 * layers);
  if (has_embedding) add_stream("embedding", 1, 0);
  if (has_output) {
    add_stream("output layer", 1, 1);
    add("loss", "all_reduce", num_microbatches, 3 * 4 * tokens);
  }
  add("gradients of norms and biases", "all_reduce", 1, 4 * static_cast<double>(held.summed_over_tensor));
  return parts;
}

/// Keys and values of the stage's layers, forward and backward, and their gradients.
std::vector<CommunicationPart> of_context_parallel(const RunConfig& config, const comm::Mesh& mesh,
                                                   const std::vector<ModelChunk>& chunks, double num_microbatches) {
  const config::ModelConfig& model = config.model;
  const std::int64_t ranks = mesh.size(MeshDim::kContext);
  if (ranks == 1) return {};
  const LayerShape shape = layer_shape(model, *config.train.micro_batch_size);
  const double elements = 2 * shape.kv_width() * shape.tokens() * static_cast<double>(ranks);
  double passes = 0, layers = 0;
  for (const ModelChunk& chunk : chunks) {
    const auto count = static_cast<double>(chunk.num_layers);
    layers += count;
    passes +=
        2 * count + (recomputes_core_attention(model) ? count : static_cast<double>(layers_recomputed(model, chunk)));
  }
  // What a ring sends a block at a time is as much as an all-gather or a reduce-scatter of the whole.
  return {{"cp", ranks, "keys and values", "all_gather", passes * num_microbatches, elements * shape.element_bytes},
          {"cp", ranks, "gradients of keys and values", "reduce_scatter", layers * num_microbatches, elements * 4}};
}

}  // namespace

double CommunicationPart::bytes() const {
  const auto size = static_cast<double>(ranks);
  return calls * (operation == "all_reduce" ? 2 : 1) * (size - 1) / size * whole_bytes;
}

double CommunicationPlan::bytes() const {
  double sum = 0;
  for (const CommunicationPart& part : parts) sum += part.bytes();
  return sum;
}

CommunicationPlan plan_communication(const RunConfig& config, const comm::Mesh& mesh, const ParameterPlan& parameters,
                                     std::int64_t num_microbatches) {
  CommunicationPlan largest;
  if (config.validation.skip_train) return largest;
  const std::vector<ModelChunk> chunks = model_chunks(config.model);
  const auto count = static_cast<double>(num_microbatches);
  for (std::int64_t rank = 0; rank < config.model.pipeline_model_parallel_size; ++rank) {
    const RankParameters& held = parameters.ranks[static_cast<std::size_t>(rank)];
    CommunicationPlan plan{rank, of_data_parallel(config, mesh, held, count)};
    for (auto& part : of_tensor_parallel(config, mesh, chunks_of(chunks, rank), held, count))
      plan.parts.push_back(std::move(part));
    for (auto& part : of_context_parallel(config, mesh, chunks_of(chunks, rank), count))
      plan.parts.push_back(std::move(part));
    if (plan.bytes() > largest.bytes()) largest = std::move(plan);
  }
  return largest;
}

}  // namespace pharos::plan
