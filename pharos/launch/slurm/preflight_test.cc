#include "pharos/launch/slurm/preflight.h"

#include <gmock/gmock.h>

#include "pharos/config/problem.h"
#include "pharos/launch/slurm/test_support.h"

namespace pharos::launch::slurm {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> whats(const Problems& problems) {
  std::vector<std::string> texts;
  for (const auto& problem : problems) texts.push_back(problem.what);
  return texts;
}

std::vector<std::string> fixes(const Problems& problems) {
  std::vector<std::string> texts;
  for (const auto& problem : problems) texts.push_back(problem.fix);
  return texts;
}

TEST(Mounts, AreReadAsPyxisReadsThem) {
  const auto mounts = parse_mounts(".:/workspace/pharos,/fsx:/fsx:ro+rprivate,/scratch/,sub/../data:/d", "/home/me");
  std::vector<std::string> texts;
  for (const Mount& mount : mounts) texts.push_back(mount.text());
  EXPECT_THAT(texts, ElementsAre("/home/me:/workspace/pharos", "/fsx:/fsx:ro+rprivate", "/scratch:/scratch",
                                 "/home/me/data:/d"));
  EXPECT_THAT(parse_mounts("", "/"), IsEmpty());
  EXPECT_THROW(parse_mounts(":/x", "/"), base::UserError);
  EXPECT_THROW(parse_mounts("/x:y", "/"), base::UserError);
  for (const char* flags : {"r0", "RO", "ro+x", "ro++rw", "ro:rw", "ro;rw"})
    EXPECT_THROW(parse_mounts(std::string("/x:/y:") + flags, "/"), base::UserError) << flags;
}

TEST(Mounts, GiveAPathItsNameOnTheOtherSide) {
  const ContainerView view(
      parse_mounts(".:/workspace/pharos,/fsx:/fsx,/fsx/a:/data,/x:/workspace/pharos/x", "/home/me"), "/home/me");
  EXPECT_EQ(view.work_folder(), "/workspace/pharos");
  const struct {
    const char* inside;
    const char* here;  // null: not shown
  } kCases[] = {
      {"runs/a", "/home/me/runs/a"},
      {"/workspace/pharos/runs", "/home/me/runs"},
      {"/workspace/pharosx", nullptr},
      {"/fsx/b", "/fsx/b"},
      {"/fsx", "/fsx"},
      {"/data/b", "/fsx/a/b"},
      {"/workspace/pharos/x/y", "/x/y"},
      {"x/y", "/x/y"},
      {"/fsx/../home", nullptr},
      {"/home/me/runs", nullptr},
  };
  for (const auto& [inside, here] : kCases) {
    const auto path = view.on_host(inside);
    EXPECT_EQ(path.value_or(""), here == nullptr ? "" : here) << inside;
  }
  EXPECT_EQ(view.in_container("/home/me/runs/a"), "/workspace/pharos/runs/a");
  EXPECT_EQ(view.in_container("/fsx/a/b"), "/data/b");
  EXPECT_EQ(view.in_container("/home/me/x/y"), std::nullopt);  // hidden by the mount of /x
  EXPECT_EQ(view.in_container("/home"), std::nullopt);
  EXPECT_EQ(ContainerView(parse_mounts("/fsx", "/"), "/home/me").on_host("runs/a"), std::nullopt);
}

TEST(ClusterFacts, ReadWhatTheCommandsPrint) {
  const auto groups =
      parse_node_groups("2|192+|2063800|gpu:h100:8(S:0-1)|main*\n4|8|16000|(null)|cpu\n1|8|1|gpu:2,gpu:a:1|x\n\nbad\n");
  ASSERT_EQ(groups.size(), 3U);
  EXPECT_EQ(groups[0].num_nodes, 2);
  EXPECT_EQ(groups[0].cpus, 192);
  EXPECT_EQ(groups[0].memory_bytes, 2063800LL << 20);
  EXPECT_EQ(groups[0].gpus, 8);
  EXPECT_EQ(groups[0].partition, "main");
  EXPECT_TRUE(groups[0].is_default);
  EXPECT_EQ(groups[1].gpus, 0);
  EXPECT_FALSE(groups[1].is_default);
  EXPECT_EQ(groups[2].gpus, 3);
  EXPECT_THAT(
      parse_mpi_types(
          "MPI plugin types are...\n\tpmix\n\tnone\nspecific pmix plugin versions available: pmix_v4,pmix_v3\n"),
      ElementsAre("pmix", "none", "pmix_v4", "pmix_v3"));
  EXPECT_THAT(parse_mpi_types("srun: MPI types are...\nsrun: pmi2\nsrun: none\n"), ElementsAre("pmi2", "none"));
}

class Preflight : public testing::FakeSlurmTest {
 protected:
  SlurmRequest request;
  Problems problems;
};

TEST_F(Preflight, AsksTheClusterOnce) {
  fake("sinfo", "echo '2|4|4000|(null)|main*'");
  fake("srun",
       "case $1 in --help) echo '      --container-image=[USER@]' ;; *) printf 'MPI plugin types are...\\n\\tnone\\n' "
       ">&2 ;; esac");
  ClusterFacts facts = read_cluster_facts({"sinfo", "srun"});
  EXPECT_TRUE(facts.has_pyxis);
  EXPECT_THAT(facts.mpi_types, ElementsAre("none"));
  ASSERT_EQ(facts.nodes.size(), 1U);
  fake("sinfo", "echo 'slurm_load_partitions: Unable to contact slurm controller' >&2; echo more >&2; exit 1");
  facts = read_cluster_facts({"sinfo", "srun"});
  EXPECT_EQ(facts.silence, "slurm_load_partitions: Unable to contact slurm controller");
  check_cluster(request, facts, 0, problems);
  facts = read_cluster_facts({"sinfo", "no_such_sbatch", "no_such_srun"});
  check_cluster(request, facts, 0, problems);
  EXPECT_THAT(whats(problems),
              ElementsAre("SLURM does not answer: slurm_load_partitions: Unable to contact slurm controller",
                          "There is no SLURM here: no_such_sbatch, no_such_srun are not in PATH."));
  EXPECT_THAT(problems.back().fix,
              ::testing::AllOf(HasSubstr("--dry-run"), HasSubstr("pharos train RECIPE --nproc N")));
}

TEST_F(Preflight, HabitsOfTheUserDoNotChangeTheAnswers) {
  const char* const kHabits[] = {"SINFO_PARTITION", "SQUEUE_STATES", "SLURM_TIME_FORMAT", "SBATCH_WAIT",
                                 "SBATCH_SIGNAL"};
  for (const char* name : kHabits) setenv(name, "x", 1);
  setenv("SBATCH_ACCOUNT", "mine", 1);
  unset_slurm_habits();
  for (const char* name : kHabits) EXPECT_EQ(getenv(name), nullptr) << name;
  EXPECT_STREQ(getenv("SBATCH_ACCOUNT"), "mine");
  unsetenv("SBATCH_ACCOUNT");
}

TEST_F(Preflight, FindsWordsForSbatchThatAreNotTheirs) {
  for (const char* word :
       {"--output=x", "--outp=x", "-ox", "--error=x", "--wait", "-W", "--array", "--no-requeue", "-t 5"}) {
    request.sbatch_arguments = {word};
    problems.clear();
    check_sbatch_arguments(request, problems);
    ASSERT_EQ(problems.size(), 1U) << word;
    EXPECT_THAT(problems[0].what, HasSubstr(word));
  }
  request.sbatch_arguments = {"--hold",       "--nodelist=t1",   "-w",      "x",
                              "--time-min=5", "--export-file=e", "--mem=0", "--account=a"};
  problems.clear();
  check_sbatch_arguments(request, problems);
  EXPECT_THAT(problems, IsEmpty());
}

TEST_F(Preflight, ComparesTheRequestWithTheCluster) {
  const ClusterFacts facts = {
      .missing_commands = {},
      .nodes =
          {{.num_nodes = 2, .cpus = 4, .memory_bytes = 4000LL << 20, .gpus = 0, .partition = "cpu", .is_default = true},
           {.num_nodes = 3, .cpus = 96, .memory_bytes = 1LL << 40, .gpus = 8, .partition = "gpu"},
           {.num_nodes = 1, .cpus = 96, .memory_bytes = 1LL << 40, .gpus = 4, .partition = "gpu"}},
      .mpi_types = {"none", "pmi2"}};
  const struct {
    const char* partition;
    std::int64_t nodes, ranks;
    bool asks_for_gpus;
    const char* mpi;
    bool has_container;
    double memory_bytes;
    std::vector<std::string> problems;
  } kCases[] = {
      {"", 2, 4, false, "none", false, 1e9, {}},
      {"gpu", 3, 8, true, "none", false, 0, {}},
      {"gpu", 4, 4, true, "pmi2", false, 0, {}},
      {"cpu,gpu", 90, 8, true, "none", false, 0, {}},
      {"gpu", 4, 8, true, "none", false, 0, {"4 nodes with 8 GPUs are asked for; partition gpu has 3."}},
      {"gpu", 5, 8, true, "none", false, 0, {"5 nodes are asked for; partition gpu has 4."}},
      {"",
       1,
       8,
       true,
       "none",
       false,
       0,
       {"1 nodes with 8 GPUs are asked for; partition cpu has 0.",
        "1 nodes with 8 CPUs, one for each rank, are asked for; partition cpu has 0."}},
      {"",
       1,
       1,
       false,
       "pmix",
       true,
       8e9,
       {"srun has no --mpi=pmix.", "srun cannot start containers: it has no --container-image.",
        "1 nodes with 7629 MiB of memory are asked for; partition cpu has 0."}},
      {"fast", 1, 1, false, "none", false, 0, {"There is no partition 'fast'."}},
  };
  for (const auto& item : kCases) {
    request.partition = item.partition;
    request.job.num_nodes = item.nodes;
    request.job.gpus_per_node = item.ranks;
    request.asks_for_gpus = item.asks_for_gpus;
    request.mpi = item.mpi;
    if (item.has_container) request.job.container = ContainerRequest{.image = "i", .mounts = {}};
    problems.clear();
    check_cluster(request, facts, item.memory_bytes, problems);
    EXPECT_EQ(whats(problems), item.problems);
    request.job.container.reset();
  }
}

TEST_F(Preflight, FindsWhatAContainerLacks) {
  base::write_file_atomically(folder / "good.sqsh", "hsqs and more");
  base::write_file_atomically(folder / "bad.sqsh", "hs");
  const auto mounts = parse_mounts(folder.string() + ":/f", "/");
  check_container({.image = (folder / "good.sqsh").string(), .mounts = {}}, mounts, problems);
  EXPECT_THAT(problems, IsEmpty());
  check_container({.image = (folder / "bad.sqsh").string(), .mounts = {}}, parse_mounts("/no/such:/x", "/"), problems);
  check_container({.image = (folder / "no.sqsh").string(), .mounts = {}}, mounts, problems);
  EXPECT_THAT(whats(problems), ElementsAre("'" + (folder / "bad.sqsh").string() + "' is not a squashfs file.",
                                           "The source '/no/such' of the mount /no/such:/x does not exist.",
                                           "There is no image '" + (folder / "no.sqsh").string() + "'."));
}

TEST_F(Preflight, FindsPathsThatTasksCannotSee) {
  fs::create_directories(folder / "weights");
  fs::create_directories(folder / "hidden");
  for (const char* end : {".bin", ".idx"}) base::write_file_atomically(folder / ("data" + std::string(end)), "x");
  const std::string here = folder.string();
  const ContainerView view(parse_mounts(here + "/weights:/w," + here + ":/all", "/"), folder);
  config::ResolvedConfig resolved;
  config::RunConfig& config = resolved.config;
  config.model.hf_path = "/w";
  config.dataset.data_path = {"0.5", "data", "2", "/all/data"};
  EXPECT_TRUE(check_paths(resolved, &view, problems));
  EXPECT_THAT(problems, IsEmpty());

  config.model.hf_path = here + "/weights";
  config.tokenizer.tokenizer_model = "/usr/bin/env";
  config.dataset.data_path = {"/all/nothing"};
  EXPECT_FALSE(check_paths(resolved, &view, problems));
  EXPECT_THAT(whats(problems),
              ElementsAre("model.hf_path = " + here + "/weights is not visible inside the container.",
                          "tokenizer.tokenizer_model = /usr/bin/env is not visible inside the container.",
                          "dataset.data_path = /all/nothing does not exist: it would be " + here + "/nothing here."));
  EXPECT_THAT(fixes(problems),
              ElementsAre("In the container it is /w: write model.hf_path=/w.",
                          "Add the mount /usr/bin:/usr/bin to --mounts or $MOUNT.", "Correct the path."));
  problems.clear();
  EXPECT_TRUE(check_paths(resolved, nullptr, problems));
  EXPECT_THAT(whats(problems), ElementsAre("dataset.data_path = /all/nothing does not exist."));
  config.dataset.data_path.clear();
  config.model.hf_path = "/no/weights";
  EXPECT_FALSE(check_paths(resolved, &view, problems));
  EXPECT_EQ(problems.back().fix, "Add the mount /usr/bin:/usr/bin to --mounts or $MOUNT.");
  EXPECT_EQ(problems[1].fix, "It is not on this machine either: correct the path.");
}

TEST_F(Preflight, FindsLimitsThatSlurmWouldNotTake) {
  const ClusterFacts facts = {
      .missing_commands = {},
      .nodes = parse_node_groups("2|16|4000|(null)|short*|30:00\n1|16|4000|(null)|long|infinite\n")};
  const struct {
    const char *partition, *time, *signal;
    std::vector<std::string> problems;
  } kCases[] = {
      {"", "30", "TERM@120", {}},
      {"long", "10-0", "B:TERM@120", {}},
      {"long", "infinite", "", {}},
      {"", "31", "TERM@120", {"--time 31 is more than partition short allows: 30 minutes."}},
      {"", "infinite", "TERM", {"--time infinite is more than partition short allows: 30 minutes."}},
      {"", "2", "TERM@120", {"--time 2 is 120 s; --signal TERM@120 would come 120 s before its end."}},
      {"",
       "1h",
       "TERM@2m",
       {"'1h' is no time limit.",
        "'TERM@2m' is no signal before the time limit: the seconds are no whole number up to 65535."}},
  };
  for (const auto& item : kCases) {
    request.partition = item.partition;
    request.time = item.time;
    request.signal = item.signal;
    problems.clear();
    check_limits(request, problems);
    check_cluster(request, facts, 0, problems);
    EXPECT_EQ(whats(problems), item.problems) << item.time;
  }
}

TEST_F(Preflight, FindsASignalThatNoRankSavesOn) {
  const struct {
    const char* signal;
    bool has_handler;
    config::ExitSignal exit_signal;
    bool comes_back;
    int num_problems, num_notes;
  } kCases[] = {
      {"TERM@120", true, config::ExitSignal::kTerm, true, 0, 0},
      {"B:15@120", true, config::ExitSignal::kTerm, true, 0, 0},
      {"INT@120", false, config::ExitSignal::kTerm, true, 0, 0},
      {"", false, config::ExitSignal::kTerm, true, 0, 0},
      {"USR1@120", true, config::ExitSignal::kUsr1, false, 0, 0},
      {"R:SIGHUP@120", true, config::ExitSignal::kHup, false, 0, 0},
      {"USR1@120", true, config::ExitSignal::kTerm, false, 1, 0},
      {"USR2@120", true, config::ExitSignal::kUsr1, false, 1, 0},
      {"USR1@120", false, config::ExitSignal::kUsr1, false, 1, 0},
      {"KILL@120", true, config::ExitSignal::kTerm, false, 1, 0},
      {"B:USR1@120", true, config::ExitSignal::kUsr1, false, 1, 0},
      {"B:INT@120", true, config::ExitSignal::kTerm, false, 1, 0},
      {"TERM@120", false, config::ExitSignal::kTerm, true, 1, 0},
      {"TERM@120", false, config::ExitSignal::kTerm, false, 0, 1},
  };
  for (const auto& item : kCases) {
    for (const bool is_chained : {true, false}) {
      request.signal = item.signal;
      request.is_requeued = item.comes_back && !is_chained;
      request.is_chained = item.comes_back && is_chained;
      config::ResolvedConfig resolved;
      resolved.config.train.exit_signal_handler = item.has_handler;
      resolved.config.train.exit_signal = item.exit_signal;
      problems.clear();
      std::vector<std::string> notes;
      check_signal(request, resolved, problems, notes);
      EXPECT_EQ(problems.size(), static_cast<std::size_t>(item.num_problems)) << item.signal;
      EXPECT_EQ(notes.size(), static_cast<std::size_t>(item.num_notes)) << item.signal;
      if (!problems.empty()) {
        EXPECT_THAT(problems[0].what, HasSubstr(std::string("--signal ") + item.signal));
        EXPECT_THAT(problems[0].fix, HasSubstr(item.has_handler ? "TERM@120" : "INT@120"));
      }
    }
  }
}

TEST_F(Preflight, FindsARunFolderThatCannotBeWritten) {
  const ContainerView view(parse_mounts("/d:/d:ro,/d/own:/d/own,/e:/f:rprivate+ro,/g:/g:ro+rw", "/"), "/d");
  EXPECT_EQ(check_run_folder("/d/own/r", view, problems), "/d/own/r");
  EXPECT_EQ(check_run_folder("/g/r", view, problems), "/g/r");
  EXPECT_THAT(problems, IsEmpty());
  for (const char* path : {"/d/r", "/e/r", "/h/r"}) EXPECT_EQ(check_run_folder(path, view, problems), std::nullopt);
  EXPECT_THAT(whats(problems), ElementsAre("The run folder '/d/r' cannot be written inside the container.",
                                           "The run folder '/e/r' cannot be written inside the container.",
                                           "The run folder '/h/r' is not visible inside the container."));
  EXPECT_EQ(problems[1].why, "The mount /e:/f:rprivate+ro is for reading only.");
}

TEST_F(Preflight, FindsARecipeFileThatTasksCannotSee) {
  const std::string here = folder.string();
  base::write_file_atomically(folder / "mine.yaml", "base: quickstart\n");
  const ContainerView same(parse_mounts(here + ":" + here, "/"), folder);
  check_recipe_path(here + "/mine.yaml", same, problems);
  const ContainerView other(parse_mounts(here + ":/other", "/"), folder);
  check_recipe_path("quickstart", other, problems);
  EXPECT_THAT(problems, IsEmpty());
  check_recipe_path(here + "/mine.yaml", other, problems);
  EXPECT_THAT(whats(problems),
              ElementsAre("The recipe file " + here + "/mine.yaml is not visible inside the container."));
  EXPECT_THAT(fixes(problems), ElementsAre(HasSubstr("In the container it is /other/mine.yaml")));
}

TEST_F(Preflight, NamesTheCommandLineWhenItGaveAParameter) {
  config::ResolvedConfig resolved;
  resolved.config.model.hf_path = "/no/w";
  resolved.origins["model.hf_path"] = {config::Origin::Kind::kRecipe, "recipe r (r.yaml:1)"};
  EXPECT_FALSE(check_paths(resolved, nullptr, problems));
  config::Value given = config::Value::of_string("/no/w");
  given.origin = {config::Origin::Kind::kCommandLine, "command line"};
  resolved.parameters["weights"] = given;
  EXPECT_FALSE(check_paths(resolved, nullptr, problems));
  EXPECT_EQ(problems[0].where, "recipe r (r.yaml:1)");
  EXPECT_EQ(problems[1].where, "command line, weights=/no/w");
}

TEST_F(Preflight, SaysEverythingAtOnce) {
  throw_if_any(problems);
  add_problems(problems,
               config::ConfigErrors({{.message = "a = 1 is wrong.", .origin = "command line", .remedy = "Say 2."},
                                     {.message = "b is missing."}}));
  add_problems(problems, base::UserError({.what = "No c.", .why = "Because."}));
  try {
    throw_if_any(problems);
    FAIL();
  } catch (const base::UserError& error) {
    EXPECT_STREQ(error.what(),
                 "3 problems, found before the queue:\n- a = 1 is wrong.\n    where: command line\n    fix: Say 2.\n"
                 "- b is missing.\n- No c.\n    why: Because.");
  }
}

}  // namespace
}  // namespace pharos::launch::slurm
