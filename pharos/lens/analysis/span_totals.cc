#include "pharos/lens/analysis/span_totals.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "pharos/lens/analysis/span_tree.h"

namespace pharos::lens {
namespace {

struct Durations {
  std::vector<std::int64_t> ended_ns;
  std::uint64_t num_unfinished = 0;
};

SpanTotals summarize(const std::string& name, Durations& durations) {
  std::vector<std::int64_t>& sorted = durations.ended_ns;
  std::sort(sorted.begin(), sorted.end());
  SpanTotals totals;
  totals.name = name;
  totals.count = sorted.size();
  totals.num_unfinished = durations.num_unfinished;
  totals.total_ns = std::accumulate(sorted.begin(), sorted.end(), std::int64_t{0});
  if (!sorted.empty()) totals.mean_ns = static_cast<double>(totals.total_ns) / static_cast<double>(sorted.size());
  totals.p50_ns = nearest_rank(sorted, 50);
  totals.p99_ns = nearest_rank(sorted, 99);
  return totals;
}

}  // namespace

std::int64_t nearest_rank(const std::vector<std::int64_t>& sorted, int percent) {
  if (sorted.empty()) return 0;
  const std::size_t rank = (sorted.size() * static_cast<std::size_t>(percent) + 99) / 100;
  return sorted[std::clamp<std::size_t>(rank, 1, sorted.size()) - 1];
}

std::vector<SpanTotals> total_by_name(const std::vector<SpanData>& spans, const std::vector<SpanData>& open_spans) {
  std::map<std::string, Durations> by_name;
  for (const auto* list : {&spans, &open_spans}) {
    for (const SpanData& span : *list) {
      Durations& durations = by_name[span.name];
      if (is_unfinished(span)) {
        ++durations.num_unfinished;
      } else {
        durations.ended_ns.push_back(std::max<std::int64_t>(0, span.end_ns - span.start_ns));
      }
    }
  }
  std::vector<SpanTotals> totals;
  std::int64_t step_ns = 0;
  for (auto& [name, durations] : by_name) {
    totals.push_back(summarize(name, durations));
    if (name == kStepSpan) step_ns = totals.back().total_ns;
  }
  for (SpanTotals& entry : totals) {
    if (step_ns > 0) entry.share_of_step = static_cast<double>(entry.total_ns) / static_cast<double>(step_ns);
  }
  std::stable_sort(totals.begin(), totals.end(),
                   [](const SpanTotals& left, const SpanTotals& right) { return left.total_ns > right.total_ns; });
  return totals;
}

}  // namespace pharos::lens
