#include "pharos/cli/pipeline/pipeline_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/pipeline/report/measured_file.h"
#include "pharos/pipeline/report/test_measured.h"

namespace pharos::cli {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class PipelineReport : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(folder_);
    base::make_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  /// Two steps of two ranks; the second stage has the loss beside its layers.
  void record_run() const {
    pipeline::StageCosts costs = pipeline::even_costs(2, 10, 10, 10);
    costs.forward.back() += 30;
    const auto timeline = simulate(pipeline::one_forward_one_backward(2, 4), costs);
    for (const std::int64_t step : {1, 2}) {
      for (const pipeline::MeasuredStep& measured : pipeline::measured_of(timeline, step))
        pipeline::MeasuredFile(folder_, measured.global_rank).append(measured);
    }
  }

  std::string report(PipelineReportOptions options) {
    if (options.run_folder.empty()) options.run_folder = folder_.string();
    std::ostringstream out, warnings;
    try {
      report_pipeline(options, out, warnings);
    } catch (const base::UserError& error) {
      return std::string("refused: ") + error.what();
    }
    warnings_ = warnings.str();
    return out.str();
  }

  fs::path folder_;
  std::string warnings_;
};

TEST_F(PipelineReport, KnowsTheLayersOfTheRun) {
  record_run();
  EXPECT_THAT(report({}), HasSubstr("the layers of the stages are not known"));
  base::write_file_atomically(folder_ / "run.yaml",
                              "config:\n  model:\n    num_layers: 8\n    hidden_size: 64\n    num_attention_heads: 4\n"
                              "    pipeline_model_parallel_size: 2\n");
  EXPECT_THAT(report({}), HasSubstr("'model.pipeline_model_parallel_layout=\"Et*6|t*2L\"'"));
  EXPECT_EQ(warnings_, "");
}

TEST_F(PipelineReport, WritesFormats) {
  record_run();
  EXPECT_EQ(nlohmann::json::parse(report({.format = "json"})).at("steps").size(), 1U);
  EXPECT_EQ(nlohmann::json::parse(report({.step = 1, .format = "json"})).at("steps")[0].at("step"), 1);
  const fs::path file = folder_ / "bubble.svg";
  EXPECT_EQ(report({.format = "svg", .output = file.string()}), "");
  EXPECT_EQ(base::read_file(file).substr(0, 5), "<?xml");
}

TEST_F(PipelineReport, RefusesFoldersWithoutPipelines) {
  EXPECT_THAT(report({.run_folder = (folder_ / "nothing").string()}), HasSubstr("refused: There is no folder"));
  EXPECT_THAT(report({}), HasSubstr("A run with one pipeline stage writes none"));
  record_run();
  EXPECT_THAT(report({.step = 9}), HasSubstr("Whole steps are 1, 2."));
  EXPECT_THAT(report({.replica = 5}), HasSubstr("begin at ranks 0."));
  fs::remove(folder_ / "trace" / "pipeline_rank_00001.jsonl");
  EXPECT_THAT(report({}), HasSubstr("Files of some ranks are missing"));
}

TEST_F(PipelineReport, CountsDamagedLines) {
  record_run();
  std::ofstream(folder_ / "trace" / "pipeline_rank_00001.jsonl", std::ios::app) << "{\"step\":3,";
  EXPECT_THAT(report({}), HasSubstr("\ncause: "));
  EXPECT_THAT(warnings_, HasSubstr("damaged: 1, in "));
}

}  // namespace
}  // namespace pharos::cli
