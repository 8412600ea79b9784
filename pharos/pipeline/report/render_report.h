// The bubble report for people and for programs.
#pragma once

#include <string>

#include "pharos/pipeline/report/report.h"

namespace pharos::pipeline {

/// Tables for a terminal: the bubble in its parts per rank, stage times, other schedules and splits, what helps most.
std::string report_text(const BubbleReport& report);

/// One JSON object, indented; keys in docs/bubble.md. Times in milliseconds, bubbles as fractions.
std::string report_json(const BubbleReport& report);

/// The planned timeline above the measured one, on one time scale; idle times coloured by reason.
std::string report_svg(const BubbleReport& report);

}  // namespace pharos::pipeline
