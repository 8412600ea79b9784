#include "pharos/launch/kubernetes/kubernetes_manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <thread>

#include "pharos/base/error.h"
#include "pharos/launch/kubernetes/pod_script.h"

namespace pharos::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr auto kPyTorchJob = KubernetesKind::kPyTorchJob;
constexpr auto kJobSet = KubernetesKind::kJobSet;

JobRequest request_of(std::int64_t num_nodes = 2, std::int64_t gpus_per_node = 2) {
  return {
      .name = "deepseek_v2_lite",
      .recipe = "deepseek_v2_lite_pretrain",
      .overrides = {"train.train_iters=1000"},
      .run_folder = "/fsx/runs/a",
      .num_nodes = num_nodes,
      .gpus_per_node = gpus_per_node,
      .container = ContainerRequest{.image = "registry/pharos:1", .mounts = {"/fsx:/fsx"}},
      .environment = {.variables = {{.name = "CACHE", .value = "/tmp/rank-${RANK:-0}", .reason = ""}}, .warnings = {}}};
}

std::string manifest_of(const JobRequest& request, KubernetesKind kind = kPyTorchJob) {
  return kubernetes_manifest(request, {.kind = kind, .node_selector = {}});
}

YAML::Node pod_of(const YAML::Node& manifest) {
  const YAML::Node roles = manifest["spec"]["pytorchReplicaSpecs"];
  return roles ? roles["Master"]["template"]["spec"]
               : manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"];
}

/// The script as the container gets it: Kubernetes replaces `$(NAME)` by a variable it knows, and `$$` by `$`.
std::string script_of(const std::string& manifest) {
  const auto args = pod_of(YAML::Load(manifest))["containers"][0]["args"][0].as<std::string>();
  std::string script;
  for (std::size_t i = 0; i < args.size(); ++i) {
    if (args[i] == '$' && i + 1 < args.size()) {
      EXPECT_NE(args[i + 1], '(') << "would be expanded: " << args.substr(i, 20);
      if (args[i + 1] == '$') ++i;
    }
    script += args[i];
  }
  return script;
}

TEST(KubernetesManifest, NamesAreThoseOfHosts) {
  const struct {
    const char *name, *expected;
  } kCases[] = {
      {"llama3-8b", "llama3-8b"},
      {"deepseek_v2_lite_pretrain", "deepseek-v2-lite-pretrain"},
      {"Run.42 (final)", "run-42-final"},
      {"--a__b--", "a-b"},
      {"8b", "job-8b"},
      {"", "pharos"},
      {"___", "pharos"},
      {"größe", "gr-e"},
      {"../../etc", "etc"},
  };
  for (const auto& [name, expected] : kCases) EXPECT_EQ(kubernetes_name(name), expected) << name;
  const std::string long_name(300, 'a');
  EXPECT_EQ(kubernetes_name(long_name).size(), 40u);
  EXPECT_NE(kubernetes_name(long_name), kubernetes_name(long_name + "b"));
  EXPECT_EQ(kubernetes_name(long_name), kubernetes_name(long_name));
  EXPECT_THAT(kubernetes_name(std::string(30, 'a') + "-" + std::string(30, 'b')), Not(HasSubstr("--")));
}

