// Models with experts divided over ranks, whatever the dense layout, against one rank.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "pharos/comm/testing.h"
#include "pharos/model/model_testing.h"
#include "pharos/nn/context_parallel/zigzag.h"

namespace pharos::model {
namespace {

using comm::MeshDim;
using config::ModelConfig;

constexpr std::int64_t kTokens = 16, kNumMicrobatches = 4;

struct Case {
  const char* name;
  ModelConfig config;
  friend void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }
};

Case make_case(const char* name, ModelConfig config, const std::function<void(ModelConfig&)>& change = {}) {
  config.should_pad_vocab = true;
  config.make_vocab_size_divisible_by = 8;
  if (change) change(config);
  return {name, config};
}

std::vector<Case> cases() {
  return {make_case("Mixtral", testing::mixtral_like()),
          make_case("MixtralCapacityPadded", testing::mixtral_like(),
                    [](ModelConfig& c) {
                      c.moe_expert_capacity_factor = 4;  // nothing is dropped: what is depends on the layout
                      c.moe_pad_expert_input_to_capacity = true;
                    }),
          make_case("DeepSeek", testing::deepseek_like()),
          make_case("DeepSeekRecomputed", testing::deepseek_like(),
                    [](ModelConfig& c) {
                      c.recompute_granularity = config::RecomputeGranularity::kFull;
                      c.recompute_method = config::RecomputeMethod::kUniform;
                      c.recompute_num_layers = 1;
                    }),
          make_case("DeepSeekSelective", testing::deepseek_like(),
                    [](ModelConfig& c) {
                      c.recompute_granularity = config::RecomputeGranularity::kSelective;
                      c.recompute_modules = {"core_attn", "mla_up_proj", "moe_act", "shared_experts"};
                    }),
          make_case("DeepSeekOverlapped", testing::deepseek_like(),
                    [](ModelConfig& c) { c.moe_shared_expert_overlap = true; }),
          make_case("DeepSeekV3", testing::deepseek_v3_like())};
}

/// Values and gradients by parameter, and sums over this rank's microbatches.
struct Result {
  std::vector<tensor::Parameter> parameters;  ///< data and main_grad are copies
  double loss = 0;
  std::map<std::string, at::Tensor> tokens_per_expert;  ///< by layer
};

PredictionInput shifted(const at::Tensor& tokens, const at::Tensor& labels, std::int64_t depth) {
  return {tokens.roll(-depth, 1), labels.roll(-depth, 1)};
}

Result run_step(const ModelConfig& config, const comm::Mesh& mesh, std::int64_t rank, const ParallelGroups& groups,
                const at::Tensor& tokens, const at::Tensor& labels) {
  Transformer transformer(config, whole_model(config), mesh, rank, groups);
  transformer.materialize(at::kCPU, 5);
  for (auto* parameter : transformer.parameters()) {
    if (parameter->trainable) parameter->main_grad = at::zeros(parameter->data.sizes());
  }
  const std::int64_t ranks = mesh.size(MeshDim::kData), share = kNumMicrobatches / ranks;
  Result result;
  for (std::int64_t i = 0; i < share; ++i) {
    const std::int64_t number = mesh.coordinate(rank, MeshDim::kData) * share + i;
    const auto own = [&](const at::Tensor& all) {
      return nn::zigzag_slice(all, -1, mesh.coordinate(rank, MeshDim::kContext), mesh.size(MeshDim::kContext));
    };
    const at::Tensor own_tokens = tokens.narrow(0, 2 * number, 2), own_labels = labels.narrow(0, 2 * number, 2);
    nn::ForwardContext context;
    context.positions = own(at::arange(kTokens, at::kLong));
    context.training = true;
    context.first_sample = 2 * number;
    context.auxiliary_loss_scale = 3;
    const at::Tensor hidden = transformer.hidden_states(own(own_tokens), context);
    at::Tensor loss = transformer.token_losses(hidden, own(own_labels)).sum();
    std::vector<PredictionInput> inputs;
    for (std::int64_t depth = 1; depth <= transformer.num_prediction_layers(); ++depth) {
      const PredictionInput whole = shifted(own_tokens, own_labels, depth);
      inputs.push_back({own(whole.tokens), own(whole.labels)});
    }
    for (const at::Tensor& losses : transformer.prediction_losses(hidden, inputs, context))
      loss = loss + 0.5 * losses.sum();
    result.loss += loss.item<double>();
    torch::autograd::backward({loss}, {});
  }
  for (auto* layer : transformer.moe_layers())
    result.tokens_per_expert[layer->name] = layer->moe()->load->tokens_per_expert;
  for (const auto* parameter : transformer.parameters()) {
    result.parameters.push_back(*parameter);
    result.parameters.back().data = parameter->data.detach().clone();
  }
  return result;
}

struct Layout {
  const char* name;
  std::int64_t world;
  comm::ParallelSizes sizes;
  bool sequence = false;
  bool all_dispatchers = false;  ///< else all-to-all alone
};

const Layout kLayouts[] = {
    {"dp2", 2, {}},
    {"dp2-ep2", 2, {.expert = 2}, false, true},
    {"dp4-ep2", 4, {.expert = 2}},
    {"dp4-ep4", 4, {.expert = 4}},
    {"tp2-sp", 2, {.tensor = 2, .expert_tensor = 1}, true},
    {"tp2-sp-etp2", 2, {.tensor = 2, .expert_tensor = 2}, true},
    {"tp2-sp-ep2", 2, {.tensor = 2, .expert = 2}, true},
    {"tp2-sp-ep2-etp2-dp2", 4, {.tensor = 2, .expert = 2, .expert_tensor = 2}, true, true},
    {"cp2-ep2", 2, {.context = 2, .expert = 2}},
};

at::Tensor slice_of(at::Tensor whole, const tensor::Slice& slice) {
  for (std::size_t axis = 0; axis < slice.shape.size(); ++axis)
    whole = whole.narrow(static_cast<std::int64_t>(axis), slice.offset[axis], slice.shape[axis]);
  return whole;
}

/// The ranks that hold the same part of a piece and have seen other tokens.
std::vector<std::int64_t> ranks_to_sum(const tensor::Parameter& parameter, std::int64_t rank, const comm::Mesh& mesh) {
  if (tensor::is_expert(parameter)) return mesh.group(rank, {MeshDim::kExpertData});
  if (parameter.sum_gradient_over_tensor)
    return mesh.group(rank, {MeshDim::kTensor, MeshDim::kContext, MeshDim::kData});
  return mesh.group(rank, {MeshDim::kContext, MeshDim::kData});
}

void expect_equal(const Result& whole, const std::vector<Result>& ranks, const comm::Mesh& mesh) {
  const comm::Mesh one(1, {});
  double loss = 0;
  for (const Result& result : ranks) loss += result.loss;
  EXPECT_NEAR(loss / static_cast<double>(mesh.size(MeshDim::kTensor)) / whole.loss, 1, 1e-6);
  for (const auto& [layer, counts] : whole.tokens_per_expert) {
    at::Tensor sum = at::zeros_like(counts);
    for (const Result& result : ranks) sum = sum + result.tokens_per_expert.at(layer);
    EXPECT_TRUE(at::equal(sum, counts)) << layer << ": another routing";
    EXPECT_GT(counts.sum().item<double>(), 0);
  }
  for (std::size_t index = 0; index < ranks.size(); ++index) {
    const auto rank = static_cast<std::int64_t>(index);
    ASSERT_EQ(ranks[index].parameters.size(), whole.parameters.size());
    for (std::size_t p = 0; p < whole.parameters.size(); ++p) {
      const tensor::Parameter &expected = whole.parameters[p], &own = ranks[index].parameters[p];
      const double largest = own.trainable ? expected.main_grad.abs().max().item<double>() : 0;
      if (own.trainable) {
        EXPECT_GT(largest, 0) << own.name;
      }
      for (std::size_t i = 0; i < own.pieces.size(); ++i) {
        const tensor::Piece& piece = own.pieces[i];
        const tensor::Slice slice = tensor::local_slice(piece, mesh, rank);
        const at::Tensor data = slice_of(tensor::piece_view(expected, expected.data, i, one, 0), slice);
        EXPECT_TRUE(at::equal(tensor::piece_view(own, own.data, i, mesh, rank), data)) << piece.name;
        if (!own.trainable) continue;
        at::Tensor sum = at::zeros(data.sizes());
        for (const std::int64_t other : ranks_to_sum(own, rank, mesh)) {
          const tensor::Parameter& peer = ranks[static_cast<std::size_t>(other)].parameters[p];
          sum = sum + tensor::piece_view(peer, peer.main_grad, i, mesh, other);
        }
        const at::Tensor reference = slice_of(tensor::piece_view(expected, expected.main_grad, i, one, 0), slice);
        EXPECT_LT((sum - reference).abs().max().item<double>() / largest, 2e-5) << piece.name << " on rank " << rank;
      }
    }
  }
}

struct ExpertParallelModel : ::testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(Models, ExpertParallelModel, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return std::string(info.param.name); });

