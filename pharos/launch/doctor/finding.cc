#include "pharos/launch/doctor/finding.h"

#include <algorithm>
#include <array>

#include "pharos/base/text.h"
#include "pharos/base/untrusted/printable.h"

namespace pharos::launch {
namespace {

constexpr std::array<std::string_view, 4> kNames = {"ok", "note", "warning", "failure"};
constexpr std::array<std::string_view, 4> kColors = {"\033[32m", "\033[36m", "\033[33m", "\033[1;31m"};
constexpr std::size_t kVerdictWidth = 7;
constexpr std::size_t kWidestTitle = 28;

Verdict verdict_of(const std::string& name) {
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  return found == kNames.end() ? Verdict::kFailure : static_cast<Verdict>(found - kNames.begin());
}

std::string title_of(const Finding& finding) {
  return base::printable(finding.subject.empty() ? finding.check : finding.check + " " + finding.subject);
}

std::string padded(std::string text, std::size_t width) {
  const std::size_t length = base::count_characters(text);
  if (length < width) text.append(width - length, ' ');
  return text;
}

/// Lines after the first begin under the first; what is no text in them is shown escaped.
std::string indented(std::string_view text, std::size_t width) {
  std::string result;
  for (std::size_t end = 0; (end = text.find('\n')) != std::string_view::npos; text.remove_prefix(end + 1))
    result += base::printable(text.substr(0, end)) + "\n" + std::string(width, ' ');
  return result + base::printable(text);
}

}  // namespace

std::string_view name_of(Verdict verdict) { return kNames.at(static_cast<std::size_t>(verdict)); }

Verdict worst_of(const Findings& findings) {
  Verdict worst = Verdict::kOk;
  for (const Finding& finding : findings) worst = std::max(worst, finding.verdict);
  return worst;
}

nlohmann::json to_json(const Finding& finding) {
  return {{"check", finding.check},   {"subject", finding.subject},
          {"value", finding.value},   {"verdict", std::string(name_of(finding.verdict))},
          {"remedy", finding.remedy}, {"data", finding.data},
          {"host", finding.host}};
}

nlohmann::json to_json(const Findings& findings) {
  nlohmann::json array = nlohmann::json::array();
  for (const Finding& finding : findings) array.push_back(to_json(finding));
  return array;
}

Findings findings_from_json(const nlohmann::json& json) {
  Findings findings;
  for (const nlohmann::json& one : json) {
    findings.push_back({.check = one.at("check"),
                        .subject = one.at("subject"),
                        .value = one.at("value"),
                        .verdict = verdict_of(one.at("verdict")),
                        .remedy = one.at("remedy"),
                        .data = one.at("data"),
                        .host = one.at("host")});
  }
  return findings;
}

std::string render_findings(const Findings& findings, bool has_color) {
  std::size_t width = 5;
  for (const Finding& finding : findings) width = std::max(width, base::count_characters(title_of(finding)));
  width = std::min(width, kWidestTitle);
  const std::size_t value_column = width + kVerdictWidth + 4;
  std::string text = padded("check", width) + "  " + padded("verdict", kVerdictWidth) + "  value\n";
  for (const Finding& finding : findings) {
    const auto index = static_cast<std::size_t>(finding.verdict);
    std::string verdict = padded(std::string(kNames.at(index)), kVerdictWidth);
    if (has_color) verdict = std::string(kColors.at(index)) + verdict + "\033[0m";
    text += padded(title_of(finding), width) + "  " + verdict + "  " + indented(finding.value, value_column) + "\n";
    if (finding.remedy.empty()) continue;
    text += std::string(value_column, ' ') + "→ " + indented(finding.remedy, value_column + 2) + "\n";
  }
  return text;
}

}  // namespace pharos::launch
