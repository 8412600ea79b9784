#include "pharos/lens/setup/lens_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pharos/base/error.h"

namespace pharos::lens {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

using Variables = std::map<std::string, std::string>;

const LoadOptions kNemoLens{.prefixes = {"NEMO_LENS"}, .default_service_name = "nemo"};

LensConfig load(const Variables& variables, const LoadOptions& options = {}, std::vector<std::string>* said = nullptr) {
  std::vector<std::string> warnings;
  LensConfig config = load_lens_config(MapEnvironment(variables), options, warnings);
  if (said != nullptr) *said = warnings;
  return config;
}

std::string error_of(const Variables& variables, const LoadOptions& options = {}) {
  try {
    load(variables, options);
  } catch (const base::UserError& error) {
    return error.what();
  }
  return "no error";
}

TEST(LensConfig, DefaultsAreThoseOfNemoLens) {
  const LensConfig config = load({}, kNemoLens);
  EXPECT_FALSE(config.enabled);
  EXPECT_EQ(config.service_name, "nemo");
  EXPECT_EQ(config.export_strategy, "single_rank");
  EXPECT_EQ(config.export_rank, -1);
  EXPECT_EQ(config.export_sample_rate, 1.0);
  EXPECT_FALSE(config.sample_at_least_one);
  EXPECT_FALSE(config.sampler_enabled);
  EXPECT_TRUE(config.traces_enabled);
  EXPECT_TRUE(config.metrics_enabled);
  EXPECT_FALSE(config.logs_enabled);
  EXPECT_EQ(config.span_groups, "default");
  EXPECT_EQ(config.exporter, "otlp");
  EXPECT_EQ(config.run_id, "");
  EXPECT_EQ(config.user, "");
  EXPECT_EQ(config.wandb_entity, "");
  EXPECT_THAT(config.sources, IsEmpty());
  EXPECT_EQ(resolved_groups(config), parse_groups("default"));
  EXPECT_EQ(load({}).service_name, "pharos");
}

TEST(LensConfig, EveryFieldHasItsVariable) {
  std::vector<std::string> warnings;
  const LensConfig config = load({{"NEMO_LENS_ENABLED", "YES"},
                                  {"NEMO_LENS_EXPORT_STRATEGY", "sampled"},
                                  {"NEMO_LENS_EXPORT_RANK", "1_0"},
                                  {"NEMO_LENS_EXPORT_SAMPLE_RATE", ".5"},
                                  {"NEMO_LENS_SAMPLE_AT_LEAST_ONE", "1"},
                                  {"NEMO_LENS_SAMPLER_ENABLED", "on"},
                                  {"NEMO_LENS_TRACES_ENABLED", "0"},
                                  {"NEMO_LENS_METRICS_ENABLED", "no"},
                                  {"NEMO_LENS_LOGS_ENABLED", "true"},
                                  {"NEMO_LENS_SPAN_GROUPS", " per_step "},
                                  {"NEMO_LENS_EXPORTER", "console"},
                                  {"NEMO_LENS_RUN_ID", "run-7"},
                                  {"NEMO_LENS_USER_ID", "ada"},
                                  {"OTEL_SERVICE_NAME", " trainer "},
                                  {"WANDB_ENTITY", "team"},
                                  {"WANDB_PROJECT", "llm"},
                                  {"DEPLOYMENT_ENV", "prod"}},
                                 {}, &warnings);
  EXPECT_THAT(warnings, IsEmpty());
  EXPECT_TRUE(config.enabled);
  EXPECT_EQ(config.export_strategy, "sampled");
  EXPECT_EQ(config.export_rank, 10);
  EXPECT_EQ(config.export_sample_rate, 0.5);
  EXPECT_TRUE(config.sample_at_least_one);
  EXPECT_TRUE(config.sampler_enabled);
  EXPECT_FALSE(config.traces_enabled);
  EXPECT_FALSE(config.metrics_enabled);
  EXPECT_TRUE(config.logs_enabled);
  EXPECT_EQ(config.span_groups, "per_step");
  EXPECT_EQ(config.exporter, "console");
  EXPECT_EQ(config.run_id, "run-7");
  EXPECT_EQ(config.user, "ada");
  EXPECT_EQ(config.service_name, "trainer");
  EXPECT_EQ(config.wandb_entity, "team");
  EXPECT_EQ(config.wandb_project, "llm");
  EXPECT_EQ(config.deployment_environment, "prod");
  EXPECT_EQ(config.sources.at("run_id"), "NEMO_LENS_RUN_ID, read because MEGATRON_OTEL_RUN_ID is not set");
}

TEST(LensConfig, EachKeyComesFromTheFirstPrefixThatHasIt) {
  struct Case {
    Variables variables;
    const char* exporter;
    const char* run_id;
  };
  const Case kCases[] = {
      {{{"MEGATRON_OTEL_EXPORTER", "a"}, {"NEMO_LENS_EXPORTER", "b"}, {"NEMO_LENS_RUN_ID", "r"}}, "a", "r"},
      {{{"MEGATRON_OTEL_EXPORTER", ""}, {"NEMO_LENS_EXPORTER", "b"}}, "b", ""},
      {{{"MEGATRON_OTEL_EXPORTER", " \t"}, {"NEMO_LENS_EXPORTER", " b "}}, "b", ""},
      {{{"MEGATRON_OTEL_EXPORTER", " "}, {"NEMO_LENS_EXPORTER", " "}}, "otlp", ""},
      {{{"MEGATRON_OTEL_RUN_ID", "x"}, {"NEMO_LENS_RUN_ID", "r"}}, "otlp", "x"},
  };
  for (const Case& c : kCases) {
    const LensConfig config = load(c.variables);
    EXPECT_EQ(config.exporter, c.exporter) << testing::PrintToString(c.variables);
    EXPECT_EQ(config.run_id, c.run_id) << testing::PrintToString(c.variables);
  }
  EXPECT_EQ(load({{"MEGATRON_OTEL_EXPORTER", "a"}}, kNemoLens).exporter, "otlp");
  EXPECT_TRUE(load({{"RL_OTEL_ENABLED", "1"}}, {.prefixes = {"RL_OTEL", "NEMO_LENS"}}).enabled);
}

TEST(LensConfig, BadValuesNameTheVariableReadAndThePrimaryOne) {
  struct Case {
    const char* key;
    const char* value;
  };
  const Case kCases[] = {{"ENABLED", "maybe"},           {"ENABLED", "2"},
                         {"TRACES_ENABLED", "t"},        {"METRICS_ENABLED", "enabled"},
                         {"LOGS_ENABLED", "maybe"},      {"SAMPLER_ENABLED", "rank_aware"},
                         {"EXPORT_RANK", "last"},        {"EXPORT_RANK", "1.0"},
                         {"EXPORT_RANK", "0x1"},         {"EXPORT_SAMPLE_RATE", "half"},
                         {"EXPORT_SAMPLE_RATE", "nan"},  {"EXPORT_SAMPLE_RATE", "inf"},
                         {"EXPORT_SAMPLE_RATE", "-0.1"}, {"EXPORT_SAMPLE_RATE", "1.0001"}};
  for (const Case& c : kCases) {
    const std::string key = c.key;
    EXPECT_THAT(error_of({{"NEMO_LENS_" + key, c.value}}),
                AllOf(HasSubstr("NEMO_LENS_" + key), HasSubstr("MEGATRON_OTEL_" + key)))
        << c.value;
    EXPECT_THAT(error_of({{"NEMO_LENS_" + key, c.value}}, kNemoLens), HasSubstr("NEMO_LENS_" + key)) << c.value;
  }
  EXPECT_THAT(error_of({{"NEMO_LENS_EXPORT_SAMPLE_RATE", "2"}}, kNemoLens), HasSubstr("export_sample_rate"));
  for (const char* rate : {"0", "0.0", "1", "1.0", "5e-1"}) {
    EXPECT_EQ(error_of({{"NEMO_LENS_EXPORT_SAMPLE_RATE", rate}}), "no error") << rate;
  }
}

TEST(LensConfig, OldNamesAreReadWithAWarning) {
  std::vector<std::string> warnings;
  LensConfig config = load({{"MEGATRON_OTEL_RANK_STRATEGY", "all_ranks"}}, {}, &warnings);
  EXPECT_EQ(config.export_strategy, "all_ranks");
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("MEGATRON_OTEL_EXPORT_STRATEGY, which is the name to use")));

  config = load({{"NEMO_LENS_RANK_STRATEGY", "all_ranks"}, {"NEMO_LENS_EXPORT_STRATEGY", "sampled"}}, {}, &warnings);
  EXPECT_EQ(config.export_strategy, "sampled");
  EXPECT_THAT(warnings, IsEmpty());

  struct Case {
    const char* value;
    bool is_enabled;
    std::size_t num_warnings;
  };
  for (const Case& c : {Case{"rank_aware", true, 1}, Case{"1", true, 1}, Case{"off", false, 1}, Case{"x", false, 2}}) {
    config = load({{"MEGATRON_OTEL_SAMPLING_STRATEGY", c.value}}, {}, &warnings);
    EXPECT_EQ(config.sampler_enabled, c.is_enabled) << c.value;
    EXPECT_THAT(warnings, SizeIs(c.num_warnings)) << c.value;
  }
}