// Weights are slices bit by bit; losses, routing and every gradient, auxiliary losses included, agree.
TEST_P(ExpertParallelModel, IsTheModelOfOneRank) {
  using config::TokenDispatcher;
  at::manual_seed(17);
  const at::Tensor tokens = at::randint(61, {2 * kNumMicrobatches, kTokens}, at::kLong);
  const at::Tensor labels = at::randint(61, {2 * kNumMicrobatches, kTokens}, at::kLong);
  const Result whole = run_step(GetParam().config, comm::Mesh(1, {}), 0, {}, tokens, labels);
  for (const Layout& layout : kLayouts) {
    for (const auto dispatcher : {TokenDispatcher::kAllGather, TokenDispatcher::kAllToAll, TokenDispatcher::kFlex}) {
      if (dispatcher != TokenDispatcher::kAllToAll && !layout.all_dispatchers) continue;
      SCOPED_TRACE(std::string(layout.name) + " dispatcher " + std::to_string(static_cast<int>(dispatcher)));
      ModelConfig config = GetParam().config;
      config.moe_token_dispatcher_type = dispatcher;
      config.moe_flex_dispatcher_backend = config::FlexBackend::kNative;
      config.tensor_model_parallel_size = layout.sizes.tensor;
      config.sequence_parallel = layout.sequence;
      config.context_parallel_size = layout.sizes.context;
      config.expert_model_parallel_size = layout.sizes.expert;
      config.expert_tensor_parallel_size = layout.sizes.expert_tensor;
      const comm::Mesh mesh(layout.world, layout.sizes);
      std::vector<Result> ranks(static_cast<std::size_t>(layout.world));
      comm::testing::run_ranks(layout.world, [&](comm::World& world) {
        const auto group = [&](const std::vector<MeshDim>& dims) { return &world.group(mesh, dims); };
        const ParallelGroups groups{.tensor = group({MeshDim::kTensor}),
                                    .context = group({MeshDim::kContext}),
                                    .expert = group({MeshDim::kExpert}),
                                    .expert_tensor = group({MeshDim::kExpertTensor}),
                                    .expert_both = group({MeshDim::kExpertTensor, MeshDim::kExpert}),
                                    .tokens = group({MeshDim::kTensor, MeshDim::kContext}),
                                    .balance = group({MeshDim::kTensor, MeshDim::kContext, MeshDim::kData})};
        ranks[static_cast<std::size_t>(world.rank())] = run_step(config, mesh, world.rank(), groups, tokens, labels);
      });
      expect_equal(whole, ranks, mesh);
    }
  }
}

}  // namespace
}  // namespace pharos::model
