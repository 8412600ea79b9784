#include "pharos/plan/pipeline/pipeline_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/config/grammar/batch_schedule.h"
#include "pharos/model/flops.h"
#include "pharos/pipeline/report/measured_file.h"
#include "pharos/plan/pipeline/boundary_tensors.h"
#include "pharos/plan/pipeline/kept.h"
#include "pharos/plan/plan.h"
#include "pharos/plan/render.h"

namespace pharos::plan {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

config::ResolvedConfig read(const std::vector<std::string>& overrides, std::int64_t world_size = 2) {
  const fs::path path = fs::path(PHAROS_TEST_DATA).parent_path().parent_path() / "recipes" / "llama_27m.yaml";
  // 4 microbatches of 8 x 256 tokens.
  std::vector<std::string> all{"model.pipeline_model_parallel_size=2", "train.global_batch_size=32"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  return config::prepare({.recipe = path.string(), .overrides = all}, world_size, config::Purpose::kPlan);
}

Plan plan_of(const std::vector<std::string>& overrides, std::int64_t world_size = 2) {
  return make_plan(read(overrides, world_size), world_size);
}

// llama_27m: 6 layers, 512 wide, 8 heads of 64, feed-forward 1376, vocabulary 8192, fp32; 2048 tokens a microbatch.
constexpr double kTokens = 2048, kHidden = 512, kInner = 1376, kVocabulary = 8192;
constexpr double kMatrices = 2 * (4 * kHidden * kHidden + 3 * kHidden * kInner);  // operations a token and layer
constexpr double kAttention = 2 * 2 * kHidden * 128;
constexpr double kOutput = 2 * kHidden * kVocabulary;
// As Memory.ActivationsOfLlama27mByHand has them.
constexpr double kLayerBytes = kTokens * 4 * (10 * kHidden + 3 * kInner + 2 + 8);
constexpr double kHeadBytes = kTokens * 4 * (2 * kHidden + 1);
constexpr double kLogitsBytes = kTokens * 4 * kVocabulary;
constexpr double kBoundaryBytes = kTokens * 4 * kHidden;
// Inputs and output gradients: q|k|v 1 + 3, projection 1 + 1, first product 1 + 2 inner, second 1 inner + 1.
constexpr double kDeferredBytes = kTokens * 4 * (8 * kHidden + 3 * kInner);
constexpr double kDeferredHeadBytes = kTokens * 4 * (kHidden + kVocabulary);

double peak_bytes(const Plan& plan, std::size_t rank) { return plan.pipeline->timeline.ranks[rank].peak_bytes; }

TEST(StageCosts, FromOperationsByHand) {
  const Plan plan = plan_of({"logger.peak_tflops_per_device=1"});
  const pipeline::StageCosts& costs = plan.pipeline->costs.costs;
  const double per_ms = kTokens / 1e9;
  EXPECT_DOUBLE_EQ(costs.forward[0], 3 * (kMatrices + kAttention) * per_ms);
  EXPECT_DOUBLE_EQ(costs.backward[0], 3 * (kMatrices + 2 * kAttention) * per_ms);
  EXPECT_DOUBLE_EQ(costs.weight[0], 3 * kMatrices * per_ms);
  EXPECT_DOUBLE_EQ(costs.forward[1], (3 * (kMatrices + kAttention) + kOutput) * per_ms);
  EXPECT_DOUBLE_EQ(costs.weight[1], (3 * kMatrices + kOutput) * per_ms);
  EXPECT_EQ(plan.pipeline->costs.time_unit, "ms");
  double sum = 0;  // of a step: what throughput is computed from
  for (const auto* times : {&costs.forward, &costs.backward, &costs.weight}) {
    for (const double time : *times) sum += time;
  }
  EXPECT_NEAR(4 * sum * 1e9 / plan.flops.step, 1, 1e-12);
  EXPECT_THAT(costs.transfer, ElementsAre(0, 0));
}

TEST(StageCosts, WithoutARateTheMeanRankTakesOne) {
  const Plan plan = plan_of({"model.num_layers_in_first_pipeline_stage=2"});
  const pipeline::StageCosts& costs = plan.pipeline->costs.costs;
  const auto stage = [&](std::size_t i) { return costs.forward[i] + costs.backward[i] + costs.weight[i]; };
  EXPECT_NEAR(stage(0) + stage(1), 2, 1e-12);
  const double layer = 3 * (kMatrices + kAttention);
  EXPECT_NEAR(stage(0) / stage(1), 2 * layer / (4 * layer + 3 * kOutput), 1e-12);
  EXPECT_EQ(plan.pipeline->costs.time_unit, "rank times");
}

TEST(StageCosts, RecomputationIsASecondForward) {
  const auto ratio = [](const std::vector<std::string>& overrides) {
    const Plan plan = plan_of(overrides);
    return plan.pipeline->costs.costs.backward[0] / plan.pipeline->costs.costs.weight[0];
  };
  const double backward = kMatrices + 2 * kAttention;
  EXPECT_NEAR(ratio({}), backward / kMatrices, 1e-12);
  EXPECT_NEAR(
      ratio({"model.recompute_granularity=full", "model.recompute_method=uniform", "model.recompute_num_layers=1"}),
      (backward + kMatrices + kAttention) / kMatrices, 1e-12);
  EXPECT_NEAR(
      ratio({"model.recompute_granularity=full", "model.recompute_method=block", "model.recompute_num_layers=1"}),
      (backward + (kMatrices + kAttention) / 3) / kMatrices, 1e-12);
  EXPECT_NEAR(ratio({"model.recompute_granularity=selective"}), (backward + kAttention) / kMatrices, 1e-12);
}

// The slower second stage works without a break between the first's forward and its last backward.
TEST(PipelinePlan, OneForwardOneBackwardByHand) {
  const Plan plan = plan_of({});
  const PipelinePlan& pipeline = *plan.pipeline;
  const pipeline::StageCosts& costs = pipeline.costs.costs;
  const double first = costs.forward[0] + costs.backward[0] + costs.weight[0], second = 2 - first;
  EXPECT_EQ(pipeline.timeline.schedule.name, "1f1b");
  EXPECT_NEAR(pipeline.timeline.span, first + 4 * second, 1e-12);
  EXPECT_NEAR(pipeline.timeline.bubble, 1 - 4 * 2 / (2 * (first + 4 * second)), 1e-12);
  EXPECT_NEAR(pipeline.timeline.ranks[1].bubble, first / (first + 4 * second), 1e-12);
  // At the end of the last forward two outputs are not yet answered for, and two gradients may come in.
  EXPECT_DOUBLE_EQ(peak_bytes(plan, 0), 2 * 3 * kLayerBytes + 4 * kBoundaryBytes);
  EXPECT_DOUBLE_EQ(peak_bytes(plan, 1), 3 * kLayerBytes + kHeadBytes + kLogitsBytes + 2 * kBoundaryBytes);
  for (const RankTransfers& rank : pipeline.transfers) {
    EXPECT_EQ(rank.num_sent, 4);
    EXPECT_EQ(rank.num_received, 4);
    EXPECT_DOUBLE_EQ(rank.sent_bytes, 4 * kBoundaryBytes);
    EXPECT_DOUBLE_EQ(rank.received_bytes, 4 * kBoundaryBytes);
  }
}

TEST(PipelinePlan, BoundaryTensorsAreOfThisRanksTokensInThePipelinesType) {
  const std::vector<std::string> tensor{"model.tensor_model_parallel_size=2"};
  EXPECT_DOUBLE_EQ(plan_of(tensor, 4).pipeline->boundary_bytes, kBoundaryBytes);
  EXPECT_DOUBLE_EQ(plan_of({tensor[0], "model.sequence_parallel=true"}, 4).pipeline->boundary_bytes,
                   kBoundaryBytes / 2);
  EXPECT_DOUBLE_EQ(plan_of({"model.pipeline_dtype=bf16"}).pipeline->boundary_bytes, kBoundaryBytes / 2);
}

// ZB1P: the last of 2 ranks begins its second forward with the first microbatch's weight gradient still to do.
TEST(PipelinePlan, DeferredWeightGradientsByHand) {
  const Plan plan = plan_of({"model.pipeline_schedule=zb1p"});
  EXPECT_DOUBLE_EQ(plan.pipeline->costs.costs.weight_bytes[0], 3 * kDeferredBytes);
  EXPECT_DOUBLE_EQ(plan.pipeline->costs.costs.weight_bytes[1], 3 * kDeferredBytes + kDeferredHeadBytes);
  // Behind the second forward both outputs are on their way, and the first gradient.
  EXPECT_DOUBLE_EQ(peak_bytes(plan, 0), 2 * 3 * kLayerBytes + 3 * kBoundaryBytes);
  EXPECT_DOUBLE_EQ(peak_bytes(plan, 1), 3 * (kLayerBytes + kDeferredBytes) + kHeadBytes + kLogitsBytes +
                                            kDeferredHeadBytes + kBoundaryBytes);
  EXPECT_EQ(plan.memory.pipeline_rank, 1);
  // Behind the output layer both microbatches have its input and the gradient of its logits left.
  EXPECT_EQ(plan.memory.phase, "mlp backward");
  EXPECT_DOUBLE_EQ(plan.memory.part("activations"), 3 * (kLayerBytes + kDeferredBytes) + 2 * kBoundaryBytes);
  EXPECT_DOUBLE_EQ(plan.memory.part("logits"), 2 * kLogitsBytes);
}

// Row-parallel layers gather their output gradient, column-parallel ones keep their part of the input.
TEST(Kept, DeferredWorkOfDividedTokens) {
  const config::ResolvedConfig resolved =
      read({"model.tensor_model_parallel_size=2", "model.sequence_parallel=true", "model.add_bias_linear=true"}, 4);
  const LayerShape shape = layer_shape(resolved.config.model, 8);
  const Deferred deferred = deferred_by_layer(resolved.config.model, shape, 0, true);
  const DeferredHead head = deferred_by_head(resolved.config.model, shape, true);
  EXPECT_DOUBLE_EQ(deferred.attention, kTokens * 4 * (256 + 3 * 256 + 256 + 512 + 256));
  EXPECT_DOUBLE_EQ(deferred.mlp, kTokens * 4 * (256 + 2 * 688 + 688 + 512 + 256));
  EXPECT_DOUBLE_EQ(head.inputs, kTokens * 4 * 256);
  EXPECT_DOUBLE_EQ(head.logits, kTokens * 4 * 4096);
  EXPECT_EQ(deferred_by_layer(resolved.config.model, shape, 0, false).layer(), 0);
}

// Recomputing the first of 3 layers, the other two have put off their weight gradients.
TEST(Kept, RecomputationAndDeferredWork) {
  const config::ResolvedConfig resolved =
      read({"model.recompute_granularity=full", "model.recompute_method=uniform", "model.recompute_num_layers=1"});
  const LayerShape shape = layer_shape(resolved.config.model, 8);
  const ModelChunk chunk{.num_layers = 3};
  const KeptByStage kept = kept_by_stage(resolved.config.model, shape, chunk, true);
  EXPECT_DOUBLE_EQ(kept.layers, 3 * kBoundaryBytes);
  EXPECT_DOUBLE_EQ(kept.deferred_layers, 3 * kDeferredBytes);
  EXPECT_DOUBLE_EQ(kept.while_recomputing, kBoundaryBytes + kLayerBytes + 2 * kDeferredBytes);
  EXPECT_DOUBLE_EQ(kept_by_stage(resolved.config.model, shape, chunk, false).while_recomputing,
                   3 * kBoundaryBytes + kLayerBytes);
}

TEST(PipelineMemory, EveryMicrobatchInFlightKeepsItsLogits) {
  const Plan plan = plan_of({"model.pipeline_schedule=gpipe"});
  EXPECT_EQ(plan.memory.pipeline_rank, 1);
  EXPECT_DOUBLE_EQ(plan.memory.part("activations"), 4 * (3 * kLayerBytes + kHeadBytes));
  EXPECT_DOUBLE_EQ(plan.memory.part("logits"), 4 * kLogitsBytes);
  constexpr double kTransportBytes = 8 * 1024 * 1024;
  EXPECT_DOUBLE_EQ(plan.memory.part("communication"), kBoundaryBytes + kTransportBytes);  // a gradient to be sent
  EXPECT_DOUBLE_EQ(peak_bytes(plan, 1), 4 * (3 * kLayerBytes + kHeadBytes + kLogitsBytes));
}

// The first rank of a folded schedule has both ends of the model; tied embeddings are one tensor there.
TEST(PipelineMemory, TiedEmbeddingsOfFoldedSchedules) {
  const std::vector<std::string> folded{"model.num_layers=8", "model.pipeline_schedule=zbv"};
  const auto embeddings = [](const Plan& plan) {
    return plan.parameters.ranks[0].elements + plan.parameters.ranks[1].elements - plan.parameters.total;
  };
  EXPECT_EQ(embeddings(plan_of(folded)), 0);
  EXPECT_EQ(embeddings(plan_of({folded[0], folded[1], "model.share_embeddings_and_output_weights=true"})), 0);
  EXPECT_EQ(embeddings(plan_of({"model.share_embeddings_and_output_weights=true"})), 8192 * 512);
  const Plan plan = plan_of(folded);
  EXPECT_EQ(plan.chunks.front().pipeline_rank, plan.chunks.back().pipeline_rank);
  EXPECT_GT(plan.memory.peak_bytes_of_ranks[0], plan.memory.peak_bytes_of_ranks[1]);
}

const OtherSchedule& schedule_named(const Plan& plan, const std::string& name) {
  const auto& all = plan.pipeline->schedules;
  return *std::find_if(all.begin(), all.end(), [&](const OtherSchedule& other) { return other.name == name; });
}

TEST(OtherSchedules, AreWhatTheirOwnPlansSay) {
  const std::vector<std::string> base{"model.num_layers=8", "train.global_batch_size=64"};
  const Plan plan = plan_of(base);
  ASSERT_EQ(plan.pipeline->schedules.size(), pipeline::schedule_names().size());
  for (const OtherSchedule& other : plan.pipeline->schedules) {
    SCOPED_TRACE(other.name);
    EXPECT_EQ(other.refusal, "");
    EXPECT_EQ(other.is_planned, other.name == "1f1b");
    EXPECT_NEAR((1 - other.bubble) * other.span, plan.pipeline->ideal_span(), 1e-12);
    std::vector<std::string> overrides = base;
    overrides.push_back("model.pipeline_schedule=" + other.name);
    if (other.name == "interleaved") overrides.emplace_back("model.virtual_pipeline_model_parallel_size=2");
    const Plan own = plan_of(overrides);
    EXPECT_NEAR(other.span, own.pipeline->timeline.span, 1e-12);
    EXPECT_NEAR(other.bubble, own.pipeline->timeline.bubble, 1e-12);
    EXPECT_NEAR(other.peak_bytes, own.pipeline->timeline.peak_bytes, 1);
    EXPECT_EQ(other.has_planned_stages, own.chunks.size() == 2);
  }
  EXPECT_LT(schedule_named(plan, "interleaved").span, schedule_named(plan, "1f1b").span);
  EXPECT_TRUE(
      std::is_sorted(plan.pipeline->schedules.begin(), plan.pipeline->schedules.end(),
                     [](const OtherSchedule& left, const OtherSchedule& right) { return left.span < right.span; }));
}

// The output layer makes the last of 4 ranks the busiest; fewer layers there shorten the step.
TEST(BetterLayout, IsOneThatTheConfigurationCanHave) {
  const std::vector<std::string> base{"model.num_layers=16", "model.pipeline_model_parallel_size=4",
                                      "train.global_batch_size=64"};
  const Plan plan = plan_of(base, 4);
  const PipelinePlan& pipeline = *plan.pipeline;
  EXPECT_EQ(pipeline.busiest_rank, 3);
  EXPECT_NEAR(pipeline.bubble_schedule, 3.0 / 11, 1e-12);  // (R - 1) / (M + R - 1)
  EXPECT_GT(pipeline.bubble_imbalance, 0);
  EXPECT_DOUBLE_EQ(pipeline.bubble_transfers, 0);
  EXPECT_NEAR(pipeline.bubble_schedule + pipeline.bubble_imbalance, pipeline.timeline.bubble, 1e-12);
  ASSERT_TRUE(pipeline.better_layout);
  const std::string& arguments = pipeline.better_layout->arguments;
  EXPECT_EQ(arguments, "'model.pipeline_model_parallel_layout=\"Et*5|t*4|t*4|t*3L\"'");
  std::vector<std::string> overrides = base;
  overrides.push_back(arguments.substr(1, arguments.size() - 2));  // as a shell passes it on
  const Plan better = plan_of(overrides, 4);
  EXPECT_NEAR(better.pipeline->timeline.span, pipeline.better_layout->span, 1e-12);
  EXPECT_NEAR(better.pipeline->timeline.bubble, pipeline.better_layout->bubble, 1e-12);
  EXPECT_LT(better.pipeline->timeline.span, pipeline.timeline.span);
  EXPECT_FALSE(better.pipeline->better_layout);
  EXPECT_THAT(render(plan, false),
              AllOf(HasSubstr("rank 3 is the busiest"), HasSubstr(arguments), HasSubstr(", 8 without a bubble")));
}

TEST(BetterLayout, SaysWhichOtherOptionsItReplaces) {
  const Plan plan = plan_of({"model.num_layers=16", "model.num_layers_in_first_pipeline_stage=2"});
  ASSERT_TRUE(plan.pipeline->better_layout);
  EXPECT_THAT(plan.pipeline->better_layout->arguments, HasSubstr("\"' model.num_layers_in_first_pipeline_stage=null"));
}

// Rank 0: F0 F1 B0 F2 B1 F3 B2 B3, rank 1: F0 B0 F1 B1 F2 B2 F3 B3. An output of rank 0 is known to have arrived when
// its gradient is there, a gradient of rank 1 when the forward after it is; receives are posted two actions ahead.
TEST(BoundaryTensors, OfOneForwardOneBackwardByHand) {
  const pipeline::Schedule schedule = pipeline::one_forward_one_backward(2, 4);
  EXPECT_THAT(boundary_tensors(schedule, 0), ElementsAre(2, 3, 2, 3, 2, 4, 2, 0));
  EXPECT_THAT(boundary_tensors(schedule, 1), ElementsAre(1, 2, 2, 3, 2, 3, 1, 2));
}

// One microbatch through the V of two ranks: the turn stays on rank 1.
TEST(BoundaryTensors, ATurnWaitsOnItsRank) {
  const pipeline::Schedule schedule{.name = "v",
                                    .num_ranks = 2,
                                    .num_chunks = 2,
                                    .num_microbatches = 1,
                                    .stage_of = {{0, 3}, {1, 2}},
                                    .actions = {{{pipeline::Phase::kForward, 0, 0},
                                                 {pipeline::Phase::kForward, 0, 1},
                                                 {pipeline::Phase::kBackward, 0, 1},
                                                 {pipeline::Phase::kBackward, 0, 0}},
                                                {{pipeline::Phase::kForward, 0, 0},
                                                 {pipeline::Phase::kForward, 0, 1},
                                                 {pipeline::Phase::kBackward, 0, 1},
                                                 {pipeline::Phase::kBackward, 0, 0}}}};
  // Coming in: F0.1, then B0; outputs of F0 and B0.1 until those are there.
  EXPECT_THAT(boundary_tensors(schedule, 0), ElementsAre(2, 1, 2, 0));
  // The turns at F0 and B0.1; F0.1's output until B0.1, which is awaited from the start; B0's until the end.
  EXPECT_THAT(boundary_tensors(schedule, 1), ElementsAre(2, 2, 1, 1));
}

TEST(OtherSchedules, SayWhyTheyCannotRun) {
  const Plan odd = plan_of({"train.global_batch_size=24"});  // 3 microbatches, 3 layers a rank
  EXPECT_THAT(schedule_named(odd, "interleaved").refusal, HasSubstr("3 layers"));
  EXPECT_EQ(schedule_named(odd, "zb1p").refusal, "");
  const Plan few = plan_of({"model.num_layers=8", "train.global_batch_size=24"});
  EXPECT_THAT(schedule_named(few, "dualpipev").refusal, AllOf(HasSubstr("dualpipev"), HasSubstr("at least 4")));
  EXPECT_FALSE(few.pipeline->schedules.back().refusal.empty());
  const Plan layout = plan_of({"model.pipeline_model_parallel_layout='Ettt|tttL'"});
  EXPECT_THAT(schedule_named(layout, "zbv").refusal, HasSubstr("pipeline_model_parallel_layout"));
  EXPECT_THAT(render(odd, false), AllOf(HasSubstr("1f1b (this plan)"), HasSubstr("3 layers")));
}

// Ramp-up: 1, 2, 3 and 4 microbatches.
TEST(PipelinePlan, EveryBatchSizeMustBeOneTheScheduleCanRun) {
  const std::vector<std::string> ramp{"train.rampup_batch_size=[8,8,96]", "model.num_layers=8", "train.train_iters=50"};
  EXPECT_EQ(plan_of(ramp).steps.global_batch_size, 32);
  EXPECT_THAT(config::global_batch_sizes(read(ramp).config, 1), ElementsAre(8, 16, 24, 32));
  EXPECT_THAT(config::global_batch_sizes(read({}).config, 1), ElementsAre(32));
  std::vector<std::string> interleaved = ramp;
  interleaved.emplace_back("model.virtual_pipeline_model_parallel_size=2");
  try {
    plan_of(interleaved);
    FAIL();
  } catch (const base::UserError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("Steps of 8 samples"), HasSubstr("rampup_batch_size")));
  }
  interleaved.front() = "train.rampup_batch_size=[16,16,96]";
  EXPECT_EQ(plan_of(interleaved).steps.num_microbatches, 4);
}

