// Verdicts that need all ranks of a job: what differs, who is slower, whose clock is wrong. No communication here.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pharos/launch/doctor/finding.h"

namespace pharos::launch {

/// What a rank tells the others.
struct RankReport {
  std::int64_t rank = 0;
  std::string host;
  std::string device;  ///< "cpu", "cuda"
  Findings findings;   ///< of its node (first rank of the node) and of its device
};

nlohmann::json to_json(const RankReport& report);
RankReport rank_report_from_json(const nlohmann::json& json);

/// One line for each version that is not the same everywhere, or one that says all are.
Findings judge_same_versions(const std::vector<RankReport>& reports);

/// A speed of each rank, in rank order, and whom to name.
struct RankSpeeds {
  std::string check;  ///< of the finding
  std::string subject;
  std::string unit;
  std::vector<double> values;
};
Finding judge_speeds(const RankSpeeds& speeds, const std::vector<std::string>& hosts);

/// Median of `check` ("gemm", "bandwidth") of each rank; empty unless every rank has one.
std::vector<double> speeds_of(const std::vector<RankReport>& reports, const std::string& check);

/// A question and its answer: sent and received by our clock, answered by the other's, all in ns.
struct ClockExchange {
  std::int64_t sent_ns = 0, answered_ns = 0, received_ns = 0;
};
struct ClockOffset {
  std::int64_t offset_ns = 0;  ///< the other's clock minus ours
  std::int64_t error_ns = 0;   ///< the offset is right within this
};
/// From the exchange with the shortest way: the answer was made at an unknown moment of it (Cristian 1989).
ClockOffset estimate_clock_offset(const std::vector<ClockExchange>& exchanges);
Finding judge_clock_offset(const std::string& host, const ClockOffset& offset);

/// Whom `rank` meets in `round` of 0 … size - 1 (even size: size - 2) when each pair of ranks meets once (circle
/// method); nullopt: nobody.
std::optional<std::int64_t> partner_of(std::int64_t rank, std::int64_t size, std::int64_t round);
/// Rounds until each pair has met.
std::int64_t num_rounds(std::int64_t size);

}  // namespace pharos::launch
