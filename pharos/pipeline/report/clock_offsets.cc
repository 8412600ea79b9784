#include "pharos/pipeline/report/clock_offsets.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "pharos/pipeline/transfers.h"

namespace pharos::pipeline {

std::vector<std::int64_t> clock_offsets(const Schedule& schedule, const std::vector<const MeasuredStep*>& ranks) {
  constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  // Between ranks r and r + 1: the least start - end of tensors that go up, and of those that go down.
  std::vector<std::int64_t> up(ranks.size(), kNone), down(ranks.size(), kNone);
  for (const Transfer& transfer : transfers(schedule)) {
    const int from = transfer.from.rank, to = transfer.to.rank;
    if (to != from + 1 && from != to + 1) continue;
    std::int64_t& least = to > from ? up[from] : down[to];
    least = std::min(
        least, ranks[to]->actions[transfer.to.position].start_ns - ranks[from]->actions[transfer.from.position].end_ns);
  }
  std::vector<std::int64_t> offsets(ranks.size(), 0);
  for (std::size_t rank = 0; rank + 1 < ranks.size(); ++rank) {
    std::int64_t difference = 0;  // -down <= difference <= up
    if (up[rank] < 0 || down[rank] < 0) {
      if (down[rank] == kNone) {
        difference = up[rank];
      } else if (up[rank] == kNone) {
        difference = -down[rank];
      } else {
        difference = std::midpoint(-down[rank], up[rank]);
      }
    }
    offsets[rank + 1] = offsets[rank] + difference;
  }
  return offsets;
}

}  // namespace pharos::pipeline