struct RunFolder : ::testing::Test {
  fs::path folder = fs::temp_directory_path() / ("pharos_pipeline_plan_" + std::to_string(::getpid()));
  void SetUp() override { fs::create_directories(folder); }
  void TearDown() override { fs::remove_all(folder); }

  /// A run of the planned timeline, `ns` nanoseconds its unit of time.
  void measure(const pipeline::Timeline& timeline, double ns) const {
    const pipeline::Schedule& schedule = timeline.schedule;
    for (int rank = 0; rank < schedule.num_ranks; ++rank) {
      pipeline::MeasuredStep step;
      step.step = 1;
      step.schedule = schedule.name;
      step.num_ranks = schedule.num_ranks;
      step.num_chunks = schedule.num_chunks;
      step.num_microbatches = schedule.num_microbatches;
      step.rank = rank;
      step.global_rank = rank;
      step.stages = schedule.stage_of[static_cast<std::size_t>(rank)];
      const auto at = [&](double time) { return 1'000'000'000 + static_cast<std::int64_t>(time * ns); };
      double free = 0;
      for (const pipeline::TimedAction& timed : timeline.ranks[static_cast<std::size_t>(rank)].actions) {
        step.actions.push_back({timed.action, at(free), at(timed.start), at(timed.end)});
        free = timed.end;
      }
      pipeline::MeasuredFile(folder, rank).append(step);
    }
  }
};

TEST_F(RunFolder, CostsOfAnEarlierRun) {
  const config::ResolvedConfig resolved = read({"model.num_layers=8"});
  const comm::Mesh mesh = make_plan(resolved, 2).mesh;
  pipeline::StageCosts costs = pipeline::even_costs(2);
  costs.forward = {2, 3};
  costs.backward = costs.weight = {4, 6};
  measure(pipeline::simulate(planned_schedule(resolved.config, mesh), costs), 1e6);
  const PipelinePlan plan = plan_pipeline(resolved, mesh, folder);
  EXPECT_EQ(plan.costs.time_unit, "ms");
  EXPECT_THAT(plan.costs.source, HasSubstr(folder.string()));
  EXPECT_NEAR(plan.costs.costs.forward[0], 2, 1e-6);
  EXPECT_NEAR(plan.costs.costs.backward[1] + plan.costs.costs.weight[1], 12, 1e-6);
  EXPECT_NEAR(plan.timeline.span, 10 + 4 * 15, 1e-5);
  EXPECT_DOUBLE_EQ(plan.costs.costs.activation_bytes[0], 4 * kLayerBytes);
  for (const OtherSchedule& other : plan.schedules) {  // of the same sum, 25 ms a microbatch
    EXPECT_NEAR((1 - other.bubble) * 2 * other.span, 4 * 25, 1e-4) << other.name;
  }
  const config::ResolvedConfig four = read({"model.num_layers=8", "model.virtual_pipeline_model_parallel_size=2"});
  try {
    plan_pipeline(four, mesh, folder);
    FAIL();
  } catch (const base::UserError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("had 2 stages"), HasSubstr("has 4")));
  }
  EXPECT_THROW(plan_pipeline(resolved, mesh, folder / "none"), base::UserError);
}

