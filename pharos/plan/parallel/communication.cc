#include "pharos/plan/parallel/communication.h"

#include <iterator>
#include <utility>

#include "pharos/plan/activations.h"
#include "pharos/plan/layers/common.h"
#include "pharos/plan/layers/experts.h"
#include "pharos/plan/layers/latent.h"
#include "pharos/plan/parallel/sharding.h"
#include "pharos/plan/pipeline/kept.h"

namespace pharos::plan {
namespace {

using comm::MeshDim;
using config::RunConfig;

/// A layer of a stage, and whether its parts pass forward twice.
struct HeldLayer {
  std::int64_t number = 0;
  bool all_again = false;
  bool mlp_again = false;
};

/// Those of multi-token prediction included.
std::vector<HeldLayer> layers_of(const config::ModelConfig& model, const std::vector<ModelChunk>& chunks) {
  const RecomputePlan recompute = recompute_plan(model);
  const bool mlp = recomputes(model, "mlp") || recomputes(model, "moe");
  std::vector<HeldLayer> layers;
  const auto add = [&](std::int64_t number, bool again) { layers.push_back({number, again, again || mlp}); };
  for (const ModelChunk& chunk : chunks) {
    for (std::int64_t i = 0; i < chunk.num_layers; ++i) add(chunk.first_layer + i, recompute.is_recomputed(i));
    for (std::int64_t i = 0; i < chunk.num_prediction_layers; ++i) add(*model.num_layers + i, recompute.full);
  }
  return layers;
}

std::vector<CommunicationPart> of_data_parallel(const RunConfig& config, const Sharding& sharding,
                                                const std::string& name, const std::string& what,
                                                const BufferPart& part, double num_microbatches) {
  if (sharding.ranks == 1 || part.elements == 0) return {};
  const auto elements = static_cast<double>(part.elements);
  const double gradients = elements * sharding.gradient_bytes_per_element;
  const double weights = elements * weight_bytes_per_element(config);
  if (!sharding.divides_state()) return {{name, sharding.ranks, "gradients" + what, "all_reduce", 1, gradients}};
  return {{name, sharding.ranks, "gradients" + what, "reduce_scatter",
           sharding.divides_gradients() ? num_microbatches : 1, gradients},
          {name, sharding.ranks, "weights" + what, "all_gather", sharding.divides_weights() ? 2 * num_microbatches : 1,
           weights}};
}

/// Elements a token that tensor-parallel ranks exchange in a microbatch.
struct TensorWidths {
  double sums = 0;     ///< added up over ranks: outputs of row-parallel layers, input gradients of column-parallel ones
  double gathers = 0;  ///< under sequence parallelism gathered: inputs of column-parallel layers (again in the backward
                       ///< pass), output gradients of row-parallel ones

  /// A half of a layer: what its column-parallel layers take (`shared`: not gathered again), what its row-parallel one
  /// gives, and how often it runs forward.
  void add(double taken, double shared, double given, bool again) {
    const double passes = again ? 2 : 1;
    sums += passes * given + taken + shared;
    gathers += passes * (taken + shared) + given + taken;
  }
};

TensorWidths widths_of_layers(const config::ModelConfig& model, const LayerShape& shape,
                              const std::vector<HeldLayer>& layers) {
  TensorWidths widths;
  for (const HeldLayer& layer : layers) {
    if (model.multi_latent_attention) {
      const LatentWidths latent = latent_widths(model, shape, layer.number);
      widths.add(latent.query_source + latent.kv_rank, latent.shared_key, shape.hidden, layer.all_again);
    } else {
      widths.add(shape.hidden, 0, shape.hidden, layer.all_again);
    }
    // Routed experts are not divided over tensor-parallel ranks.
    if (!has_experts(model, layer.number) || model.moe_shared_expert_intermediate_size)
      widths.add(shape.hidden, 0, shape.hidden, layer.mlp_again);
  }
  return widths;
}

std::vector<CommunicationPart> of_tensor_parallel(const RunConfig& config, const comm::Mesh& mesh,
                                                  const std::vector<ModelChunk>& chunks, const RankParameters& held,
                                                  double num_microbatches) {
  const config::ModelConfig& model = config.model;
  const std::int64_t ranks = mesh.size(MeshDim::kTensor);
  if (ranks == 1) return {};
  const LayerShape shape = layer_shape(config);
  std::vector<CommunicationPart> parts;
  const auto add = [&](const char* purpose, const char* operation, double calls, double bytes) {
    if (calls > 0 && bytes > 0) parts.push_back({"tp", ranks, purpose, operation, calls, bytes});
  };
  const auto add_stream = [&](const char* purpose, const TensorWidths& widths) {
    const double width_bytes = shape.tokens() * shape.element_bytes;
    add(purpose, model.sequence_parallel ? "reduce_scatter" : "all_reduce", num_microbatches,
        widths.sums * width_bytes);
    if (model.sequence_parallel) add(purpose, "all_gather", num_microbatches, widths.gathers * width_bytes);
  };
  bool has_embedding = false, has_output = false;
  double predicted = 0;
  for (const ModelChunk& chunk : chunks) {
    has_embedding = has_embedding || chunk.embedding;
    has_output = has_output || chunk.output;
    predicted += static_cast<double>(chunk.num_prediction_layers);
  }
  add_stream("layers", widths_of_layers(model, shape, layers_of(model, chunks)));
  const double looked_up = (has_embedding ? 1 : 0) + predicted, losses = (has_output ? 1 : 0) + predicted;
  add_stream("embedding", {looked_up * shape.hidden, looked_up * shape.hidden});
  add_stream("output layer", {losses * shape.hidden, 2 * losses * shape.hidden});
  add("loss", "all_reduce", num_microbatches, losses * 3 * 4 * shape.tokens());
  add("gradients of what tensor-parallel ranks hold alike", "all_reduce", 1,
      4 * static_cast<double>(held.summed_over_tensor));
  return parts;
}

/// Keys and values of the stage's layers, forward and backward, and their gradients.
std::vector<CommunicationPart> of_context_parallel(const RunConfig& config, const comm::Mesh& mesh,
                                                   const std::vector<ModelChunk>& chunks, double num_microbatches) {
  const config::ModelConfig& model = config.model;
  const std::int64_t ranks = mesh.size(MeshDim::kContext);
  if (ranks == 1) return {};
  const LayerShape shape = layer_shape(config);
  double width = 2 * shape.kv_width();
  if (model.multi_latent_attention) {
    const LatentWidths latent = latent_widths(model, shape, 0);
    width = latent.query + latent.value;
  }
  const double elements = width * shape.tokens() * static_cast<double>(ranks);
  double passes = 0, num_layers = 0;
  for (const HeldLayer& layer : layers_of(model, chunks)) {
    const bool again = layer.all_again || recomputes_core_attention(model) || recomputes(model, "mla_up_proj");
    passes += again ? 3 : 2;
    ++num_layers;
  }
  // What a ring sends a block at a time is as much as an all-gather or a reduce-scatter of the whole.
  return {{"cp", ranks, "keys and values", "all_gather", passes * num_microbatches, elements * shape.element_bytes},
          {"cp", ranks, "gradients of keys and values", "reduce_scatter", num_layers * num_microbatches, elements * 4}};
}

/// What travels to experts and back in a microbatch, in bytes: rows of hidden states, and what belongs to each of them.
struct Freight {
  double to = 0, from = 0;

