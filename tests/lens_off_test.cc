// Telemetry in a build with PHAROS_LENS=OFF: the same calls, and nothing happens.
#include <gtest/gtest.h>

#include <filesystem>

#include "pharos/base/error.h"
#include "pharos/lens/context/propagation.h"
#include "pharos/lens/life/startup.h"
#include "pharos/lens/logs/logger.h"
#include "pharos/lens/setup/setup_telemetry.h"

namespace pharos::lens {
namespace {

static_assert(!kIsLensBuilt);

TEST(LensOff, SitesEvaluateNothing) {
  int num_evaluated = 0;
  {
    PHAROS_SPAN(span, Group::kStep, "megatron.train.iteration", {"megatron.iteration", ++num_evaluated});
    PHAROS_TRACE_REGION("region");
    EXPECT_FALSE(span);
    span.set("megatron.skipped", true);
    span.end();
  }
  EXPECT_EQ(num_evaluated, 0);
  EXPECT_FALSE(managed_span(Group::kJob, "megatron.startup"));
  EXPECT_FALSE(span_cm("megatron.cold"));
  EXPECT_FALSE(start_span(Group::kJob, "megatron.startup"));
  EXPECT_FALSE(record_span("pre_startup", Group::kJob, 1, 2, {}));
  EXPECT_EQ(traced(Group::kStep, "megatron.train.log", [] { return 7; }), 7);
  EXPECT_FALSE(current_context());
  Carrier carrier;
  inject_context(carrier);
  EXPECT_TRUE(carrier.empty());
}

TEST(LensOff, StartingIsRefusedAndSetUpSaysSo) {
  EXPECT_THROW(Telemetry::init({}), base::UserError);
  EXPECT_EQ(Telemetry::get(), nullptr);
  LensSettings settings;
  settings.config.enabled = true;
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / "pharos_lens_off_test";
  SetupInput input;
  input.run_folder = folder;
  input.keeps_ring = true;
  const SetupResult result = setup_telemetry(settings, input, MapEnvironment());
  EXPECT_EQ(result.telemetry, nullptr);
  EXPECT_FALSE(result.is_exporting);
  ASSERT_EQ(result.warnings.size(), 1u);
  EXPECT_NE(result.warnings[0].find("PHAROS_LENS=OFF"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(folder));
  log_line(Severity::kInfo, "goes nowhere");
}

TEST(LensOff, StartupIsStillTimed) {
  StartupRecord record;
  record.finish_phase("config");
  EXPECT_FALSE(open_startup_span(record, "gpt"));
  EXPECT_NE(record.render().find("config"), std::string::npos);
  IntervalSpans intervals("megatron.train", 1);
  intervals.next_pass();
}

}  // namespace
}  // namespace pharos::lens
