#include "pharos/config/resolve.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>

#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/config/recipe/recipe.h"
#include "pharos/config/recipe/run_yaml.h"
#include "pharos/config/schema/schema.h"

namespace pharos::config {
namespace {

using testing::Contains;
using testing::HasSubstr;

/// A folder of recipe files that vanishes with the test.
class ResolveTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("pharos_config_test_" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& text) {
    base::write_file_atomically(folder_ / name, text);
    return (folder_ / name).string();
  }
  ResolvedConfig resolve_text(const std::string& text, const std::vector<std::string>& overrides = {}) {
    return resolve({.recipe = write("recipe.yaml", text), .overrides = overrides});
  }
  std::string error_of(const std::string& text, const std::vector<std::string>& overrides = {}) {
    try {
      resolve_text(text, overrides);
    } catch (const base::UserError& error) {
      return error.what();
    }
    return "no error";
  }

  std::filesystem::path folder_;
};

TEST_F(ResolveTest, LaterSourcesWinAndEveryValueKnowsItsOrigin) {
  write("base.yaml", "config:\n  model:\n    num_layers: 2\n    hidden_size: 64\n");
  const auto resolved =
      resolve_text("base: base\nconfig:\n  model.hidden_size: 128\n", {"model.num_layers=3", "model.num_layers=4"});
  EXPECT_EQ(resolved.config.model.num_layers, 4);
  EXPECT_EQ(resolved.config.model.hidden_size, 128);
  EXPECT_EQ(resolved.origin_of("model.num_layers").text, "command line");
  EXPECT_THAT(resolved.origin_of("model.hidden_size").text, HasSubstr("recipe.yaml:3"));
  EXPECT_EQ(resolved.origin_of("rng.seed").kind, Origin::Kind::kDefault);
  EXPECT_TRUE(resolved.is_explicit("model.hidden_size"));
}

TEST_F(ResolveTest, ParametersInterpolateAndSwitchBlocks) {
  const std::string recipe =
      "parameters:\n  deepep: false\n  hf_path: {default: null, type: str}\n  size: 64\n"
      "config:\n  model:\n    hidden_size: ${size}\n    ffn_hidden_size: ${model.hidden_size}\n  checkpoint: {save: "
      "\"runs/${size}/x\"}\n"
      "when:\n- if: {deepep: true}\n  config: {model: {moe_token_dispatcher_type: flex}}\n"
      "- if: {hf_path: {set: true}}\n  config: {model: {hf_path: \"${hf_path}\"}}\n"
      "- if: {size: [32, 16], deepep: {not: true}}\n  config: {model: {num_layers: 1}}\n";
  const auto plain = resolve_text(recipe);
  EXPECT_EQ(plain.config.model.ffn_hidden_size, 64);
  EXPECT_EQ(plain.config.checkpoint.save, "runs/64/x");
  EXPECT_EQ(plain.config.model.moe_token_dispatcher_type, TokenDispatcher::kAllGather);
  EXPECT_FALSE(plain.config.model.hf_path.has_value());
  EXPECT_FALSE(plain.config.model.num_layers.has_value());
  const auto switched = resolve_text(recipe, {"deepep=true", "hf_path=models/x", "size=32"});
  EXPECT_EQ(switched.config.model.moe_token_dispatcher_type, TokenDispatcher::kFlex);
  EXPECT_EQ(switched.config.model.hf_path, "models/x");
  EXPECT_FALSE(switched.config.model.num_layers.has_value());
  EXPECT_EQ(resolve_text(recipe, {"size=16"}).config.model.num_layers, 1);
  EXPECT_THAT(error_of(recipe, {"size=abc"}), HasSubstr("Parameter size = abc is not an integer"));
}

TEST_F(ResolveTest, OverridesFollowTheGrammar) {
  const std::string recipe = "config:\n  train: {iterations_to_skip: [5, 6, 7]}\n  env_vars: {A: 1}\n";
  const auto resolved =
      resolve_text(recipe, {"train.iterations_to_skip.1=60", "++env_vars.B=x", "model={num_layers:2,hidden_size:8}",
                            "model.transformer.num_attention_heads=2", "dataset.sequence_length=1e3", "optimizer.lr=1",
                            "dataset.split=[90,5,5]", "model.activation_func=swish", "+rng.seed=7",
                            "model.params_dtype=torch.bfloat16", "model.moe_layer_freq=[0,1]"});
  const RunConfig& config = resolved.config;
  EXPECT_EQ(config.train.iterations_to_skip, (std::vector<std::int64_t>{5, 60, 7}));
  EXPECT_EQ(config.env_vars, (std::map<std::string, std::string>{{"A", "1"}, {"B", "x"}}));
  EXPECT_EQ(config.model.num_layers, 2);
  EXPECT_EQ(config.model.num_attention_heads, 2);
  EXPECT_EQ(config.dataset.seq_length, 1000);
  EXPECT_EQ(config.model.seq_length, 1000);  // follows the dataset
  EXPECT_EQ(config.optimizer.lr, 1.0);
  EXPECT_EQ(config.dataset.split, "90,5,5");
  EXPECT_EQ(config.model.activation_func, Activation::kSilu);
  EXPECT_EQ(config.rng.seed, 7);
  EXPECT_EQ(config.model.params_dtype, DType::kBFloat16);
  EXPECT_EQ(std::get<std::vector<std::int64_t>>(config.model.moe_layer_freq).size(), 2U);
  EXPECT_EQ(resolve_text(recipe, {"~train.iterations_to_skip"}).config.train.iterations_to_skip.size(), 0U);
  EXPECT_TRUE(resolve_text(recipe, {"~env_vars.A=1"}).config.env_vars.empty());
}

TEST_F(ResolveTest, RefusesAndNamesTheRemedy) {
  struct Case {
    const char* override_text;
    const char* message;
  };
  const Case cases[] = {
      {"model.hiden_size=3", "Did you mean model.hidden_size"},
      {"train.train_iters=abc", "train.train_iters = abc is not an integer"},
      {"train.train_iters=1.5", "is not an integer"},
      {"train.exit_signal_handler=1", "is not a boolean"},
      {"optimizer.lr=fast", "is not a number"},
      {"rng.seed=null", "is not an integer"},
      {"model.normalization=BatchNorm", "is not one of LayerNorm, RMSNorm"},
      {"model=5", "Section model cannot be 5"},
      {"env_vars.X=1", "Could not override 'env_vars.X'"},
      {"~model.foo", "Could not delete from config. 'model.foo' does not exist"},
      {"~rng.seed=5", "The value of 'rng.seed' is 1234 and not 5"},
      {"train.iterations_to_skip.3=1", "has no element 3"},
      {"mixed_precision=bf17_mixed", "is no precision recipe"},
      {"checkpoint.save=${nope}", "no such parameter or field"},
      {"checkpoint.save=${checkpoint.save}", "refers to itself"},
      {"checkpoint.save=${oc.env:HOME}", "resolvers"},
      {"nonsense=1", "neither a section nor a parameter"},
      {"model.num_layers.x=1", "There is no field model.num_layers.x"},
  };
  for (const Case& test : cases)
    EXPECT_THAT(error_of("config: {}\n", {test.override_text}), HasSubstr(test.message)) << test.override_text;
}

TEST_F(ResolveTest, TellsFileAndLineOfRecipeFaults) {
  struct Case {
    const char* text;
    const char* message;
    const char* place;
  };
  const Case cases[] = {
      {"config:\n  model:\n    hidden_sise: 3\n", "no field model.hidden_sise", "recipe.yaml:3"},
      {"config:\n  rng:\n    seed: x\n", "rng.seed = x is not an integer", "recipe.yaml:3"},
      {"config:\n  rng: {seed: 1, seed: 2}\n", "seed appears twice", "recipe.yaml:2"},
      {"config:\n  rng: [1\n", "YAML syntax error", "recipe.yaml:"},
      {"config: {rng: {seed: &a 1}}\n", "anchors", "recipe.yaml:1"},
      {"config: {rng: {seed: !!int 1}}\n", "tag", "recipe.yaml:1"},
      {"confg: {}\n", "no key confg", "recipe.yaml:1"},
      {"model: {num_layers: 1}\n", "Move it below `config:`", "recipe.yaml:1"},
      {"base: missing_recipe\n", "There is no recipe missing_recipe", "recipe.yaml:1"},
      {"base: recipe\n", "form a cycle", "recipe.yaml:1"},
      {"when:\n- if: {x: 1}\n  config: {}\n", "parameter x, which is not declared", "recipe.yaml:3"},
      {"parameters: {a: {required: true}}\n", "Parameter a of recipe recipe has no value", "recipe.yaml:1"},
      {"parameters: {a: {default: z, choices: [x, y]}}\n", "Use x, y.", "recipe.yaml:1"},
      {"parameters: {a: {choices: 1}}\n", "no attribute choices", "recipe.yaml:1"},
      {"parameters: {a: {defualt: 1}}\n", "no attribute defualt", "recipe.yaml:1"},
      {"a: 1\n---\nb: 2\n", "second YAML document", "recipe.yaml:"},
  };
  for (const Case& test : cases) {
    const std::string error = error_of(test.text);
    EXPECT_THAT(error, HasSubstr(test.message)) << test.text;
    EXPECT_THAT(error, HasSubstr(test.place)) << test.text;
  }
}

TEST_F(ResolveTest, ReportsAllProblemsAtOnce) {
  try {
    resolve_text("config: {rng: {seed: x}, modell: {a: 1}}\n", {"a=1,2", "train.train_iters=y"});
    FAIL();
  } catch (const ConfigErrors& errors) {
    EXPECT_EQ(errors.problems().size(), 4U) << errors.what();
  }
}

TEST_F(ResolveTest, MixedPrecisionOverwritesAndSaysSo) {
  const auto resolved = resolve_text("config: {mixed_precision: bf16-mixed, optimizer: {bf16: false}}\n");
  EXPECT_TRUE(resolved.config.model.bf16);
  EXPECT_TRUE(resolved.config.optimizer.bf16);
  EXPECT_TRUE(resolved.config.ddp.grad_reduce_in_fp32);
  EXPECT_EQ(resolved.config.model.params_dtype, DType::kBFloat16);
  EXPECT_EQ(resolved.origin_of("model.bf16").kind, Origin::Kind::kDerived);
  EXPECT_THAT(resolved.warnings, Contains(HasSubstr("is overwritten by mixed_precision bf16-mixed with true")));
  const auto finer =
      resolve_text("config: {mixed_precision: bf16_mixed}\n", {"mixed_precision.grad_reduce_in_fp32=false"});
  EXPECT_FALSE(finer.config.ddp.grad_reduce_in_fp32);
  EXPECT_FALSE(resolve_text("config: {mixed_precision: bf16_mixed}\n", {"mixed_precision=null"}).config.model.bf16);
}

TEST_F(ResolveTest, WarnsWhereMegatronBridgeSurprises) {
  EXPECT_THAT(resolve_text("config: {}\n", {"optimizer.weight_decay=0.1", "scheduler.start_weight_decay=0.033",
                                            "scheduler.end_weight_decay=0.033"})
                  .warnings,
              Contains(HasSubstr("optimizer.weight_decay = 0.1 (command line) does not act")));
  EXPECT_THAT(resolve_text("config: {}\n", {"model.sequence_parallel=true"}).warnings,
              Contains(HasSubstr("is switched off")));
  const auto sharded =
      resolve_text("config: {}\n", {"ddp.use_distributed_optimizer=true", "optimizer.use_distributed_optimizer=false"});
  EXPECT_TRUE(sharded.config.optimizer.use_distributed_optimizer);
  EXPECT_THAT(sharded.warnings, Contains(HasSubstr("both are set to true")));
  EXPECT_THAT(resolve_text("config: {}\n", {"train.eval_iters=3"}).warnings,
              Contains(HasSubstr("train.eval_iters is deprecated")));
}

TEST_F(ResolveTest, RunYamlReadsBackAsTheSameConfiguration) {
  for (const char* recipe : {"quickstart", "llama_27m", "vanilla_gpt"}) {
    const auto resolved = resolve(
        {.recipe = recipe,
         .overrides = {"checkpoint.save='a b#c: \\${x'", "logger.wandb_project='é\"\\x'", "++env_vars.A='x: y'",
                       "train.iterations_to_skip=[1,2]", "model.moe_layer_freq=[0,1]", "optimizer.adam_eps=1e-30",
                       "comm_overlap.tp_comm_overlap=false", "dataset.blend_per_split=[[a],[b],[1,c]]"}});
    const std::string text = to_yaml(resolved);
    write("run.yaml", text);
    const auto loaded = load_run_yaml(folder_);
    for (const Difference& difference : compare(resolved.config, loaded.config)) {
      ADD_FAILURE() << recipe << ": " << difference.field << ": " << difference.left << " | " << difference.right;
    }
    EXPECT_EQ(loaded.config.mixed_precision.given, resolved.config.mixed_precision.given);
    EXPECT_EQ(loaded.config.comm_overlap.given, resolved.config.comm_overlap.given);
    EXPECT_THAT(loaded.origin_of("checkpoint.save").text, HasSubstr("run.yaml:"));
    EXPECT_THAT(text, HasSubstr("# command line"));
  }
}

TEST_F(ResolveTest, RunYamlThatIsCutIsRefused) {
  const std::string text = to_yaml(resolve({.recipe = "quickstart"}));
  for (std::size_t size = 1; size < text.size(); size += size + 97 < text.size() ? 97 : 1) {
    write("run.yaml", text.substr(0, size));
    try {
      load_run_yaml(folder_);
      ADD_FAILURE() << "accepted " << size << " of " << text.size() << " bytes";
    } catch (const base::UserError& error) {
      EXPECT_THAT(error.parts().what, HasSubstr("is damaged: its end is missing"));
    }
  }
  write("run.yaml", "config:\n  train:\n    train_iters: 7\n");  // written by hand
  EXPECT_EQ(load_run_yaml(folder_).config.train.train_iters, 7);
}

TEST_F(ResolveTest, CompareListsWhatDiffers) {
  RunConfig left, right;
  right.rng.seed = 5;
  right.stored["model.qk_clip"] = "true";
  const auto differences = compare(left, right);
  ASSERT_EQ(differences.size(), 2U);
  EXPECT_EQ(differences[0].field, "rng.seed");
  EXPECT_EQ(differences[0].right, "5");
  EXPECT_EQ(differences[1].field, "model.qk_clip");
}

TEST_F(ResolveTest, TakesAtMostFiveMilliseconds) {
  resolve({.recipe = "quickstart"});  // builds the schema
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 10; ++i) resolve({.recipe = "quickstart", .overrides = {"train.train_iters=5"}});
  const auto each = (std::chrono::steady_clock::now() - start) / 10;
  EXPECT_LT(std::chrono::duration<double>(each).count(), 5e-3 * 10)
      << "ten times the budget, for slow and instrumented builds";
}

TEST(Recipes, AreFoundByNameFromTheSourceTree) {
  const auto recipes = list_recipes();
  for (const char* name : {"quickstart", "llama_27m", "vanilla_gpt", "pretrain_common", "hf_pretrain"})
    EXPECT_TRUE(recipes.contains(name)) << name;
  try {
    find_recipe("quikstart");
    FAIL();
  } catch (const base::UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("Did you mean quickstart?"));
  }
}

TEST(SetDerived, ChecksNameAndType) {
  ResolvedConfig resolved;
  set_derived(resolved, "model.num_layers", Value::of_integer(3), "config.json");
  EXPECT_EQ(resolved.config.model.num_layers, 3);
  EXPECT_FALSE(resolved.is_explicit("model.num_layers"));
  EXPECT_THROW(set_derived(resolved, "model.num_layers", Value::of_string("x"), "config.json"), base::UserError);
  EXPECT_THROW(set_derived(resolved, "model.nothing", Value::of_integer(3), "config.json"), base::UserError);
}

}  // namespace
}  // namespace pharos::config
