#include "pharos/plan/parameters.h"

#include <algorithm>

#include "pharos/config/grammar/name_patterns.h"
#include "pharos/model/layers.h"
#include "pharos/optim/gradient_buffer.h"
#include "pharos/pipeline/run_schedule.h"

namespace pharos::plan {
namespace {

using config::ModelConfig;

/// The component a canonical name belongs to.
std::string component_of(const std::string& name) {
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  if (name.starts_with("mtp.")) return "mtp";
  if (has("norm")) return "norms";
  if (has("embedding.")) return "embedding";
  if (has("output_layer")) return "output";
  if (has(".self_attention.")) return "attention";
  if (has(".shared_experts.")) return "shared_experts";
  if (has(".experts.")) return "experts";
  return has(".router") ? "router" : "mlp";
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

/// Fills a BufferPart with parameters in the order of the model.
class PartBuilder {
 public:
  explicit PartBuilder(BufferPart& part) : part_(part) {}
  void add(const std::string& name, std::int64_t elements) {
    const std::string layer = layer_of(name);
    if (layer != layer_) size_ = 0;
    layer_ = layer;
    size_ += elements;
    part_.elements += elements;
    part_.largest_unit = std::max(part_.largest_unit, size_);
  }

 private:
  BufferPart& part_;
  std::string layer_;
  std::int64_t size_ = 0;
};

/// Of a parameter that every rank of a model holds or divides, what one token passes through.
std::int64_t active_elements(const ModelConfig& model, const tensor::Parameter& parameter) {
  const std::int64_t all = tensor::num_elements(parameter);
  return tensor::is_expert(parameter) ? all / *model.num_moe_experts * model.moe_router_topk : all;
}

}  // namespace

void visit_parameters(const config::RunConfig& config, const ModelChunk& chunk, const comm::Mesh& mesh,
                      const std::function<void(const tensor::Parameter&)>& visit) {
  using Tie = tensor::Parameter::Tie;
  ModelConfig model = config.model;  // whose dispatcher every build has: it has no part in what is declared
  model.moe_token_dispatcher_type = config::TokenDispatcher::kAllToAll;
  const std::vector<std::string> frozen = config.optimizer.freeze.value_or(std::vector<std::string>{});
  const auto see = [&](tensor::Parameter& parameter) {
    const std::string& name = parameter.pieces.front().name;
    for (const std::string& pattern : frozen) {
      if (config::matches_pattern(pattern, name)) parameter.trainable = false;
    }
    visit(parameter);
  };
  const auto see_copy = [&] {
    nn::Embedding embedding = model::declare_embedding(model);
    embedding.words.tie = Tie::kCopy;
    see(embedding.words);
  };
  const bool tied = model.share_embeddings_and_output_weights;
  const bool shares = tied || model.mtp_num_layers.value_or(0) > 0;
  const bool has_copy = chunk.output && shares && pipeline::ranks_of_stages(model).front() != chunk.pipeline_rank;
  if (chunk.embedding) {
    nn::Embedding embedding = model::declare_embedding(model);
    see(embedding.words);
    if (embedding.positions) see(*embedding.positions);
  }
  const std::int64_t rank = first_rank(mesh, chunk.pipeline_rank);
  for (std::int64_t i = 0; i < chunk.num_layers; ++i) {
    const auto layer = model::declare_layer(model, chunk.first_layer + i, mesh, rank);
    model::for_each_parameter(*layer, see);
  }
  if (chunk.output) {
    const bool partial = model.sequence_parallel && mesh.size(comm::MeshDim::kTensor) > 1;
    nn::Norm norm = model::declare_norm(model, "decoder.final_layernorm", *model.hidden_size, partial);
    see(norm.weight);
    if (norm.bias) see(*norm.bias);
  }
  if (has_copy && !tied) see_copy();
  for (std::int64_t i = 0; i < chunk.num_prediction_layers; ++i) {
    const auto layer = model::declare_prediction_layer(model, i, mesh, rank);
    model::for_each_parameter(*layer, see);
  }
  if (!chunk.output) return;
  if (has_copy && tied) see_copy();
  if (!tied) {
    tensor::Parameter output = model::declare_output_layer(model);
    see(output);
  }
}

ParameterPlan plan_parameters(const config::RunConfig& config, const comm::Mesh& mesh) {
  const ModelConfig& model = config.model;
  ParameterPlan plan;
  plan.components = {{"embedding"}, {"attention"}, {"mlp"}};
  if (model.num_moe_experts) {
    for (const char* name : {"experts", "shared_experts", "router"}) plan.components.push_back({name});
  }
  plan.components.insert(plan.components.end(), {{"norms"}, {"output"}});
  if (model.mtp_num_layers) plan.components.push_back({"mtp"});
  std::vector<std::vector<ComponentParameters>> local(static_cast<std::size_t>(model.pipeline_model_parallel_size));
  plan.ranks.resize(local.size());
  for (const ModelChunk& chunk : model_chunks(model)) {
    const std::int64_t rank = first_rank(mesh, chunk.pipeline_rank);
    const auto index = static_cast<std::size_t>(chunk.pipeline_rank);
    RankParameters& held = plan.ranks[index];
    PartBuilder others(held.others), experts(held.experts);
    visit_parameters(config, chunk, mesh, [&](const tensor::Parameter& parameter) {
      const std::string component = component_of(parameter.name);
      const std::int64_t elements = product(tensor::local_shape(parameter, mesh, rank));
      find_component(local[index], component).on_rank += elements;
      held.elements += elements;
      if (parameter.dtype == at::kFloat) held.float_elements += elements;
      if (parameter.sum_gradient_over_tensor) held.summed_over_tensor += elements;
      if (parameter.trainable) {
        (tensor::is_expert(parameter) ? experts : others).add(parameter.name, aligned(elements));
      } else {
        held.fixed_elements += elements;
      }
      if (parameter.pieces.front().shape.size() > 1 && component != "embedding") {
        held.largest_linear = std::max(held.largest_linear, elements);
      }
      if (parameter.tie == tensor::Parameter::Tie::kCopy) return;
      find_component(plan.components, component).total += tensor::num_elements(parameter);
      plan.active += active_elements(model, parameter);
    });
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
  return plan;
}

}  // namespace pharos::plan
