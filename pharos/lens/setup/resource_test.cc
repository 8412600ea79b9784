#include "pharos/lens/setup/resource.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <map>
#include <regex>

#include "pharos/lens/setup/run_id.h"

namespace pharos::lens {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::IsSupersetOf;
using testing::Pair;
using testing::UnorderedElementsAre;

using Variables = std::map<std::string, std::string>;
using Attributes = std::map<std::string, StoredValue>;

StoredValue text(const char* value) { return std::string(value); }
StoredValue number(std::int64_t value) { return value; }

const HostFacts kHost{.host_name = "vm", .pid = 18728};

Attributes build(const LensConfig& config, const ResourceInput& input, const Variables& variables = {},
                 std::vector<std::string>* said = nullptr) {
  std::vector<std::string> warnings;
  const StoredAttributes built = build_resource(config, input, MapEnvironment(variables), warnings);
  if (said != nullptr) *said = warnings;
  const Attributes attributes(built.begin(), built.end());
  EXPECT_EQ(attributes.size(), built.size()) << "a key is there twice";
  return attributes;
}

/// The case resource_slurm recorded from nemo-lens 0.2.0, but for what tells of the library.
const Variables kSlurmCase = {{"SLURM_JOB_ID", "4242"},
                              {"SLURM_JOB_NAME", "pretrain"},
                              {"SLURM_NODEID", "1"},
                              {"SLURM_PROCID", "5"},
                              {"SLURM_LOCALID", "1"},
                              {"SLURM_NNODES", "2"},
                              {"SLURM_NTASKS", "16"},
                              {"SLURM_JOB_NODELIST", "n[1-2]"},
                              {"SLURM_CLUSTER_NAME", "alpha"},
                              {"SLURM_RESTART_COUNT", "1"},
                              {"OTEL_RESOURCE_ATTRIBUTES", "team=llm,service.version=9"},
                              {"OTEL_SERVICE_NAME", "pharos-test"},
                              {"NEMO_LENS_EXPORT_STRATEGY", "all_ranks"}};
const StoredAttributes kSlurmCaseExtra = {
    {"dl.tensor_parallel.size", number(8)}, {"megatron.num_layers", number(27)}, {"megatron.precision", text("bf16")}};

TEST(Resource, EqualsWhatNemoLensSendsInASlurmJob) {
  const MapEnvironment environment(kSlurmCase);
  std::vector<std::string> warnings;
  const LensConfig config =
      load_lens_config(environment, {.prefixes = {"NEMO_LENS"}, .default_service_name = "nemo"}, warnings);
  Attributes attributes = build(config,
                                {.run_id = choose_run_id(config, environment),
                                 .rank = 5,
                                 .world_size = 16,
                                 .extra = kSlurmCaseExtra,
                                 .host = kHost,
                                 .has_training_keys = false},
                                kSlurmCase, &warnings);
  for (const char* own : {"telemetry.sdk.language", "telemetry.sdk.name", "telemetry.sdk.version", "service.version"}) {
    EXPECT_EQ(attributes.erase(own), 1u) << own;
  }
  EXPECT_EQ(attributes, (Attributes{{"service.instance.id", text("4242-rank5")},
                                    {"team", text("llm")},
                                    {"service.name", text("pharos-test")},
                                    {"dl.rank", number(5)},
                                    {"dl.world_size", number(16)},
                                    {"nemo.run.id", text("4242")},
                                    {"dl.tensor_parallel.size", number(8)},
                                    {"megatron.num_layers", number(27)},
                                    {"megatron.precision", text("bf16")},
                                    {"host.name", text("vm")},
                                    {"process.pid", number(18728)},
                                    {"slurm.job.id", text("4242")},
                                    {"slurm.job.name", text("pretrain")},
                                    {"slurm.nnodes", text("2")},
                                    {"slurm.ntasks", text("16")},
                                    {"slurm.cluster.name", text("alpha")}}));
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("OTEL_RESOURCE_ATTRIBUTES: service.version")));
}

TEST(Resource, EqualsWhatNemoLensSendsWithoutAnything) {
  Attributes attributes =
      build({.service_name = "nemo"},
            {.run_id = "99c5ea58b0d3", .rank = 1, .world_size = 2, .host = {"vm", 18767}, .has_training_keys = false});
  EXPECT_EQ(attributes["telemetry.sdk.language"], text("cpp"));
  EXPECT_EQ(attributes["telemetry.sdk.name"], text("pharos"));
  EXPECT_EQ(attributes["telemetry.sdk.version"], attributes["service.version"]);
  EXPECT_TRUE(std::regex_match(std::string(pharos_version()), std::regex(R"(\d+\.\d+\.\d+)"))) << pharos_version();
  for (const char* own : {"telemetry.sdk.language", "telemetry.sdk.name", "telemetry.sdk.version", "service.version"}) {
    attributes.erase(own);
  }
  EXPECT_EQ(attributes, (Attributes{{"service.instance.id", text("99c5ea58b0d3-rank1")},
                                    {"service.name", text("nemo")},
                                    {"dl.rank", number(1)},
                                    {"dl.world_size", number(2)},
                                    {"nemo.run.id", text("99c5ea58b0d3")},
                                    {"host.name", text("vm")},
                                    {"process.pid", number(18767)}}));
}

