#include "pharos/plan/parameters.h"

#include <algorithm>
#include <cmath>

#include "pharos/model/layers.h"
#include "pharos/model/theoretical_memory.h"
#include "pharos/optim/gradient_buffer.h"
#include "pharos/pipeline/run_schedule.h"

namespace pharos::plan {
namespace {

using config::ModelConfig;

/// The component a canonical name belongs to.
std::string component_of(const std::string& name) {
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  if (has("norm")) return "norms";
  if (has("embedding.")) return "embedding";
  if (has("output_layer")) return "output";
  return has(".self_attention.") ? "attention" : "mlp";
}

ComponentParameters& find_component(std::vector<ComponentParameters>& components, const std::string& name) {
  auto found = std::find_if(components.begin(), components.end(), [&](const auto& one) { return one.name == name; });
  if (found == components.end()) found = components.insert(components.end(), {.name = name});
  return *found;
}

std::int64_t product(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (const std::int64_t length : shape) count *= length;
  return count;
}

std::int64_t aligned(std::int64_t elements) {
  return (elements + optim::kFlatAlignment - 1) / optim::kFlatAlignment * optim::kFlatAlignment;
}

/// "decoder.layers.3.", or an empty text for what lies before or after the layers.
std::string layer_of(const std::string& name) {
  const std::string prefix = "decoder.layers.";
  return name.starts_with(prefix) ? name.substr(0, name.find('.', prefix.size()) + 1) : "";
}

/// The largest of the units that visited parameters follow each other in.
class UnitSizes {
 public:
  void add(const std::string& name, std::int64_t elements) {
    const std::string layer = layer_of(name);
    if (layer != layer_) size_ = 0;
    layer_ = layer;
    size_ += elements;
    largest_ = std::max(largest_, size_);
  }
  std::int64_t largest() const { return largest_; }

 private:
  std::string layer_;
  std::int64_t size_ = 0, largest_ = 0;
};

ParameterPlan plan_declared(const ModelConfig& model, const comm::Mesh& mesh) {
  ParameterPlan plan;
  plan.components = {{"embedding"}, {"attention"}, {"mlp"}, {"norms"}, {"output"}};
  const std::vector<ModelChunk> chunks = model_chunks(model);
  std::vector<std::vector<ComponentParameters>> local(static_cast<std::size_t>(model.pipeline_model_parallel_size));
  plan.ranks.resize(local.size());
  for (const ModelChunk& chunk : chunks) {
    const std::int64_t rank = first_rank(mesh, chunk.pipeline_rank);
    const auto index = static_cast<std::size_t>(chunk.pipeline_rank);
    UnitSizes units;
    visit_parameters(model, chunk, mesh, [&](const tensor::Parameter& parameter) {
      const std::string component = component_of(parameter.name);
      const std::int64_t elements = product(tensor::local_shape(parameter, mesh, rank));
      find_component(local[index], component).on_rank += elements;
      RankParameters& held = plan.ranks[index];
      held.elements += elements;
      held.buffer_elements += aligned(elements);
      if (parameter.sum_gradient_over_tensor) held.summed_over_tensor += elements;
      units.add(parameter.name, aligned(elements));
      if (parameter.pieces.front().shape.size() > 1 && component != "embedding") {
        held.largest_linear = std::max(held.largest_linear, elements);
      }
      const bool is_copy = component == "embedding" && !chunk.embedding;  // of tied embeddings
      if (!is_copy) find_component(plan.components, component).total += tensor::num_elements(parameter);
    });
    plan.ranks[index].largest_unit = std::max(plan.ranks[index].largest_unit, units.largest());
  }
  for (std::size_t i = 1; i < plan.ranks.size(); ++i) {
    if (plan.ranks[i].elements > plan.ranks[static_cast<std::size_t>(plan.largest_rank)].elements) {
      plan.largest_rank = static_cast<std::int64_t>(i);
    }
  }
  for (const auto& component : local[static_cast<std::size_t>(plan.largest_rank)]) {
    find_component(plan.components, component.name).on_rank = component.on_rank;
  }
  for (const auto& component : plan.components) plan.total += component.total;
  plan.active = plan.total;
  return plan;
}

/// Megatron's formulas know the whole model and the sums of two kinds of shards, not the components of a shard.
ParameterPlan plan_by_formula(const ModelConfig& model) {
  const model::ParameterEstimate estimate = model::estimate_parameters(model);
  const auto whole = [](double count) { return static_cast<std::int64_t>(std::llround(count)); };
  ParameterPlan plan;
  plan.by_formula = true;
  plan.total = whole(estimate.total);
  plan.active = whole(estimate.active_total);
  plan.components = {{"embedding", whole(estimate.embedding)},
                     {"attention", whole(estimate.attention)},
                     {"mlp", whole(estimate.mlp)},
                     {"experts", whole(estimate.experts)},
                     {"router", whole(estimate.router)},
                     {"norms", whole(estimate.norms)},
                     {"mtp", whole(estimate.mtp)},
                     {"output", whole(estimate.output)}};
  plan.ranks.resize(static_cast<std::size_t>(model.pipeline_model_parallel_size));
  for (RankParameters& rank : plan.ranks) rank.elements = rank.buffer_elements = whole(estimate.other_shards);
  plan.ranks.front().elements = plan.ranks.front().buffer_elements = whole(estimate.most_loaded_shard);
  const std::int64_t layers = std::max<std::int64_t>(1, *model.num_layers / model.pipeline_model_parallel_size);
  for (RankParameters& rank : plan.ranks) rank.largest_unit = rank.buffer_elements / layers;
  return plan;
}

}  // namespace

bool is_declared(const ModelConfig& model) {
  return !model.num_moe_experts && !model.multi_latent_attention && model.mtp_num_layers.value_or(0) == 0;
}

void visit_parameters(const ModelConfig& model, const ModelChunk& chunk, const comm::Mesh& mesh,
                      const std::function<void(const tensor::Parameter&)>& visit) {
  const auto visit_norm = [&](const nn::Norm& norm) {
    visit(norm.weight);
    if (norm.bias) visit(*norm.bias);
  };
  const bool tied = model.share_embeddings_and_output_weights;
  const bool is_copy = chunk.output && tied && pipeline::ranks_of_stages(model).front() != chunk.pipeline_rank;
  if (chunk.embedding || is_copy) {
    const nn::Embedding embedding = model::declare_embedding(model);
    visit(embedding.words);
    if (chunk.embedding && embedding.positions) visit(*embedding.positions);
  }
  for (std::int64_t i = 0; i < chunk.num_layers; ++i) {
    const auto layer = model::declare_layer(model, chunk.first_layer + i, mesh);
    model::for_each_parameter(*layer, visit);
  }
  if (!chunk.output) return;
  visit_norm(model::declare_norm(model, "decoder.final_layernorm", *model.hidden_size));
  if (!tied) visit(model::declare_output_layer(model));
}

ParameterPlan plan_parameters(const ModelConfig& model, const comm::Mesh& mesh) {
  return is_declared(model) ? plan_declared(model, mesh) : plan_by_formula(model);
}

}  // namespace pharos::plan