TEST(KubernetesManifest, PyTorchJobHasOnePodANode) {
  JobRequest request = request_of(4, 8);
  request.environment.profile = NetworkProfile::kEfa;
  const YAML::Node job = YAML::Load(kubernetes_manifest(
      request, {.name_space = "train", .efa_per_node = 32, .grace_seconds = 120, .node_selector = {{"on", "1"}}}));
  EXPECT_EQ(job["apiVersion"].as<std::string>(), "kubeflow.org/v1");
  EXPECT_EQ(job["kind"].as<std::string>(), "PyTorchJob");
  EXPECT_EQ(job["metadata"]["name"].as<std::string>(), "deepseek-v2-lite");
  EXPECT_EQ(job["metadata"]["namespace"].as<std::string>(), "train");
  EXPECT_EQ(job["metadata"]["annotations"]["pharos-job-name"].as<std::string>(), "deepseek_v2_lite");
  const YAML::Node roles = job["spec"]["pytorchReplicaSpecs"];
  EXPECT_EQ(roles["Master"]["replicas"].as<int>(), 1);
  EXPECT_EQ(roles["Worker"]["replicas"].as<int>(), 3);
  EXPECT_EQ(roles["Worker"]["restartPolicy"].as<std::string>(), "ExitCode");
  const YAML::Node pod = pod_of(job);
  EXPECT_EQ(pod["terminationGracePeriodSeconds"].as<int>(), 120);
  EXPECT_EQ(pod["nodeSelector"]["on"].as<std::string>(), "1");
  const YAML::Node container = pod["containers"][0];
  EXPECT_EQ(container["name"].as<std::string>(), "pytorch");
  EXPECT_EQ(container["image"].as<std::string>(), "registry/pharos:1");
  EXPECT_EQ(container["resources"]["limits"]["nvidia.com/gpu"].as<int>(), 8);
  EXPECT_EQ(container["resources"]["requests"]["vpc.amazonaws.com/efa"].as<int>(), 32);
  EXPECT_EQ(container["securityContext"]["capabilities"]["add"][0].as<std::string>(), "IPC_LOCK");
  EXPECT_EQ(container["volumeMounts"][0]["mountPath"].as<std::string>(), "/dev/shm");
  EXPECT_EQ(pod["volumes"][0]["emptyDir"]["medium"].as<std::string>(), "Memory");
  EXPECT_EQ(pod["volumes"][1]["hostPath"]["path"].as<std::string>(), "/fsx");
  EXPECT_FALSE(YAML::Load(manifest_of(request_of(1)))["spec"]["pytorchReplicaSpecs"]["Worker"]);
}

TEST(KubernetesManifest, JobSetSaysWhatIsNotTriedAgain) {
  JobRequest request = request_of(3);
  request.uses_gpus = false;
  request.container->mounts = {"pvc/shared:/fsx", "/data:/data:ro"};
  const YAML::Node set = YAML::Load(manifest_of(request, kJobSet));
  EXPECT_EQ(set["apiVersion"].as<std::string>(), "jobset.x-k8s.io/v1alpha2");
  EXPECT_EQ(set["spec"]["failurePolicy"]["maxRestarts"].as<int>(), 3);
  EXPECT_EQ(set["spec"]["failurePolicy"]["rules"][0]["action"].as<std::string>(), "FailJobSet");
  const YAML::Node job = set["spec"]["replicatedJobs"][0]["template"]["spec"];
  EXPECT_EQ(job["completions"].as<int>(), 3);
  EXPECT_EQ(job["completionMode"].as<std::string>(), "Indexed");
  EXPECT_EQ(job["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"].as<std::vector<int>>(),
            (std::vector<int>{1, 2, 17, 126, 127}));
  const YAML::Node pod = pod_of(set);
  EXPECT_EQ(pod["restartPolicy"].as<std::string>(), "Never");
  EXPECT_FALSE(pod["containers"][0]["resources"]);
  EXPECT_EQ(pod["volumes"][1]["persistentVolumeClaim"]["claimName"].as<std::string>(), "shared");
  EXPECT_TRUE(pod["containers"][0]["volumeMounts"][2]["readOnly"].as<bool>());
  EXPECT_THAT(script_of(manifest_of(request, kJobSet)),
              HasSubstr("export MASTER_ADDR=deepseek-v2-lite-node-0-0.deepseek-v2-lite\n"));
}