TEST(LensConfig, UnknownVariablesOfAPrefixAreNamed) {
  std::vector<std::string> warnings;
  load({{"MEGATRON_OTEL_ENABLE", "1"}, {"NEMO_LENS_ZZZ", "1"}, {"NEMO_LENSES", "1"}, {"MEGATRON_X", "1"}}, {},
       &warnings);
  EXPECT_THAT(warnings, ElementsAre(AllOf(HasSubstr("MEGATRON_OTEL_ENABLE is not"),
                                          HasSubstr("Did you mean MEGATRON_OTEL_ENABLED?")),
                                    HasSubstr("NEMO_LENS_ZZZ is not")));
  load({{"MEGATRON_OTEL_ENABLE", "1"}}, kNemoLens, &warnings);
  EXPECT_THAT(warnings, IsEmpty());
}

TEST(LensConfig, DeploymentEnvironment) {
  struct Case {
    Variables variables;
    const char* expected;
  };
  const Case kCases[] = {{{}, ""},
                         {{{"ENVIRONMENT", "dev"}}, "dev"},
                         {{{"DEPLOYMENT_ENV", "prod"}, {"ENVIRONMENT", "dev"}}, "prod"},
                         {{{"DEPLOYMENT_ENV", ""}, {"ENVIRONMENT", "dev"}}, ""}};
  for (const Case& c : kCases) EXPECT_EQ(load(c.variables).deployment_environment, c.expected);
}