TEST_F(RunFolder, AScheduleOfOnesOwn) {
  const fs::path file = folder / "mine.json";
  base::write_file_atomically(file, R"({"name": "mine", "ranks": 2, "microbatches": 4, "actions": [
    "F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"]})");
  const config::ResolvedConfig resolved = read({"model.pipeline_schedule=" + file.string()});
  const Plan plan = make_plan(resolved, 2);
  EXPECT_EQ(plan.pipeline->timeline.schedule.name, "mine");
  EXPECT_NEAR(plan.pipeline->timeline.span, schedule_named(plan, "1f1b").span, 1e-12);
  for (const OtherSchedule& other : plan.pipeline->schedules) EXPECT_FALSE(other.is_planned);
  EXPECT_THROW(plan_of({"model.pipeline_schedule=" + file.string(), "train.global_batch_size=16"}), base::UserError);
}

TEST(PipelinePlan, TextJsonAndPicturesAgree) {
  const Plan plan = plan_of({"model.num_layers=8", "model.pipeline_schedule=zbv"});
  const nlohmann::json json = to_json(plan, false)["pipeline"];
  EXPECT_EQ(json["schedule"], "zbv");
  EXPECT_EQ(json["num_chunks"], 2);
  ASSERT_EQ(json["stages"].size(), 4U);
  EXPECT_EQ(json["stages"][3]["pipeline_rank"], 0);
  ASSERT_EQ(json["ranks"].size(), 2U);
  EXPECT_DOUBLE_EQ(json["ranks"][0]["peak_activation_bytes"].get<double>(), peak_bytes(plan, 0));
  EXPECT_EQ(json["schedules"].size(), 6U);
  const std::string percent = std::to_string(std::lround(1000 * json["bubble"].get<double>()) / 10);
  EXPECT_THAT(render(plan, false), AllOf(HasSubstr("Pipeline: zbv, 2 ranks with 2 model chunks each"),
                                         HasSubstr("zbv, 2 chunks (this plan)"), HasSubstr(percent)));
  EXPECT_THAT(render_timeline_text(*plan.pipeline),
              AllOf(HasSubstr("zbv: span"), HasSubstr("Of the bubble: "), HasSubstr("F0 F1 F2 F0.1")));
  EXPECT_THAT(render_timeline_svg(*plan.pipeline), HasSubstr("</svg>"));
  const config::ResolvedConfig one = read({"model.pipeline_model_parallel_size=1"}, 1);
  EXPECT_TRUE(to_json(make_plan(one, 1), false)["pipeline"].is_null());
  EXPECT_THAT(render(make_plan(one, 1), false), Not(HasSubstr("Pipeline:")));
}

// Stages of dense layers alone have less to do than those of as many layers with two experts of half the width and a
// shared one; a split that says so keeps the letters of multi-token prediction.
TEST(PipelinePlan, OfExperts) {
  const Plan plan = plan_of({"model.num_moe_experts=8", "model.moe_ffn_hidden_size=688",
                             "model.moe_shared_expert_intermediate_size=688", "model.moe_layer_freq=[0,0,0,1,1,1]",
                             "model.mtp_num_layers=1"});
  const auto& times = plan.pipeline->costs.costs.forward;
  EXPECT_GT(times[1], times[0]);
  EXPECT_EQ(plan.pipeline->busiest_rank, 1);
  ASSERT_TRUE(plan.pipeline->better_layout.has_value());
  EXPECT_THAT(plan.pipeline->better_layout->arguments, HasSubstr("mL"));
  EXPECT_GT(to_json(plan, false)["pipeline"]["ranks"][0]["peak_activation_bytes"].get<double>(), 0);
}

}  // namespace
}  // namespace pharos::plan