TEST(KubernetesManifest, WhatCannotWorkIsRefused) {
  const struct {
    std::function<void(JobRequest&)> change;
    const char* message;
  } kCases[] = {
      {[](JobRequest& r) { r.container.reset(); }, "needs an image"},
      {[](JobRequest& r) { r.container->image = ""; }, "needs an image"},
      {[](JobRequest& r) { r.container->mounts = {".:/workspace/pharos"}; }, "Cannot mount '.:/workspace/pharos'"},
      {[](JobRequest& r) { r.container->mounts = {"/fsx"}; }, "Cannot mount"},
      {[](JobRequest& r) { r.container->mounts = {"/fsx:fsx"}; }, "Cannot mount"},
      {[](JobRequest& r) { r.container->mounts = {"pvc/:/fsx"}; }, "Cannot mount"},
      {[](JobRequest& r) { r.container->mounts = {"/fsx:/fsx:rprivate"}; }, "Cannot mount"},
      {[](JobRequest& r) { r.container->mounts = {}; }, "is in no mount"},
      {[](JobRequest& r) { r.container->mounts = {"/fsx:/fsx:ro"}; }, "is in no mount"},
      {[](JobRequest& r) { r.run_folder = "/fsx2/runs"; }, "is in no mount"},
      {[](JobRequest& r) { r.run_folder = "/fsx/../tmp"; }, "is in no mount"},
      {[](JobRequest& r) { r.run_folder = "runs/a"; }, "is in no mount"},
      {[](JobRequest& r) { r.uses_nsys = true; }, "--nsys"},
      {[](JobRequest& r) { r.environment.profile = NetworkProfile::kEfa; }, "number of EFA devices"},
      {[](JobRequest& r) { r.overrides = {std::string("a=\0", 3)}; }, "NUL"},
      {[](JobRequest& r) { r.overrides = {"a=\xff"}; }, "UTF-8"},
  };
  for (const auto& [change, message] : kCases) {
    JobRequest request = request_of();
    change(request);
    try {
      manifest_of(request);
      ADD_FAILURE() << message;
    } catch (const base::UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr(message));
      EXPECT_FALSE(error.parts().fix.empty());
    }
  }
  JobRequest inside = request_of();
  inside.container->work_folder = "/fsx/pharos/";
  inside.run_folder = "runs/a";
  EXPECT_NO_THROW(manifest_of(inside));
  EXPECT_THROW(parse_kubernetes_kind("PyTorchJob"), base::UserError);
  EXPECT_EQ(parse_kubernetes_kind("jobset"), kJobSet);
}

