// What a check of `pharos doctor` found: one line of its table.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace pharos::launch {

/// kNote: worth knowing, nothing to do. kWarning: training works, but slower or at a risk. kFailure: to be fixed before
/// training.
enum class Verdict : std::uint8_t { kOk, kNote, kWarning, kFailure };

/// "ok", "note", "warning", "failure".
std::string_view name_of(Verdict verdict);

struct Finding {
  std::string check;    ///< name as in --only
  std::string subject;  ///< which of several: "eth0", "0"; may be empty
  std::string value;    ///< for people, with units
  Verdict verdict = Verdict::kOk;
  std::string remedy = {};                         ///< what to do about it; empty when there is nothing
  nlohmann::json data = nlohmann::json::object();  ///< the same in numbers, units in the names
  std::string host = {};                           ///< empty: of the job as a whole
};

using Findings = std::vector<Finding>;

/// The worst of all; kOk when there are none.
Verdict worst_of(const Findings& findings);

nlohmann::json to_json(const Finding& finding);
nlohmann::json to_json(const Findings& findings);
/// Of what to_json() gave.
Findings findings_from_json(const nlohmann::json& json);

/// Table of check, value and verdict; a remedy stands below its line. `has_color`: verdicts as a terminal shows them.
std::string render_findings(const Findings& findings, bool has_color);

}  // namespace pharos::launch
