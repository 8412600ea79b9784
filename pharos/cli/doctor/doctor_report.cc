#include "pharos/cli/doctor/doctor_report.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "pharos/base/clock.h"
#include "pharos/base/environment.h"
#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/base/untrusted/printable.h"

namespace pharos::cli {
namespace {

using launch::Finding;
using launch::Findings;
using launch::Verdict;

bool stdout_has_color() {
  if (::isatty(STDOUT_FILENO) == 0) return false;
  const std::string terminal = base::get_environment("TERM").value_or("dumb");
  return !base::get_environment("NO_COLOR") && terminal != "dumb";
}

/// The first node whole, of the others only what is not in order, then what concerns the job.
std::string tables_of(const Findings& findings) {
  std::vector<std::string> hosts;
  std::map<std::string, Findings> by_host;
  for (const Finding& finding : findings) {
    if (!by_host.contains(finding.host) && !finding.host.empty()) hosts.push_back(finding.host);
    const bool is_first = hosts.empty() || finding.host == hosts.front() || finding.host.empty();
    Findings& of_host = by_host[finding.host];
    if (is_first || finding.verdict >= Verdict::kWarning) of_host.push_back(finding);
  }
  if (by_host.contains("")) hosts.emplace_back();
  std::string text;
  for (const std::string& host : hosts) {
    if (!text.empty()) text += "\n";
    text.append(host.empty() ? "all ranks" : "node ").append(base::printable(host)).append("\n");
    text += by_host[host].empty() ? "in order\n" : launch::render_findings(by_host[host], stdout_has_color());
  }
  return text;
}

std::string summary_of(const Findings& findings) {
  std::array<int, 4> counts{};
  for (const Finding& finding : findings) ++counts.at(static_cast<std::size_t>(finding.verdict));
  const auto counted = [&](Verdict verdict, const char* noun) {
    const int count = counts.at(static_cast<std::size_t>(verdict));
    return std::to_string(count).append(" ").append(noun).append(count == 1 ? "" : "s");
  };
  std::string text = "\n";
  text.append(counted(Verdict::kFailure, "failure")).append(", ");
  text.append(counted(Verdict::kWarning, "warning")).append(", ").append(counted(Verdict::kNote, "note"));
  return text + (counts[3] > 0 ? ": to be fixed before training\n" : "\n");
}

}  // namespace

int exit_code_of(Verdict verdict) {
  return static_cast<int>(verdict == Verdict::kFailure ? base::ExitCode::kUserError : base::ExitCode::kDone);
}

DoctorReport::~DoctorReport() { stop_watching(); }

void DoctorReport::add(const Findings& findings) {
  const std::lock_guard lock(mutex_);
  findings_.insert(findings_.end(), findings.begin(), findings.end());
}

bool DoctorReport::has_failure() const {
  const std::lock_guard lock(mutex_);
  return worst() == Verdict::kFailure;
}

Verdict DoctorReport::worst() const { return launch::worst_of(findings_); }

void DoctorReport::watch(std::int64_t deadline_ns, bool may_show) {
  watcher_ = std::thread([this, deadline_ns, may_show] {
    std::unique_lock lock(mutex_);
    const auto left = std::chrono::nanoseconds(deadline_ns - base::monotonic_ns());
    if (done_.wait_for(lock, left, [this] { return is_done_; })) return;
    findings_.push_back(
        {.check = "ranks",
         .subject = {},
         .value = "the time of --timeout is up before all checks were made",
         .verdict = Verdict::kFailure,
         .remedy = "A rank or a device does not answer: see what is missing above; or give more time."});
    if (may_show) {
      try {
        show_locked();
      } catch (const std::exception& error) {
        std::cerr << "error: " << error.what() << "\n";
      }
    }
    std::cout.flush();
    ::_exit(exit_code_of(Verdict::kFailure));
  });
}

void DoctorReport::stop_watching() {
  {
    const std::lock_guard lock(mutex_);
    is_done_ = true;
  }
  done_.notify_all();
  if (watcher_.joinable()) watcher_.join();
}

void DoctorReport::show() {
  const std::lock_guard lock(mutex_);
  show_locked();
}

void DoctorReport::show_locked() {
  if (is_shown_) return;
  is_shown_ = true;
  if (json_path_ != "-") std::cout << tables_of(findings_) << summary_of(findings_) << std::flush;
  if (json_path_.empty()) return;
  const nlohmann::json json = {{"verdict", std::string(launch::name_of(worst()))},
                               {"exit_code", exit_code_of(worst())},
                               {"findings", launch::to_json(findings_)}};
  const std::string text = json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  if (json_path_ == "-") {
    std::cout << text << std::flush;
  } else {
    base::write_output_file(json_path_, text);
  }
}

}  // namespace pharos::cli
