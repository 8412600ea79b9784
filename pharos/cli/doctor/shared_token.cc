#include "pharos/cli/doctor/shared_token.h"

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <set>
#include <thread>

#include "pharos/base/clock.h"
#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/base/text.h"
#include "pharos/launch/doctor/bounded.h"

namespace pharos::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kSecondNs = 1'000'000'000;
constexpr std::int64_t kPatienceNs = 10 * kSecondNs;

/// Empty, or what went wrong. Network file systems show a new file to other hosts after some seconds.
std::string wait_for_token(const fs::path& path, const std::string& token) {
  const std::int64_t deadline_ns = base::monotonic_ns() + kPatienceNs / 2;
  while (!fs::exists(path)) {
    if (base::monotonic_ns() > deadline_ns) return "rank 0's file is not there";
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return base::read_file(path) == token ? "" : "the file has other content than rank 0 wrote";
}

/// `call` in a process that can be left behind. Returns its text, or why there is none.
std::string bounded(const std::function<std::string()>& call) {
  launch::BoundedCall child([&call]() -> nlohmann::json { return call(); });
  const launch::BoundedResult result = child.wait(base::monotonic_ns() + kPatienceNs);
  return result.end == launch::BoundedResult::End::kDone ? result.value.get<std::string>() : result.text;
}

}  // namespace

launch::Findings check_shared_token(comm::World& world, const std::vector<std::string>& hosts,
                                    const std::string& folder) {
  const std::string token =
      world.announce("doctor/token", std::to_string(base::wall_ns()) + "_" + std::to_string(::getpid()));
  const fs::path path = fs::path(folder) / (".pharos_doctor_token_" + token);
  std::string problem;
  if (world.rank() == 0) {
    problem = bounded([&] {
      base::write_file_atomically(path, token);
      return std::string();
    });
  }
  const std::string written = world.announce("doctor/token_written", problem);
  if (written.empty() && world.rank() != 0) problem = bounded([&] { return wait_for_token(path, token); });
  const auto problems = world.exchange("doctor/token_read", problem);
  if (world.rank() == 0) {
    bounded([&] {
      fs::remove(path);
      return std::string();
    });
  }
  launch::Findings findings;
  std::set<std::string> seen;
  for (std::size_t rank = 0; rank < problems.size(); ++rank) {
    if (problems[rank].empty() || !seen.insert(hosts[rank]).second) continue;
    findings.push_back({.check = "token",
                        .subject = hosts[rank],
                        .value = "'" + folder + "' is not the same folder as on rank 0: " + problems[rank],
                        .verdict = launch::Verdict::kFailure,
                        .remedy = "Mount the shared file system there on every node (and into every container)."});
  }
  if (findings.empty())
    findings.push_back({.check = "token", .subject = {}, .value = "'" + folder + "' is the same on all ranks"});
  return findings;
}

}  // namespace pharos::cli
