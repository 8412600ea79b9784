#include "pharos/launch/slurm/submission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace pharos::launch::slurm {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Submission, CommandsCanBePastedIntoAShell) {
  SlurmRequest request;
  request.job.run_folder = "/r/it's $HOME";
  EXPECT_THAT(submission_text(request, {"7", "8"}),
              ::testing::AllOf(HasSubstr("Submitted jobs 7, 8, each"),
                               HasSubstr("tail -F '/r/it'\\''s $HOME/slurm-7.log' '/r/it'\\''s $HOME/slurm-8.log'\n"),
                               HasSubstr("scancel --state=PENDING 8 7; scancel --signal=TERM 7 8\n"),
                               HasSubstr("cancel:         scancel 8 7\n")));
  request.array = "1-2";
  EXPECT_THAT(submission_text(request, {"7"}), HasSubstr("tail -F '/r/it'\\''s $HOME/slurm-7_'*.log\n"));
  request.job.run_folder = "/r/a";
  EXPECT_THAT(submission_text(request, {"7"}), HasSubstr("tail -F /r/a/slurm-7_*.log\n"));
}

// SLURM's own texts (slurm_strerror).
TEST(Submission, ARefusalHasTheRemedyOfItsCause) {
  const struct {
    const char *message, *remedy;
  } kCases[] = {
      {"Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or time "
       "limits)",
       "Wait until some of your jobs have ended"},
      {"QOSMaxSubmitJobPerUserLimit\nBatch job submission failed: Job violates accounting/QOS policy (job submit "
       "limit, "
       "user's size and/or time limits)",
       "Wait until some of your jobs have ended"},
      {"Batch job submission failed: Slurm temporarily unable to accept job, sleeping and retrying",
       "Wait until some jobs have ended"},
      {"Batch job submission failed: Requested time limit is invalid (missing or exceeds some limit)", "--time"},
      {"Batch job submission failed: Invalid account or account/partition combination specified", "--account"},
      {"Batch job submission failed: Invalid qos specification", "--qos"},
      {"invalid partition specified: gpu\nBatch job submission failed: Invalid partition name specified",
       "--partition"},
      {"Batch job submission failed: Requested node configuration is not available", "fewer ranks"},
      {"Batch job submission failed: Node count specification invalid", "--nodes"},
      {"Batch job submission failed: Invalid feature specification", "--constraint"},
      {"Batch job submission failed: Invalid generic resource (gres) specification", "GPUS_PER_NODE"},
      {"Batch job submission failed: Invalid job array specification", "--array"},
      {"Invalid --begin specification: Invalid time specification", "--begin"},
      {"unrecognized option '--x'", "--sbatch-arg"},
      {"Batch job submission failed: Unspecified error", "--dry-run"},
  };
  for (const auto& [message, remedy] : kCases) {
    const base::UserError::Parts parts = refusal(message, {});
    EXPECT_THAT(parts.fix, HasSubstr(remedy)) << message;
    EXPECT_THAT(parts.what, HasSubstr(message));
    EXPECT_EQ(parts.why, "");
  }
}

TEST(Submission, WhatAChainHasQueuedIsSaid) {
  const base::UserError::Parts one = refusal("x", {"101"});
  EXPECT_EQ(one.why, "Of the chain job 101 is queued already and will run.");
  EXPECT_THAT(one.fix, HasSubstr("take back what is queued: scancel 101."));
  EXPECT_THAT(refusal("x", {"101", "102"}).fix, HasSubstr("scancel 102 101."));
  EXPECT_THAT(refusal("x", {}).fix, Not(HasSubstr("scancel")));
}

}  // namespace
}  // namespace pharos::launch::slurm
