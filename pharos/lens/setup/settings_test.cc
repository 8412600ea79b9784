#include "pharos/lens/setup/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "pharos/base/error.h"

namespace pharos::lens {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

using Variables = std::map<std::string, std::string>;

TEST(Settings, FlagsCountBeforeNamesAreChecked) {
  const MapEnvironment environment(Variables{{"NEMO_LENS_ENABLED", "1"}, {"NEMO_LENS_SPAN_GROUPS", "full"}});
  EXPECT_THROW(load_settings(environment, {}), base::UserError);
  const LensSettings settings = load_settings(environment, {}, {.span_groups = "job,step"});
  EXPECT_EQ(settings.groups, group_bit(Group::kJob) | group_bit(Group::kStep));
  EXPECT_THAT(settings.warnings, IsEmpty());
}

TEST(Settings, WhatIsOffDoesNotStopTheRun) {
  const MapEnvironment environment(
      Variables{{"OTEL_METRIC_EXPORT_INTERVAL", "soon"}, {"NEMO_LENS_EXPORTER", "zipkin"}});
  const LensSettings settings = load_settings(environment, {});
  EXPECT_EQ(settings.groups, GroupMask{0});
  EXPECT_EQ(settings.sdk.metric_interval_ms, 10000);
  EXPECT_THAT(settings.warnings, Contains(HasSubstr("OTEL_METRIC_EXPORT_INTERVAL = 'soon'")));
  EXPECT_THAT(settings.warnings, Contains(HasSubstr("Unknown exporter type 'zipkin'")));
  EXPECT_THROW(load_settings(environment, {}, {.enabled = true}), base::UserError);
  const MapEnvironment bad_interval(Variables{{"OTEL_METRIC_EXPORT_INTERVAL", "soon"}});
  EXPECT_THROW(load_settings(bad_interval, {}, {.enabled = true}), base::UserError);
}

TEST(Settings, StandardExporterVariablesAreWarnedOfWhereTheyDiffer) {
  const MapEnvironment environment(Variables{{"NEMO_LENS_ENABLED", "1"},
                                             {"OTEL_TRACES_EXPORTER", "none"},
                                             {"OTEL_METRICS_EXPORTER", " OTLP "},
                                             {"OTEL_LOGS_EXPORTER", "console"}});
  EXPECT_THAT(load_settings(environment, {}).warnings,
              testing::ElementsAre(HasSubstr("OTEL_TRACES_EXPORTER = 'none' has no effect"),
                                   HasSubstr("OTEL_LOGS_EXPORTER = 'console' has no effect")));
  EXPECT_THAT(load_settings(environment, {}, {.enabled = false}).warnings, IsEmpty());
}

TEST(Settings, ValuesThatAreNoneStopItEvenWhenOff) {
  EXPECT_THROW(load_settings(MapEnvironment(Variables{{"NEMO_LENS_ENABLED", "maybe"}}), {}), base::UserError);
  EXPECT_THROW(load_settings(MapEnvironment(Variables{{"NEMO_LENS_EXPORT_STRATEGY", "rank0"}}), {}), base::UserError);
}

}  // namespace
}  // namespace pharos::lens