TEST(Resource, TrainingProcessHasMegatronsKeysAndItsPlace) {
  Variables variables = kSlurmCase;
  variables.insert({{"TORCHELASTIC_RESTART_COUNT", "3"},
                    {"SLURM_JOB_PARTITION", "batch"},
                    {"SLURM_JOB_NUM_NODES", "99"},
                    {"LENS_SLURM_SLUID", "s1"},
                    {"NVRX_CYCLE", "2"},
                    {"NVRX_INFRA_RANK", "node-7"},
                    {"NVRX_MEMBERSHIP", "active"}});
  const RankCoordinates coordinates{
      .local_rank = 1, .tensor = {1, 8}, .pipeline = {0, 1}, .data = {0, 2}, .context = {1, 4}, .expert = {3, 16}};
  const Attributes attributes =
      build({}, {.run_id = "4242", .rank = 5, .world_size = 16, .coordinates = coordinates, .host = kHost}, variables);
  EXPECT_THAT(attributes,
              IsSupersetOf(Attributes{{"dl.local_rank", number(1)},
                                      {"dl.tensor_parallel.rank", number(1)},
                                      {"dl.tensor_parallel.size", number(8)},
                                      {"dl.pipeline_parallel.rank", number(0)},
                                      {"dl.pipeline_parallel.size", number(1)},
                                      {"dl.data_parallel.rank", number(0)},
                                      {"dl.data_parallel.size", number(2)},
                                      {"dl.context_parallel.rank", number(1)},
                                      {"dl.context_parallel.size", number(4)},
                                      {"dl.expert_parallel.rank", number(3)},
                                      {"dl.expert_parallel.size", number(16)},
                                      {"slurm.cluster", text("alpha")},
                                      {"slurm.sluid", text("s1")},
                                      {"slurm.restart_count", text("1")},
                                      {"slurm.torchelastic.restart_count", text("3")},
                                      {"slurm.nodelist", text("n[1-2]")},
                                      {"slurm.partition", text("batch")},
                                      {"slurm.nnodes", text("2")},
                                      {"nvrx.cycle", number(2)},
                                      {"nvrx.infra_rank", text("node-7")},
                                      {"nvrx.membership", text("active")},
                                      {"nemo.lens.job_uuid", text("bee6888e-4792-563f-952f-5f148c3dde29")}}));
  EXPECT_EQ(attributes.count("slurm.array.job_id"), 0u);
  EXPECT_EQ(attributes.count("slurm.array.task_id"), 0u);
}

TEST(Resource, ArrayJob) {
  const Attributes attributes =
      build({}, {.run_id = "r", .host = kHost}, {{"SLURM_ARRAY_JOB_ID", "77"}, {"SLURM_ARRAY_TASK_ID", "1"}});
  EXPECT_EQ(attributes.at("slurm.array.job_id"), text("77"));
  EXPECT_EQ(attributes.at("slurm.array.task_id"), text("1"));
  EXPECT_EQ(attributes.count("slurm.job.id"), 0u);
  EXPECT_EQ(attributes.count("dl.local_rank"), 0u);  // no coordinates were given
}

TEST(Resource, ConfigurationFieldsThatAreSet) {
  const Attributes attributes =
      build({.user = "ada", .wandb_entity = "team", .wandb_project = "llm", .deployment_environment = "staging"},
            {.run_id = "r", .host = kHost});
  EXPECT_THAT(attributes, IsSupersetOf(Attributes{{"nemo.user.id", text("ada")},
                                                  {"wandb.entity", text("team")},
                                                  {"wandb.project", text("llm")},
                                                  {"deployment.environment", text("staging")}}));
}

TEST(Resource, LaterSourcesWinAndLosersAreNamed) {
  std::vector<std::string> warnings;
  const Attributes attributes =
      build({.service_name = "job"},
            {.run_id = "r",
             .extra = {{"dl.rank", number(7)}, {"host.name", text("mine")}, {"own", text("1")}},
             .host = kHost},
            {{"OTEL_RESOURCE_ATTRIBUTES", "own=0,service.name=other,team=a,process.pid=1"}}, &warnings);
  EXPECT_EQ(attributes.at("dl.rank"), number(7));  // the caller's, over our own
  EXPECT_EQ(attributes.at("service.instance.id"), text("r-rank0"));
  EXPECT_EQ(attributes.at("host.name"), text("vm"));  // the detector's, over the caller's
  EXPECT_EQ(attributes.at("own"), text("1"));
  EXPECT_EQ(attributes.at("team"), text("a"));
  EXPECT_EQ(attributes.at("service.name"), text("job"));
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("OTEL_RESOURCE_ATTRIBUTES: service.name, own, process.pid are set"),
                                    HasSubstr("Resource attributes of the program: host.name is set")));
}

