#include "pharos/hf/weights.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pharos/hf/test_support.h"
#include "pharos/model/transformer.h"

namespace pharos::hf {
namespace {

using test::error_of;
using test::fixture;
using test::FixtureCopy;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kNames[] = {"gpt2", "llama", "llama3_tied", "qwen2", "qwen3"};

/// The whole model of a folder, in float32, or the part of one tensor-parallel rank.
struct Loaded {
  Loaded(const std::filesystem::path& folder, std::int64_t tensor_parallel = 1, std::int64_t rank = 0,
         std::int64_t vocabulary_unit = 0, std::int64_t seq_length = 0)
      : mesh(tensor_parallel, {.tensor = tensor_parallel}), config(read_hf_config(folder).model) {
    config.params_dtype = config::DType::kFloat32;
    config.bf16 = config.fp16 = false;
    config.tensor_model_parallel_size = tensor_parallel;
    config.should_pad_vocab = vocabulary_unit > 0;
    if (vocabulary_unit > 0) config.make_vocab_size_divisible_by = vocabulary_unit;
    if (seq_length > 0) config.seq_length = seq_length;
    model = std::make_unique<model::Transformer>(config, model::whole_model(config), mesh, rank);
    model->materialize(at::kCPU, 1);
    load_weights(model->parameters(), folder, mesh, rank);
  }
  at::Tensor piece(const std::string& name) const {
    for (const auto* parameter : model->parameters()) {
      for (std::size_t i = 0; i < parameter->pieces.size(); ++i) {
        if (parameter->pieces[i].name == name)
          return tensor::piece_view(*parameter, parameter->data, i, mesh, model->rank());
      }
    }
    return {};
  }
  comm::Mesh mesh;
  config::ModelConfig config;
  std::unique_ptr<model::Transformer> model;
};

TEST(LoadWeights, PutsValuesWhereTheyBelong) {
  const Loaded gpt2(fixture("gpt2"));
  const checkpoint::SafetensorsSet set(fixture("gpt2"));
  const at::Tensor fused = set.view("transformer.h.1.attn.c_attn.weight");
  EXPECT_TRUE(at::equal(gpt2.piece("decoder.layers.1.self_attention.k.weight"), fused.narrow(1, 64, 64).t()));
  EXPECT_TRUE(at::equal(gpt2.piece("decoder.layers.0.mlp.linear_fc2.weight"),
                        set.view("transformer.h.0.mlp.c_proj.weight").t()));
  const Loaded qwen3(fixture("qwen3"));
  const checkpoint::SafetensorsSet qwen3_set(fixture("qwen3"));
  EXPECT_TRUE(
      at::equal(qwen3.piece("decoder.layers.1.mlp.up.weight"), qwen3_set.view("model.layers.1.mlp.up_proj.weight")));
  EXPECT_TRUE(at::equal(qwen3.piece("output_layer.weight"), qwen3_set.view("lm_head.weight")));
}

TEST(LoadWeights, RanksHoldTheirSlicesAndPaddingIsZero) {
  for (const char* name : kNames) {
    const Loaded whole(fixture(name));
    for (std::int64_t rank = 0; rank < 2; ++rank) {
      const Loaded part(fixture(name), 2, rank, 96);  // 256 tokens padded to 384: rank 1 has 64 rows and 128 of padding
      for (const auto* parameter : part.model->parameters()) {
        for (std::size_t i = 0; i < parameter->pieces.size(); ++i) {
          const tensor::Piece& piece = parameter->pieces[i];
          const tensor::Slice slice = tensor::local_slice(piece, part.mesh, rank);
          at::Tensor expected = whole.piece(piece.name);
          for (std::size_t axis = 0; axis < slice.shape.size(); ++axis)
            expected = expected.narrow(static_cast<std::int64_t>(axis), slice.offset[axis], slice.shape[axis]);
          EXPECT_TRUE(at::equal(tensor::piece_view(*parameter, parameter->data, i, part.mesh, rank), expected))
              << name << " " << piece.name;
          if (slice.padding_rows > 0) {
            EXPECT_EQ(parameter->data.detach().narrow(0, slice.shape[0], slice.padding_rows).abs().max().item<float>(),
                      0);
          }
        }
      }
    }
  }
}

// Stages load what they hold, the last one a copy of tied words; what another stage holds is no surplus, what none
// holds is.
TEST(LoadWeights, StagesHoldTheirPart) {
  const comm::Mesh mesh(2, {.pipeline = 2});
  for (const char* name : kNames) {
    const FixtureCopy copy(name);
    const Loaded whole(copy.path());
    std::vector<std::unique_ptr<model::Transformer>> stages;
    for (std::int64_t rank = 0; rank < 2; ++rank) {
      const model::Stage stage{rank, 1, rank == 0, rank == 1};
      stages.push_back(std::make_unique<model::Transformer>(whole.config, stage, mesh, rank));
      check_weights(stages.back()->parameters(), copy.path(), mesh, rank);
      stages.back()->allocate(at::kCPU);
      load_weights(stages.back()->parameters(), copy.path(), mesh, rank);
      for (const auto* parameter : stages.back()->parameters()) {
        for (std::size_t i = 0; i < parameter->pieces.size(); ++i) {
          EXPECT_TRUE(at::equal(tensor::piece_view(*parameter, parameter->data, i, mesh, rank),
                                whole.piece(parameter->pieces[i].name)))
              << name << " " << parameter->pieces[i].name;
        }
      }
    }
    const tensor::Parameter &first = *stages[0]->parameters().front(), &last = *stages[1]->parameters().back();
    const bool is_tied = whole.config.share_embeddings_and_output_weights;
    EXPECT_EQ(last.name, is_tied ? first.name : "output_layer.weight");
    EXPECT_EQ(last.tie, is_tied ? tensor::Parameter::Tie::kCopy : tensor::Parameter::Tie::kNone);
    copy.change_weights([](FixtureCopy::Weights& weights) { weights["surplus.weight"] = at::zeros({1}); });
    EXPECT_THAT(error_of([&] { check_weights(stages[0]->parameters(), copy.path(), mesh, 0); }),
                HasSubstr("1 not in the model: surplus.weight"));
  }
}

TEST(LoadWeights, TakesTheFirstOfMorePositions) {
  const Loaded shorter(fixture("gpt2"), 1, 0, 0, 16);
  EXPECT_TRUE(at::equal(shorter.piece("embedding.position_embeddings.weight"),
                        checkpoint::SafetensorsSet(fixture("gpt2")).view("transformer.wpe.weight").narrow(0, 0, 16)));
  EXPECT_THAT(error_of([] { Loaded(fixture("gpt2"), 1, 0, 0, 65); }),
              HasSubstr("wpe.weight (file [64, 64], model [65, 64])"));
}

TEST(LoadWeights, NamesEveryMisfitAtOnce) {
  const FixtureCopy copy("llama");
  copy.change_weights([](FixtureCopy::Weights& weights) {
    weights.erase("model.layers.0.mlp.up_proj.weight");
    weights.erase("lm_head.weight");
    weights["model.layers.7.mlp.up_proj.weight"] = at::zeros({1});
    weights["model.norm.weight"] = at::ones({63});
    weights["model.layers.1.input_layernorm.weight"] = at::ones({64}, at::kLong);
  });
  const std::string error = error_of([&] { Loaded{copy.path()}; });
  EXPECT_THAT(error, HasSubstr("2 missing in the files: model.layers.0.mlp.up_proj.weight, lm_head.weight"));
  EXPECT_THAT(error, HasSubstr("1 not in the model: model.layers.7.mlp.up_proj.weight"));
  EXPECT_THAT(error, HasSubstr("model.norm.weight (file [63], model [64])"));
  EXPECT_THAT(error, HasSubstr("has the type I64"));
}

TEST(LoadWeights, NamesWhatIsBeyondTheRangeOfHalf) {
  const FixtureCopy copy("llama");
  copy.change_weights([](FixtureCopy::Weights& weights) {
    for (const char* name : {"model.norm.weight", "model.layers.1.mlp.up_proj.weight"}) {
      weights[name] = weights[name].to(at::kFloat);
      weights[name].view(-1)[3] = 1e6;
    }
  });
  const Loaded wide(copy.path());
  for (auto* parameter : wide.model->parameters()) parameter->data = parameter->data.detach().to(at::kHalf);
  EXPECT_THAT(error_of([&] { load_weights(wide.model->parameters(), copy.path(), wide.mesh, 0); }),
              ::testing::AllOf(HasSubstr("decoder.final_layernorm.weight"), HasSubstr("decoder.layers.1.mlp.up.weight"),
                               Not(HasSubstr("layers.0"))));
}

TEST(LoadWeights, TiedModelsTakeAnEqualHeadOnly) {
  const FixtureCopy copy("llama3_tied");
  copy.change_weights(
      [](FixtureCopy::Weights& weights) { weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone(); });
  EXPECT_NO_THROW(const Loaded equal(copy.path()));
  copy.change_weights([](FixtureCopy::Weights& weights) { weights["lm_head.weight"][3][5] += 1e-3; });
  EXPECT_THAT(error_of([&] { Loaded{copy.path()}; }),
              HasSubstr("lm_head.weight differs from model.embed_tokens.weight"));
}

TEST(LoadWeights, LayersOfMultiTokenPredictionTakeEqualCopiesOnly) {
  const FixtureCopy copy("deepseek_v3");
  test::add_prediction_layer(copy);
  const auto check = [&] {
    const config::ModelConfig config = read_hf_config(copy.path()).model;
    const comm::Mesh mesh(1, {});
    model::Transformer model(config, model::whole_model(config), mesh, 0);
    return error_of([&] { check_weights(model.parameters(), copy.path(), mesh, 0); });
  };
  EXPECT_EQ(check(), "no error");
  copy.change_weights([](FixtureCopy::Weights& weights) {
    weights["model.layers.3.embed_tokens.weight"][3][5] += 1e-3;
    weights["model.layers.3.shared_head.head.weight"][3][5] += 1e-3;
  });
  EXPECT_THAT(check(), HasSubstr("model.layers.3.embed_tokens.weight differs from model.embed_tokens.weight"));
  EXPECT_THAT(check(), HasSubstr("model.layers.3.shared_head.head.weight differs from lm_head.weight"));
  copy.change_json("config.json", [](nlohmann::json& json) { json["num_nextn_predict_layers"] = 0; });
  EXPECT_EQ(check(), "no error") << "a model without such layers takes nothing of them";
}

TEST(LoadWeights, SkipsBuffersAndConvertsTypes) {
  const FixtureCopy copy("gpt2");
  const at::Tensor before = copy.weights().at("transformer.wte.weight");
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    copy.change_weights([&](FixtureCopy::Weights& weights) {
      weights["transformer.h.0.attn.bias"] = at::ones({1, 1, 64, 64}, at::kByte);
      weights["transformer.h.0.attn.masked_bias"] = at::full({}, -1e4f);
      weights["transformer.wte.weight"] = before.to(type);
    });
    EXPECT_TRUE(
        at::equal(Loaded(copy.path()).piece("embedding.word_embeddings.weight"), before.to(type).to(at::kFloat)));
  }
}

TEST(LoadWeights, DamagedFileIsNamed) {
  const FixtureCopy copy("qwen2");
  std::filesystem::resize_file(copy.path() / "model.safetensors", 1000);
  EXPECT_THAT(error_of([&] { Loaded{copy.path()}; }), HasSubstr("model.safetensors, byte 1000"));
  std::filesystem::remove(copy.path() / "model.safetensors");
  std::filesystem::remove(copy.path() / "oracle.safetensors");
  EXPECT_THAT(error_of([&] { Loaded{copy.path()}; }), HasSubstr("holds no *.safetensors file"));
}

}  // namespace
}  // namespace pharos::hf
