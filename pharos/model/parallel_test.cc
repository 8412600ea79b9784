// Whole models divided over tensor-parallel ranks, with and without sequence parallelism, and over context-parallel
// ranks, against one rank.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "pharos/comm/testing.h"
#include "pharos/model/model_testing.h"
#include "pharos/nn/context_parallel/zigzag.h"

namespace pharos::model {
namespace {

using config::ModelConfig;
using testing::gemma2_like;
using testing::gpt2_like;
using testing::grouped_with_qk_norm;
using testing::latent_like;
using testing::llama_like;

constexpr std::int64_t kTokens = 24, kMicrobatch = 2, kNumMicrobatches = 2;

struct Batch {
  at::Tensor tokens, labels;
  at::Tensor positions = at::arange(kTokens, at::kLong);
  at::Tensor segments = {};  ///< of a microbatch
};

/// What a rank has after a step: values and gradients by parameter, and the losses of all tokens.
struct Result {
  std::vector<tensor::Parameter> parameters;  ///< data and main_grad are copies
  at::Tensor losses;
};

Result run_step(const ModelConfig& config, const comm::Mesh& mesh, std::int64_t rank, const ParallelGroups& groups,
                const Batch& batch) {
  Transformer transformer(config, whole_model(config), mesh, rank, groups);
  transformer.materialize(at::kCPU, 5);
  for (auto* parameter : transformer.parameters()) parameter->main_grad = at::zeros(parameter->data.sizes());
  Result result;
  std::vector<at::Tensor> losses;
  const auto own = [&](const at::Tensor& tokens) {
    return nn::zigzag_slice(tokens, -1, mesh.coordinate(rank, comm::MeshDim::kContext),
                            mesh.size(comm::MeshDim::kContext));
  };
  for (std::int64_t i = 0; i < kNumMicrobatches; ++i) {
    nn::ForwardContext context;
    context.positions = own(batch.positions);
    context.segments = batch.segments;
    context.training = true;
    context.seed = 9;
    context.step = 4;
    context.first_sample = i * kMicrobatch;
    const auto part = [&](const at::Tensor& all) { return own(all.narrow(0, i * kMicrobatch, kMicrobatch)); };
    const at::Tensor loss =
        transformer.token_losses(transformer.hidden_states(part(batch.tokens), context), part(batch.labels));
    losses.push_back(loss.detach());
    torch::autograd::backward({loss.sum()}, {});
  }
  result.losses = at::cat(losses);
  for (const auto* parameter : transformer.parameters()) {
    result.parameters.push_back(*parameter);
    result.parameters.back().data = parameter->data.detach().clone();
  }
  return result;
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) return 1e30;
  return ((a - b).abs().max() / b.abs().max().clamp_min(1e-30)).item<double>();
}

at::Tensor slice_of(at::Tensor whole, const tensor::Slice& slice) {
  for (std::size_t axis = 0; axis < slice.shape.size(); ++axis)
    whole = whole.narrow(static_cast<std::int64_t>(axis), slice.offset[axis], slice.shape[axis]);
  return whole;
}

/// The ranks whose gradients of a piece have to be summed: they hold the same values and see a part each, of the tokens
/// or of the heads.
std::vector<std::int64_t> ranks_to_sum(const tensor::Parameter& parameter, const tensor::Piece& piece,
                                       std::int64_t rank, const comm::Mesh& mesh) {
  const std::int64_t size = mesh.size(comm::MeshDim::kTensor);
  const std::int64_t count = parameter.sum_gradient_over_tensor ? size
                             : piece.splits.empty()             ? 1
                                                                : piece.splits.front().replicas;
  std::vector<std::int64_t> ranks;
  for (std::int64_t first = rank % size / count * count; first < mesh.world_size(); first += size) {
    for (std::int64_t i = first; i < first + count; ++i) ranks.push_back(i);
  }
  return ranks;
}

struct Case {
  std::string name;
  ModelConfig config;
  bool packed = false;  ///< two documents in a sequence
  friend void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }
};

/// `config` with dropout and a vocabulary that does not divide evenly.
Case make_case(const char* name, ModelConfig config, const std::function<void(ModelConfig&)>& change = {}) {
  config.hidden_dropout = 0.1;
  config.attention_dropout = 0.2;
  config.should_pad_vocab = true;
  config.make_vocab_size_divisible_by = 8;  // 61 -> 64: of 4 ranks the last holds 13 tokens and 3 rows of padding
  if (change) change(config);
  return {name, config, false};
}

