#include "pharos/comm/world/rendezvous.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <future>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "pharos/base/error.h"
#include "pharos/base/text.h"
#include "pharos/comm/interruption.h"
#include "pharos/comm/world/sockets.h"

namespace pharos::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr const char* kVerdict = "meeting/verdict";
constexpr const char* kFine = "fine";
constexpr const char* kInterrupted = "interrupted";

std::string this_process() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return "process " + std::to_string(::getpid()) + " on " + host.data();
}

std::string process_key(std::int64_t rank) { return "meeting/process/" + std::to_string(rank); }

using Store = c10::intrusive_ptr<c10d::TCPStore>;

/// c10d's client waits without limit for the answer of whoever took its connection. In a thread of its own it can be
/// left behind: the process is about to leave.
Store connect_store(const std::string& address, const c10d::TCPStoreOptions& options, milliseconds timeout) {
  const auto promise = std::make_shared<std::promise<Store>>();
  auto connected = promise->get_future();
  std::thread([promise, address, options] {
    try {
      promise->set_value(c10::make_intrusive<c10d::TCPStore>(address, options));
    } catch (...) {
      promise->set_exception(std::current_exception());
    }
  }).detach();
  if (connected.wait_for(timeout) != std::future_status::ready) throw std::runtime_error("no answer");
  return connected.get();
}

Store open_store(const RankEnvironment& environment, milliseconds timeout, std::string& local_address) {
  c10d::TCPStoreOptions options;
  options.port = environment.master_port;
  options.isServer = environment.rank == 0;
  options.waitWorkers = false;
  options.timeout = timeout;
  const bool is_ipv4_loopback =
      is_loopback_address(environment.master_address) && environment.master_address.find(':') == std::string::npos;
  if (environment.rank == 0) {
    const int socket = environment.listen_socket ? *environment.listen_socket
                                                 : open_listen_socket(environment.master_port, is_ipv4_loopback);
    close_on_exec(socket);
    options.port = port_of(socket);
    options.masterListenFd = socket;  // the store's from here on
  } else {
    // c10d's client sleeps for up to a second when nobody listens yet.
    local_address = reach_master(environment.master_address, options.port, timeout);
  }
  auto store = connect_store(environment.master_address, options, timeout);
  if (environment.rank == 0) local_address = reach_master(environment.master_address, options.port, timeout);
  return store;
}

/// The first round. Whoever sees a mistake first says so under kVerdict, and everybody leaves with those words.
class FirstRound {
 public:
  FirstRound(c10d::TCPStore& store, const RankEnvironment& environment, milliseconds timeout)
      : store_(store), environment_(environment), timeout_(timeout), deadline_(steady_clock::now() + timeout) {}

  void run() {
    const auto rank = environment_.rank;
    if (store_.add("meeting/rank/" + std::to_string(rank), 1) > 1) {
      decide("Rank " + std::to_string(rank) + " came twice: " + to_text(store_.get(process_key(rank))) + " and " +
             this_process() + ".");
    } else {
      store_.set(process_key(rank), to_bytes(this_process()));
      if (rank == 0) store_.set("meeting/world_size", to_bytes(std::to_string(environment_.world_size)));
      if (!has_other_world_size() && store_.add("meeting/count", 1) == environment_.world_size) decide(kFine);
    }
    if (!wait_for(kVerdict)) decide(missing_ranks());
    const auto verdict = to_text(store_.get(kVerdict));
    if (verdict != kFine) leave_with(verdict);
  }

 private:
  /// False when the time is over. Looks again and again, more rarely with many ranks: a signal must not wait as well.
  bool wait_for(const std::string& key) {
    const std::chrono::microseconds longest_pause = milliseconds(20 + environment_.world_size / 4);
    std::chrono::microseconds pause(200);
    while (!store_.check({key})) {
      if (steady_clock::now() >= deadline_) return false;
      if (is_interrupted()) decide(kInterrupted);
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, longest_pause);
    }
    return true;
  }

  /// Only the first decision counts.
  void decide(const std::string& verdict) { store_.compareSet(kVerdict, {}, to_bytes(verdict)); }

  bool has_other_world_size() {
    if (!wait_for("meeting/world_size")) return false;
    const auto size_of_rank_0 = to_text(store_.get("meeting/world_size"));
    if (size_of_rank_0 == std::to_string(environment_.world_size)) return false;
    decide("Rank 0 (" + to_text(store_.get(process_key(0))) + ") was told of " + size_of_rank_0 + " ranks, rank " +
           std::to_string(environment_.rank) + " (" + this_process() + ") of " +
           std::to_string(environment_.world_size) + ".");
    return true;
  }

  std::string missing_ranks() {
    std::vector<std::string> missing;
    for (std::int64_t rank = 0; rank < environment_.world_size; ++rank) {
      if (!store_.check({process_key(rank)})) missing.push_back(std::to_string(rank));
    }
    constexpr std::size_t kMostNamed = 20;
    const auto num_missing = missing.size();
    if (num_missing > kMostNamed) {
      missing.resize(kMostNamed);
      missing.push_back("…");
    }
    return "After " + base::format_duration(std::chrono::nanoseconds(timeout_).count()) + " " +
           std::to_string(num_missing) + " of " + std::to_string(environment_.world_size) +
           " ranks have not come: " + base::join(missing, ", ") + ".";
  }

  [[noreturn]] void leave_with(const std::string& verdict) {
    store_.add("meeting/read", 1);
    if (environment_.rank == 0) {
      // The store goes with this process: the others need a moment to read why.
      const auto limit = steady_clock::now() + milliseconds(1000);
      while (store_.add("meeting/read", 0) < environment_.world_size && steady_clock::now() < limit) {
        std::this_thread::sleep_for(milliseconds(10));
      }
    }
    if (verdict == kInterrupted) throw MeetingInterrupted();
    throw base::UserError({.what = verdict,
                           .where = environment_.source,
                           .why = "All ranks of a job must meet before it begins.",
                           .fix = "Start every rank once, from 0 to the world size - 1, all with the same world size, "
                                  "MASTER_ADDR and MASTER_PORT; look at the output of a rank that is named."});
  }

  c10d::TCPStore& store_;
  const RankEnvironment& environment_;
  milliseconds timeout_;
  steady_clock::time_point deadline_;
};

}  // namespace

std::vector<std::uint8_t> to_bytes(const std::string& text) { return {text.begin(), text.end()}; }
std::string to_text(const std::vector<std::uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

Meeting meet(const RankEnvironment& environment, milliseconds timeout) {
  Meeting meeting;
  try {
    meeting.store = open_store(environment, timeout, meeting.local_address);
    FirstRound(*meeting.store, environment, timeout).run();
  } catch (const base::UserError&) {
    throw;
  } catch (const MeetingInterrupted&) {
    throw;
  } catch (const std::exception& reason) {
    const std::string text = reason.what();
    throw base::UserError({.what = "The rendezvous at " + environment.master_address + ":" +
                                   std::to_string(environment.master_port) +
                                   " broke: " + text.substr(0, text.find('\n')) + ".",
                           .where = "MASTER_ADDR, MASTER_PORT",
                           .why = "Rank 0, which serves it, has ended, or another program listens there.",
                           .fix = "Look at the output of rank 0."});
  }
  return meeting;
}

}  // namespace pharos::comm