/// A pod on this machine: its script in a real shell, `pharos` being a shell script too.
class PodTest : public ::testing::Test {
 protected:
  PodTest() {
    std::string name = (std::filesystem::temp_directory_path() / "pharos_pod_XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~PodTest() override {
    if (pod_ > 0) {
      kill(-pod_, SIGKILL);
      waitpid(pod_, nullptr, 0);
    }
    std::filesystem::remove_all(folder_);
  }

  JobRequest request(const std::string& program) {
    const std::filesystem::path path = folder_ / "pharos program";
    std::ofstream(path) << "#!/bin/sh\nF='" << folder_.string() << "'\n" << program << "\n";
    chmod(path.c_str(), 0755);
    JobRequest request = request_of();
    request.program = path.string();
    request.run_folder = folder_ / "run";
    request.container->mounts = {folder_.string() + ":" + folder_.string()};
    return request;
  }
  /// Starts the script of node 1 as the controller would; its rounds are shorter than a second.
  void start(const std::string& manifest) {
    std::string script = script_of(manifest);
    for (const auto& [from, to] :
         {std::pair<std::string, std::string>{"sleep 1", "sleep 0.05"}, {"patience=5", "patience=2"}}) {
      const std::size_t at = script.find(from);
      ASSERT_NE(at, std::string::npos);
      script.replace(at, from.size(), to);
    }
    pod_ = fork();
    if (pod_ != 0) return;
    setpgid(0, 0);
    setenv("RANK", "1", 1);
    setenv("JOB_COMPLETION_INDEX", "1", 1);
    execl("/bin/sh", "sh", "-c", script.c_str(), nullptr);
    _exit(125);
  }
  int code() {
    int status = 0;
    waitpid(std::exchange(pod_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  std::string content(const std::string& name) const {
    std::ifstream file(folder_ / name);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void wait_for(const std::string& name) const {
    while (!std::filesystem::exists(folder_ / name)) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }

  std::filesystem::path folder_;
  pid_t pod_ = 0;
};

TEST_F(PodTest, RanksOfTheNodeGetTheirVariablesAndWords) {
  const std::string kOdd[] = {
      "a='x y'", "b=$(RANK)$$",  "c=\"`id`\\", "d=two\nlines\n", "e=ü\xe2\x80\xa8 漢", "f=$HOME",
      "-g",      "h=\x7f\x01\t", "i= "};
  JobRequest job = request(
      "{ for word in \"$@\"; do printf '<%s>' \"$word\"; done; } > \"$F/words.$RANK\"\n"
      "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_PORT $CACHE > \"$F/env.$RANK\"");
  job.overrides.assign(std::begin(kOdd), std::end(kOdd));
  for (const KubernetesKind kind : {kPyTorchJob, kJobSet}) {
    start(manifest_of(job, kind));
    EXPECT_EQ(code(), 0);
    EXPECT_EQ(content("env.2"), "2 0 4 2 29500 /tmp/rank-2\n");
    EXPECT_EQ(content("env.3"), "3 1 4 2 29500 /tmp/rank-3\n");
    std::string expected = "<train><deepseek_v2_lite_pretrain>";
    for (const std::string& word : kOdd) expected += "<" + word + ">";
    expected += "<--run-dir><" + (folder_ / "run").string() + ">";
    EXPECT_EQ(content("words.3"), expected);
    std::filesystem::create_directory(folder_ / "run");
    std::ofstream(folder_ / "run/run.yaml") << "x";
    start(manifest_of(job, kind));
    EXPECT_EQ(code(), 0);
    EXPECT_EQ(content("words.2"), expected + "<--resume>");
    std::filesystem::remove_all(folder_ / "run");
  }
}

TEST_F(PodTest, ARecipeIsNoOptionAndAnEmptyRunYamlIsARun) {
  JobRequest job = request("echo \"$2 ${*##*/}\" > \"$F/words.$RANK\"");
  job.recipe = "-x.yaml";
  std::filesystem::create_directory(folder_ / "run");
  std::ofstream(folder_ / "run/run.yaml").close();
  start(manifest_of(job));
  EXPECT_EQ(code(), 0);
  EXPECT_THAT(content("words.2"), ::testing::AllOf(::testing::StartsWith("./-x.yaml "), HasSubstr(" --resume\n")));
}

TEST_F(PodTest, CodesTellTheControllerWhatToTryAgain) {
  const struct {
    const char* program;
    int pytorch_job, job_set;
  } kCases[] = {
      {"exit 0", 0, 0},
      {"exit 2", 2, 2},
      {"exit 3", 138, 3},
      {"exit 4", 138, 4},
      {"exit 16", 138, 16},
      {"exit 17", 17, 17},
      {"kill -KILL $$", 137, 137},
      {"exit 1", 1, 1},
      {"[ $RANK = 2 ] || exit 2", 2, 2},
      {"[ $RANK = 2 ] && exit 3; exit 2", 2, 2},
  };
  for (const auto& [program, pytorch_job, job_set] : kCases) {
    const JobRequest job = request(program);
    start(manifest_of(job, kPyTorchJob));
    EXPECT_EQ(code(), pytorch_job) << program;
    start(manifest_of(job, kJobSet));
    EXPECT_EQ(code(), job_set) << program;
  }
}

TEST_F(PodTest, ARankThatFailsTakesTheOthersAlong) {
  start(manifest_of(
      request("trap 'echo ended > $F/ended; exit 0' TERM\n[ $RANK = 2 ] || exit 3\nwhile :; do sleep 0.05; done")));
  EXPECT_EQ(code(), 138);
  EXPECT_EQ(content("ended"), "ended\n");
  start(manifest_of(request("trap '' TERM\n[ $RANK = 2 ] || exit 2\nwhile :; do sleep 0.05; done")));
  EXPECT_EQ(code(), 2);
}

TEST_F(PodTest, SigtermReachesEveryRankOnceAndTheCodeIsTheirs) {
  const JobRequest job = request(
      "trap 'echo $RANK >> \"$F/asked\"; sleep 0.2; exit 4' TERM\n: > \"$F/ready.$RANK\"\nwhile :; do sleep 0.05; "
      "done");
  start(manifest_of(job, kJobSet));
  wait_for("ready.2");
  wait_for("ready.3");
  kill(pod_, SIGTERM);
  EXPECT_EQ(code(), 4);
  std::string asked = content("asked");
  std::sort(asked.begin(), asked.end());
  EXPECT_EQ(asked, "\n\n23");
}

}  // namespace
}  // namespace pharos::launch
