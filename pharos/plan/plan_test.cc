#include "pharos/plan/plan.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>

#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/checkpoint/checkpoint.h"
#include "pharos/config/recipe/run_yaml.h"
#include "pharos/model/flops.h"
#include "pharos/model/transformer.h"
#include "pharos/plan/plan_testing.h"
#include "pharos/plan/render.h"

namespace pharos::plan {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

struct FolderTest : ::testing::Test {
  fs::path folder = fs::temp_directory_path() / ("pharos_plan_" + std::to_string(::getpid()));
  void SetUp() override { fs::create_directories(folder); }
  void TearDown() override { fs::remove_all(folder); }
};

// 6 layers, 512 wide, feed-forward 1376, vocabulary 8192, untied.
TEST(Parameters, OfLlama27mByHand) {
  const Plan plan = plan_of({});
  EXPECT_EQ(total_of(plan, "embedding"), 8192 * 512);
  EXPECT_EQ(total_of(plan, "attention"), 6 * 4 * 512 * 512);
  EXPECT_EQ(total_of(plan, "mlp"), 6 * 3 * 512 * 1376);
  EXPECT_EQ(total_of(plan, "norms"), 13 * 512);
  EXPECT_EQ(total_of(plan, "output"), 8192 * 512);
  EXPECT_EQ(plan.parameters.total, 27'367'936);
  EXPECT_EQ(plan.parameters.ranks.front().elements, 27'367'936);
}

TEST(Parameters, AreThoseOfTheModel) {
  const config::ResolvedConfig resolved =
      read({"model.add_bias_linear=true", "model.qk_layernorm=true", "model.num_query_groups=2",
            "model.normalization=LayerNorm", "model.position_embedding_type=learned_absolute"});
  const config::ModelConfig& model = resolved.config.model;
  model::Transformer transformer(model, model::whole_model(model), comm::Mesh(1, {}), 0);
  std::int64_t expected = 0;
  for (const auto* parameter : transformer.parameters()) expected += tensor::num_elements(*parameter);
  const Plan plan = make_plan(resolved, 1);
  EXPECT_EQ(plan.parameters.total, expected);
  EXPECT_EQ(plan.parameters.ranks.front().elements, expected);
}

// Column- and row-parallel matrices and the vocabulary are halved, norms are whole; stages share the layers.
TEST(Parameters, OnRanks) {
  const Plan plan = plan_of(
      {"model.tensor_model_parallel_size=2", "model.pipeline_model_parallel_size=2", "train.global_batch_size=16"}, 8);
  ASSERT_EQ(plan.parameters.ranks.size(), 2U);
  const std::int64_t layers = 3 * (4 * 512 * 512 + 3 * 512 * 1376) / 2 + 3 * 2 * 512;
  EXPECT_EQ(plan.parameters.ranks[0].elements, layers + 8192 * 512 / 2);
  EXPECT_EQ(plan.parameters.ranks[1].elements, layers + 8192 * 512 / 2 + 512);
  EXPECT_EQ(plan.parameters.total, 27'367'936);
  EXPECT_EQ(plan.mesh.size(comm::MeshDim::kData), 2);
}

// Tied embeddings are one parameter, which the first and the last stage both hold.
TEST(Parameters, TiedEmbeddings) {
  const std::string tied = "model.share_embeddings_and_output_weights=true";
  EXPECT_EQ(plan_of({tied}).parameters.total, 27'367'936 - 8192 * 512);
  const Plan plan = plan_of({tied, "model.pipeline_model_parallel_size=2"}, 2);
  EXPECT_EQ(plan.parameters.total, 27'367'936 - 8192 * 512);
  EXPECT_EQ(plan.parameters.ranks[0].elements + plan.parameters.ranks[1].elements, 27'367'936);
}

TEST(Memory, PartsAddUpToThePeak) {
  for (const std::string& change :
       std::vector<std::string>{"train.micro_batch_size=8", "train.micro_batch_size=2", "model.attention_dropout=0.1",
                                "model.num_query_groups=2", "model.bf16=true", "model.attention_backend=unfused",
                                "validation.eval_iters=2"}) {
    const Plan plan = plan_of({change});
    double sum = 0;
    for (const MemoryPart& part : plan.memory.parts) {
      EXPECT_GE(part.bytes, 0) << part.key;
      sum += part.bytes;
    }
    EXPECT_DOUBLE_EQ(sum, plan.memory.peak_bytes) << change;
    EXPECT_GE(plan.memory.part("gradients"), 4.0 * static_cast<double>(plan.parameters.total));
  }
}

// By hand, fp32, 2048 tokens: 10 tensors of the hidden width (two inputs of norms, two normalised, q|k|v, rotated q and
// k, mixed values) and 3 of the inner width a layer, two inverse deviations and the
// softmax's sums of 8 heads a token; the final norm keeps its input and output.
TEST(Memory, ActivationsOfLlama27mByHand) {
  const Plan plan = plan_of({});
  const double layer = 2048.0 * 4 * (10 * 512 + 3 * 1376 + 2 + 8);
  const double head = 2048.0 * 4 * (2 * 512 + 1);
  EXPECT_EQ(plan.memory.phase, "loss");
  EXPECT_DOUBLE_EQ(plan.memory.part("activations"), 6 * layer + head);
  EXPECT_DOUBLE_EQ(plan.memory.part("logits"), 2048.0 * 4 * 8192);
  EXPECT_DOUBLE_EQ(plan.memory.part("weights"), 4.0 * 27'367'936);
  EXPECT_DOUBLE_EQ(plan.memory.part("optimizer"), 8.0 * 27'367'936);
  EXPECT_DOUBLE_EQ(plan.memory.part("main_parameters"), 0);
}

// The same by hand on two tensor-parallel ranks: halves of heads and of the inner width; the two inputs of norms, the
// two normalised and the final norm's pair are whole, or with sequence parallelism halves. At the output layer the
// input gradient comes on top; with divided tokens, of 8 sequences, it exists before and after it is put in order,
// beside the gathered input, and half of it is the result.
TEST(Memory, ActivationsOnTensorParallelRanksByHand) {
  const std::vector<std::string> overrides{"model.tensor_model_parallel_size=2", "train.global_batch_size=16"};
  const double token = 2048.0 * 4, divided = 6 * 256 + 3 * 688 + 4;
  const Plan plain = plan_of(overrides, 2);
  EXPECT_EQ(plain.memory.phase, "loss");
  EXPECT_DOUBLE_EQ(plain.memory.part("activations"), token * (6 * (4 * 512 + 2 + divided) + 2 * 512 + 1));
  EXPECT_DOUBLE_EQ(plain.memory.part("logits"), token * 4096);
  EXPECT_DOUBLE_EQ(plain.memory.part("transient"), token * 512);
  std::vector<std::string> with_sequence = overrides;
  with_sequence.emplace_back("model.sequence_parallel=true");
  const Plan sequence = plan_of(with_sequence, 2);
  EXPECT_EQ(sequence.memory.phase, "loss");
  EXPECT_DOUBLE_EQ(sequence.memory.part("activations"), token * (6 * (4 * 256 + 1 + divided) + 512 + 0.5));
  EXPECT_DOUBLE_EQ(sequence.memory.part("logits"), token * 4096);
  EXPECT_DOUBLE_EQ(sequence.memory.part("transient"), token * (3 * 512 + 256));
}

// Half of the tokens and of their logits. A layer keeps the residual stream at four places (two normalised), queries,
// keys and values, the output of attention, once, and a number for each query and head; the MLP as ever.
TEST(Memory, ActivationsOnContextParallelRanksByHand) {
  const double token = 1024.0 * 4;
  const Plan plan = plan_of({"model.context_parallel_size=2"}, 2);
  EXPECT_EQ(plan.memory.phase, "loss");
  EXPECT_DOUBLE_EQ(plan.memory.part("activations"),
                   token * (6 * (4 * 512 + 2 + 3 * 512 + 512 + 8 + 3 * 1376) + 2 * 512 + 1));
  EXPECT_DOUBLE_EQ(plan.memory.part("logits"), token * 8192);
  // Of grouped queries the few keys and values are kept, also where one rank keeps them once for each query head.
  EXPECT_DOUBLE_EQ(plan_of({"model.context_parallel_size=2", "model.num_query_groups=2"}, 2).memory.part("activations"),
                   token * (6 * (4 * 512 + 2 + 512 + 2 * 128 + 512 + 8 + 3 * 1376) + 2 * 512 + 1));
}

TEST(Memory, RecomputationKeepsLess) {
  const auto activations = [](std::vector<std::string> overrides) {
    const Plan plan = plan_of(std::move(overrides));
    return plan.memory.part("activations") + plan.memory.part("transient");
  };
  // Half of the layers kept, and nothing of them left when the other half is recomputed.
  const double none = activations({}), unfused = activations({"model.attention_backend=unfused"});
  EXPECT_LT(activations(
                {"model.recompute_granularity=full", "model.recompute_method=uniform", "model.recompute_num_layers=1"}),
            0.4 * none);
  const double block =
      activations({"model.recompute_granularity=full", "model.recompute_method=block", "model.recompute_num_layers=3"});
  EXPECT_LT(block, 0.7 * none);
  EXPECT_GT(block, 0.4 * none);
  EXPECT_LT(activations({"model.attention_backend=unfused", "model.recompute_granularity=selective"}), unfused);
}

TEST(Memory, OfReducedPrecision) {
  const Plan plan = plan_of({"model.bf16=true", "optimizer.bf16=true"});
  EXPECT_DOUBLE_EQ(plan.memory.part("weights"), 2.0 * 27'367'936);
  EXPECT_DOUBLE_EQ(plan.memory.part("main_parameters"), 4.0 * 27'367'936);
}

TEST(Memory, DistributedOptimizerDividesMoments) {
  const std::vector<std::string> overrides{"ddp.use_distributed_optimizer=true",
                                           "optimizer.use_distributed_optimizer=true", "train.global_batch_size=32"};
  EXPECT_DOUBLE_EQ(plan_of(overrides, 4).memory.part("optimizer"), 8.0 * 27'367'936 / 4);
}

// The largest unit of llama_27m is what follows its layers: final norm and output layer.
constexpr double kElements = 27'367'936, kUnit = 512 + 8192 * 512;

TEST(Memory, OfEveryShardingStrategyByHand) {
  struct Case {
    const char* strategy;
    bool overlaps;
    double weights, gradients, state;  // elements on one of 4 ranks
  };
  const double share = kElements / 4;
  for (const Case& item :
       {Case{"no_shard", false, kElements, kElements, kElements}, Case{"optim", false, kElements, kElements, share},
        Case{"optim_grads", false, kElements, share + kUnit, share},
        Case{"optim_grads", true, kElements, share + 2 * kUnit, share},
        Case{"optim_grads_params", false, share + kUnit, share + kUnit, share},
        Case{"optim_grads_params", true, share + 2 * kUnit, share + 2 * kUnit, share}}) {
    const std::string overlaps = item.overlaps ? "true" : "false";
    std::vector<std::string> overrides{std::string("ddp.data_parallel_sharding_strategy=") + item.strategy,
                                       "ddp.overlap_grad_reduce=" + overlaps, "train.global_batch_size=32"};
    if (item.overlaps) {
      overrides.insert(overrides.end(), {"ddp.overlap_param_gather=true", "ddp.use_distributed_optimizer=true",
                                         "optimizer.use_distributed_optimizer=true"});
    }
    const Plan plan = plan_of(overrides, 4);
    EXPECT_DOUBLE_EQ(plan.memory.part("weights"), 4 * item.weights) << item.strategy;
    EXPECT_DOUBLE_EQ(plan.memory.part("gradients"), 4 * item.gradients) << item.strategy;
    EXPECT_DOUBLE_EQ(plan.memory.part("optimizer"), 8 * item.state) << item.strategy;
    EXPECT_DOUBLE_EQ(plan.memory.part("main_parameters"), 0) << item.strategy;
    overrides.insert(overrides.end(), {"model.bf16=true", "optimizer.bf16=true"});
    const Plan narrow = plan_of(overrides, 4);
    EXPECT_DOUBLE_EQ(narrow.memory.part("weights"), 2 * item.weights) << item.strategy;
    EXPECT_DOUBLE_EQ(narrow.memory.part("gradients"), 4 * item.gradients) << item.strategy;
    EXPECT_DOUBLE_EQ(narrow.memory.part("main_parameters"), 4 * item.state) << item.strategy;
  }
}

// On one rank there is nothing to divide, and nothing is gathered or staged.
TEST(Memory, ShardingOnOneRankChangesNothing) {
  const Plan plain = plan_of({}), sharded = plan_of({"ddp.data_parallel_sharding_strategy=optim_grads_params"});
  EXPECT_DOUBLE_EQ(plain.memory.peak_bytes, sharded.memory.peak_bytes);
  EXPECT_DOUBLE_EQ(plain.memory.part("communication"), 0);
}

// 4 ranks, 2 microbatches. Of V bytes a rank sends 3/4 V in a gather or scatter, twice that in an all-reduce.
TEST(Communication, OfDataParallelByHand) {
  struct Case {
    const char* strategy;
    double all_reduce, reduce_scatter, all_gather;  // wholes of 4 bytes an element
  };
  for (const Case& item : {Case{"no_shard", 1, 0, 0}, Case{"optim", 0, 1, 1}, Case{"optim_grads", 0, 2, 1},
                           Case{"optim_grads_params", 0, 2, 4}}) {
    const std::vector<std::string> overrides{std::string("ddp.data_parallel_sharding_strategy=") + item.strategy,
                                             "train.global_batch_size=64", "ddp.grad_reduce_in_fp32=true"};
    const Plan plan = plan_of(overrides, 4);
    EXPECT_DOUBLE_EQ(bytes_of(plan, "gradients", "all_reduce"), 6 * kElements * item.all_reduce) << item.strategy;
    EXPECT_DOUBLE_EQ(bytes_of(plan, "gradients", "reduce_scatter"), 3 * kElements * item.reduce_scatter);
    EXPECT_DOUBLE_EQ(bytes_of(plan, "weights", "all_gather"), 3 * kElements * item.all_gather);
    EXPECT_DOUBLE_EQ(plan.communication.bytes(),
                     kElements * (6 * item.all_reduce + 3 * item.reduce_scatter + 3 * item.all_gather));
  }
  const std::vector<std::string> narrow{"ddp.use_distributed_optimizer=true",
                                        "optimizer.use_distributed_optimizer=true", "model.bf16=true",
                                        "optimizer.bf16=true", "train.global_batch_size=64"};
  const Plan plan = plan_of(narrow, 4);
  EXPECT_DOUBLE_EQ(bytes_of(plan, "gradients", "reduce_scatter"), 0.75 * 2 * kElements);
  EXPECT_DOUBLE_EQ(bytes_of(plan, "weights", "all_gather"), 0.75 * 2 * kElements);
  EXPECT_TRUE(plan_of({}).communication.parts.empty());
}

// 2 ranks, 2 microbatches of 2048 tokens, 6 layers: an all-reduce sends as many bytes as it is given, the others half.
TEST(Communication, OfTensorParallelByHand) {
  const double stream = 2048 * 512 * 4;
  std::vector<std::string> overrides{"model.tensor_model_parallel_size=2", "train.global_batch_size=16"};
  const Plan plain = plan_of(overrides, 2);
  EXPECT_DOUBLE_EQ(bytes_of(plain, "layers", "all_reduce"), 2 * 6 * 4 * stream);
  EXPECT_DOUBLE_EQ(bytes_of(plain, "embedding", "all_reduce"), 2 * stream);
  EXPECT_DOUBLE_EQ(bytes_of(plain, "output layer", "all_reduce"), 2 * stream);
  EXPECT_DOUBLE_EQ(bytes_of(plain, "loss", "all_reduce"), 2 * 3 * 4 * 2048);

  overrides.emplace_back("model.sequence_parallel=true");
  const Plan sequence = plan_of(overrides, 2);
  EXPECT_DOUBLE_EQ(bytes_of(sequence, "layers", "all_reduce"), 0);
  EXPECT_DOUBLE_EQ(bytes_of(sequence, "layers", "reduce_scatter"), 2 * 6 * 4 * stream / 2);
  EXPECT_DOUBLE_EQ(bytes_of(sequence, "layers", "all_gather"), 2 * 6 * (4 + 2) * stream / 2);
  EXPECT_DOUBLE_EQ(bytes_of(sequence, "output layer", "all_gather"), 2 * 2 * stream / 2);

  overrides = {"model.tensor_model_parallel_size=2", "train.global_batch_size=16", "model.recompute_granularity=full",
               "model.recompute_method=block", "model.recompute_num_layers=2"};
  EXPECT_DOUBLE_EQ(bytes_of(plan_of(overrides, 2), "layers", "all_reduce"), 2 * (6 * 4 + 2 * 2) * stream);
}

// 2 ranks, one microbatch of 2048 tokens, 6 layers: keys and values in both passes, their gradients in fp32.
TEST(Communication, OfContextParallelByHand) {
  const double keys_and_values = 2 * 2048 * 512;
  std::vector<std::string> overrides{"model.context_parallel_size=2"};
  const Plan plan = plan_of(overrides, 2);
  EXPECT_DOUBLE_EQ(bytes_of(plan, "keys and values", "all_gather"), 2 * 6 * 4 * keys_and_values / 2);
  EXPECT_DOUBLE_EQ(bytes_of(plan, "gradients of keys and values", "reduce_scatter"), 6 * 4 * keys_and_values / 2);
  overrides.insert(overrides.end(),
                   {"model.bf16=true", "optimizer.bf16=true", "model.recompute_granularity=selective"});
  const Plan narrow = plan_of(overrides, 2);
  EXPECT_DOUBLE_EQ(bytes_of(narrow, "keys and values", "all_gather"), 3 * 6 * 2 * keys_and_values / 2);
  EXPECT_DOUBLE_EQ(bytes_of(narrow, "gradients of keys and values", "reduce_scatter"), 6 * 4 * keys_and_values / 2);
}

TEST(Stages, EvenUnevenAndByLayout) {
  const auto layers = [](std::vector<std::string> overrides) {
    overrides.emplace_back("model.pipeline_model_parallel_size=2");
    std::vector<std::int64_t> counts;
    for (const ModelChunk& chunk : model_chunks(read(std::move(overrides), 2).config.model)) {
      counts.push_back(chunk.num_layers);
    }
    return counts;
  };
  EXPECT_THAT(layers({}), ElementsAre(3, 3));
  EXPECT_THAT(layers({"model.num_layers_in_first_pipeline_stage=2"}), ElementsAre(2, 4));
  EXPECT_THAT(layers({"model.num_layers=7", "model.account_for_embedding_in_pipeline_split=true"}), ElementsAre(3, 4));
  EXPECT_THAT(layers({"model.pipeline_model_parallel_layout='Et|t*5,L'"}), ElementsAre(1, 5));
  EXPECT_THAT(
      layers({"model.num_layers=8", "model.virtual_pipeline_model_parallel_size=2", "train.global_batch_size=16"}),
      ElementsAre(2, 2, 2, 2));
}

TEST(Stages, SmallestWorldSize) {
  config::ModelConfig model;
  EXPECT_EQ(smallest_world_size(model), 1);
  model.tensor_model_parallel_size = 2;
  model.pipeline_model_parallel_size = 4;
  EXPECT_EQ(smallest_world_size(model), 8);
  model.expert_model_parallel_size = 8;
  model.expert_tensor_parallel_size = 1;
  EXPECT_EQ(smallest_world_size(model), 32);
}

TEST(Plan, StepsTokensAndFlops) {
  const config::ResolvedConfig resolved = read({"train.train_iters=50", "train.global_batch_size=32"});
  const Plan plan = make_plan(resolved, 1);
  EXPECT_EQ(plan.steps.iterations, 50);
  EXPECT_EQ(plan.steps.samples, 1600);
  EXPECT_EQ(plan.steps.tokens, 1600 * 256);
  EXPECT_EQ(plan.steps.num_microbatches, 4);
  EXPECT_DOUBLE_EQ(plan.flops.step, model::training_flops(resolved.config.model, 32));
  EXPECT_DOUBLE_EQ(plan.flops.total, 50 * plan.flops.step);
  EXPECT_DOUBLE_EQ(plan.flops.token, plan.flops.step / (32 * 256));
}

TEST(Plan, CountsEvaluationsAndCheckpoints) {
  const auto evaluations = [](std::vector<std::string> overrides) {
    overrides.insert(overrides.end(), {"train.train_iters=100", "validation.eval_iters=2"});
    return plan_of(std::move(overrides)).evaluations;
  };
  EXPECT_EQ(plan_of({}).evaluations.at_end, 0);
  EXPECT_EQ(evaluations({"validation.eval_interval=30"}).during_training, 3);
  EXPECT_EQ(evaluations({"validation.eval_interval=30", "validation.start_eval_at_iter=60"}).during_training, 2);
  EXPECT_EQ(evaluations({}).samples_each, 16);

  const auto checkpoints = [](std::vector<std::string> overrides) {
    overrides.emplace_back("train.train_iters=100");
    return plan_of(std::move(overrides)).checkpoint;
  };
  EXPECT_EQ(checkpoints({"checkpoint.save_interval=30"}).num_saves, 4);  // 30, 60, 90, 100
  EXPECT_EQ(checkpoints({"checkpoint.save_interval=30", "checkpoint.most_recent_k=2"}).num_kept, 2);
  EXPECT_EQ(checkpoints({}).num_saves, 1);
  EXPECT_EQ(checkpoints({"checkpoint.save_interval=0"}).num_saves, 0);  // saving is off
  EXPECT_EQ(checkpoints({"checkpoint.save_interval=0"}).num_kept, 0);
}

// A checkpoint of the declared model with zeroed moments, saved for real, has the planned number of bytes.
TEST_F(FolderTest, CheckpointSizeIsExact) {
  const config::ResolvedConfig resolved =
      read({"model.num_layers=2", "model.hidden_size=64", "model.ffn_hidden_size=96", "model.num_attention_heads=4",
            "model.vocab_size=101", "model.should_pad_vocab=true", "tokenizer.vocab_size=101"});
  const config::ModelConfig& model = resolved.config.model;
  const comm::Mesh mesh(1, {});
  model::Transformer transformer(model, model::whole_model(model), mesh, 0);
  transformer.materialize(at::kCPU, 1);
  checkpoint::Contents contents = checkpoint::weights_of(transformer.parameters());
  for (const char* kind : {"exp_avg", "exp_avg_sq"}) {
    for (auto* parameter : transformer.parameters())
      contents.push_back({.parameter = parameter, .kind = kind, .values = at::zeros_like(parameter->data)});
  }
  checkpoint::TrainState state;
  state.step = 50;
  checkpoint::SaveOptions options;
  options.save = folder;
  options.run_config_yaml = config::to_yaml(resolved);
  const auto saved = checkpoint::save(contents, state, options, mesh, 0);
  double bytes = 0;
  for (const auto& entry : fs::directory_iterator(saved.folder)) bytes += static_cast<double>(entry.file_size());
  EXPECT_EQ(make_plan(resolved, 1).checkpoint.size_bytes, bytes);
}

/// A header alone, as `pharos data prepare` writes it: uint16, 3 sequences in 2 documents.
void write_pair(const fs::path& prefix, std::size_t tokens) {
  std::string header("MMIDIDX\0\0", 9);
  const std::uint64_t version = 1, sequences = 3, boundaries = 3;
  header.append(reinterpret_cast<const char*>(&version), 8);
  header.push_back(8);
  header.append(reinterpret_cast<const char*>(&sequences), 8);
  header.append(reinterpret_cast<const char*>(&boundaries), 8);
  base::write_file_atomically(prefix.string() + ".idx", header);
  base::write_file_atomically(prefix.string() + ".bin", std::string(2 * tokens, '\0'));
}

TEST_F(FolderTest, EpochsFromHeaders) {
  const fs::path prefix = folder / "text";
  write_pair(prefix, 10'000);
  const std::vector<std::string> overrides{"dataset.data_path=" + prefix.string(), "dataset.split='80,10,10'",
                                           "train.train_iters=100"};
  const Plan plan = plan_of(overrides);
  ASSERT_EQ(plan.dataset.files.size(), 1U);
  EXPECT_TRUE(plan.dataset.files[0].found);
  EXPECT_EQ(plan.dataset.files[0].tokens, 10'000);
  EXPECT_EQ(plan.dataset.files[0].documents, 2);
  EXPECT_NEAR(*plan.dataset.files[0].epochs, 100 * 8 * 256 / 8000.0, 1e-9);
  base::write_file_atomically(prefix.string() + ".idx", "no index");
  EXPECT_THROW(plan_of(overrides), base::UserError);
  fs::remove(prefix.string() + ".idx");
  EXPECT_FALSE(plan_of(overrides).dataset.files[0].found);
  EXPECT_THAT(plan_of(overrides).notes, ElementsAre(HasSubstr(prefix.string())));
}

TEST(Plan, ReportsAllProblemsAtOnce) {
  try {
    read({"model.num_attention_heads=7", "train.global_batch_size=12"});
    FAIL();
  } catch (const config::ConfigErrors& errors) {
    EXPECT_THAT(errors.what(), HasSubstr("model.num_attention_heads"));
    EXPECT_THAT(errors.what(), HasSubstr("train.global_batch_size"));
    EXPECT_GE(errors.problems().size(), 2U);
  }
}

TEST(Render, TextAndJsonAgree) {
  const Plan plan = plan_of({"model.tensor_model_parallel_size=2", "train.global_batch_size=16"}, 4);
  const nlohmann::json json = to_json(plan, true);
  double sum = 0;
  for (const auto& [key, bytes] : json["memory"]["components"].items()) sum += bytes.get<double>();
  EXPECT_DOUBLE_EQ(json["memory"]["peak_bytes"].get<double>(), sum);
  EXPECT_EQ(json["parameters"]["total"], 27'367'936);
  EXPECT_EQ(json["layout"]["groups"]["tp"], nlohmann::json::parse("[[0,1],[2,3]]"));
  EXPECT_EQ(json["layout"]["groups"].size(), 2U);  // those of several ranks: tp and dp
  ASSERT_EQ(json["layout"]["ranks"].size(), 4U);
  EXPECT_EQ(json["layout"]["ranks"][3]["tp"], 1);
  EXPECT_EQ(json["layout"]["ranks"][3]["groups"], nlohmann::json::parse(R"({"tp": [2, 3], "dp": [1, 3]})"));
  double sent = 0;
  for (const auto& part : json["communication"]["parts"]) sent += part["bytes"].get<double>();
  EXPECT_GT(sent, 0);
  EXPECT_DOUBLE_EQ(json["communication"]["bytes_per_step"].get<double>(), sent);
  EXPECT_FALSE(to_json(plan, false)["layout"].contains("ranks"));
  const std::string text = render(plan, true);
  EXPECT_THAT(text, HasSubstr("27,367,936"));
  EXPECT_THAT(text, HasSubstr("tp groups: [0 1] [2 3]"));
  EXPECT_THAT(text, HasSubstr("rank 3: tp 1 dp 1; in groups tp [2 3] dp [1 3]"));
  EXPECT_THAT(text, HasSubstr("dp: gradients"));
  EXPECT_THAT(text, Not(HasSubstr("edp")));
  EXPECT_THAT(text, HasSubstr("Theoretical memory footprints: weight and optimizer="));
  EXPECT_THAT(text, Not(HasSubstr("none: checkpoint.save_interval")));
  EXPECT_THAT(render(plan_of({"checkpoint.save_interval=0"}), false), HasSubstr("none: checkpoint.save_interval = 0"));
}

}  // namespace
}  // namespace pharos::plan
