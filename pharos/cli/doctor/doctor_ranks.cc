#include "pharos/cli/doctor/doctor_ranks.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iostream>

#include "pharos/base/error.h"
#include "pharos/base/text.h"
#include "pharos/launch/attempt.h"
#include "pharos/launch/job.h"
#include "pharos/launch/rank_process.h"
#include "pharos/launch/signals.h"
#include "pharos/lens/variables/environment.h"

namespace pharos::cli {
namespace {

std::vector<std::string> words_of(const DoctorArguments& arguments, const std::string& program) {
  std::vector<std::string> words{program, "doctor"};
  const auto add = [&](const std::string& option, const std::string& value) {
    if (!value.empty()) words.insert(words.end(), {option, value});
  };
  add("--only", base::join(arguments.only, ","));
  if (arguments.num_gpus) add("--gpus", std::to_string(*arguments.num_gpus));
  add("--shared", arguments.shared_folder);
  add("--run-dir", arguments.run_folder);
  add("--device", arguments.device);
  add("--system-root", arguments.system_root);
  add("--timeout", std::to_string(arguments.timeout_s));
  add("--check-timeout", std::to_string(arguments.check_timeout_s));
  add("--arrival-timeout", std::to_string(arguments.arrival_timeout_s));
  add("--json", arguments.json_path);
  return words;
}

/// Ranks that came to a verdict leave with 0 or, all of them, with 2.
int verdict_of(const std::vector<launch::RankEnd>& ends) {
  constexpr int kFailure = static_cast<int>(base::ExitCode::kUserError);
  const auto has_failed = [](const launch::RankEnd& end) { return end.signal == 0 && end.code == kFailure; };
  if (std::any_of(ends.begin(), ends.end(), has_failed)) return kFailure;
  return launch::exit_code_of(ends);
}

/// The signal that asked this process to end and that ended a rank; 0: none, the ranks have come to their own ends.
int interruption_of(const launch::Attempt& attempt, const std::vector<launch::RankEnd>& ends) {
  const auto was_ended = [](const launch::RankEnd& end) { return launch::asks_to_end(end.signal); };
  const auto ended = std::find_if(ends.begin(), ends.end(), was_ended);
  return attempt.was_asked_to_end() && ended != ends.end() ? ended->signal : 0;
}

}  // namespace

int examine_on_ranks(const DoctorArguments& arguments) {
  const std::uint16_t port = launch::find_job_port(lens::ProcessEnvironment());
  launch::SignalQueue signals;
  launch::Attempt attempt(signals, {});
  {
    const launch::ListenSocket socket(port);
    const std::filesystem::path program = launch::own_program();
    const std::vector<std::string> words = words_of(arguments, program.string());
    for (std::int64_t rank = 0; rank < arguments.num_ranks; ++rank) {
      const launch::RankPlace place{.rank = rank,
                                    .num_ranks = arguments.num_ranks,
                                    .port = socket.port(),
                                    .listen_descriptor = socket.descriptor()};
      attempt.start(rank, {.program = program,
                           .arguments = words,
                           .variables = launch::rank_variables(launch::own_variables(), place),
                           .inherit_descriptor = rank == 0 ? socket.descriptor() : -1,
                           .signal_mask = signals.mask_before()});
    }
  }
  const std::vector<launch::RankEnd> ends = attempt.run();
  if (const int signal = interruption_of(attempt, ends); signal != 0) {
    std::cerr << "doctor: interrupted by "
              << "SIG" << ::sigabbrev_np(signal) << "; not all checks were made\n";
    return 128 + signal;
  }
  return verdict_of(ends);
}

}  // namespace pharos::cli
