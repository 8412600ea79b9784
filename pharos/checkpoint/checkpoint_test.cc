#include "pharos/checkpoint/checkpoint.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <chrono>

#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/base/json.h"
#include "pharos/checkpoint/test_support.h"

namespace pharos::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::same;
using test::SmallModel;
using test::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const comm::Mesh& one_rank() {
  static const comm::Mesh mesh(1, {});
  return mesh;
}

TrainState state_at(std::int64_t step) {
  TrainState state;
  state.step = step;
  state.consumed_train_samples = step * 8;
  state.skipped_train_samples = 3;
  state.consumed_valid_samples = 5;
  state.floating_point_operations_so_far = 1.0 / 3.0 * 1e21;
  state.seed = 0xfedcba9876543210;
  state.scheduler = {{"num_steps", step * 8}, {"max_lr", 0.1}};
  state.optimizer = {{"scale", 65536.0}};
  return state;
}

SaveResult save_one(const SmallModel& model, std::int64_t step, SaveOptions options) {
  options.run_config_yaml = "train:\n  train_iters: 7\n";
  return save(model.contents, state_at(step), options, one_rank(), 0);
}

template <typename Error = base::UserError, typename Function>
std::string error_of(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& item : fs::directory_iterator(folder)) names.push_back(item.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

TEST(Checkpoint, RoundTripIsBitwise) {
  const TemporaryFolder folder;
  const SmallModel model(one_rank(), 0, 1);
  const SaveResult saved = save_one(model, 100, {.save = folder.path() / "new"});
  EXPECT_THAT(names_in(folder.path() / "new"), ElementsAre("iter_0000100", "latest_checkpointed_iteration.txt"));
  EXPECT_THAT(names_in(saved.folder), ElementsAre("manifest.json", "metadata.json", "rank_00000.safetensors",
                                                  "run_config.yaml", "train_state.json"));
  EXPECT_EQ(base::read_file(folder.path() / "new/latest_checkpointed_iteration.txt"), "100");
  EXPECT_EQ(base::read_file(saved.folder / "run_config.yaml"), "train:\n  train_iters: 7\n");
  const auto metadata = base::read_json_file(saved.folder / "metadata.json");
  EXPECT_EQ(metadata["sharded_backend"], "pharos");
  EXPECT_EQ(metadata["sharded_backend_version"], 2);

  SmallModel other(one_rank(), 0, 2);
  ASSERT_FALSE(same(model.contents, other.contents));
  const auto found = find_checkpoint(folder.path() / "new");
  ASSERT_TRUE(found);
  EXPECT_THAT(found->warnings, IsEmpty());
  const LoadResult loaded = load(other.contents, found->folder, {}, one_rank(), 0);
  EXPECT_TRUE(same(model.contents, other.contents));
  EXPECT_EQ(to_json(loaded.train_state), to_json(state_at(100)));
  EXPECT_THAT(verify(found->folder).problems, IsEmpty());
  EXPECT_EQ(verify(found->folder).num_tensors, 18u);  // 6 pieces, weights and two moments
}

TEST(Checkpoint, WeightsAloneLoadWithoutTheStateAndConvert) {
  const TemporaryFolder folder;
  const SmallModel model(one_rank(), 0, 1);
  const auto saved = save_one(model, 1, {.save = folder.path()}).folder;
  SmallModel other(one_rank(), 0, 2);
  drop_state(other.contents);
  for (Held& held : other.contents) held.values = held.values.to(at::kBFloat16);
  load(other.contents, saved, {}, one_rank(), 0);
  ASSERT_EQ(other.contents.size(), 4u);
  EXPECT_TRUE(at::equal(other.contents[1].values, model.contents[1].values.to(at::kBFloat16)));
}

TEST(Checkpoint, NamesAllMissingSurplusAndMisshapenTensorsAtOnce) {
  const TemporaryFolder folder;
  SmallModel model(one_rank(), 0, 1);
  model.parameter(2).pieces[0].name = "surplus.weight";
  const auto saved = save_one(model, 1, {.save = folder.path()}).folder;
  const SmallModel other(one_rank(), 0, 2), untouched(one_rank(), 0, 2);
  other.parameter(1).pieces[0].shape = {6, 4};
  other.parameter(1).pieces[1].shape = {6, 4};
  const std::string error = error_of([&] { load(other.contents, saved, {}, one_rank(), 0); });
  EXPECT_THAT(error, HasSubstr("3 missing in the checkpoint: linear_proj.weight, exp_avg/linear_proj.weight"));
  EXPECT_THAT(error, HasSubstr("surplus.weight"));
  EXPECT_THAT(error, HasSubstr("q.weight (checkpoint [8, 4], model [6, 4])"));
  EXPECT_THAT(error, HasSubstr("k.weight (checkpoint [4, 4], model [6, 4])"));
  EXPECT_TRUE(same(other.contents, untouched.contents));

  const SmallModel lenient(one_rank(), 0, 2);
  const LoadResult loaded = load(lenient.contents, saved, {.strict = false}, one_rank(), 0);
  ASSERT_EQ(loaded.warnings.size(), 1u);
  EXPECT_TRUE(at::equal(lenient.contents[1].values, model.contents[1].values));
  EXPECT_TRUE(at::equal(lenient.contents[2].values, untouched.contents[2].values));

  SmallModel with_main(one_rank(), 0, 1);
  for (std::size_t i = 4; i < 8; ++i) with_main.contents[i].kind = "main_param";
  EXPECT_THAT(error_of([&] { load(with_main.contents, saved, {}, one_rank(), 0); }),
              HasSubstr("holds no optimizer state main_param"));
}

TEST(Checkpoint, AnyDamagedFileIsNamed) {
  for (const char* name : {"manifest.json", "train_state.json", "rank_00000.safetensors", "run_config.yaml"}) {
    const TemporaryFolder folder;
    const SmallModel model(one_rank(), 0, 1);
    const auto saved = save_one(model, 1, {.save = folder.path()}).folder;
    test::flip_byte(saved / name, -3);
    if (std::string(name) == "manifest.json") {
      EXPECT_THAT(error_of([&] { verify(saved); }), HasSubstr("manifest.json"));
    } else {
      ASSERT_EQ(verify(saved).problems.size(), 1u) << name;
      EXPECT_THAT(verify(saved).problems[0], HasSubstr(name));
    }
    if (std::string(name) != "run_config.yaml") {
      EXPECT_THAT(error_of([&] { load(model.contents, saved, {}, one_rank(), 0); }), HasSubstr(name));
    }
    fs::resize_file(saved / name, 10);
    EXPECT_FALSE(is_complete(saved)) << name;
  }
}

TEST(Checkpoint, KeepsTheLastNAndTheOneBeingLoaded) {
  const TemporaryFolder folder;
  const SmallModel model(one_rank(), 0, 1);
  for (const std::int64_t step : {10, 20, 30}) save_one(model, step, {.save = folder.path()});
  const SaveResult result =
      save_one(model, 40, {.save = folder.path(), .most_recent_k = 2, .loaded_from = folder.path() / "iter_0000010"});
  EXPECT_THAT(complete_iterations(folder.path()), ElementsAre(10, 30, 40));
  EXPECT_THAT(result.removed, ElementsAre(folder.path() / "iter_0000020"));
  // A run that went back to an older checkpoint never removes the one it has just written.
  save_one(model, 5, {.save = folder.path(), .most_recent_k = 1});
  EXPECT_THAT(complete_iterations(folder.path()), ElementsAre(5, 40));
  EXPECT_EQ(find_checkpoint(folder.path())->folder, folder.path() / "iter_0000005");
  save_one(model, 5, {.save = folder.path(), .most_recent_k = -1});  // replaces itself
  EXPECT_THAT(names_in(folder.path()),
              ElementsAre("iter_0000005", "iter_0000040", "latest_checkpointed_iteration.txt"));
}

TEST(Checkpoint, LeftoversOfKilledSavesGoButNotThoseOfRunningOnes) {
  const TemporaryFolder folder;
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);  // a process id that is not running any more
  const std::string dead = std::to_string(child), alive = std::to_string(::getppid());
  for (const std::string& name :
       {"iter_0000007.tmp." + dead, "iter_0000007.old.tmp." + dead, "iter_0000008.tmp." + alive,
        std::string("iter_7.tmp.1x"), std::string("notes.tmp.") + dead}) {
    fs::create_directories(folder.path() / name);
    test::write_text(folder.path() / name / "part", "x");
  }
  // The number of a process that began after this was written: another one.
  fs::create_directories(folder.path() / ("iter_0000006.tmp." + alive));
  fs::last_write_time(folder.path() / ("iter_0000006.tmp." + alive),
                      fs::file_time_type::clock::now() - std::chrono::years(60));
  test::write_text(folder.path() / ("latest_checkpointed_iteration.txt.tmp." + dead), "7");
  const SmallModel model(one_rank(), 0, 1);
  save_one(model, 9, {.save = folder.path()});
  EXPECT_THAT(names_in(folder.path()), ElementsAre("iter_0000008.tmp." + alive, "iter_0000009", "iter_7.tmp.1x",
                                                   "latest_checkpointed_iteration.txt", "notes.tmp." + dead));
}

