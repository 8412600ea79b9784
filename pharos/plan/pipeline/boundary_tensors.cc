#include "pharos/plan/pipeline/boundary_tensors.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "pharos/pipeline/dependencies.h"
#include "pharos/pipeline/transfers.h"

namespace pharos::plan {
namespace {

constexpr int kActionsAhead = 2;  ///< as the executor has it

class Counter {
 public:
  Counter(const pipeline::Schedule& schedule, int rank)
      : schedule_(schedule), rank_(rank), counts_(schedule.actions[static_cast<std::size_t>(rank)].size(), 0) {
    for (const pipeline::Transfer& transfer : pipeline::transfers(schedule)) {
      if (transfer.from.rank == rank) sent_.push_back(transfer);
      if (transfer.to.rank == rank) received_[transfer.from.rank].push_back(transfer);
    }
  }

  std::vector<int> count() {
    for (const auto& [peer, all] : received_) add_received(all);
    for (const pipeline::Transfer& transfer : sent_) add(transfer.from.position, first_answer(transfer));
    add_local();
    return std::move(counts_);
  }

 private:
  int size() const { return static_cast<int>(counts_.size()); }

  /// Alive from the end of the action at `first` until the one at `end` begins.
  void add(int first, int end) {
    for (int position = std::max(first, 0); position < end; ++position) ++counts_[static_cast<std::size_t>(position)];
  }

  /// A receive cannot be posted before those of what the peer sent earlier.
  void add_received(const std::vector<pipeline::Transfer>& from_peer) {
    int posted = size();
    for (auto transfer = from_peer.rbegin(); transfer != from_peer.rend(); ++transfer) {
      posted = std::min(posted, transfer->to.position - kActionsAhead);
      add(posted, transfer->to.position);
    }
  }

  /// The action that takes the first tensor that the receiver of `sent` made when it had taken that.
  int first_answer(const pipeline::Transfer& sent) const {
    int first = size();
    const auto answers = received_.find(sent.to.rank);
    if (answers == received_.end()) return first;
    for (const pipeline::Transfer& answer : answers->second) {
      if (answer.from.position >= sent.to.position) first = std::min(first, answer.to.position);
    }
    return first;
  }

  void add_local() {
    const auto holders = pipeline::stage_holders(schedule_);
    const auto& actions = schedule_.actions[static_cast<std::size_t>(rank_)];
    std::map<std::tuple<pipeline::Phase, int, int>, int> positions;
    for (int position = 0; const pipeline::Action& action : actions)
      positions[{action.phase, action.microbatch, action.chunk}] = position++;
    for (int position = 0; const pipeline::Action& action : actions) {
      const int stage = schedule_.stage_of[static_cast<std::size_t>(rank_)][static_cast<std::size_t>(action.chunk)];
      const auto next = pipeline::waiting_stage(action.phase, stage, static_cast<int>(holders.size()));
      if (next && holders[static_cast<std::size_t>(*next)].rank == rank_) {
        const int chunk = holders[static_cast<std::size_t>(*next)].chunk;
        add(position, positions.at({action.phase, action.microbatch, chunk}));
      }
      ++position;
    }
  }

  const pipeline::Schedule& schedule_;
  int rank_;
  std::vector<pipeline::Transfer> sent_;
  std::map<int, std::vector<pipeline::Transfer>> received_;  ///< by sender, in its order
  std::vector<int> counts_;
};

}  // namespace

std::vector<int> boundary_tensors(const pipeline::Schedule& schedule, int rank) {
  return Counter(schedule, rank).count();
}

}  // namespace pharos::plan
