// A rank as a process, for tests: `comm_probe meet TIMEOUT_MS [DYING_RANK]` meets the ranks that the environment tells
// of, makes a group, and leaves; the dying rank kills itself first. `comm_probe hang FOLDER` hangs under a watchdog.
#include <ATen/ATen.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "pharos/base/error.h"
#include "pharos/comm/flight/writer.h"
#include "pharos/comm/watchdog.h"
#include "pharos/comm/world.h"

namespace pharos::comm {
namespace {

void meet(std::chrono::milliseconds timeout, std::int64_t dying_rank) {
  const auto environment = read_rank_environment(lens::ProcessEnvironment());
  World world(environment, {.rendezvous_timeout = timeout, .timeout = std::chrono::seconds(60)});
  auto& group = world.all();
  world.exchange("group is made", "");
  if (world.rank() == dying_rank) ::kill(::getpid(), SIGKILL);
  const auto sum = group.reduce_value(static_cast<double>(world.rank() + 1), ReduceOp::kSum, {"ranks"});
  std::fprintf(stderr, "rank %d of %d: sum %g\n", static_cast<int>(world.rank()), static_cast<int>(world.size()), sum);
  world.leave();
}

[[noreturn]] __attribute__((noinline)) void hang_for_ever() {
  for (;;) ::pause();
}

void hang(const std::filesystem::path& folder) {
  start_flight_record(folder / flight_file_name(3), 3, 4);
  FlightGroup group("dp", {1, 3});
  const FlightCall finished{
      .operation = Operation::kAllGather, .number = group.next_number(0), .purpose = "parameters"};
  FlightWriter::current()->begin(group, finished).mark_end();
  auto ticket = FlightWriter::current()->begin(group, {.operation = Operation::kAllReduce,
                                                       .number = group.next_number(0),
                                                       .purpose = "gradient bucket",
                                                       .purpose_index = 2,
                                                       .bytes = 4096});
  ticket.mark_wait();
  report_progress("step", 41);
  const Watchdog watchdog({.rank = 3,
                           .set_up_timeout = std::chrono::minutes(10),
                           .step_timeout = std::chrono::milliseconds(100),
                           .folder = folder,
                           .on_hang = {}});
  hang_for_ever();
}

int run(int argument_count, char** arguments) {
  try {
    if (argument_count >= 3 && std::strcmp(arguments[1], "hang") == 0) {
      hang(arguments[2]);
    } else if (argument_count >= 3 && std::strcmp(arguments[1], "meet") == 0) {
      meet(std::chrono::milliseconds(std::atoi(arguments[2])), argument_count > 3 ? std::atoi(arguments[3]) : -1);
    } else {
      return 1;
    }
    return 0;
  } catch (const base::UserError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(base::ExitCode::kUserError);
  } catch (const CommunicationError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(base::ExitCode::kTrainingFailure);
  }
}

}  // namespace
}  // namespace pharos::comm

int main(int argument_count, char** arguments) { return pharos::comm::run(argument_count, arguments); }
