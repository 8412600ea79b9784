// The numbers of the reference implementation, and that a wrong model does not get past them.
#include "pharos/hf/verify/verify.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "pharos/hf/test_support.h"
#include "pharos/hf/verify/session.h"

namespace pharos::hf {
namespace {

using test::error_of;
using test::fixture;
using test::FixtureCopy;
using ::testing::Contains;
using ::testing::HasSubstr;

std::vector<std::string> all_fixtures() {
  std::vector<std::string> names;
  for (const auto& item : std::filesystem::directory_iterator(fixture(""))) {
    if (item.is_directory()) names.push_back(item.path().filename().string());
  }
  return names;
}

VerifyResult verify_fixture(const std::string& name) {
  return verify(fixture(name), fixture(name) / "oracle.safetensors");
}

/// Names of the checks that failed.
std::vector<std::string> failures(const VerifyResult& result) {
  std::vector<std::string> names;
  for (const Check& check : result.checks) {
    if (!check.ok()) names.push_back(check.name);
  }
  return names;
}

TEST(HfVerify, EveryFixtureAgreesWithTheReference) {
  for (const std::string& name : all_fixtures()) {
    const VerifyResult result = verify_fixture(name);
    EXPECT_TRUE(result.ok()) << name << "\n" << render_table(result);
    const auto has = [&](const char* check) {
      return std::any_of(result.checks.begin(), result.checks.end(), [&](const Check& c) { return c.name == check; });
    };
    std::vector<std::string> checks{"logits",
                                    "loss",
                                    "loss_shifted",
                                    "grad_norm",
                                    "hidden.embed",
                                    "hidden.layer.0",
                                    "hidden.final_norm",
                                    "trajectory.loss",
                                    "trajectory.grad_norm"};
    const checkpoint::SafetensorsSet oracle(fixture(name) / "oracle.safetensors");
    for (const std::string& tensor : oracle.names()) {
      if (tensor.starts_with("router.")) checks.push_back(tensor);
    }
    for (const std::string& check : checks) EXPECT_TRUE(has(check.c_str())) << name << " " << check;
  }
}

TEST(HfVerify, EveryStoredTensorHasItsGradientCompared) {
  const VerifyResult result = verify_fixture("gpt2");
  std::vector<std::string> names;
  for (const Check& check : result.checks) names.push_back(check.name);
  const checkpoint::SafetensorsFile file(fixture("gpt2") / "model.safetensors");
  for (const auto& entry : file.header().tensors) EXPECT_THAT(names, Contains("grad." + entry.name));
}

TEST(HfVerify, OtherSpellingOfTheConfigAgreesToo) {
  for (const std::string& name : all_fixtures()) {
    const FixtureCopy copy(name);
    std::filesystem::copy_file(test::other_config(name), copy.path() / "config.json",
                               std::filesystem::copy_options::overwrite_existing);
    const VerifyResult result = verify(copy.path(), copy.oracle());
    EXPECT_TRUE(result.ok()) << name << "\n" << render_table(result);
  }
}

TEST(HfVerify, ShardsAndHeadlessNamesAgreeToo) {
  const FixtureCopy sharded("qwen2");
  const auto weights = sharded.weights();
  checkpoint::NamedTensors halves[2];
  nlohmann::json map;
  for (const auto& [name, tensor] : weights) {
    const std::size_t half = map.size() % 2;
    halves[half].emplace_back(name, tensor);
    map[name] = "model-0000" + std::to_string(half + 1) + "-of-00002.safetensors";
  }
  for (int i = 0; i < 2; ++i)
    checkpoint::write_safetensors(sharded.path() / ("model-0000" + std::to_string(i + 1) + "-of-00002.safetensors"),
                                  halves[i]);
  std::ofstream(sharded.path() / "model.safetensors.index.json") << nlohmann::json{{"weight_map", map}}.dump();
  std::filesystem::remove(sharded.path() / "model.safetensors");
  EXPECT_TRUE(verify(sharded.path(), sharded.oracle()).ok());

  const FixtureCopy headless("gpt2");
  headless.change_weights([](FixtureCopy::Weights& weights) {
    FixtureCopy::Weights renamed;
    for (const auto& [name, tensor] : weights) renamed[name.substr(std::string("transformer.").size())] = tensor;
    weights = renamed;
  });
  EXPECT_TRUE(verify(headless.path(), headless.oracle()).ok());
}

TEST(HfVerify, AWrongWeightAnywhereFails) {
  for (const char* name : {"gpt2", "qwen2"}) {
    const FixtureCopy copy(name);
    const auto weights = copy.weights();
    for (const auto& [tensor, values] : weights) {
      if (tensor.find("layers.1") == std::string::npos && tensor.find("h.1") == std::string::npos) continue;
      copy.write_weights(weights);
      copy.change_weights([&](FixtureCopy::Weights& changed) { changed[tensor].view({-1})[3] *= -1; });
      EXPECT_FALSE(verify(copy.path(), copy.oracle()).ok()) << name << " " << tensor;
    }
  }
}

TEST(HfVerify, AWrongConfigFails) {
  struct Case {
    const char* name;
    const char* change;
  };
  for (const Case& item :
       {Case{"gpt2", R"({"activation_function": "gelu"})"}, Case{"gpt2", R"({"layer_norm_epsilon": 1e-3})"},
        Case{"llama", R"({"rope_parameters": {"rope_theta": 20000.0}})"}, Case{"llama", R"({"rms_norm_eps": 1e-3})"},
        Case{"llama3_tied", R"({"rope_parameters": {"factor": 4.0}})"},
        Case{"llama3_tied", R"({"rope_parameters": {"rope_type": "default"}})"},
        Case{"qwen3", R"({"hidden_act": "gelu"})"}}) {
    const FixtureCopy copy(item.name);
    copy.change_json("config.json",
                     [&](nlohmann::json& parsed) { parsed.merge_patch(nlohmann::json::parse(item.change)); });
    EXPECT_THAT(failures(verify(copy.path(), copy.oracle())), Contains("logits")) << item.change;
  }
}

TEST(HfVerify, AWrongOptimizerFailsTheTrajectoryAlone) {
  const FixtureCopy copy("llama");
  copy.change_json("trajectory.json", [](nlohmann::json& parsed) { parsed["optimizer"]["weight_decay"] = 0.2; });
  EXPECT_EQ(failures(verify(copy.path(), copy.oracle())),
            (std::vector<std::string>{"trajectory.loss", "trajectory.grad_norm"}));
}

TEST(HfVerify, GradientsThatVanishAreComparedWithTheWhole) {
  const double tolerance = Tolerances{}.gradient, whole = 5;
  EXPECT_LE(relative_difference(1e-8 * whole, 0, whole), tolerance);
  EXPECT_LE(relative_difference(3e-8 * whole, 2e-8 * whole, whole), tolerance);
  EXPECT_EQ(relative_difference(1e-5, 0.5, whole), 1e-5 / 0.5);
  for (const double size : {1.0, 1e-2, 1e-4, 1e-6}) {  // a small gradient of the wrong sign, one that is missing
    EXPECT_GT(relative_difference(2 * size * whole, size * whole, whole), tolerance) << size;
    EXPECT_GT(relative_difference(size * whole, size * whole, whole), tolerance) << size;
  }
  EXPECT_GT(relative_difference(1e-6 * whole, 0, whole), tolerance) << "a gradient where there is none";
  EXPECT_TRUE(std::isnan(relative_difference(std::nan(""), 1, whole)));
}

TEST(HfVerify, NotANumberIsOutsideTolerance) {
  const FixtureCopy copy("llama");
  copy.change_weights([](FixtureCopy::Weights& weights) { weights["model.norm.weight"][0] = std::nan(""); });
  const VerifyResult result = verify(copy.path(), copy.oracle());
  EXPECT_THAT(failures(result), Contains("trajectory.loss"));
  EXPECT_TRUE(to_json(result)["checks"][0].contains("value"));
  EXPECT_EQ(to_json(result)["ok"], false);
}

TEST(HfVerify, NamesWhatIsMissingOrOfAnotherModel) {
  EXPECT_THAT(error_of([] { verify(fixture("llama"), fixture("llama") / "nothing.safetensors"); }),
              HasSubstr("nothing.safetensors"));
  EXPECT_THAT(error_of([] { verify(fixture("llama"), fixture("llama") / "model.safetensors"); }),
              HasSubstr("input_ids is missing"));
  EXPECT_THAT(error_of([] { verify(fixture("gpt2"), fixture("llama") / "oracle.safetensors"); }),
              HasSubstr("is missing"));
  const FixtureCopy copy("llama");
  copy.change_json("trajectory.json", [](nlohmann::json& parsed) { parsed.erase("clip_grad_norm"); });
  EXPECT_THAT(error_of([&] { verify(copy.path(), copy.oracle()); }), HasSubstr("clip_grad_norm"));
  std::ofstream(copy.path() / "trajectory.json") << R"({"clip_grad_norm": 1e999})";
  EXPECT_THAT(error_of([&] { verify(copy.path(), copy.oracle()); }), HasSubstr("trajectory.json' holds JSON"));
  std::filesystem::remove(copy.path() / "trajectory.json");
  EXPECT_THAT(error_of([&] { verify(copy.path(), copy.oracle()); }),
              HasSubstr("trajectory.json is neither beside it nor in"));
}

TEST(HfVerify, NamesThePlaceOfAWrongTrajectory) {
  struct Case {
    const char* patch;
    const char* said;
  };
  const FixtureCopy copy("llama");
  const nlohmann::json whole = base::read_json_file(copy.path() / "trajectory.json");
  for (const Case& item : {Case{R"({"optimizer": {"lr": "1e-3"}})", "/optimizer/lr is not a number"},
                           Case{R"({"optimizer": {"betas": 0.9}})", "/optimizer/betas/0 is missing"},
                           Case{R"({"optimizer": {"name": "SGD"}})", "/optimizer/name is not AdamW"},
                           Case{R"({"optimizer": []})", "/optimizer/name is missing"},
                           Case{R"({"steps": {}, "optimizer": {}})", "/steps is not a list"},
                           Case{R"({"steps": [7]})", "/steps/0/batch is missing"},
                           Case{R"({"steps": [{"batch": 0.5}]})", "/steps/0/batch is not a whole number"},
                           Case{R"({"steps": [{"batch": 99}]})", "/steps/0/batch is not a whole number"},
                           Case{R"({"steps": [{"batch": 0, "loss": null}]})", "/steps/0/loss is not a number"}}) {
    copy.change_json("trajectory.json", [&](nlohmann::json& parsed) {
      parsed = whole;
      const nlohmann::json patch = nlohmann::json::parse(item.patch);
      if (patch.contains("steps")) parsed["steps"] = nullptr;
      parsed.merge_patch(patch);
      if (patch.contains("steps")) parsed["steps"] = patch["steps"];
    });
    EXPECT_THAT(error_of([&] { verify(copy.path(), copy.oracle()); }), HasSubstr(item.said)) << item.patch;
  }
}

TEST(HfVerify, RefusesAnOracleOfWholeNumbers) {
  const FixtureCopy copy("llama");
  const checkpoint::SafetensorsFile file(copy.oracle());
  for (const char* changed : {"logits", "loss", "grad_norm"}) {
    std::map<std::string, at::Tensor> tensors;
    for (const auto& entry : file.header().tensors) {
      const at::Tensor values = file.view(entry.name);
      tensors[entry.name] = entry.name == changed ? values.to(at::kInt) : values;
    }
    const auto path = copy.path() / (std::string(changed) + ".safetensors");
    checkpoint::write_safetensors(path, {tensors.begin(), tensors.end()});
    EXPECT_THAT(error_of([&] { verify(copy.path(), path); }), HasSubstr(std::string(changed) + "' is not F64"));
  }
}

}  // namespace
}  // namespace pharos::hf
