// Schedules and timelines for people: text for a terminal, SVG for a document.
#pragma once

#include <string>
#include <vector>

#include "pharos/pipeline/simulate.h"

namespace pharos::pipeline {

/// One line per rank: its actions in order, in the notation of schedule files ("F0 F1 B0 W0").
std::string render_text(const Schedule& schedule);

/// One line per rank against time, at most about `width` characters for the span: per column the letter of what runs in
/// its middle (F B W; f b w for odd chunks) or '.', then the rank's bubble and its peak of activations in flight. A
/// last line gives span and bubble of all. `unit` is the unit of the costs' times ("ms").
std::string render_text(const Timeline& timeline, int width = 100, const std::string& unit = "");

/// A self-contained SVG 1.1 picture: a row per rank, a box per action with its microbatch number where it fits and all
/// of it in its tooltip, colours by phase (darker for odd chunks), legend, time axis in `unit`, bubble and peak per
/// rank.
std::string render_svg(const Timeline& timeline, const std::string& unit = "");

/// A time without an action, in colour.
struct Gap {
  double start;
  double end;
  std::string fill;  ///< "#rrggbb"
  std::string text;  ///< of its tooltip
};

struct Panel {
  std::string title;
  const Timeline* timeline;            ///< outlives the call
  std::vector<std::vector<Gap>> gaps;  ///< [rank]; may be empty
};

struct LegendEntry {
  std::string fill;
  std::string text;
};

/// Several timelines of one shape (ranks, chunks) below each other on one time scale, which is that of the longest. At
/// least one. `gap_legend` explains the colours of gaps.
std::string render_svg(const std::vector<Panel>& panels, const std::vector<LegendEntry>& gap_legend,
                       const std::string& unit);

}  // namespace pharos::pipeline
