#include "pharos/launch/environment/environment_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <map>

#include "pharos/base/error.h"
#include "pharos/launch/environment/environment_text.h"

namespace pharos::launch {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

using Texts = std::vector<std::string>;

config::ResolvedConfig configure(Texts overrides) {
  overrides.insert(overrides.begin(), "dist.device=cuda");
  return config::resolve({.overrides = std::move(overrides)});
}

EnvironmentPlan plan_of(const Texts& overrides, NetworkProfile profile = NetworkProfile::kTcp,
                        const std::map<std::string, std::string>& user = {}, const NodeShape& node = {}) {
  return plan_environment(configure(overrides), profile, lens::MapEnvironment(user), node);
}

const PlannedVariable* find(const std::vector<PlannedVariable>& variables, const std::string& name) {
  for (const PlannedVariable& variable : variables) {
    if (variable.name == name) return &variable;
  }
  return nullptr;
}

std::string value_of(const std::vector<PlannedVariable>& variables, const std::string& name) {
  const PlannedVariable* variable = find(variables, name);
  return variable == nullptr ? "(unset)" : variable->value;
}

/// What `script` prints in a POSIX shell.
std::string run_shell(const std::string& script) {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("pharos_environment_" + std::to_string(::getpid()) + ".sh");
  FILE* file = std::fopen(path.c_str(), "w");
  std::fputs(script.c_str(), file);
  std::fclose(file);
  FILE* pipe = ::popen(("env -i PATH=/usr/bin:/bin sh " + path.string()).c_str(), "r");
  std::string output;
  for (int character; (character = std::fgetc(pipe)) != EOF;) output += static_cast<char>(character);
  EXPECT_EQ(::pclose(pipe), 0) << script;
  std::filesystem::remove(path);
  return output;
}

struct Rule {
  Texts overrides;
  const char* gpu;
  const char *name, *value;
};

Texts with_experts(Texts overrides) {
  overrides.push_back("model.num_moe_experts=64");
  return overrides;
}
Texts with_flex(const std::string& backend, Texts overrides = {}) {
  overrides.push_back("model.moe_token_dispatcher_type=flex");
  overrides.push_back("model.moe_flex_dispatcher_backend=" + backend);
  return with_experts(std::move(overrides));
}

constexpr const char* kConnections = "CUDA_DEVICE_MAX_CONNECTIONS";
constexpr const char* kAllocator = "PYTORCH_CUDA_ALLOC_CONF";
constexpr const char* kRecordStreams = "TORCH_NCCL_AVOID_RECORD_STREAMS";
constexpr const char* kHybridRanks = "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN";
constexpr const char* kFullGraph = "model.cuda_graph_scope=[full_iteration]";

// bridge-config.md 10.2, row by row.
TEST(EnvironmentPlan, RulesFollowTheConfiguration) {
  const Rule kRules[] = {
      {{}, "h100", kConnections, "8"},
      {{"model.tensor_model_parallel_size=2"}, "h100", kConnections, "1"},
      {{"model.context_parallel_size=2"}, "h100", kConnections, "1"},
      {{"model.tensor_model_parallel_size=2"}, "", kConnections, "1"},
      {{"model.tensor_model_parallel_size=2"}, "b200", kConnections, "32"},
      {{}, "gb300", kConnections, "32"},
      {{"model.tensor_model_parallel_size=2", "ddp.data_parallel_sharding_strategy=optim_grads_params"},
       "h100",
       kConnections,
       "8"},
      {{"model.tensor_model_parallel_size=2", "ddp.use_megatron_fsdp=true"}, "h100", kConnections, "8"},
      {{"model.tensor_model_parallel_size=2", "dist.use_torch_fsdp2=true"}, "h100", kConnections, "8"},
      {with_experts({"model.tensor_model_parallel_size=2", "model.overlap_moe_expert_parallel_comm=true"}), "h100",
       kConnections, "32"},
      {with_flex("deepep", {"model.tensor_model_parallel_size=2"}), "h100", kConnections, "32"},
      {with_flex("hybridep"), "h100", kConnections, "32"},
      {with_flex("native", {"model.tensor_model_parallel_size=2"}), "h100", kConnections, "1"},
      {{}, "h100", "NCCL_GRAPH_REGISTER", "0"},
      {{}, "h100", "NCCL_NVLS_ENABLE", "0"},
      {{}, "h100", "NCCL_CTA_POLICY", "(unset)"},
      {{"ddp.nccl_ub=true"}, "h100", "NCCL_NVLS_ENABLE", "1"},
      {{"ddp.nccl_ub=true"}, "h100", "NCCL_CTA_POLICY", "1"},
      {{"model.pipeline_model_parallel_size=2"}, "h100", "NCCL_P2P_NET_CHUNKSIZE", "(unset)"},
      {{}, "b300", "NCCL_IGNORE_CPU_AFFINITY", "1"},
      {{}, "b200", "NCCL_IGNORE_CPU_AFFINITY", "(unset)"},
      {{}, "gb200", "NCCL_NET_GDR_LEVEL", "PHB"},
      {{}, "gb200", "NCCL_NET_GDR_C2C", "1"},
      {{}, "h100", "NCCL_NET_GDR_LEVEL", "(unset)"},
      {{}, "h100", "NCCL_ALGO", "(unset)"},
      {{"model.deterministic_mode=true"}, "h100", "NCCL_ALGO", "Ring"},
      {{"model.deterministic_mode=true"}, "h100", "CUBLAS_WORKSPACE_CONFIG", ":4096:8"},
      {{}, "h100", kAllocator, "expandable_segments:True"},
      {{kFullGraph}, "h100", kAllocator, "expandable_segments:True,graph_capture_record_stream_reuse:True"},
      {{}, "h100", kRecordStreams, "1"},
      {{kFullGraph}, "h100", kRecordStreams, "0"},
      {{}, "h100", "TORCH_NCCL_HIGH_PRIORITY", "1"},
      {with_flex("deepep"), "h100", kHybridRanks, "(unset)"},
      {with_flex("hybridep", {"model.expert_model_parallel_size=4"}), "h100", kHybridRanks, "4"},
      {with_flex("hybridep", {"model.expert_model_parallel_size=16"}), "h100", kHybridRanks, "8"},
      {with_flex("hybridep", {"model.expert_model_parallel_size=64"}), "gb200", kHybridRanks, "64"},
      {with_flex("hybridep"), "h100", "NVLINK_DOMAIN_SIZE", "8"},
      {with_flex("hybridep"), "gb200", "NVLINK_DOMAIN_SIZE", "72"},
      {with_flex("hybridep"), "b300", "USE_MNNVL", "0"},
      {with_flex("hybridep"), "vr200", "USE_MNNVL", "1"},
      {with_flex("hybridep"), "h100", "NUM_OF_TOKENS_PER_CHUNK_COMBINE_API", "128"},
  };
  for (const Rule& rule : kRules) {
    const EnvironmentPlan plan = plan_of(rule.overrides, NetworkProfile::kTcp, {}, {.gpu = rule.gpu});
    EXPECT_EQ(value_of(plan.variables, rule.name), rule.value)
        << rule.name << " on " << rule.gpu << ", " << testing::PrintToString(rule.overrides);
  }
}

TEST(EnvironmentPlan, WhatOnlyOtherLibrariesReadIsShownAndNotExported) {
  const Rule kRules[] = {
      {{}, "h100", "NVTE_FWD_LAYERNORM_SM_MARGIN", "(unset)"},
      {{"ddp.overlap_grad_reduce=true"}, "h100", "NVTE_FWD_LAYERNORM_SM_MARGIN", "20"},
      {{"ddp.overlap_param_gather=true"}, "h100", "NVTE_BWD_LAYERNORM_SM_MARGIN", "20"},
      {{}, "b200", "NVTE_NORM_FWD_USE_CUDNN", "1"},
      {{}, "b200", "NVTE_NORM_BWD_USE_CUDNN", "1"},
      {{}, "h100", "NVTE_NORM_FWD_USE_CUDNN", "(unset)"},
      {{"mixed_precision={bf16:true,fp4:e2m1}"}, "b200", "NVTE_USE_FAST_MATH", "1"},
      {{"model.deterministic_mode=true"}, "h100", "NVTE_ALLOW_NONDETERMINISTIC_ALGO", "0"},
      {{"model.cpu_offloading=true"}, "h100", "NVTE_CPU_OFFLOAD_V1", "1"},
      {{"model.fine_grained_activation_offloading=true"}, "h100", "NVTE_CPU_OFFLOAD_V1", "1"},
      {{"model.moe_single_grouped_weight=true"}, "b200", "NVTE_CUTEDSL_FUSED_GROUPED_MLP", "1"},
      {{"model.moe_single_grouped_weight=true"}, "b200", "CUDNNFE_CLUSTER_OVERLAP_MARGIN", "8"},
  };
  for (const Rule& rule : kRules) {
    const EnvironmentPlan plan = plan_of(rule.overrides, NetworkProfile::kTcp, {}, {.gpu = rule.gpu});
    EXPECT_EQ(value_of(plan.unused, rule.name), rule.value) << rule.name << " on " << rule.gpu;
    EXPECT_THAT(export_lines(plan), Not(HasSubstr(rule.name)));
    for (const PlannedVariable& variable : plan.unused) EXPECT_THAT(variable.reason, HasSubstr("Pharos does not use"));
  }
}

TEST(EnvironmentPlan, HybridEpStaysInsideAnNvlinkDomain) {
  const Texts overrides = with_flex("hybridep", {"model.expert_model_parallel_size=128"});
  EXPECT_THROW(plan_of(overrides, NetworkProfile::kIb, {}, {.gpu = "gb200"}), base::UserError);
  EXPECT_NO_THROW(plan_of(overrides, NetworkProfile::kIb, {}, {.gpu = "h100"}));
}

TEST(EnvironmentPlan, GpuAndFamilyComeFromTheRecipesNames) {
  config::ResolvedConfig resolved = configure({"model.pipeline_model_parallel_size=2"});
  resolved.recipe_name = "llama3_70b_pretrain_64gpu_b200_bf16";
  const EnvironmentPlan plan = plan_environment(resolved, NetworkProfile::kIb, lens::MapEnvironment());
  EXPECT_EQ(value_of(plan.variables, kConnections), "32");
  EXPECT_EQ(value_of(plan.variables, "NCCL_P2P_NET_CHUNKSIZE"), "2097152");
  resolved.recipe_name = "qwen3_8b_pretrain_64gpu_h100_bf16";
  EXPECT_EQ(value_of(plan_environment(resolved, NetworkProfile::kIb, lens::MapEnvironment()).variables, kConnections),
            "8");
  // An alias has the name of its base.
  const config::ResolvedConfig alias = config::resolve({.recipe = "llama3_8b_nvfp4_pretrain"});
  EXPECT_EQ(value_of(plan_environment(alias, NetworkProfile::kIb, lens::MapEnvironment()).variables, kConnections),
            "32");
}

TEST(EnvironmentPlan, ProfilesSetTheirNetwork) {
  const struct {
    NetworkProfile profile;
    const char *name, *value;
  } kCases[] = {
      {NetworkProfile::kEfa, "FI_PROVIDER", "efa"},
      {NetworkProfile::kEfa, "FI_EFA_USE_DEVICE_RDMA", "1"},
      {NetworkProfile::kEfa, "FI_EFA_FORK_SAFE", "1"},
      {NetworkProfile::kEfa, "NCCL_NET_PLUGIN", "libnccl-net-ofi.so"},
      {NetworkProfile::kEfa, "NCCL_TUNER_PLUGIN", "libnccl-tuner-ofi.so"},
      {NetworkProfile::kEfa, "NCCL_BUFFSIZE", "8388608"},
      {NetworkProfile::kEfa, "NCCL_P2P_NET_CHUNKSIZE", "524288"},
      {NetworkProfile::kEfa, "DEEP_EP_BACKEND", "nccl"},
      {NetworkProfile::kEfa, "NCCL_GIN_TYPE", "2"},
      {NetworkProfile::kEfa, "NCCL_NET", "(unset)"},
      {NetworkProfile::kIb, "NCCL_NET", "IB"},
      {NetworkProfile::kIb, "FI_PROVIDER", "(unset)"},
      {NetworkProfile::kTcp, "NCCL_NET", "Socket"},
      {NetworkProfile::kTcp, "NCCL_GIN_TYPE", "(unset)"},
  };
  for (const auto& [profile, name, value] : kCases)
    EXPECT_EQ(value_of(plan_of({}, profile).variables, name), value) << name << ", " << name_of(profile);
  for (const NetworkProfile profile : {NetworkProfile::kEfa, NetworkProfile::kIb, NetworkProfile::kTcp}) {
    const EnvironmentPlan plan = plan_of({}, profile);
    for (const char* name : {"NCCL_DEBUG", "OMP_NUM_THREADS", "CUDA_CACHE_PATH", "TRITON_CACHE_DIR"})
      EXPECT_NE(find(plan.variables, name), nullptr) << name;
    for (const PlannedVariable& variable : plan.variables) EXPECT_TRUE(variable.reason.ends_with(".")) << variable.name;
    EXPECT_EQ(parse_network_profile(std::string(name_of(profile))), profile);
    EXPECT_THAT(plan.warnings, IsEmpty());
  }
  EXPECT_THROW(parse_network_profile("EFA"), base::UserError);
}

TEST(EnvironmentPlan, ACpuRunGetsOnlyWhatItReads) {
  const EnvironmentPlan plan = plan_environment(config::resolve({.overrides = {"dist.device=cpu"}}),
                                                NetworkProfile::kEfa, lens::MapEnvironment());
  ASSERT_EQ(plan.variables.size(), 1u);
  EXPECT_EQ(plan.variables[0].name, "OMP_NUM_THREADS");
}

TEST(EnvironmentPlan, WithoutConfigurationThereIsTheProfileAlone) {
  config::ResolvedConfig none;
  none.config.dist.device = config::DeviceKind::kCuda;
  const EnvironmentPlan plan = plan_environment(none, NetworkProfile::kEfa, lens::MapEnvironment());
  EXPECT_EQ(value_of(plan.variables, kConnections), "1");
  EXPECT_EQ(find(plan.variables, "NCCL_NVLS_ENABLE"), nullptr);
}

TEST(EnvironmentPlan, UserWinsOverRecipeOverProfile) {
  const Texts recipe = {"++env_vars.NCCL_DEBUG=INFO", "++env_vars.NCCL_BUFFSIZE=1", "++env_vars.OWN=x"};
  const EnvironmentPlan plan =
      plan_of(recipe, NetworkProfile::kEfa, {{"NCCL_DEBUG", "WARN"}, {"NCCL_NET_GDR_READ", "0"}});
  const PlannedVariable* debug = find(plan.variables, "NCCL_DEBUG");
  EXPECT_EQ(debug->value, "WARN");
  EXPECT_EQ(debug->source, VariableSource::kUser);
  EXPECT_EQ(debug->origin, "environment");
  EXPECT_THAT(debug->overruled, ElementsAre("profile efa: NCCL_DEBUG=WARN", "command line: NCCL_DEBUG=INFO"));
  const PlannedVariable* buffer = find(plan.variables, "NCCL_BUFFSIZE");
  EXPECT_EQ(buffer->source, VariableSource::kRecipe);
  EXPECT_EQ(buffer->origin, "command line");
  EXPECT_THAT(buffer->overruled, ElementsAre("profile efa: NCCL_BUFFSIZE=8388608"));
  EXPECT_EQ(find(plan.variables, "OWN")->reason, "env_vars of the recipe");
  EXPECT_EQ(find(plan.variables, "NCCL_NET_GDR_READ")->source, VariableSource::kUser);
  // env_vars win over a rule, a rule over the profile.
  EXPECT_THAT(find(plan_of({"++env_vars.NCCL_GRAPH_REGISTER=1"}).variables, "NCCL_GRAPH_REGISTER")->overruled,
              ElementsAre("rule: NCCL_GRAPH_REGISTER=0"));
  EXPECT_THAT(find(plan.variables, kConnections)->overruled, ElementsAre("profile efa: CUDA_DEVICE_MAX_CONNECTIONS=1"));
  const std::string lines = export_lines(plan);
  EXPECT_THAT(lines, Not(HasSubstr("NCCL_DEBUG=")));
  EXPECT_THAT(lines, HasSubstr("export NCCL_BUFFSIZE=\"1\"\n"));
  const std::string text = render(plan);
  EXPECT_THAT(text, HasSubstr("NCCL_BUFFSIZE=1\n  command line: env_vars of the recipe\n  instead of profile efa"));
}

TEST(EnvironmentPlan, ControlCharactersOfVariablesAreShown) {
  const EnvironmentPlan plan = plan_of({}, NetworkProfile::kEfa, {{"NCCL_BUFFSIZE", "\x1b[2J\nNCCL_DEBUG=TRACE"}});
  const std::string text = render(plan);
  EXPECT_THAT(text, HasSubstr("NCCL_BUFFSIZE=\\x1b[2J\\nNCCL_DEBUG=TRACE\n"));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  EXPECT_EQ(to_json(plan).dump().find('\x1b'), std::string::npos);
}

TEST(EnvironmentPlan, LibraryFoldersOfTheProfileComeBeforeTheUsers) {
  const char* name = "LD_LIBRARY_PATH";
  const EnvironmentPlan before = plan_of({}, NetworkProfile::kEfa, {{name, "/opt/own/lib"}});
  EXPECT_EQ(find(before.variables, name)->source, VariableSource::kProfile);
  const std::string printed =
      run_shell("LD_LIBRARY_PATH=/opt/own/lib\n" + export_lines(before) + "echo $LD_LIBRARY_PATH");
  EXPECT_THAT(printed, testing::MatchesRegex("/opt/amazon/ofi-nccl/lib:/opt/amazon/efa/lib:.*:/opt/own/lib\n"));
  EXPECT_THAT(run_shell(export_lines(plan_of({}, NetworkProfile::kEfa)) + "echo $LD_LIBRARY_PATH"),
              Not(HasSubstr(":\n")));
  const EnvironmentPlan own = plan_of({}, NetworkProfile::kEfa, {{name, "/opt/own/lib:/opt/amazon/efa/lib"}});
  EXPECT_EQ(find(own.variables, name)->source, VariableSource::kUser);
  EXPECT_THAT(own.warnings, IsEmpty());
}

TEST(EnvironmentPlan, ExportedLinesGiveTheSameValuesInAShell) {
  const std::string kValues[] = {
      "",           "a b",    "$HOME", "`id`", "$(id)", "\"quoted\"", "it's",      "back\\slash\\\\",
      "two\nlines", "ü → 漢", "!x",    "*",    "~",     "a;b&c|d",    "trailing\\"};
  for (const std::string& value : kValues) {
    config::ResolvedConfig resolved = configure({});
    resolved.config.env_vars["ODD"] = value;
    const EnvironmentPlan plan = plan_environment(resolved, NetworkProfile::kTcp, lens::MapEnvironment());
    EXPECT_EQ(value_of(plan.variables, "ODD"), value);
    EXPECT_EQ(value_of(plan_of({}, NetworkProfile::kTcp, {{"NCCL_X", value}}).variables, "NCCL_X"), value);
    EXPECT_EQ(run_shell("set -eu\n" + export_lines(plan) + "printf %s \"$ODD\""), value) << value;
    EXPECT_EQ(run_shell("set -eu\n" + export_lines(plan) + "sh -c 'printf %s \"$ODD\"'"), value) << value;
  }
}

TEST(EnvironmentPlan, CacheFoldersAreOfTheRank) {
  const std::string lines = "set -eu\n" + export_lines(plan_of({})) + "echo $CUDA_CACHE_PATH $OMP_NUM_THREADS";
  EXPECT_EQ(run_shell(lines), "/tmp/pharos-cache-rank-0/cuda 1\n");
  EXPECT_EQ(run_shell("SLURM_PROCID=5 TMPDIR=/scratch\n" + lines), "/scratch/pharos-cache-rank-5/cuda 1\n");
  EXPECT_EQ(run_shell("SLURM_PROCID=5 RANK=7\n" + lines), "/tmp/pharos-cache-rank-7/cuda 1\n");
}

TEST(EnvironmentPlan, ThreadsAreAtMostTheRanksShareOfTheStep) {
  const struct {
    const char *asked, *cpus_on_node, *ranks, *nodes, *threads;
  } kCases[] = {
      {"", "16", "4", "2", "1"},     // nobody asked for more
      {"4", "8", "4", "2", "4"},     // of the ranks
      {"8", "8", "4", "2", "4"},     // of salloc's one task on each node
      {"3", "16", "4", "2", "3"},    // whole nodes, of which little was asked for
      {"8", "8", "6", "2", "2"},     // no equal shares
      {"8", "8", "40", "2", "1"},    // more ranks than CPUs
      {"96", "192", "8", "1", "24"}  // one of the nodes of an allocation
  };
  const std::string lines = "set -eu\n" + export_lines(plan_of({})) + "echo $OMP_NUM_THREADS";
  for (const auto& [asked, cpus_on_node, ranks, nodes, threads] : kCases) {
    const std::string step = std::string(*asked == '\0' ? "" : "SLURM_CPUS_PER_TASK=") + asked +
                             " SLURM_CPUS_ON_NODE=" + cpus_on_node + " SLURM_NTASKS=" + ranks +
                             " SLURM_NNODES=" + nodes;
    EXPECT_EQ(run_shell(step + "\n" + lines), threads + std::string("\n")) << step;
  }
}

TEST(EnvironmentPlan, WhatTheLauncherGivesEachRankIsNotTheRecipes) {
  for (const std::string name : {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
                                 "PHAROS_TIME_LIMIT_END"}) {
    try {
      plan_of({"++env_vars." + name + "=2"});
      ADD_FAILURE() << name;
    } catch (const base::UserError& error) {
      EXPECT_EQ(error.parts().what, "env_vars." + name + " = 2 cannot be set.");
      EXPECT_EQ(error.parts().where, "command line");
    }
  }
  EXPECT_NO_THROW(plan_of({"++env_vars.RANKS=2"}, NetworkProfile::kTcp, {{"RANK", "2"}}));
}

TEST(EnvironmentPlan, NamesNoShellKnowsAreNotExported) {
  const EnvironmentPlan plan = plan_of({"++env_vars={'A;touch x': 1, A-B: 2, _ok9: 3}"});
  EXPECT_EQ(run_shell("set -eu\n" + export_lines(plan) + "echo $_ok9"), "3\n");
  EXPECT_THAT(export_lines(plan), Not(HasSubstr("touch")));
  EXPECT_THAT(plan.warnings, Contains(HasSubstr("A-B=2 (command line): this is no name that a shell can export")));
}

}  // namespace
}  // namespace pharos::launch
