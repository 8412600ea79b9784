#include "pharos/cli/doctor/doctor_environment.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <vector>

#include "pharos/base/error.h"
#include "pharos/launch/environment/environment_plan.h"
#include "pharos/launch/rank_process.h"

namespace pharos::cli {
namespace {

/// The words of this command line after the program, without --profile and its value.
std::vector<std::string> words_without_profile() {
  std::ifstream line("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  std::string word;
  std::getline(line, word, '\0');
  while (std::getline(line, word, '\0')) {
    if (word == "--profile") {
      std::getline(line, word, '\0');
    } else if (!word.starts_with("--profile=")) {
      words.push_back(word);
    }
  }
  return words;
}

}  // namespace

void restart_with_profile(const std::string& name) {
  config::ResolvedConfig none;
  none.config.dist.device = config::DeviceKind::kCuda;
  const launch::EnvironmentPlan plan =
      launch::plan_environment(none, launch::parse_network_profile(name), lens::ProcessEnvironment());
  // Values refer to variables of the task: a shell knows them.
  std::vector<std::string> words = {"sh", "-c", launch::export_lines(plan) + "exec \"$0\" \"$@\"",
                                    launch::own_program().string()};
  for (std::string& word : words_without_profile()) words.push_back(std::move(word));
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ::execv("/bin/sh", pointers.data());
  throw base::UserError(
      {.what = std::string("Cannot start /bin/sh: ") + std::strerror(errno) + ".",
       .where = "--profile " + name,
       .fix = "Evaluate `pharos env show --profile " + name + " --export` in a shell and leave --profile out."});
}

}  // namespace pharos::cli