std::vector<Case> cases() {
  const auto full = [](ModelConfig& c) {
    c.recompute_granularity = config::RecomputeGranularity::kFull;
    c.recompute_method = config::RecomputeMethod::kUniform;
    c.recompute_num_layers = 2;
  };
  return {make_case("Llama", llama_like()),
          make_case("LlamaOneGroup", llama_like(), [](ModelConfig& c) { c.num_query_groups = 1; }),
          make_case("LlamaTiedFused", llama_like(),
                    [](ModelConfig& c) {
                      c.share_embeddings_and_output_weights = true;
                      c.attention_dropout = 0;
                    }),
          make_case("Grouped", grouped_with_qk_norm()),
          make_case("GroupedEightHeads", grouped_with_qk_norm(), [](ModelConfig& c) { c.num_attention_heads = 8; }),
          make_case("GroupedRecomputed", grouped_with_qk_norm(), full),
          {"GroupedPacked", make_case("", grouped_with_qk_norm()).config, true},
          make_case("Window", llama_like(),
                    [](ModelConfig& c) {
                      c.window_size = std::vector<std::int64_t>{7, 0};
                    }),
          make_case("Latent", latent_like()),
          make_case("LatentCompressed", latent_like(), [](ModelConfig& c) { c.q_lora_rank = 12; }),
          make_case("LatentFull", latent_like(), full),
          make_case("Gemma2", gemma2_like()),
          make_case("Sinks", grouped_with_qk_norm(),
                    [](ModelConfig& c) {
                      c.softmax_type = config::SoftmaxType::kLearnable;
                      c.attention_dropout = 0;
                    }),
          make_case("Gpt2", gpt2_like()),
          make_case("Gpt2MostlyPadding", gpt2_like(), [](ModelConfig& c) { c.make_vocab_size_divisible_by = 128; }),
          make_case("Gpt2Untied", gpt2_like(), [](ModelConfig& c) { c.share_embeddings_and_output_weights = false; }),
          make_case("Gpt2Recomputed", gpt2_like(), full),
          make_case("Gpt2Selective", gpt2_like(),
                    [](ModelConfig& c) { c.recompute_granularity = config::RecomputeGranularity::kSelective; })};
}

struct ParallelModel : ::testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(Models, ParallelModel, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

void expect_equal(const Result& whole, const std::vector<Result>& ranks, const comm::Mesh& mesh) {
  const comm::Mesh one(1, {});
  // Sums over ranks are taken in another order than sums within a product: a few units of the last place (6e-8) of each
  // of some dozen sums.
  const auto sum_of = [](const std::vector<Result>& results) {
    double sum = 0;
    for (const Result& result : results) sum += result.losses.sum().item<double>();
    return sum;
  };
  const std::int64_t tensor = mesh.size(comm::MeshDim::kTensor);
  EXPECT_NEAR(sum_of(ranks) / static_cast<double>(tensor) / sum_of({whole}), 1, 1e-6);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::int64_t context = mesh.coordinate(static_cast<std::int64_t>(rank), comm::MeshDim::kContext);
    const at::Tensor losses = nn::zigzag_slice(whole.losses, 1, context, mesh.size(comm::MeshDim::kContext));
    EXPECT_LT(distance(ranks[rank].losses, losses), 1e-5);
    EXPECT_TRUE(at::equal(ranks[rank].losses, ranks[static_cast<std::size_t>(context * tensor)].losses))
        << "ranks disagree about the loss";
    ASSERT_EQ(ranks[rank].parameters.size(), whole.parameters.size());
    for (std::size_t p = 0; p < whole.parameters.size(); ++p) {
      const tensor::Parameter &expected = whole.parameters[p], &own = ranks[rank].parameters[p];
      for (std::size_t i = 0; i < own.pieces.size(); ++i) {
        const tensor::Piece& piece = own.pieces[i];
        const auto own_rank = static_cast<std::int64_t>(rank);
        const tensor::Slice slice = tensor::local_slice(piece, mesh, own_rank);
        if (slice.shape[0] == 0) {  // a rank with nothing but padding
          EXPECT_EQ(own.data.abs().max().item<float>() + own.main_grad.abs().max().item<float>(), 0) << piece.name;
          continue;
        }
        const at::Tensor data = slice_of(tensor::piece_view(expected, expected.data, i, one, 0), slice);
        EXPECT_TRUE(at::equal(tensor::piece_view(own, own.data, i, mesh, own_rank), data)) << piece.name;
        at::Tensor sum = at::zeros(data.sizes());
        for (const std::int64_t other : ranks_to_sum(own, piece, own_rank, mesh)) {
          const tensor::Parameter& peer = ranks[static_cast<std::size_t>(other)].parameters[p];
          sum = sum + tensor::piece_view(peer, peer.main_grad, i, mesh, other);
        }
        const at::Tensor whole_grad = tensor::piece_view(expected, expected.main_grad, i, one, 0);
        // Of the whole parameter: without rotary positions the bias of the keys has no gradient but rounding.
        const double largest = expected.main_grad.abs().max().item<double>();
        EXPECT_GT(largest, 0) << piece.name;
        EXPECT_LT((sum - slice_of(whole_grad, slice)).abs().max().item<double>() / largest, 1e-5)
            << piece.name << " on rank " << rank;
      }
    }
  }
}

