// From Hugging Face folders into checkpoints and back.
#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "pharos/checkpoint/checkpoint.h"
#include "pharos/hf/test_support.h"
#include "pharos/hf/transfer/compare_tensors.h"
#include "pharos/hf/transfer/export.h"
#include "pharos/hf/transfer/import.h"
#include "pharos/hf/transfer/new_folder.h"
#include "pharos/hf/transfer/whole_model.h"
#include "pharos/hf/weights.h"

namespace pharos::hf {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::fixture;
using test::FixtureCopy;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

/// A folder for results, beside which temporary ones appear.
class Workplace {
 public:
  Workplace() {
    static int count = 0;
    path_ =
        fs::temp_directory_path() / ("pharos_transfer_" + std::to_string(::getpid()) + "_" + std::to_string(count++));
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  ~Workplace() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  fs::path operator/(const std::string& name) const { return path_ / name; }
  std::vector<std::string> entries() const {
    std::vector<std::string> names;
    for (const auto& item : fs::directory_iterator(path_)) names.push_back(item.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  fs::path path_;
};

std::vector<std::string> fixtures() {
  std::vector<std::string> names;
  for (const auto& item : fs::directory_iterator(fixture(""))) {
    if (item.is_directory()) names.push_back(item.path().filename().string());
  }
  return names;
}

std::string differences(const fs::path& first, const fs::path& second, std::optional<double> tolerance = {}) {
  return render_differences(compare_tensors(first, second, tolerance));
}

TEST(HfTransfer, ImportAndExportAreTheInverseOfEachOther) {
  for (const std::string& name : fixtures()) {
    const Workplace place;
    const TransferResult in = import_folder({fixture(name), place / "checkpoint"});
    EXPECT_TRUE(checkpoint::verify(place / "checkpoint/iter_0000000").problems.empty()) << name;
    const TransferResult out = export_checkpoint({.checkpoint = place / "checkpoint", .target = place / "again"});
    EXPECT_EQ(in.family, out.family);
    EXPECT_TRUE(compare_tensors(fixture(name), place / "again").same())
        << name << differences(fixture(name), place / "again");
    EXPECT_EQ(base::read_json_file(fixture(name) / "config.json"), base::read_json_file(place / "again/config.json"))
        << name;
    const checkpoint::SafetensorsSet before(fixture(name)), after(place / "again");
    for (const std::string& tensor : before.names()) EXPECT_EQ(before.file_name_of(tensor), after.file_name_of(tensor));
    EXPECT_THAT(place.entries(), ElementsAre("again", "checkpoint"));
  }
}

TEST(HfTransfer, WithoutItsSourceAModelIsDescribedAnew) {
  for (const std::string& name : fixtures()) {
    const Workplace place;
    {
      const FixtureCopy source(name);
      import_folder({source.path(), place / "checkpoint"});
    }
    const TransferResult out = export_checkpoint({.checkpoint = place / "checkpoint", .target = place / "again"});
    ASSERT_EQ(out.warnings.size(), 1u);
    EXPECT_THAT(out.warnings[0], HasSubstr("is not here"));
    EXPECT_TRUE(compare_tensors(fixture(name), place / "again").same())
        << name << differences(fixture(name), place / "again");
    const auto hidden = [](const fs::path& folder) {
      return to_hf_config({read_hf_config(folder).family, read_hf_config(folder).model});
    };
    nlohmann::json before = hidden(fixture(name)), after = hidden(place / "again");
    for (nlohmann::json* config : {&before, &after}) {  // another family may hold the same model
      config->erase("model_type");
      config->erase("architectures");
    }
    EXPECT_EQ(before, after) << name;
  }
}

TEST(HfTransfer, FilesAreAsLargeAsAllowed) {
  const Workplace place;
  import_folder({fixture("llama"), place / "checkpoint"});
  const TransferResult out =
      export_checkpoint({.checkpoint = place / "checkpoint", .target = place / "out", .max_shard_bytes = 60'000});
  EXPECT_GT(out.num_files, 2u);
  std::size_t files = 0;
  for (const auto& item : fs::directory_iterator(place / "out")) {
    if (item.path().extension() != ".safetensors") continue;
    ++files;
    const checkpoint::SafetensorsFile file(item.path());
    EXPECT_TRUE(file.header().tensors.size() == 1 || file.header().tensors.back().end_bytes <= 60'000);
    EXPECT_EQ(file.header().metadata.at("format"), "pt");
  }
  EXPECT_EQ(files, out.num_files);
  EXPECT_EQ(base::read_json_file(place / "out/model.safetensors.index.json")["metadata"]["total_size"], out.size_bytes);
  EXPECT_TRUE(compare_tensors(fixture("llama"), place / "out").same());
}

TEST(HfTransfer, ConvertsTheTypeOfWeightsAndSaysSo) {
  const Workplace place;
  import_folder({fixture("qwen3"), place / "checkpoint"});
  export_checkpoint({.checkpoint = place / "checkpoint", .target = place / "half", .dtype = config::DType::kBFloat16});
  const checkpoint::SafetensorsSet half(place / "half"), whole(fixture("qwen3"));
  for (const std::string& name : whole.names())
    EXPECT_TRUE(at::equal(half.view(name), whole.view(name).to(at::kBFloat16)));
  EXPECT_EQ(read_hf_config(place / "half").model.params_dtype, config::DType::kBFloat16);
  EXPECT_FALSE(compare_tensors(fixture("qwen3"), place / "half").same());
  EXPECT_EQ(differences(fixture("qwen3"), place / "half", 0.02).substr(0, 3), "All");
}

TEST(HfTransfer, ValuesBeyondTheTypeAreRefused) {
  const Workplace place;
  const FixtureCopy source("llama");
  source.change_weights([](FixtureCopy::Weights& weights) { weights.at("model.norm.weight")[3] = -1e6; });
  import_folder({source.path(), place / "checkpoint"});
  ExportOptions options{.checkpoint = place / "checkpoint", .target = place / "out", .dtype = config::DType::kFloat16};
  EXPECT_THAT(error_of([&] { export_checkpoint(options); }),
              HasSubstr("'model.norm.weight' holds values that are infinite in F16"));
  EXPECT_THAT(place.entries(), ElementsAre("checkpoint"));
  options.dtype = config::DType::kBFloat16;
  export_checkpoint(options);
}

TEST(HfTransfer, EveryTensorKeepsTheTypeItCameIn) {
  const std::string bias = "model.layers.1.mlp.gate.e_score_correction_bias";
  const Workplace place;
  const FixtureCopy source("deepseek_v3");
  for (const auto type : {at::kBFloat16, at::kHalf, at::kDouble}) {
    source.change_weights([&](FixtureCopy::Weights& weights) {
      weights.at(bias) = weights.at(bias).to(type);
      at::Tensor& norm = weights.at("model.norm.weight");
      norm = norm.to(type);
    });
    import_folder({source.path(), place / "checkpoint", true});
    export_checkpoint({.checkpoint = place / "checkpoint", .target = place / "out", .replaces = true});
    EXPECT_TRUE(compare_tensors(source.path(), place / "out").same()) << differences(source.path(), place / "out");
  }
  export_checkpoint({.checkpoint = place / "checkpoint", .target = place / "half", .dtype = config::DType::kBFloat16});
  EXPECT_EQ(checkpoint::SafetensorsSet(place / "half").find(bias)->type, checkpoint::ElementType::kF32);
}

TEST(HfTransfer, PredictionLayersAreImportedOrNamed) {
  const Workplace place;
  const FixtureCopy source("deepseek_v3");
  test::add_prediction_layer(source);
  for (const bool is_announced : {true, false}) {
    source.change_json("config.json",
                       [&](nlohmann::json& json) { json["num_nextn_predict_layers"] = is_announced ? 1 : 0; });
    const TransferResult in = import_folder({source.path(), place / "checkpoint", true});
    EXPECT_EQ(in.warnings.size(), is_announced ? 0u : 1u);
    if (!is_announced) {
      EXPECT_THAT(in.warnings.at(0), HasSubstr("config.json does not announce"));
    }
    export_checkpoint({.checkpoint = place / "checkpoint", .target = place / "out", .replaces = true});
    EXPECT_TRUE(compare_tensors(source.path(), place / "out").same()) << differences(source.path(), place / "out");
  }
}

TEST(HfTransfer, ExpertsOfSeveralTypesAreNamed) {
  const std::string expert = "model.layers.0.mlp.experts.2.up_proj.weight";
  const Workplace place;
  const FixtureCopy source("qwen3_moe");
  source.change_weights([&](FixtureCopy::Weights& weights) { weights.at(expert) = weights.at(expert).to(at::kHalf); });
  const TransferResult in = import_folder({source.path(), place / "checkpoint"});
  ASSERT_EQ(in.warnings.size(), 1u);
  EXPECT_THAT(in.warnings[0], HasSubstr("model.layers.0.mlp.experts.{e}.up_proj.weight have several types (F16, F32)"));
  export_checkpoint({.checkpoint = place / "checkpoint", .target = place / "out"});
  EXPECT_TRUE(compare_tensors(source.path(), place / "out", 0.0).same());
}

TEST(HfTransfer, Fp32IsTakenFromTheOptimizerWhereItIs) {
  const Workplace place;
  const HfModel hf = read_hf_config(fixture("qwen3_bfloat16"));
  const auto model = declare_whole(hf.model);
  model->materialize(at::kCPU, 3);
  checkpoint::Contents contents = checkpoint::weights_of(model->parameters());
  for (tensor::Parameter* parameter : model->parameters())
    contents.push_back({parameter, "main_param", parameter->data.detach().to(at::kFloat) + 1e-6});
  import_folder({fixture("qwen3_bfloat16"), place / "imported"});
  checkpoint::save(
      contents, {.step = 7},
      {.save = place / "run", .run_config_yaml = base::read_file(place / "imported/iter_0000000/run_config.yaml")},
      model->mesh(), 0);
  export_checkpoint({.checkpoint = place / "run", .target = place / "fp32", .dtype = config::DType::kFloat32});
  export_checkpoint({.checkpoint = place / "run", .target = place / "bf16"});
  const at::Tensor words = model->parameters().front()->data.detach();
  EXPECT_TRUE(at::equal(checkpoint::SafetensorsSet(place / "bf16").view("model.embed_tokens.weight"), words));
  EXPECT_TRUE(at::equal(checkpoint::SafetensorsSet(place / "fp32").view("model.embed_tokens.weight"),
                        words.to(at::kFloat) + 1e-6));
}

TEST(HfTransfer, WhatTheSourceHasBesideTheModelIsKept) {
  const Workplace place;
  const FixtureCopy gpt2("gpt2"), tied("llama3_tied"), headless("gpt2");
  gpt2.change_weights([](FixtureCopy::Weights& weights) {
    weights["transformer.h.0.attn.bias"] = at::ones({1, 1, 64, 64}, at::kByte);
    weights["transformer.h.0.attn.masked_bias"] = at::full({}, -1e4f);
  });
  tied.change_weights(
      [](FixtureCopy::Weights& weights) { weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone(); });
  headless.change_weights([](FixtureCopy::Weights& weights) {
    FixtureCopy::Weights renamed;
    for (const auto& [name, tensor] : weights) renamed[name.substr(std::string("transformer.").size())] = tensor;
    weights = renamed;
  });
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "merges.txt", "generation_config.json",
                           "chat_template.jinja", "modeling_own.py", "README.md", "pytorch_model.bin", "optimizer.pt"})
    std::ofstream(gpt2.path() / name) << name;
  for (const FixtureCopy* source : {&gpt2, &tied, &headless}) {
    const std::string name = source->path().filename().string();
    import_folder({source->path(), place / name});
    const TransferResult out = export_checkpoint({.checkpoint = place / name, .target = place / (name + ".out")});
    EXPECT_TRUE(compare_tensors(source->path(), place / (name + ".out")).same())
        << differences(source->path(), place / (name + ".out"));
    if (source == &gpt2) {
      EXPECT_THAT(out.copied, ElementsAre("chat_template.jinja", "generation_config.json", "merges.txt",
                                          "modeling_own.py", "tokenizer.json", "tokenizer_config.json"));
      EXPECT_EQ(base::read_file(place / (name + ".out/modeling_own.py")), "modeling_own.py");
    }
  }
}

TEST(HfTransfer, OnlyWhatDiffersChangesInTheConfig) {
  const Workplace place;
  const FixtureCopy source("llama");
  source.change_json("config.json", [](nlohmann::json& json) { json["our_own_key"] = {1, 2}; });
  import_folder({source.path(), place / "checkpoint"});
  export_checkpoint({.checkpoint = place / "checkpoint", .target = place / "out", .dtype = config::DType::kFloat16});
  nlohmann::json before = base::read_json_file(source.path() / "config.json"),
                 after = base::read_json_file(place / "out/config.json");
  const char* key = before.contains("dtype") ? "dtype" : "torch_dtype";
  EXPECT_EQ(after[key], "float16");
  after[key] = before[key];
  EXPECT_EQ(before, after);
}

TEST(HfTransfer, NothingIsOverwrittenUnasked) {
  const Workplace place;
  import_folder({fixture("llama"), place / "checkpoint"});
  const ExportOptions options{.checkpoint = place / "checkpoint", .target = place / "out"};
  fs::create_directory(place / "out");
  export_checkpoint(options);  // an empty folder is free
  EXPECT_THAT(error_of([&] { export_checkpoint(options); }), HasSubstr("is not empty"));
  ExportOptions forced = options;
  forced.replaces = true;
  std::ofstream(place / "out/left_over.safetensors") << "x";
  export_checkpoint(forced);
  EXPECT_FALSE(fs::exists(place / "out/left_over.safetensors"));
  fs::create_directory(place / "precious");
  std::ofstream(place / "precious/notes") << "x";
  forced.target = place / "precious";
  EXPECT_THAT(error_of([&] { export_checkpoint(forced); }), HasSubstr("replaces an earlier result only"));
  EXPECT_TRUE(fs::exists(place / "precious/notes"));
  EXPECT_THAT(error_of([&] {
                import_folder({fixture("llama"), place / "precious", true});
              }),
              HasSubstr("earlier result only"));
  const FixtureCopy source("llama");
  ExportOptions onto_source{
      .checkpoint = place / "checkpoint", .target = source.path(), .source = source.path(), .replaces = true};
  EXPECT_THAT(error_of([&] { export_checkpoint(onto_source); }), HasSubstr("would be replaced while it is read"));
  onto_source.target = place / "checkpoint";
  EXPECT_THAT(error_of([&] { export_checkpoint(onto_source); }), HasSubstr("would be replaced while it is read"));
  EXPECT_THAT(place.entries(), ElementsAre("checkpoint", "out", "precious"));
}

TEST(HfTransfer, RelativePathsAreThoseOfTheWorkingFolder) {
  const Workplace place;
  const fs::path before = fs::current_path();
  fs::current_path(place / "");
  const std::string in = error_of([] { import_folder({fixture("llama"), "checkpoint"}); });
  const std::string out = error_of([] { export_checkpoint({.checkpoint = "checkpoint", .target = "out"}); });
  const std::string around = error_of([] {
    export_checkpoint(
        {.checkpoint = "checkpoint", .target = "../" + fs::current_path().filename().string(), .replaces = true});
  });
  fs::current_path(before);
  EXPECT_EQ(in, "no error");
  EXPECT_EQ(out, "no error");
  EXPECT_THAT(around, HasSubstr("would be replaced while it is read"));
  EXPECT_THAT(place.entries(), ElementsAre("checkpoint", "out"));
}

TEST(HfTransfer, TheSecondOfTwoAtOnceFails) {
  const Workplace place;
  const auto is_replaceable = [](const fs::path&) { return true; };
  for (const bool replaces : {false, true}) {
    NewFolder second(place / "out", replaces, is_replaceable);
    std::ofstream(second.path() / "of") << "second";
    fs::create_directories(place / "out");  // what the first has finished meanwhile
    std::ofstream(place / "out/of") << "first";
    const std::string error = error_of([&] { second.finish(); });
    EXPECT_THAT(error, HasSubstr(replaces ? "no error" : "Another process has written there in the meantime"));
    EXPECT_EQ(base::read_file(place / "out/of"), replaces ? "second" : "first");
  }
  EXPECT_THAT(place.entries(), ElementsAre("out"));
}

TEST(HfTransfer, WhatKilledOnesLeftGoes) {
  const Workplace place;
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);  // a process id that is not running any more
  const std::string dead = std::to_string(child), alive = std::to_string(::getppid());
  for (const std::string& name : {"out.tmp." + dead, "out.old.tmp." + dead, "out.tmp." + alive, "other.tmp." + dead}) {
    fs::create_directories(place / name);
    std::ofstream(place / name / "model.safetensors") << "x";
  }
  import_folder({fixture("llama"), place / "out"});
  EXPECT_THAT(place.entries(), UnorderedElementsAre("out", "out.tmp." + alive, "other.tmp." + dead));
}

TEST(HfTransfer, AFullDiskLeavesNothingBehind) {
  const Workplace place;
  import_folder({fixture("llama"), place / "checkpoint"});
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{30'000, before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  const std::string out =
      error_of([&] { export_checkpoint({.checkpoint = place / "checkpoint", .target = place / "out"}); });
  const std::string in = error_of([&] { import_folder({fixture("llama"), place / "in"}); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_THAT(out, HasSubstr("Cannot write '"));
  EXPECT_THAT(in, HasSubstr("Cannot write '"));
  EXPECT_THAT(place.entries(), ElementsAre("checkpoint"));
}

TEST(HfTransfer, NamesWhatDoesNotFit) {
  const Workplace place;
  EXPECT_THAT(error_of([&] { export_checkpoint({.checkpoint = place / "none", .target = place / "out"}); }),
              HasSubstr("There is no checkpoint"));
  import_folder({fixture("llama"), place / "checkpoint"});
  const auto with = [&](std::optional<fs::path> source, std::optional<std::string> family) {
    return error_of([&] {
      export_checkpoint(
          {.checkpoint = place / "checkpoint", .target = place / "out", .source = source, .family = family});
    });
  };
  EXPECT_THAT(with(std::nullopt, "no_such_family"), HasSubstr("llama"));
  EXPECT_THAT(with(std::nullopt, "gpt2"), HasSubstr("gpt2 is not that of"));
  EXPECT_NE(with(fixture("qwen3"), std::nullopt), "no error");
  const FixtureCopy deeper("llama");
  deeper.change_weights(
      [](FixtureCopy::Weights& weights) { weights["model.layers.7.input_layernorm.weight"] = at::ones({64}); });
  EXPECT_THAT(with(deeper.path(), std::nullopt), HasSubstr("The model has no model.layers.7.input_layernorm.weight"));
  EXPECT_THAT(error_of([&] { import_folder({deeper.path(), place / "in"}); }), HasSubstr("1 not in the model"));
  EXPECT_THAT(place.entries(), ElementsAre("checkpoint"));
}

TEST(CompareTensors, NamesEveryKindOfDifference) {
  const Workplace place;
  const at::Tensor large = at::arange(600'000, at::kFloat).view({600, 1000}), other = large.clone();
  other[599][999] += 1;
  other[2][5] = std::nan("");
  const auto save = [&](const char* name, const checkpoint::NamedTensors& tensors) {
    checkpoint::write_safetensors(place / name, tensors);
    return place / name;
  };
  const fs::path a = save("a", {{"both", at::ones({2})},
                                {"first", at::ones({1})},
                                {"shape", at::ones({2, 3})},
                                {"type", at::ones({2})},
                                {"values", large}});
  const fs::path b = save("b", {{"both", at::ones({2})},
                                {"second", at::ones({1})},
                                {"shape", at::ones({3, 2})},
                                {"type", at::ones({2}, at::kHalf)},
                                {"values", other}});
  EXPECT_EQ(differences(a, a), "All 5 tensors (2.29 MiB) are the same.\n");
  const std::string text = differences(a, b);
  for (const char* line :
       {"first: only in the first\n", "second: only in the second\n", "shape: shape [2, 3] and [3, 2]\n",
        "type: type F32 and F16\n", "values: 2 values differ, the first at [2, 5], by at most nan\n",
        "5 differences; 4 tensors"})
    EXPECT_THAT(text, HasSubstr(line));
  EXPECT_EQ(to_json(compare_tensors(a, b))["ok"], false);
  const fs::path c = save("c", {{"x", at::full({3}, std::nan(""))}, {"zero", at::zeros({1})}});
  const fs::path d = save("d", {{"x", at::full({3}, -std::nan(""))}, {"zero", -at::zeros({1})}});
  EXPECT_FALSE(compare_tensors(c, d).same()) << "bits count";
  EXPECT_TRUE(compare_tensors(c, d, 0.0).same());
  EXPECT_TRUE(
      compare_tensors(save("e", {{"x", at::zeros({2})}}), save("f", {{"x", at::full({2}, 0.5, at::kBFloat16)}}), 0.5)
          .same());
  EXPECT_FALSE(compare_tensors(place / "e", place / "f", 0.4).same());
}

}  // namespace
}  // namespace pharos::hf
