#include "pharos/lens/variables/variables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>
#include <regex>
#include <set>

#include "pharos/lens/life/startup.h"
#include "pharos/lens/setup/resource.h"
#include "pharos/lens/setup/run_id.h"
#include "pharos/lens/setup/sdk_settings.h"
#include "pharos/lens/setup/strategies.h"

namespace pharos::lens {
namespace {

/// A map that remembers what it was asked for.
class RecordingEnvironment : public MapEnvironment {
 public:
  using MapEnvironment::MapEnvironment;
  std::optional<std::string> get(const std::string& name) const override {
    asked.insert(name);
    return MapEnvironment::get(name);
  }
  mutable std::set<std::string> asked;
};

/// Everything that set-up reads in an environment that leads through every branch which reads.
std::set<std::string> read_variables(std::map<std::string, std::string> variables) {
  const RecordingEnvironment environment(std::move(variables));
  std::vector<std::string> warnings;
  const LensConfig config = load_lens_config(environment, {.prefixes = {"P", "Q"}}, warnings);
  load_sdk_settings(environment, warnings);
  warn_of_standard_exporters(environment, config, warnings);
  is_exporting_rank({config, 0, 1, environment, warnings});
  const ResourceInput input{.run_id = choose_run_id(config, environment)};
  build_resource(config, input, environment, warnings);
  read_launch_stamps(environment);
  return environment.asked;
}

TEST(Variables, TableIsWhatIsRead) {
  std::set<std::string> asked = read_variables({{"P_EXPORT_STRATEGY", "first_rank_per_node"}, {"P_ENABLED", "1"}});
  asked.merge(read_variables({{"SLURM_JOB_ID", "1"}, {"KUBERNETES_SERVICE_HOST", "h"}, {"DEPLOYMENT_ENV", "d"}}));
  asked.merge(read_variables(
      {{"SLURM_ARRAY_TASK_ID", "1"}, {"OTEL_TRACES_SAMPLER", "traceidratio"}, {"NVRX_LAUNCH_TIME", "1"}}));
  std::set<std::string> listed;
  for (const VariableDescription& variable : known_variables()) {
    const std::string name(variable.name);
    if (variable.is_prefixed) {
      listed.insert({"P_" + name, "Q_" + name});
    } else {
      EXPECT_TRUE(listed.insert(name).second) << name << " is listed twice";
    }
    EXPECT_TRUE(variable.meaning.ends_with('.')) << name;
  }
  EXPECT_EQ(asked, listed);
}

/// The row of `variable` in docs/observability/configuration.md.
std::string documentation_row(const VariableDescription& variable) {
  std::string row(variable.is_prefixed ? "| `P_" : "| `");
  row.append(variable.name).append("` | ");
  if (!variable.default_value.empty()) row.append("`").append(variable.default_value).append("`");
  return row.append(" | ").append(variable.meaning).append(" | ").append(variable.note).append(" |");
}

TEST(Variables, DocumentationHasTheTable) {
  std::ifstream file(PHAROS_TEST_DATA "/../../docs/observability/configuration.md");
  ASSERT_TRUE(file) << "no docs/observability/configuration.md";
  const std::regex is_row("^\\| `[A-Z][A-Z0-9_]*` \\|.*");
  std::vector<std::string> rows;
  for (std::string line; std::getline(file, line);) {
    if (std::regex_match(line, is_row)) rows.push_back(line);
  }
  std::vector<std::string> expected;
  for (const VariableDescription& variable : known_variables()) expected.push_back(documentation_row(variable));
  EXPECT_EQ(rows, expected);
}

TEST(Variables, ProcessEnvironmentIsTheProcess) {
  const ProcessEnvironment environment;
  const char* path = getenv("PATH");
  ASSERT_NE(path, nullptr);
  EXPECT_EQ(environment.get("PATH"), path);
  EXPECT_EQ(environment.get("PHAROS_NO_SUCH_VARIABLE"), std::nullopt);
  EXPECT_THAT(environment.names_starting_with("PAT"), testing::Contains("PATH"));
  EXPECT_THAT(environment.names_starting_with("PHAROS_NO_SUCH_"), testing::IsEmpty());
}

TEST(Variables, BlankAndEmpty) {
  const MapEnvironment environment({{"A", ""}, {"B", " \t"}, {"C", " c "}});
  EXPECT_EQ(environment.get("A"), "");
  EXPECT_EQ(environment.get_nonempty("A"), std::nullopt);
  EXPECT_EQ(environment.get_nonempty("B"), " \t");
  EXPECT_EQ(environment.get_nonblank("B"), std::nullopt);
  EXPECT_EQ(environment.get_nonblank("C"), "c");
  EXPECT_EQ(environment.get_nonblank("D"), std::nullopt);
}

}  // namespace
}  // namespace pharos::lens
