// Who holds up whom. A rank waits for those members of a group that have not arrived at the call whose result it waits
// for. Those that are waited for and wait for nobody hold up the rest; where there are none, ranks wait in a circle.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>

#include "pharos/base/clock.h"
#include "pharos/base/text.h"
#include "pharos/comm/flight.h"

namespace pharos::comm {
namespace {

/// A watchdog shows itself every second; a process that has not for so long is stopped or dead.
constexpr std::int64_t kSilenceNs = 5'000'000'000;

/// What identifies a call for all who take part: collectives by group and number, transfers by sender and receiver too.
struct CallKey {
  std::string group;
  std::vector<std::int64_t> members;  ///< who must come, ascending
  bool is_transfer = false;
  std::int64_t sender = -1;
  std::uint64_t number = 0;
  auto operator<=>(const CallKey&) const = default;

  bool is_same_channel(const CallKey& other) const {
    return std::tie(group, members, is_transfer, sender) ==
           std::tie(other.group, other.members, other.is_transfer, other.sender);
  }
};

CallKey key_of(const Flight& flight, std::int64_t rank) {
  if (flight.operation != Operation::kSend && flight.operation != Operation::kReceive) {
    return {.group = flight.group, .members = flight.ranks, .number = flight.number};
  }
  return {.group = flight.group,
          .members = {std::min(rank, flight.peer), std::max(rank, flight.peer)},
          .is_transfer = true,
          .sender = flight.operation == Operation::kSend ? rank : flight.peer,
          .number = flight.number};
}

std::string list_of(const std::vector<std::int64_t>& ranks) {
  std::vector<std::string> numbers;
  for (const auto rank : ranks) numbers.push_back(std::to_string(rank));
  return (ranks.size() == 1 ? "rank " : "ranks ") + base::join(numbers, ", ");
}

std::string call_text(const Flight& flight) {
  auto text = flight.group + " call " + std::to_string(flight.number) + " (" + operation_name(flight.operation) +
              " \"" + flight.purpose + "\", " + base::format_bytes(static_cast<double>(flight.bytes));
  if (flight.operation == Operation::kSend) text.append(", to rank ").append(std::to_string(flight.peer));
  if (flight.operation == Operation::kReceive) text.append(", from rank ").append(std::to_string(flight.peer));
  return text + ")";
}

class Judge {
 public:
  explicit Judge(const std::vector<RankState>& ranks) {
    for (const auto& state : ranks) states_[state.rank] = &state;
    std::array<char, 256> this_host{};
    ::gethostname(this_host.data(), this_host.size() - 1);
    for (const auto& state : ranks) {
      // Clocks of hosts have nothing to do with each other. Another host's record is as old as its newest time.
      auto& now = now_[state.host];
      if (state.host == this_host.data()) now = base::monotonic_ns();
      now = std::max({now, state.progress_ns, state.alive_ns});
      for (const auto& flight : state.flights) now = std::max({now, flight.arrival_ns, flight.end_ns});
    }
  }

  HangVerdict run() {
    for (const auto& [rank, state] : states_) {
      for (const auto& flight : state->flights) {
        if (flight.is_pending() && flight.wait_ns != 0) look_at(key_of(flight, rank));
      }
    }
    blame_those_who_wait_for_nobody();
    if (verdict_.culprits.empty()) blame_circle();
    std::ranges::sort(verdict_.culprits);
    const auto [first, last] = std::ranges::unique(verdict_.culprits);
    verdict_.culprits.erase(first, last);
    return std::move(verdict_);
  }

 private:
  /// The rank's flight at exactly this call, or none.
  const Flight* flight_at(std::int64_t rank, const CallKey& key) const {
    const auto state = states_.find(rank);
    if (state == states_.end()) return nullptr;
    for (const auto& flight : state->second->flights) {
      if (key_of(flight, rank) == key) return &flight;
    }
    return nullptr;
  }

  /// At this call or, as its record keeps the newest of every channel, beyond it.
  bool has_come(std::int64_t rank, const CallKey& key) const {
    const auto state = states_.find(rank);
    if (state == states_.end()) return false;
    return std::ranges::any_of(state->second->flights, [&](const Flight& flight) {
      const auto other = key_of(flight, rank);
      return other.is_same_channel(key) && other.number >= key.number;
    });
  }

  std::string ago(std::int64_t rank, std::int64_t time_ns) const {
    return base::format_duration(std::max<std::int64_t>(0, now_.at(states_.at(rank)->host) - time_ns));
  }

  void look_at(const CallKey& key) {
    if (!seen_.insert(key).second) return;
    std::vector<std::int64_t> here, missing;
    for (const auto member : key.members) (has_come(member, key) ? here : missing).push_back(member);
    const Flight* call = nullptr;
    std::int64_t waiting_rank = -1;
    for (const auto member : here) {
      const auto* flight = flight_at(member, key);
      if (flight == nullptr) continue;
      if (call == nullptr || flight->arrival_ns > call->arrival_ns || waiting_rank < 0) {
        call = flight;
        waiting_rank = member;
      }
      if (flight->is_pending() && flight->wait_ns != 0) {
        for (const auto other : missing) edges_[member].insert({other, flight});
      }
    }
    if (call == nullptr) return;
    for (const auto other : missing) waited_for_.insert(other);
    auto line = call_text(*call) + ": ";
    if (missing.empty()) {
      line += describe_complete(key, here, ago(waiting_rank, call->arrival_ns));
    } else {
      line += list_of(here) + " came " + ago(waiting_rank, call->arrival_ns) + " ago";
      for (const auto other : missing) line += "; rank " + std::to_string(other) + " did not, " + whereabouts(other);
    }
    verdict_.lines.push_back(line);
  }