TEST(Resource, Kubernetes) {
  const Variables names = {{"K8S_NAMESPACE", "train"}, {"HOSTNAME", "pod-0"},          {"K8S_POD_UID", "u"},
                           {"K8S_NODE_NAME", "n1"},    {"K8S_CONTAINER_NAME", "main"}, {"K8S_JOB_NAME", "j"}};
  EXPECT_EQ(build({}, {.run_id = "r", .host = kHost}, names).count("k8s.pod.name"), 0u);
  Variables inside = names;
  inside["KUBERNETES_SERVICE_HOST"] = "10.0.0.1";
  const Attributes expected = {
      {"k8s.namespace.name", text("train")}, {"k8s.pod.name", text("pod-0")},      {"k8s.pod.uid", text("u")},
      {"k8s.node.name", text("n1")},         {"k8s.container.name", text("main")}, {"k8s.job.name", text("j")}};
  EXPECT_THAT(build({}, {.run_id = "r", .host = kHost}, inside), IsSupersetOf(expected));
  HostFacts host = kHost;
  host.has_kubernetes_secrets = true;
  EXPECT_THAT(build({}, {.run_id = "r", .host = host}, names), IsSupersetOf(expected));
  inside["K8S_POD_NAME"] = "named";
  EXPECT_EQ(build({}, {.run_id = "r", .host = kHost}, inside).at("k8s.pod.name"), text("named"));
}

TEST(Resource, GpuCount) {
  struct Case {
    const char* mask;
    int count;
  };
  const Case kCases[] = {{"0,1,2,3", 4}, {"", 0},        {" ", 0},    {"-1", 0},         {"0,-1,1", 1},
                         {"0,1,", 2},    {" 2 , 3 ", 2}, {"none", 0}, {"NoDevFiles", 0}, {"GPU-8932f937,GPU-1", 2},
                         {"MIG-1a", 1},  {"7", 1},       {",0", 0},   {"0,x,1", 1}};
  for (const Case& c : kCases) {
    EXPECT_EQ(count_visible_devices(c.mask), c.count) << c.mask;
    HostFacts host = kHost;
    host.num_gpu_devices = 8;  // the mask counts, not the files
    EXPECT_EQ(build({}, {.run_id = "r", .host = host}, {{"CUDA_VISIBLE_DEVICES", c.mask}}).at("host.gpu.count"),
              number(c.count));
  }
  EXPECT_EQ(build({}, {.run_id = "r", .host = kHost}).count("host.gpu.count"), 0u);
  EXPECT_EQ(build({}, {.run_id = "r", .host = {"vm", 1, 8}}).at("host.gpu.count"), number(8));
}

TEST(Resource, AttributesOfTheEnvironment) {
  struct Case {
    const char* value;
    Attributes attributes;
    std::size_t num_warnings;
  };
  const Case kCases[] = {
      {"team=llm", {{"team", text("llm")}}, 0}, {" a = 1 , b=x%2Cy%3Dz ", {{"a", text("1")}, {"b", text("x,y=z")}}, 0},
      {"a=b=c", {{"a", text("b=c")}}, 0},       {"a=", {{"a", text("")}}, 0},
      {"a=1,a=2", {{"a", text("2")}}, 0},       {"a=1,,b=2,", {{"a", text("1")}, {"b", text("2")}}, 0},
      {"plain,=x,a=1", {{"a", text("1")}}, 2},  {"a=%ff", {{"a", text("\xef\xbf\xbd")}}, 0},
  };
  for (const Case& c : kCases) {
    std::vector<std::string> warnings;
    const StoredAttributes parsed = parse_resource_attributes(c.value, warnings);
    EXPECT_EQ(Attributes(parsed.begin(), parsed.end()), c.attributes) << c.value;
    EXPECT_EQ(warnings.size(), c.num_warnings) << c.value;
  }
}

TEST(Resource, FaultyEntriesAreSaidAtMostSixTimes) {
  std::string list;
  for (int i = 0; i < 1000; ++i) list += "x,";
  std::vector<std::string> warnings;
  EXPECT_EQ(parse_resource_attributes(list + "a=1", warnings).size(), 1u);
  ASSERT_EQ(warnings.size(), 6u);
  EXPECT_EQ(warnings.back(), "OTEL_RESOURCE_ATTRIBUTES: 995 further entries are skipped, too.");
}

TEST(Resource, TextsAreValidUtf8) {
  const Attributes attributes =
      build({}, {.run_id = "r", .extra = {{"list", std::vector<std::string>{"\xff"}}}, .host = kHost},
            {{"SLURM_JOB_ID", "1"}, {"SLURM_JOB_NAME", "caf\xe9"}});
  EXPECT_EQ(attributes.at("slurm.job.name"), text("caf\xef\xbf\xbd"));
  EXPECT_EQ(attributes.at("list"), StoredValue(std::vector<std::string>{"\xef\xbf\xbd"}));
}

TEST(Resource, FactsOfThisHost) {
  const HostFacts facts = collect_host_facts();
  char name[256] = {};
  ASSERT_EQ(gethostname(name, sizeof name - 1), 0);
  EXPECT_EQ(facts.host_name, name);
  EXPECT_EQ(facts.pid, getpid());
  EXPECT_GE(facts.num_gpu_devices, 0);
}

}  // namespace
}  // namespace pharos::lens
