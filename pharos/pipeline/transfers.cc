#include "pharos/pipeline/transfers.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "pharos/base/error.h"
#include "pharos/pipeline/dependencies.h"

namespace pharos::pipeline {
namespace {

/// (rank, phase, microbatch, chunk) -> position in the rank's list.
using Positions = std::map<std::tuple<int, Phase, int, int>, int>;

Positions positions_of(const Schedule& schedule) {
  Positions positions;
  for (int rank = 0; rank < schedule.num_ranks; ++rank) {
    for (int position = 0; const Action& action : schedule.actions[rank]) {
      positions[{rank, action.phase, action.microbatch, action.chunk}] = position++;
    }
  }
  return positions;
}

/// `transfers` come in sending order; the receivers' order is found by sorting each pair's own by the receiver's
/// position.
void number_orders(std::vector<Transfer>& transfers) {
  std::map<std::pair<int, int>, std::vector<Transfer*>> channels;
  for (Transfer& transfer : transfers) {
    auto& channel = channels[{transfer.from.rank, transfer.to.rank}];
    transfer.send_order = static_cast<int>(channel.size());
    channel.push_back(&transfer);
  }
  for (auto& [ranks, channel] : channels) {
    std::sort(channel.begin(), channel.end(),
              [](const Transfer* left, const Transfer* right) { return left->to.position < right->to.position; });
    for (int order = 0; Transfer * transfer : channel) transfer->receive_order = order++;
  }
}

}  // namespace

std::vector<Transfer> transfers(const Schedule& schedule) {
  const auto faults = check(schedule);
  PHAROS_CHECK(faults.empty(), "schedule " + schedule.name + " is not sound: " + faults.front());
  const auto holders = stage_holders(schedule);
  const Positions positions = positions_of(schedule);
  std::vector<Transfer> result;
  for (int rank = 0; rank < schedule.num_ranks; ++rank) {
    for (int position = 0; position < static_cast<int>(schedule.actions[rank].size()); ++position) {
      const Action& action = schedule.actions[rank][position];
      const int num_stages = static_cast<int>(holders.size());
      const auto waiting = waiting_stage(action.phase, schedule.stage_of[rank][action.chunk], num_stages);
      if (!waiting || holders[*waiting].rank == rank) continue;
      const auto [to_rank, to_chunk] = holders[*waiting];
      const Action to{action.phase, action.microbatch, to_chunk};
      const int to_position = positions.at({to_rank, to.phase, to.microbatch, to.chunk});
      result.push_back({{rank, position, action}, {to_rank, to_position, to}, 0, 0});
    }
  }
  number_orders(result);
  return result;
}

}  // namespace pharos::pipeline