TEST(Checkpoint, FailureWhileSavingLeavesTheLastGoodOne) {
  const TemporaryFolder folder;
  const SmallModel model(one_rank(), 0, 1);
  save_one(model, 1, {.save = folder.path()});
  // A file-size limit stands for a full disk: both fail in write().
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{1000, before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &limit);
  const std::string error =
      error_of<base::TrainingError>([&] { save_one(model, 2, {.save = folder.path(), .most_recent_k = 1}); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, handler);
  EXPECT_THAT(error, HasSubstr("iteration 2 could not be saved"));
  EXPECT_THAT(error, HasSubstr("The last good checkpoint is " + (folder.path() / "iter_0000001").string()));
  EXPECT_THAT(names_in(folder.path()), ElementsAre("iter_0000001", "latest_checkpointed_iteration.txt"));
  EXPECT_EQ(find_checkpoint(folder.path())->folder, folder.path() / "iter_0000001");
  EXPECT_THAT(verify(folder.path() / "iter_0000001").problems, IsEmpty());
}

TEST(Checkpoint, FolderThatCannotBeMadeIsAUserError) {
  const TemporaryFolder folder;
  test::write_text(folder.path() / "file", "x");
  const SmallModel model(one_rank(), 0, 1);
  EXPECT_THAT(error_of([&] { save_one(model, 1, {.save = folder.path() / "file" / "checkpoints"}); }),
              HasSubstr("file/checkpoints"));
}

TEST(FindCheckpoint, FollowsTrackerStepAndDirectFolder) {
  const TemporaryFolder folder;
  const SmallModel model(one_rank(), 0, 1);
  EXPECT_FALSE(find_checkpoint(folder.path() / "nowhere"));
  EXPECT_FALSE(find_checkpoint(folder.path()));
  for (const std::int64_t step : {10, 20}) save_one(model, step, {.save = folder.path()});
  EXPECT_EQ(find_checkpoint(folder.path())->folder, folder.path() / "iter_0000020");
  EXPECT_EQ(find_checkpoint(folder.path(), 10)->folder, folder.path() / "iter_0000010");
  EXPECT_EQ(find_checkpoint(folder.path() / "iter_0000010")->folder, folder.path() / "iter_0000010");
  const std::string error = error_of([&] { find_checkpoint(folder.path(), 15); });
  EXPECT_THAT(error, HasSubstr("checkpoint.ckpt_step = 15"));
  EXPECT_THAT(error, HasSubstr("10, 20"));
  fs::rename(folder.path() / "iter_0000020", folder.path() / "release");
  test::write_text(folder.path() / "latest_checkpointed_iteration.txt", "release\n");
  EXPECT_EQ(find_checkpoint(folder.path())->folder, folder.path() / "release");
}

TEST(FindCheckpoint, FallsBackFromADamagedTrackerWithAWarning) {
  const TemporaryFolder folder;
  const SmallModel model(one_rank(), 0, 1);
  for (const std::int64_t step : {10, 20, 30}) save_one(model, step, {.save = folder.path()});
  fs::resize_file(folder.path() / "iter_0000030/rank_00000.safetensors", 5);  // cut short: not complete
  struct Case {
    const char* tracker;
    const char* warning;
  };
  for (const Case& item :
       {Case{"", "neither an iteration"}, Case{"1x", "neither"}, Case{"-5", "neither"},
        Case{"99999999999999999999", "neither"}, Case{"77", "'iter_0000077'"}, Case{"30", "incomplete"}}) {
    test::write_text(folder.path() / "latest_checkpointed_iteration.txt", item.tracker);
    const auto found = find_checkpoint(folder.path());
    EXPECT_EQ(found->folder, folder.path() / "iter_0000020");
    ASSERT_EQ(found->warnings.size(), 1u);
    EXPECT_THAT(found->warnings[0], HasSubstr(item.warning));
  }
  const fs::path tracker = folder.path() / "latest_checkpointed_iteration.txt";
  fs::remove(tracker);
  ASSERT_EQ(::mkfifo(tracker.c_str(), 0600), 0);
  EXPECT_THAT(find_checkpoint(folder.path())->warnings, ElementsAre(HasSubstr("is no file")));
  for (const char* step : {"iter_0000010", "iter_0000020"}) fs::remove_all(folder.path() / step);
  EXPECT_THAT(error_of([&] { find_checkpoint(folder.path()); }), HasSubstr("no complete checkpoint"));
}

TEST(FindCheckpoint, NamesForeignFormats) {
  struct Case {
    const char* file;
    const char* format;
  };
  for (const Case& item :
       {Case{"iter_0000005/.metadata", "torch_dist"}, Case{"iter_0000005/__0_0.distcp", "torch_dist"},
        Case{"iter_0000005/mp_rank_00/x", "torch (pickled"}, Case{"iter_0000005/common.pt", "torch (pickled"},
        Case{"model.pt", "torch (pickled"}}) {
    for (const bool with_tracker : {false, true}) {
      const TemporaryFolder folder;
      fs::create_directories((folder.path() / item.file).parent_path());
      test::write_text(folder.path() / item.file, "x");
      if (with_tracker) test::write_text(folder.path() / "latest_checkpointed_iteration.txt", "5");
      EXPECT_THAT(error_of([&] { find_checkpoint(folder.path()); }), HasSubstr(item.format)) << item.file;
    }
  }
  const TemporaryFolder folder;
  test::write_text(folder.path() / "config.json", "{}");
  test::write_text(folder.path() / "model.safetensors", "");
  EXPECT_THAT(error_of([&] { find_checkpoint(folder.path()); }), HasSubstr("model.hf_path"));
}

}  // namespace
}  // namespace pharos::checkpoint
