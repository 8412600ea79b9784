// Schedules and timelines for people: text for a terminal, SVG for a document.
#pragma once

#include <string>
#include <vector>

#include "pharos/pipeline/report/idle.h"
#include "pharos/pipeline/simulate.h"

namespace pharos::pipeline {

/// One line per rank: its actions in order, in the notation of schedule files ("F0 F1 B0 W0").
std::string render_text(const Schedule& schedule);

/// One line per rank against time, at most about `width` characters for the span: per column the letter of what runs in
/// its middle (F B W; f b w for odd chunks) or '.', then the rank's bubble and its peak in rank shares. Lines with span
/// and bubble of all and with the meaning of the letters follow. `unit` is the unit of the costs' times ("ms").
std::string render_text(const Timeline& timeline, int width = 100, const std::string& unit = "");

/// Peaks are given to people in rank shares: activations of one microbatch for all chunks of a rank.
double rank_shares(double chunk_activations, const Schedule& schedule);

/// The most that a rank of the timeline keeps.
double peak_rank_shares(const Timeline& timeline);

struct Panel {
  std::string title;
  const Timeline* timeline;                  ///< outlives the call
  std::vector<std::vector<Idle>> idle = {};  ///< [rank]; empty: idle_times(*timeline)
};

/// A self-contained SVG 1.1 picture of timelines of one shape (ranks, chunks), at least one, below each other on one
/// time scale, which is that of the longest; at most kWidestPicture pixels wide. Each has a row per rank with its
/// stages, a box per action with its microbatch number where it fits and all of it in its tooltip, colours by phase
/// (darker for odd chunks), idle times coloured by reason, and a time axis in `unit`; bubble and peak of each rank, the
/// busiest rank and the slowest stage in red. `heading`: lines of text above all.
std::string render_svg(const std::vector<Panel>& panels, const std::string& unit,
                       const std::vector<std::string>& heading = {});

/// The same of one timeline, under a title that says what it is.
std::string render_svg(const Timeline& timeline, const std::string& unit = "");

constexpr double kWidestPicture = 1600;

}  // namespace pharos::pipeline
