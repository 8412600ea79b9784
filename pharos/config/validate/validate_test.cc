#include "pharos/config/validate/validate.h"

#include <gmock/gmock.h>

#include "pharos/base/file.h"
#include "pharos/base/json.h"
#include "pharos/config/derived.h"
#include "pharos/config/grammar/batch_schedule.h"
#include "pharos/config/grammar/pipeline_layout.h"
#include "pharos/config/lifecycle.h"
#include "pharos/config/schema/schema.h"

namespace pharos::config {
namespace {

using testing::Contains;
using testing::HasSubstr;

struct Case {
  std::vector<std::string> overrides;  // on llama_27m
  std::int64_t world_size;
  const char* message;  // part of a problem; empty: no problem
};

std::string problems_of(const Case& test, Purpose purpose) {
  try {
    prepare({.recipe = "llama_27m", .overrides = test.overrides}, test.world_size, purpose);
  } catch (const ConfigErrors& errors) {
    return errors.what();
  }
  return "";
}

void expect_table(const std::vector<Case>& cases, Purpose purpose) {
  for (const Case& test : cases) {
    const std::string problems = problems_of(test, purpose);
    const std::string label = testing::PrintToString(test.overrides);
    if (*test.message == '\0') {
      EXPECT_EQ(problems, "") << label;
    } else {
      EXPECT_THAT(problems, HasSubstr(test.message)) << label;
    }
  }
}

TEST(Validate, RangesAndRequiredFields) {
  expect_table({{{}, 1, ""},
                {{"model.num_layers=0"}, 1, "model.num_layers = 0 is out of range"},
                {{"optimizer.adam_beta2=1"}, 1, "Allowed: ≥ 0 and < 1"},
                {{"rng.seed=0"}, 1, "Allowed: > 0"},
                {{"optimizer.lr=nan"}, 1, "optimizer.lr = nan is out of range"},
                {{"profiling.network_counters_hz=1e-300"}, 1, "Allowed: ≥ 0.001 and ≤ 1000"},
                {{"~train.micro_batch_size"}, 1, "train.micro_batch_size is required and not set"},
                {{"~optimizer.lr"}, 1, "optimizer.lr is not set"},
                {{"optimizer.muon_tp_mode=x"}, 1, "is not one of duplicated, blockwise, distributed"}},
               Purpose::kTrain);
}

TEST(Validate, GeometryAndGrids) {
  const std::vector<std::string> tp3 = {"model.tensor_model_parallel_size=3"};
  expect_table(
      {{tp3, 3, "model.num_attention_heads = 8 is not divisible by model.tensor_model_parallel_size = 3."},
       {tp3, 3, "Use a TP size of 1, 2, 4 or 8."},
       {{"model.tensor_model_parallel_size=2"}, 2, ""},
       {{"model.tensor_model_parallel_size=2"}, 3, "world size (3) is not divisible by tensor_model_parallel_size (2)"},
       {{"model.num_query_groups=3"}, 1, "is not divisible by model.num_query_groups = 3"},
       {{"model.num_query_groups=2", "model.tensor_model_parallel_size=4"}, 4, ""},
       {{"model.kv_channels=7"}, 1, "which is not a positive even number"},
       {{"model.context_parallel_size=3"},
        3,
        "model.seq_length = 256 is not divisible by 2 x context_parallel_size = 6"},
       {{"model.seq_length=128"}, 1, "model.seq_length = 128 differs from dataset.seq_length = 256"},
       {{"model.bf16=true", "model.fp16=true"}, 1, "model.bf16 and model.fp16 are both true"},
       {{"train.global_batch_size=12"},
        1,
        "global batch size (12) is not divisible by micro batch size (8) times data parallel size (1)."},
       {{"train.global_batch_size=12", "train.decrease_batch_size_if_needed=true"}, 1, ""}},
      Purpose::kPlan);
}

TEST(Validate, PipelineSplitsAndLayouts) {
  const std::string layout = "model.pipeline_model_parallel_layout=";
  expect_table(
      {{{"model.virtual_pipeline_model_parallel_size=2"}, 1, "needs a pipeline size above 1"},
       {{"model.pipeline_model_parallel_size=4"}, 4, "6 layers cannot be split evenly over 4 pipeline stages"},
       {{"model.pipeline_model_parallel_size=4", "model.account_for_embedding_in_pipeline_split=true",
         "model.account_for_loss_in_pipeline_split=true"},
        4,
        ""},
       {{"model.pipeline_model_parallel_size=2", "model.num_layers_in_first_pipeline_stage=2"}, 2, ""},
       {{"model.pipeline_model_parallel_size=2", layout + "'Et*3|t*3L'"}, 2, ""},
       {{"model.pipeline_model_parallel_size=2",
         layout + "[[embedding,decoder,decoder,decoder],[decoder,decoder,decoder,loss]]"},
        2,
        ""},
       {{"model.pipeline_model_parallel_size=2", layout + "'Et*3|t*2L'"}, 2, "has 5 decoder layers"},
       {{"model.pipeline_model_parallel_size=2", layout + "'Et*3|t*2|tL'"}, 2, "has 3 stages, which is no multiple"},
       {{"model.pipeline_model_parallel_size=2", layout + "'Et*3|t*3'"}, 2, "exactly one L"},
       {{"model.pipeline_model_parallel_size=2", layout + "'Ex'"}, 2, "unexpected `x`"},
       {{"model.pipeline_model_parallel_size=3", "model.virtual_pipeline_model_parallel_size=2",
         "train.micro_batch_size=1"},
        3,
        "leaves a last group of 2 microbatches"},
       {{"model.pipeline_model_parallel_size=3", "model.virtual_pipeline_model_parallel_size=2"},
        3,
        "<= number of microbatches (1)"}},
      Purpose::kPlan);
  EXPECT_EQ(parse_pipeline_layout("Et|(tt|)*2mL"), (std::vector<std::string>{"Et", "tt", "tt", "mL"}));
}

TEST(Validate, LearningRateScales) {
  expect_table({{{"optimizer.lr_scales=['*.router.*=0.1','decoder.*=0']"}, 1, ""},
                {{"optimizer.lr_scales=['decoder.*']"}, 1, "'decoder.*', which is not PATTERN=FACTOR"},
                {{"optimizer.lr_scales=['decoder.*=-1']"}, 1, "a number from 0 on"}},
               Purpose::kPlan);
}

TEST(Validate, Experts) {
  const auto with = [](std::vector<std::string> more) {
    more.insert(more.end(), {"model.num_moe_experts=8"});
    return more;
  };
  expect_table(
      {{with({}), 1, ""},
       {{"model.expert_model_parallel_size=2"}, 2, "needs model.num_moe_experts"},
       {with({"model.expert_model_parallel_size=3"}), 3,
        "model.num_moe_experts = 8 is not divisible by model.expert_model_parallel_size = 3"},
       {with({"model.expert_model_parallel_size=4"}), 2, "expert_model_parallel_size (4)"},
       {with({"model.moe_router_topk=1"}), 1, "needs model.moe_router_pre_softmax"},
       {with({"model.moe_router_topk=9"}), 1, "is more than model.num_moe_experts"},
       {with({"model.moe_router_enable_expert_bias=true"}), 1, "needs sigmoid or sqrtsoftplus"},
       {with({"model.moe_router_group_topk=2"}), 1, "needs model.moe_router_num_groups"},
       {with({"model.moe_router_num_groups=3"}), 1, "is not divisible by model.moe_router_num_groups"},
       {with({"model.moe_pad_expert_input_to_capacity=true"}), 1, "needs a capacity factor"},
       {with({"model.moe_router_load_balancing_type=sinkhorn", "model.moe_aux_loss_coeff=0.1"}), 1, "Sinkhorn"},
       {with({"model.add_bias_linear=true", "model.expert_tensor_parallel_size=2"}), 2,
        "needs an expert tensor parallel size of 1"},
       {with({"model.moe_shared_expert_overlap=true"}), 1, "needs dispatcher alltoall or flex"},
       {with({"model.moe_shared_expert_overlap=true"}), 1, "needs shared experts"},
       {with({"model.tensor_model_parallel_size=2", "model.expert_model_parallel_size=8"}), 4, "a multiple of 8 ranks"},
       {with({"model.context_parallel_size=2", "model.tensor_model_parallel_size=2",
              "model.expert_model_parallel_size=8"}),
        6,
        "nor by expert_tensor_parallel_size (1) x expert_model_parallel_size (8) x pipeline_model_parallel_size (1)"},
       {{"model.tensor_model_parallel_size=2"}, 1, "Start it with --nproc 2"},
       {with({"model.moe_router_load_balancing_type=quantile_balancing", "model.moe_aux_loss_coeff=0.1"}), 1,
        "Set model.moe_aux_loss_coeff=0"},
       {with({"model.moe_enable_deepep=true"}), 1, "needs dispatcher flex"},
       {with({"model.moe_layer_freq=[1,0]"}), 1, "has 2 entries"},
       {with({"model.moe_ffn_hidden_size=30", "model.expert_tensor_parallel_size=4"}), 4,
        "The width of an expert, 30, is not divisible by expert_tensor_parallel_size = 4"},
       {with({"model.moe_shared_expert_intermediate_size=31", "model.tensor_model_parallel_size=2"}), 2,
        "model.moe_shared_expert_intermediate_size = 31 is not divisible"},
       {with({"model.moe_router_topk_limited_devices=2"}), 1, "Set model.moe_router_group_topk=2"},
       {with({"model.moe_router_num_groups=2", "model.moe_router_group_topk=2", "model.moe_router_topk=3"}), 1,
        "is not divisible by model.moe_router_group_topk"},
       {with({"model.moe_router_num_groups=2", "model.moe_router_group_topk=4", "model.moe_router_topk=4"}), 1,
        "is more than model.moe_router_num_groups"},
       {with({"model.moe_router_num_groups=8", "model.moe_router_group_topk=1", "model.moe_router_topk=2"}), 1,
        "Groups of 1 experts are too small"},
       {with({"model.moe_expert_capacity_factor=1", "model.moe_router_load_balancing_type=sinkhorn"}), 1,
        "works with aux_loss, seq_aux_loss"},
       {with({"model.moe_expert_capacity_factor=0"}), 1,
        "model.moe_expert_capacity_factor = 0.0 lets no expert take a token."},
       {with({"model.moe_expert_capacity_factor=1e-9"}), 1, ""},
       {with({"model.moe_expert_capacity_factor=-1", "model.moe_router_load_balancing_type=sinkhorn"}), 1, ""},
       {with(
            {"model.moe_router_load_balancing_type=[aux_loss,seq_aux_loss]", "model.moe_aux_loss_coeff=[0.1,0.2,0.3]"}),
        1, "has not one coefficient for each"},
       {with({"model.moe_router_padding_for_quantization=true"}), 1, "needs fp8 or fp4"},
       {with({"model.moe_expert_rank_capacity_factor=1.5"}), 1, "needs backend hybridep or ncclep"},
       {with({"model.add_mlp_bias=true", "model.moe_shared_expert_intermediate_size=64"}), 1,
        "Shared experts allow no"},
       {with({"model.moe_enable_deepep=true", "model.moe_token_dispatcher_type=flex",
              "model.moe_flex_dispatcher_backend=native"}),
        1, "names another back-end"},
       {with({"model.overlap_moe_expert_parallel_comm=true", "model.expert_model_parallel_size=2",
              "train.micro_batch_size=4"}),
        2, "needs dispatcher alltoall or flex"},
       {with({"model.delay_wgrad_compute=true"}), 1, "needs model.overlap_moe_expert_parallel_comm"}},
      Purpose::kPlan);
  EXPECT_EQ(
      problems_of({with({"model.moe_token_dispatcher_type=flex", "model.moe_flex_dispatcher_backend=native"}), 1, ""},
                  Purpose::kTrain),
      "");
}

TEST(Validate, LatentAttentionPredictionAndPositions) {
  const auto latent = [](std::vector<std::string> more) {
    more.insert(more.end(), {"model.multi_latent_attention=true"});
    return more;
  };
  const auto predicts = [](std::vector<std::string> more) {
    more.insert(more.end(), {"model.mtp_num_layers=1"});
    return more;
  };
  const std::string layout = "model.pipeline_model_parallel_layout=";
  expect_table({{latent({}), 1, ""},
                {latent({"model.num_attention_heads=6"}), 1, ""},  // heads need not divide the width
                {latent({"model.qk_pos_emb_head_dim=7"}), 1, "model.qk_pos_emb_head_dim = 7 is odd"},
                {latent({"model.num_query_groups=2"}), 1, "has keys and values for every head"},
                {latent({"model.softmax_type=learnable"}), 1, "has no attention sinks"},
                {latent({"model.add_qkv_bias=true"}), 1, "has no q, k, v projection"},
                {latent({"model.rope_scaling=true"}), 1, "stretches positions by YaRN only"},
                {predicts({}), 1, ""},
                {predicts({"model.position_embedding_type=learned_absolute"}), 1, "does not go with learned positions"},
                {predicts({"model.pipeline_model_parallel_size=2", layout + "'Et*3|t*3mL'"}), 2, ""},
                {predicts({"model.pipeline_model_parallel_size=2", layout + "'Et*3|t*3L'"}), 2, "has 0 MTP layers"},
                {predicts({"model.pipeline_model_parallel_size=3", layout + "'Et*3|t*3m|L'"}), 3, "in the stage of L"},
                {predicts({"model.pipeline_model_parallel_size=3", layout + "'Et*3|m|t*3L'"}), 3, "after an MTP layer"},
                {{"model.position_embedding_type=yarn"}, 1, "needs model.yarn_rotary_scaling_factor"},
                {{"model.position_embedding_type=yarn", "model.yarn_rotary_scaling_factor=4",
                  "model.yarn_original_max_position_embeddings=64"},
                 1,
                 ""},
                {{"model.rope_scaling=true", "model.seq_len_interpolation_factor=2"}, 1, "Choose one"},
                {{"model.softmax_type=learnable", "model.window_size=[7,0]", "model.window_attn_skip_freq=2"}, 1, ""}},
               Purpose::kTrain);
}

TEST(Validate, TrainingAndData) {
  expect_table({{{"train.train_samples=100"}, 1, "are both set"},
                {{"~train.train_iters"}, 1, "Neither train.train_iters nor train.train_samples"},
                {{"scheduler.lr_warmup_samples=5"}, 1, "mixes fields in iterations and in samples"},
                {{"model.layernorm_epsilon=inf"}, 1, "model.layernorm_epsilon = inf is out of range"},
                {{"optimizer.lr=inf"}, 1, "optimizer.lr = inf is out of range"},
                {{"scheduler.lr_warmup_fraction=0.1"}, 1, "excludes an explicit warm-up"},
                {{"optimizer.min_lr=1"}, 1, "optimizer.min_lr = 1.0 is above optimizer.lr"},
                {{"scheduler.start_weight_decay=0.2"}, 1, "constant needs equal"},
                {{"train.rampup_batch_size=[2,2]"}, 1, "is not [start, increment, samples]"},
                {{"train.rampup_batch_size=[4,4,100]", "train.micro_batch_size=4"}, 1, ""},
                {{"train.step_batch_size_schedule=5:8"}, 1, "does not start with threshold 0"},
                {{"train.step_batch_size_schedule='0:8 1K:16'"}, 1, ""},
                {{"dataset.data_path=[0.3,a,0.7]", "dataset.split=[1,1,1]"}, 1, "is neither a list of prefixes nor"},
                {{"dataset.data_path=[a,b]"}, 1, "dataset.split is not set"},
                {{"dataset.data_path=a", "dataset.blend=b", "dataset.split=[1,1,1]"}, 1, "More than one of"},
                {{"dataset.split=[0,0]"}, 1, "add up to more than 0"},
                {{"model.calculate_per_token_loss=true", "ddp.average_in_collective=true"},
                 1,
                 "excludes ddp.average_in_collective"},
                {{"checkpoint.most_recent_k=0"}, 1, "keeps no checkpoint"},
                {{"model.recompute_granularity=full"}, 1, "needs model.recompute_method"},
                {{"model.recompute_granularity=selective", "model.recompute_num_layers=1"}, 1, "takes neither"},
                {{"model.recompute_granularity=selective"}, 1, ""},
                {{"validation.eval_global_batch_size=12"}, 1, "evaluation global batch size (12) is not divisible"}},
               Purpose::kTrain);
}

TEST(Validate, CapabilitiesOfThisReleaseAreNamed) {
  const std::vector<Case> cases = {
      {{"model.num_moe_experts=8", "model.moe_router_load_balancing_type=quantile_balancing"},
       1,
       "quantile_balancing is a balancing this release cannot train with"},
      {{"model.num_moe_experts=8", "model.moe_token_dispatcher_type=flex"},
       1,
       "deepep of the flex dispatcher is not in"},
      {{"model.num_moe_experts=8", "model.tensor_model_parallel_size=2"}, 2, "needs sequence parallelism"},
      {{"model.recompute_granularity=selective", "model.recompute_modules=[layernorm]"}, 1, "asks for layernorm"},
      {{"optimizer.optimizer=dist_muon"}, 1, "an update rule this release cannot train with"},
      {{"optimizer.use_precision_aware_optimizer=true"}, 1, "needs precision-aware optimizer"},
      {{"model.context_parallel_size=2", "model.cp_comm_type=[a2a]"}, 2, "needs the exchange of heads"},
      {{"mixed_precision=bf16_with_mxfp8_mixed"}, 1, "needs fp8"},
      {{"logger.wandb_project=x", "logger.wandb_exp_name=y"}, 1, "needs an experiment tracker"}};
  expect_table(cases, Purpose::kTrain);
  for (const Case& test : cases) EXPECT_EQ(problems_of(test, Purpose::kPlan), "") << test.overrides.front();
}

TEST(Prepare, FillsFieldsFromOutsideBeforeItChecks) {
  const ResolveRequest request{.recipe = "hf_pretrain", .overrides = {"hf_path=models/tiny", "seq_length=64"}};
  const auto fill = [](ResolvedConfig& resolved) {
    for (const auto& [field, value] :
         {std::pair{"model.num_layers", 2}, {"model.hidden_size", 6}, {"model.num_attention_heads", 4}}) {
      set_derived(resolved, field, Value::of_integer(value), "models/tiny/config.json");
    }
  };
  try {
    prepare(request, 1, Purpose::kTrain, fill);
    FAIL() << "6 is not divisible by 4";
  } catch (const ConfigErrors& errors) {
    EXPECT_THAT(errors.what(), HasSubstr("model.hidden_size = 6 (derived: models/tiny/config.json)"));
  }
  const auto refuse = [](ResolvedConfig&) { throw base::UserError({.what = "models/tiny/config.json is missing."}); };
  try {
    prepare(request, 1, Purpose::kTrain, refuse);
    FAIL();
  } catch (const ConfigErrors& errors) {
    EXPECT_EQ(errors.problems().size(), 1U) << errors.what();
  }
}

TEST(Notes, TellOnceWhatHasNoEffect) {
  const auto resolved = prepare({.recipe = "llama_27m",
                                 .overrides = {"ddp.overlap_grad_reduce=true", "model.qk_clip=true",
                                               "dataset.num_workers=8", "model.moe_router_topk=4"}},
                                1, Purpose::kTrain);
  EXPECT_THAT(resolved.warnings, Contains("ddp.overlap_grad_reduce: no effect on one rank."));
  EXPECT_THAT(resolved.warnings, Contains("model.qk_clip: stored in run.yaml, without effect in Pharos."));
  EXPECT_THAT(resolved.warnings, Contains("dataset.num_workers: accepted; Pharos decides this itself."));
  EXPECT_THAT(resolved.warnings, Contains("model.moe_router_topk: no effect without model.num_moe_experts."));
  const auto warnings = [](std::vector<std::string> overrides) {
    return prepare({.recipe = "llama_27m", .overrides = std::move(overrides)}, 1, Purpose::kTrain).warnings;
  };
  EXPECT_THAT(warnings({"model.num_moe_experts=32", "model.moe_flex_dispatcher_backend=native",
                        "model.moe_router_load_balancing_type=none", "model.moe_aux_loss_coeff=0.1",
                        "model.moe_router_group_score=max", "model.moe_permute_fusion=true"}),
              testing::IsSupersetOf(
                  {HasSubstr("with 32 experts or more fp32 or fp64 is safer"),
                   HasSubstr("moe_flex_dispatcher_backend: no effect without model.moe_token_dispatcher_type = flex"),
                   HasSubstr("moe_aux_loss_coeff: no effect with model.moe_router_load_balancing_type = none"),
                   HasSubstr("moe_router_group_score: no effect without model.moe_router_group_topk"),
                   HasSubstr("model.moe_permute_fusion: accepted; Pharos decides this itself")}));
  EXPECT_THAT(warnings({"model.multi_latent_attention=true", "model.rotary_percent=0.5", "model.rope_type=rope",
                        "model.mscale=0.7", "model.position_embedding_type=learned_absolute"}),
              testing::IsSupersetOf({HasSubstr("rotary_percent: no effect with model.multi_latent_attention"),
                                     HasSubstr("mscale: no effect without model.rope_type = yarn"),
                                     HasSubstr("learned positions are added beside")}));
  EXPECT_THAT(warnings({"model.yarn_mscale=1.5"}),
              Contains("model.yarn_mscale: no effect without model.position_embedding_type = yarn."));
}

TEST(Notes, TellWhatAProfilingWindowWillNotCapture) {
  const auto warnings = [](std::vector<std::string> overrides) {
    overrides.insert(overrides.end(), {"profiling.use_nsys_profiler=true", "train.micro_batch_size=4"});
    return prepare({.recipe = "llama_27m", .overrides = std::move(overrides)}, 2, Purpose::kTrain).warnings;
  };
  EXPECT_THAT(warnings({"profiling.profile_step_start=7", "profiling.profile_step_end=7"}),
              Contains("profiling.profile_step_start and profile_step_end are both 7: the window is empty, nothing is "
                       "captured."));
  for (std::vector<std::string> length : {std::vector<std::string>{"train.train_iters=10"},
                                          {"train.train_iters=null", "train.train_samples=87",
                                           "scheduler.lr_warmup_iters=0", "scheduler.lr_decay_samples=80"}}) {
    length.emplace_back("train.global_batch_size=8");
    EXPECT_THAT(warnings(length),
                Contains("profiling.profile_step_start = 10: the run ends after 10 steps, before the window begins; "
                         "nothing is captured."));
  }
  EXPECT_THAT(warnings({"train.train_iters=11"}), testing::Not(Contains(HasSubstr("profil"))));
  EXPECT_THAT(warnings({"profiling.profile_ranks=[1,2]"}),
              Contains("profiling.profile_ranks names rank 2; the job has ranks 0 to 1."));
  EXPECT_THAT(warnings({"profiling.profile_ranks=[]"}), testing::Not(Contains(HasSubstr("profil"))));
}

TEST(CommOverlap, DecidesAsMegatronBridge) {
  const auto decided = [](std::vector<std::string> overrides, std::int64_t world_size) {
    overrides.push_back("comm_overlap.tp_comm_overlap=false");
    return prepare({.recipe = "llama_27m", .overrides = overrides}, world_size, Purpose::kPlan).config;
  };
  const auto plain = decided({"model.pipeline_model_parallel_size=2"}, 2).model;
  EXPECT_FALSE(plain.overlap_p2p_comm);
  EXPECT_TRUE(plain.batch_p2p_comm);
  const auto interleaved = decided({"model.pipeline_model_parallel_size=2",
                                    "model.virtual_pipeline_model_parallel_size=3", "train.micro_batch_size=1"},
                                   2)
                               .model;
  EXPECT_TRUE(interleaved.overlap_p2p_comm);
  EXPECT_FALSE(interleaved.batch_p2p_comm);
  const auto sharded = decided({"ddp.use_distributed_optimizer=true", "train.micro_batch_size=1"}, 2).ddp;
  EXPECT_TRUE(sharded.overlap_grad_reduce && sharded.overlap_param_gather);
  EXPECT_EQ(sharded.bucket_size, 134217728);
}

// Oracle: Megatron's microbatch calculator at given consumed samples.
TEST(BatchSchedule, AgreesWithMegatron) {
  const auto oracle = base::read_json_file(PHAROS_TEST_DATA "/config/batches.json");
  for (const auto& test : oracle.at("cases")) {
    const auto& arguments = test.at("args");
    RunConfig config;
    config.train.global_batch_size =
        arguments["global_batch_size"].is_null() ? 64 : arguments["global_batch_size"].get<std::int64_t>();
    config.train.micro_batch_size = arguments.at("micro_batch_size").get<std::int64_t>();
    config.train.decrease_batch_size_if_needed = arguments.at("decrease_batch_size_if_needed").get<bool>();
    if (arguments.contains("step_batch_size_schedule")) {
      config.train.step_batch_size_schedule = arguments["step_batch_size_schedule"].get<std::string>();
      config.dataset.seq_length = arguments.at("seq_length").get<std::int64_t>();
    }
    for (const auto& value : test.at("values")) {
      const auto consumed = value.at("consumed_samples").get<std::int64_t>();
      EXPECT_EQ(global_batch_size_at(config, consumed, arguments.at("data_parallel_size").get<std::int64_t>()),
                value.at("running_global_batch_size").get<std::int64_t>())
          << test.at("name") << " at " << consumed;
    }
  }
}

// Ramp-up: size(n) = start + increment × floor(n / (samples / ((GBS − start) / increment))), GBS from `samples` on.
TEST(BatchSchedule, RampsUp) {
  RunConfig config;
  config.train.global_batch_size = 32;
  config.train.micro_batch_size = 8;
  config.train.rampup_batch_size = {8, 8, 300};
  const std::pair<std::int64_t, std::int64_t> table[] = {{0, 8},    {99, 8},   {100, 16}, {199, 16},
                                                         {200, 24}, {299, 24}, {300, 32}, {900, 32}};
  for (const auto& [consumed, size] : table) EXPECT_EQ(global_batch_size_at(config, consumed, 1), size) << consumed;
  config.train.train_samples = 120;  // 13 × 8 = 104, then 16 would reach exactly 120
  EXPECT_EQ(total_train_iterations(config, 1), 14);
  EXPECT_EQ(total_train_samples(config, 1), 120);
}

// The sum of the sizes of the first n steps, whatever is taken together on the way to it.
TEST(BatchSchedule, TotalsAreSumsOverSteps) {
  std::vector<RunConfig> configs(3);
  for (RunConfig& config : configs) {
    config.train.global_batch_size = 96;
    config.train.micro_batch_size = 8;
  }
  configs[0].train.rampup_batch_size = {8, 8, 1000};
  configs[1].train.rampup_batch_size = {24, 24, 70};
  configs[2].train.step_batch_size_schedule = "0:8 500:16 1K:96";
  configs[2].dataset.seq_length = 2;
  for (RunConfig& config : configs) {
    std::int64_t consumed = 0;
    for (std::int64_t steps = 1; steps < 200; ++steps) {
      consumed += global_batch_size_at(config, consumed, 1);
      config.train.train_iters = steps;
      config.train.train_samples.reset();
      EXPECT_EQ(total_train_samples(config, 1), consumed) << steps;
      config.train.train_iters.reset();
      config.train.train_samples = consumed;
      EXPECT_EQ(total_train_iterations(config, 1), steps);
    }
    config.train.train_samples.reset();
    config.train.train_iters = 1'000'000'000;  // at once
    EXPECT_GT(total_train_samples(config, 1), 95'000'000'000);
  }
}

TEST(Derived, VocabularyRule) {
  RunConfig config;
  apply_vocab_rule(config, 257);
  EXPECT_EQ(config.model.vocab_size, 257);
  EXPECT_EQ(padded_vocab_size(config.model), 384);
  config.model.tensor_model_parallel_size = 4;
  EXPECT_EQ(padded_vocab_size(config.model), 512);
  RunConfig preset;
  preset.model.vocab_size = 300;
  apply_vocab_rule(preset, 257);
  EXPECT_EQ(padded_vocab_size(preset.model), 300);
  preset.model.vocab_size = 200;
  EXPECT_THROW(apply_vocab_rule(preset, 257), base::UserError);
}

TEST(Schema, DeclaresEveryFieldWithDocumentationAndConvertibleDefault) {
  EXPECT_GT(schema().fields().size(), 400U);
  for (const Field& field : schema().fields()) {
    EXPECT_FALSE(field.doc.empty()) << field.name;
    RunConfig config;
    EXPECT_EQ(field.read(config), field.default_value) << field.name;
    EXPECT_EQ(field.write(config, field.default_value), std::nullopt) << field.name;
    EXPECT_EQ(field.read(config), field.default_value) << field.name;
    EXPECT_TRUE(field.active_with.empty() || schema().find(field.active_with) != nullptr) << field.name;
  }
  EXPECT_EQ(canonical_name("model.transformer.hidden_size"), "model.hidden_size");
}

}  // namespace
}  // namespace pharos::config
