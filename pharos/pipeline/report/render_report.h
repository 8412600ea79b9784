// The bubble report for people and for programs.
#pragma once

#include <string>
#include <vector>

#include "pharos/pipeline/report/report.h"

namespace pharos::pipeline {

/// "bubble 36.7 % = 27.3 schedule +8.2 imbalance +0.8 transfers +0.4 other". As in all texts, the parts are rounded so
/// that they add up.
std::string parts_text(const BubbleParts& bubble);

/// What an engineer reads first: bubble and step in their parts, warnings, cause, what to do.
std::vector<std::string> report_heading(const BubbleReport& report);

/// Tables for a terminal: the bubble in its parts per rank, stage times, other schedules and splits, what helps most.
std::string report_text(const BubbleReport& report);

/// One JSON object, indented; keys in docs/bubble.md. Times in milliseconds, bubbles as fractions.
std::string report_json(const BubbleReport& report);

/// The planned timeline above the measured one, on one time scale; idle times coloured by reason.
std::string report_svg(const BubbleReport& report);

}  // namespace pharos::pipeline