TEST(LensConfig, FlagsThenVariablesThenFileThenDefaults) {
  LoadOptions options;
  options.defaults = {.enabled = true, .service_name = "file", .export_rank = 2, .span_groups = "job"};
  LensConfig config = load({}, options);
  EXPECT_TRUE(config.enabled);
  EXPECT_EQ(config.service_name, "file");
  EXPECT_EQ(config.export_rank, 2);
  EXPECT_EQ(config.span_groups, "job");
  EXPECT_EQ(config.sources.at("span_groups"), "telemetry.span_groups");

  const Variables variables = {{"NEMO_LENS_ENABLED", "0"},
                               {"OTEL_SERVICE_NAME", "variable"},
                               {"MEGATRON_OTEL_EXPORT_RANK", "3"},
                               {"NEMO_LENS_SPAN_GROUPS", "step"}};
  config = load(variables, options);
  EXPECT_FALSE(config.enabled);
  EXPECT_EQ(config.service_name, "variable");
  EXPECT_EQ(config.export_rank, 3);
  EXPECT_EQ(config.span_groups, "step");

  apply_flags(config, std::nullopt, std::nullopt, std::nullopt);
  EXPECT_EQ(config.service_name, "variable");
  apply_flags(config, true, " ", "optimizer");  // a blank name counts as none, as everywhere
  EXPECT_TRUE(config.enabled);
  EXPECT_EQ(config.service_name, "variable");
  EXPECT_EQ(config.span_groups, "optimizer");
  apply_flags(config, false, "flag", std::nullopt);
  EXPECT_FALSE(config.enabled);
  EXPECT_EQ(config.service_name, "flag");
}

TEST(LensConfig, ValidationIsTheSameOnEveryRank) {
  struct Case {
    LensConfig config;
    const char* message;  ///< nullptr: fine
    bool is_error_when_disabled;
  };
  const Case kCases[] = {
      {{}, nullptr, false},
      {{.span_groups = "per_step, job"}, nullptr, false},
      {{.exporter = "console"}, nullptr, false},
      {{.span_groups = "full"}, "Unknown span group", false},
      {{.exporter = "OTLP"}, "Unknown exporter type 'OTLP'", false},
      {{.exporter = "zipkin"}, "Unknown exporter type 'zipkin'", false},
      {{.export_strategy = "rank0"}, "Unknown export_strategy 'rank0'", true},
      {{.export_sample_rate = 1.5}, "export_sample_rate", true},
  };
  for (Case c : kCases) {
    for (const bool enabled : {false, true}) {
      c.config.enabled = enabled;
      std::vector<std::string> warnings;
      std::string message;
      try {
        validate(c.config, warnings);
      } catch (const base::UserError& error) {
        message = error.what();
      }
      const bool is_error = c.message != nullptr && (enabled || c.is_error_when_disabled);
      EXPECT_EQ(message.empty(), !is_error) << message;
      if (is_error) {
        EXPECT_THAT(message, HasSubstr(c.message));
      }
      EXPECT_THAT(warnings, SizeIs(c.message != nullptr && !is_error ? 1 : 0)) << c.message;
    }
  }
}

TEST(LensConfig, ErrorsOfNamesSayWhereTheyWereRead) {
  LensConfig config = load({{"NEMO_LENS_ENABLED", "1"}, {"NEMO_LENS_SPAN_GROUPS", "full"}});
  try {
    resolved_groups(config);
    FAIL();
  } catch (const base::UserError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("NEMO_LENS_SPAN_GROUPS"), HasSubstr("MEGATRON_OTEL_SPAN_GROUPS")));
  }
}

}  // namespace
}  // namespace pharos::lens
