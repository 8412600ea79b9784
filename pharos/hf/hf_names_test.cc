#include "pharos/hf/hf_names.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "pharos/hf/families/family.h"
#include "pharos/hf/test_support.h"
#include "pharos/hf/weights.h"
#include "pharos/model/stages.h"
#include "pharos/model/transformer.h"

namespace pharos::hf {
namespace {

using checkpoint::SafetensorsSet;
using test::error_of;
using test::fixture;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A model on the meta device, for its pieces.
struct Declared {
  explicit Declared(const HfModel& hf)
      : mesh(1, {}), model(hf.model, model::whole_model(hf.model), mesh, 0), table(name_table(hf)) {
    for (const auto* parameter : model.parameters()) {
      for (const auto& piece : parameter->pieces) pieces.push_back(&piece);
    }
  }
  comm::Mesh mesh;
  model::Transformer model;
  NameTable table;
  std::vector<const tensor::Piece*> pieces;
};

NameTable table_of(const std::string& family, std::int64_t layers, std::optional<std::int64_t> predicting = {}) {
  HfModel hf{&find_family(family), {}};
  hf.model.num_layers = layers;
  hf.model.mtp_num_layers = predicting;
  return name_table(hf);
}

tensor::Slice whole(const std::vector<std::int64_t>& shape) {
  return {std::vector<std::int64_t>(shape.size(), 0), shape};
}

at::Tensor read(const SafetensorsSet& set, const Location& location, const std::vector<std::int64_t>& shape,
                const tensor::Slice& slice) {
  const at::Tensor target = at::full(slice.shape, std::nan(""));
  read_piece(set, location, shape, slice, target);
  return target;
}

class EveryFixture : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Hf, EveryFixture, ::testing::ValuesIn(test::kFixtures));

/// Names and shapes of what would be written are those of the file, no more and no fewer.
TEST_P(EveryFixture, StoredTensorsAreThoseOfTheFile) {
  const HfModel hf = read_hf_config(fixture(GetParam()));
  const SafetensorsSet set(fixture(GetParam()));
  const Declared declared(hf);
  std::set<std::string> written;
  for (const StoredTensor& stored : stored_tensors(declared.table, declared.pieces)) {
    const auto* entry = set.find(stored.name);
    ASSERT_NE(entry, nullptr) << stored.name;
    EXPECT_EQ(entry->shape, stored.shape) << stored.name;
    EXPECT_TRUE(written.insert(stored.name).second) << stored.name;
    EXPECT_TRUE(is_known_tensor(declared.table, stored.name, true)) << stored.name;
    EXPECT_FALSE(is_ignorable(declared.table, stored.name, true)) << stored.name;
  }
  for (const std::string& name : set.names()) EXPECT_TRUE(written.contains(name)) << name;
  EXPECT_FALSE(is_known_tensor(declared.table, set.names().back() + "x", true));
}

/// Every tensor read into pieces and put together again is what it was.
TEST_P(EveryFixture, PiecesPutTogetherAreTheFile) {
  const SafetensorsSet set(fixture(GetParam()));
  const Declared declared(read_hf_config(fixture(GetParam())));
  std::vector<at::Tensor> values;
  for (const auto* piece : declared.pieces) {
    const Location location = *locate(declared.table, piece->name, true);
    values.push_back(read(set, location, piece->shape, whole(piece->shape)));
    ASSERT_EQ(values.back().sizes().vec(), piece->shape) << piece->name;
  }
  for (const StoredTensor& stored : stored_tensors(declared.table, declared.pieces)) {
    const at::Tensor original = set.view(stored.name);
    const at::Tensor written = at::full(stored.shape, std::nan(""), original.options());
    for (const auto& [piece, fragment] : stored.sources) {
      at::Tensor target = written, source = values[piece];
      for (std::size_t axis = 0; axis < fragment.stored.shape.size(); ++axis)
        target =
            target.narrow(static_cast<std::int64_t>(axis), fragment.stored.offset[axis], fragment.stored.shape[axis]);
      for (std::size_t axis = 0; axis < fragment.piece.shape.size(); ++axis)
        source =
            source.narrow(static_cast<std::int64_t>(axis), fragment.piece.offset[axis], fragment.piece.shape[axis]);
      as_piece(target, fragment).copy_(source);
    }
    EXPECT_TRUE(at::equal(written, original)) << stored.name;
  }
}

/// A rank's part of a piece is that part of the whole.
TEST_P(EveryFixture, SlicesAreSlicesOfThePiece) {
  const SafetensorsSet set(fixture(GetParam()));
  const Declared declared(read_hf_config(fixture(GetParam())));
  for (const auto* piece : declared.pieces) {
    const Location location = *locate(declared.table, piece->name, true);
    const at::Tensor all = read(set, location, piece->shape, whole(piece->shape));
    tensor::Slice slice = whole(piece->shape);
    at::Tensor expected = all;
    for (std::size_t axis = 0; axis < slice.shape.size(); ++axis) {
      slice.offset[axis] = piece->shape[axis] / 4;
      slice.shape[axis] = piece->shape[axis] / 2;
      expected = expected.narrow(static_cast<std::int64_t>(axis), slice.offset[axis], slice.shape[axis]);
    }
    EXPECT_TRUE(at::equal(read(set, location, piece->shape, slice), expected)) << piece->name;
  }
}

TEST(HfNames, Gpt2BlocksAreTransposedParts) {
  const Location v = *locate(table_of("gpt2", 4), "decoder.layers.3.self_attention.v.weight", true);
  EXPECT_EQ(v.tensor, "transformer.h.3.attn.c_attn.weight");
  EXPECT_EQ(v.tensor_shape({64, 32}), (std::vector<std::int64_t>{32, 192}));
  const auto fragments = v.fragments({{16, 0}, {8, 32}, 0}, {64, 32});
  ASSERT_EQ(fragments.size(), 1u);
  EXPECT_THAT(fragments[0].stored.offset, ElementsAre(0, 144));
  EXPECT_THAT(fragments[0].stored.shape, ElementsAre(32, 8));
}

TEST(HfNames, ExpertsHaveATensorEach) {
  const Location gate = *locate(table_of("mixtral", 2), "decoder.layers.1.mlp.experts.gate.weight", true);
  EXPECT_TRUE(gate.is_per_expert());
  EXPECT_EQ(gate.tensor_shape({8, 96, 64}), (std::vector<std::int64_t>{96, 64}));
  const auto fragments = gate.fragments({{4, 32, 0}, {2, 16, 64}, 0}, {8, 96, 64});
  ASSERT_EQ(fragments.size(), 2u);
  EXPECT_EQ(fragments[1].tensor, "model.layers.1.block_sparse_moe.experts.5.w1.weight");
  EXPECT_THAT(fragments[1].stored.offset, ElementsAre(32, 0));
  EXPECT_THAT(fragments[1].piece.offset, ElementsAre(5, 32, 0));
  EXPECT_THAT(fragments[1].piece.shape, ElementsAre(1, 16, 64));
}

TEST(HfNames, StackedExpertsAlternateGateAndUp) {
  const Location up = *locate(table_of("gpt_oss", 2), "decoder.layers.0.mlp.experts.up.weight", true);
  EXPECT_FALSE(up.is_per_expert());
  EXPECT_EQ(up.tensor_shape({4, 8, 3}), (std::vector<std::int64_t>{4, 3, 16}));
  const Fragment fragment = up.fragments({{1, 2, 0}, {2, 4, 3}, 0}, {4, 8, 3}).at(0);
  EXPECT_THAT(fragment.stored.offset, ElementsAre(1, 0, 4));
  EXPECT_THAT(fragment.stored.shape, ElementsAre(2, 3, 8));
  const at::Tensor stored = at::arange(4 * 3 * 16).view({4, 3, 16});
  const at::Tensor part = as_piece(stored.narrow(0, 1, 2).narrow(2, 4, 8), fragment);
  EXPECT_TRUE(at::equal(part, stored.slice(2, 1, std::nullopt, 2).transpose(1, 2).narrow(0, 1, 2).narrow(1, 2, 4)));
}

TEST(HfNames, ABiasOfTheChoiceStaysInFp32) {
  const NameTable table = table_of("deepseek_v3", 2);
  EXPECT_TRUE(locate(table, "decoder.layers.1.mlp.router.expert_bias", true)->is_fp32);
  EXPECT_FALSE(locate(table, "decoder.layers.1.mlp.router.weight", true)->is_fp32);
}

TEST(HfNames, PredictionLayersFollowTheDecoder) {
  const NameTable table = table_of("deepseek_v3", 61, 1);
  EXPECT_EQ(locate(table, "mtp.layers.0.eh_proj.weight", true)->tensor, "model.layers.61.eh_proj.weight");
  EXPECT_EQ(locate(table, "mtp.layers.0.final_layernorm.weight", true)->tensor,
            "model.layers.61.shared_head.norm.weight");
  EXPECT_EQ(locate(table, "mtp.layers.0.mtp_model_layer.mlp.experts.up.weight", true)->tensor,
            "model.layers.61.mlp.experts.{e}.up_proj.weight");
  EXPECT_TRUE(is_known_tensor(table, "model.layers.61.hnorm.weight", true));
  EXPECT_FALSE(is_known_tensor(table, "model.layers.60.hnorm.weight", true));
  EXPECT_FALSE(is_known_tensor(table, "model.layers.62.hnorm.weight", true));
  EXPECT_TRUE(is_ignorable(table, "model.layers.61.embed_tokens.weight", true));
  EXPECT_TRUE(is_ignorable(table, "model.layers.61.shared_head.head.weight", true));
  EXPECT_FALSE(is_ignorable(table, "model.layers.61.hnorm.weight", true));
  const NameTable without = table_of("deepseek_v3", 61);
  EXPECT_TRUE(is_ignorable(without, "model.layers.61.hnorm.weight", true));
  EXPECT_FALSE(is_ignorable(without, "model.layers.60.hnorm.weight", true));
  EXPECT_FALSE(is_ignorable(table_of("llama", 2), "model.layers.2.mlp.up_proj.weight", true));
}

TEST(HfNames, CopiesOfEmbeddingAndHeadAreWrittenForPredictionLayers) {
  HfModel hf = read_hf_config(fixture("deepseek_v3"));
  hf.model.mtp_num_layers = 1;
  const Declared declared(hf);
  const std::vector<StoredTensor> stored = stored_tensors(declared.table, declared.pieces);
  const std::string layer = "model.layers." + std::to_string(*hf.model.num_layers) + ".";
  std::set<std::string> names;
  for (const StoredTensor& tensor : stored) names.insert(tensor.name);
  for (const char* part : {"embed_tokens.weight", "shared_head.head.weight", "enorm.weight", "hnorm.weight",
                           "eh_proj.weight", "shared_head.norm.weight", "self_attn.kv_b_proj.weight",
                           "mlp.gate.e_score_correction_bias", "mlp.experts.3.down_proj.weight"})
    EXPECT_TRUE(names.contains(layer + part)) << part;
  EXPECT_EQ(stored.back().name, layer + "shared_head.head.weight");
}

TEST(HfNames, AnnouncedPredictionLayersThatAreNotStoredAreDropped) {
  HfModel hf{&find_family("deepseek_v3"), {}};
  hf.model.num_layers = 61;
  hf.model.mtp_num_layers = 1;
  HfModel kept = hf;
  drop_absent_prediction_layers(kept,
                                {"lm_head.weight", "model.layers.60.mlp.gate.weight", "model.layers.61.enorm.weight"});
  EXPECT_EQ(kept.model.mtp_num_layers, 1);
  drop_absent_prediction_layers(hf, {"lm_head.weight", "model.layers.60.mlp.gate.weight"});
  EXPECT_EQ(hf.model.mtp_num_layers, std::nullopt);
}

TEST(HfNames, LayersOutsideTheModelAndBuffers) {
  const NameTable llama = table_of("llama", 2);
  EXPECT_TRUE(is_known_tensor(llama, "model.layers.1.mlp.up_proj.weight", true));
  EXPECT_FALSE(is_known_tensor(llama, "model.layers.2.mlp.up_proj.weight", true));
  EXPECT_FALSE(is_known_tensor(llama, "model.layers.01.mlp.up_proj.weight", true));
  EXPECT_FALSE(is_known_tensor(llama, "model.layers..mlp.up_proj.weight", true));
  EXPECT_TRUE(is_ignorable(llama, "model.layers.1.self_attn.rotary_emb.inv_freq", true));
  EXPECT_TRUE(is_ignorable(table_of("gpt2", 12), "h.11.attn.bias", false));
  EXPECT_FALSE(is_ignorable(table_of("gpt2", 12), "h.11.attn.c_attn.bias", false));
}

TEST(HfNames, NamesEveryPieceThatAFamilyLacks) {
  const HfModel qwen3 = read_hf_config(fixture("qwen3"));
  const Declared declared(qwen3);
  const NameTable llama = name_table({&find_family("llama"), qwen3.model});
  const std::string error = error_of([&] { stored_tensors(llama, declared.pieces); });
  EXPECT_THAT(error, HasSubstr("4 weights"));
  EXPECT_THAT(error, HasSubstr("decoder.layers.1.self_attention.k_layernorm.weight"));
}

}  // namespace
}  // namespace pharos::hf