  /// `choices`: what is sent beside hidden states in a forward pass alone.
  void add(double hidden, double probabilities, double choices, bool again) {
    const double passes = again ? 2 : 1;
    to +=
        passes * (hidden + probabilities + choices) + hidden;  // the gradient of what comes back is sent as tokens are
    from += passes * hidden + hidden + probabilities;
  }
};

std::vector<CommunicationPart> of_expert_parallel(const RunConfig& config, const comm::Mesh& mesh,
                                                  const std::vector<ModelChunk>& chunks, double num_microbatches) {
  const config::ModelConfig& model = config.model;
  const std::int64_t parts = mesh.size(MeshDim::kExpert), tensor = mesh.size(MeshDim::kExpertTensor);
  if (!model.num_moe_experts || parts * tensor == 1) return {};
  const LayerShape shape = layer_shape(config);
  const ExpertShape experts = expert_shape(model, shape);
  const double row = shape.hidden * shape.element_bytes, ranks = static_cast<double>(parts * tensor);
  constexpr double kProbabilityBytes = 4, kChoiceBytes = 8;
  Freight rows, gathered;
  for (const HeldLayer& layer : layers_of(model, chunks)) {
    if (!has_experts(model, layer.number)) continue;
    switch (model.moe_token_dispatcher_type) {
      case config::TokenDispatcher::kAllToAll: {
        const double sent = experts.tokens * experts.topk;
        rows.add(sent * row, sent * kProbabilityBytes, 0, layer.mlp_again);
        gathered.add(static_cast<double>(tensor) * sent * row, static_cast<double>(tensor) * sent * kProbabilityBytes,
                     0, layer.mlp_again);
        break;
      }
      case config::TokenDispatcher::kFlex: {
        const double sent = experts.token_rows;
        rows.add(sent * row, sent * experts.topk * kProbabilityBytes, sent * experts.topk * kChoiceBytes,
                 layer.mlp_again);
        break;
      }
      case config::TokenDispatcher::kAllGather: {
        const double all = ranks * experts.tokens;
        gathered.add(all * row, all * experts.topk * kProbabilityBytes, all * experts.topk * kChoiceBytes,
                     layer.mlp_again);
        break;
      }
    }
  }
  constexpr const char *kTo = "tokens to experts", *kFrom = "tokens from experts";
  std::vector<CommunicationPart> all;
  const auto add = [&](const char* name, std::int64_t size, const char* to, const char* from, const Freight& freight) {
    if (size == 1 || freight.to == 0) return;
    all.push_back({name, size, kTo, to, num_microbatches, freight.to});
    all.push_back({name, size, kFrom, from, num_microbatches, freight.from});
  };
  const bool flex = model.moe_token_dispatcher_type == config::TokenDispatcher::kFlex;
  const bool gathers_all = model.moe_token_dispatcher_type == config::TokenDispatcher::kAllGather;
  add(flex ? "etp-ep" : "ep", flex ? parts * tensor : parts, "all_to_all", "all_to_all", rows);
  add(gathers_all ? "etp-ep" : "etp", gathers_all ? parts * tensor : tensor, "all_gather", "reduce_scatter", gathered);
  return all;
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
    const std::vector<ModelChunk> mine = chunks_of(chunks, rank);
    CommunicationPlan plan{rank, {}};
    const auto append = [&](std::vector<CommunicationPart> parts) {
      std::move(parts.begin(), parts.end(), std::back_inserter(plan.parts));
    };
    const char* copies = mesh.size(MeshDim::kContext) > 1 ? "dp-cp" : "dp";
    append(of_data_parallel(config, sharding_of(config, mesh), copies, "", held.others, count));
    append(of_data_parallel(config, expert_sharding_of(config, mesh), "edp", " of experts", held.experts, count));
    append(of_tensor_parallel(config, mesh, mine, held, count));
    append(of_context_parallel(config, mesh, mine, count));
    append(of_expert_parallel(config, mesh, mine, count));
    if (plan.bytes() > largest.bytes()) largest = std::move(plan);
  }
  return largest;
}

}  // namespace pharos::plan