  /// Everybody is in the call and it does not end.
  std::string describe_complete(const CallKey& key, const std::vector<std::int64_t>& here, const std::string& since) {
    std::map<std::string, std::vector<std::int64_t>> variants;
    std::vector<std::int64_t> silent, ended;
    for (const auto member : here) {
      const auto* flight = flight_at(member, key);
      const auto* state = states_.at(member);
      const bool is_transfer = flight != nullptr && key.is_transfer;
      if (flight != nullptr) {
        const auto name = is_transfer ? std::string("transfer") : std::string(operation_name(flight->operation));
        variants[name + " of " + base::format_bytes(static_cast<double>(flight->bytes)) + " (" +
                 std::to_string(flight->bytes) + " bytes) \"" + flight->purpose + "\""]
            .push_back(member);
      }
      if (state->has_ended) ended.push_back(member);
      if (state->alive_ns != 0 && now_.at(state->host) - state->alive_ns > kSilenceNs) silent.push_back(member);
    }
    if (has_mismatch(key, here)) {
      std::string text = "the ranks called different things";
      for (const auto& [call, ranks] : variants) {
        text += "; " + list_of(ranks) + ": " + call;
        verdict_.culprits.insert(verdict_.culprits.end(), ranks.begin(), ranks.end());
      }
      return text;
    }
    if (!ended.empty()) {
      verdict_.culprits.insert(verdict_.culprits.end(), ended.begin(), ended.end());
      return "all came, the last " + since + " ago, but " + list_of(ended) + (ended.size() == 1 ? " has" : " have") +
             " ended" + last_activities(ended);
    }
    if (!silent.empty()) {
      verdict_.culprits.insert(verdict_.culprits.end(), silent.begin(), silent.end());
      std::string text = "all came, the last " + since + " ago, but ";
      for (const auto rank : silent) {
        text += "rank " + std::to_string(rank) + " shows no life since " + ago(rank, states_.at(rank)->alive_ns) +
                (rank == silent.back() ? "" : ", ");
      }
      return text + last_activities(silent);
    }
    return "all came, the last " + since + " ago, but the transfer does not end: look at the network";
  }

  /// " (rank 2: forward of microbatch 3 on stage 1)", where ranks were at one.
  std::string last_activities(const std::vector<std::int64_t>& ranks) const {
    std::string text;
    for (const auto rank : ranks) {
      const std::string& activity = states_.at(rank)->activity;
      if (!activity.empty()) text += (text.empty() ? " (rank " : ", rank ") + std::to_string(rank) + ": " + activity;
    }
    return text.empty() ? "" : text + ")";
  }

  bool has_mismatch(const CallKey& key, const std::vector<std::int64_t>& here) const {
    std::set<std::pair<std::int64_t, int>> kinds;
    for (const auto member : here) {
      const auto* flight = flight_at(member, key);
      if (flight == nullptr) continue;
      // Each rank has a number of its own to send in an all-to-all.
      const auto bytes = flight->operation == Operation::kAllToAll ? 0 : flight->bytes;
      kinds.insert({bytes, key.is_transfer ? 0 : static_cast<int>(flight->operation)});
    }
    return kinds.size() > 1;
  }

  std::string whereabouts(std::int64_t rank) const {
    const auto found = states_.find(rank);
    if (found == states_.end()) return "it left no record";
    const auto& state = *found->second;
    std::string text = "it ";
    const Flight* last = state.flights.empty() ? nullptr : &state.flights.back();
    for (const auto& flight : state.flights) {
      if (flight.is_pending() && flight.wait_ns != 0) last = &flight;
    }
    if (last == nullptr) {
      text += "has made no call yet";
    } else if (last->is_pending() && last->wait_ns != 0) {
      text += "waits in " + last->group + " call " + std::to_string(last->number);
    } else {
      text += "was last in " + last->group + " call " + std::to_string(last->number) +
              (last->is_pending() ? ", under way" : ", finished");
    }
    text += ", phase " + state.phase + " " + std::to_string(state.step);
    if (!state.activity.empty()) text += ", at the " + state.activity;
    return text + ", no progress for " + ago(rank, state.progress_ns);
  }

  void blame_those_who_wait_for_nobody() {
    for (const auto rank : waited_for_) {
      if (!edges_.contains(rank)) verdict_.culprits.push_back(rank);
    }
  }

  void blame_circle() {
    if (edges_.empty()) return;
    // Everybody who waits, waits for one who waits: walking on must come back somewhere.
    std::vector<std::int64_t> path{edges_.begin()->first};
    for (;;) {
      const auto next = edges_.at(path.back()).begin()->first;
      const auto known = std::ranges::find(path, next);
      if (known == path.end()) {
        path.push_back(next);
        continue;
      }
      path.erase(path.begin(), known);
      break;
    }
    std::string line = list_of(path) + " wait for each other:";
    for (const auto rank : path) {
      const auto& [target, flight] = *edges_.at(rank).begin();
      line += (rank == path.front() ? " rank " : "; rank ") + std::to_string(rank) + " for rank " +
              std::to_string(target) + " in " + call_text(*flight);
    }
    verdict_.lines.push_back(line + ". They make their calls in different orders.");
    verdict_.culprits = path;
  }

  std::map<std::int64_t, const RankState*> states_;
  std::map<std::string, std::int64_t> now_;
  std::set<CallKey> seen_;
  std::map<std::int64_t, std::set<std::pair<std::int64_t, const Flight*>>>
      edges_;  ///< who waits for whom, in which call
  std::set<std::int64_t> waited_for_;
  HangVerdict verdict_;
};

}  // namespace

HangVerdict judge(const std::vector<RankState>& ranks) { return Judge(ranks).run(); }

}  // namespace pharos::comm