struct Layout {
  std::int64_t tensor;
  bool sequence;
  std::int64_t context = 1;
  const char* exchange = "p2p";
};

const Layout kLayouts[] = {
    {1, false},    {1, true},   {2, false}, {2, true}, {4, false}, {4, true}, {1, false, 2, "all_gather"},
    {1, false, 4}, {2, true, 2}};

// Initial weights are slices bit by bit; token losses and every gradient of two microbatches with dropout agree.
TEST_P(ParallelModel, IsTheModelOfOneRank) {
  at::manual_seed(17);
  const std::int64_t samples = kMicrobatch * kNumMicrobatches;
  Batch batch{at::randint(61, {samples, kTokens}, at::kLong), at::randint(61, {samples, kTokens}, at::kLong)};
  if (GetParam().packed) {
    batch.positions = at::cat({at::arange(9, at::kLong), at::arange(15, at::kLong)}).expand({kMicrobatch, kTokens});
    batch.segments = (at::arange(kTokens, at::kLong) >= 9).to(at::kLong).expand({kMicrobatch, kTokens});
  }
  const Result whole = run_step(GetParam().config, comm::Mesh(1, {}), 0, {}, batch);
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(std::to_string(layout.tensor) + (layout.sequence ? " ranks with sequence parallelism" : " ranks") +
                 " x " + std::to_string(layout.context) + " context ranks");
    ModelConfig config = GetParam().config;
    config.tensor_model_parallel_size = layout.tensor;
    config.sequence_parallel = layout.sequence;
    config.context_parallel_size = layout.context;
    config.cp_comm_type = std::vector<std::string>{layout.exchange};
    const comm::Mesh mesh(layout.tensor * layout.context, {.tensor = layout.tensor, .context = layout.context});
    std::vector<Result> ranks(static_cast<std::size_t>(mesh.world_size()));
    comm::testing::run_ranks(mesh.world_size(), [&](comm::World& world) {
      const ParallelGroups groups{&world.group(mesh, {comm::MeshDim::kTensor}),
                                  &world.group(mesh, {comm::MeshDim::kContext})};
      ranks[static_cast<std::size_t>(world.rank())] = run_step(config, mesh, world.rank(), groups, batch);
    });
    expect_equal(whole, ranks, mesh);
  }
}

TEST(ParallelModelLimits, DividedModelsHaveNoLogitsOnOneRank) {
  ModelConfig config = llama_like();
  config.vocab_size = 64;
  config.tensor_model_parallel_size = 2;
  const comm::Mesh mesh(2, {.tensor = 2});
  comm::testing::run_ranks(2, [&](comm::World& world) {
    Transformer model(config, whole_model(config), mesh, world.rank(), {&world.group(mesh, {comm::MeshDim::kTensor})});
    EXPECT_THAT(
        [&] {
          model.logits(at::zeros({1, 2, 32}));
        },
        ::testing::ThrowsMessage<std::exception>(::testing::HasSubstr("several ranks")));
  });
  const Transformer model(config, whole_model(config), mesh, 0);
  EXPECT_THAT(
      [&] {
        model.hidden_states(at::zeros({1, 2}, at::kLong), {});
      },
      ::testing::ThrowsMessage<std::exception>(::testing::HasSubstr("group is missing")));
}

}  // namespace
}  // namespace pharos::model
