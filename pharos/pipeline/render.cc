#include "pharos/pipeline/render.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <numeric>
#include <string_view>

#include "pharos/base/text.h"

namespace pharos::pipeline {
namespace {

constexpr double kLeft = 130, kRight = 190, kTop = 56, kRowHeight = 26, kRowGap = 6, kAxisHeight = 44;
constexpr double kTitleHeight = 28, kHeadingHeight = 18;                       ///< of panels below the first
constexpr double kNarrowest = 900, kWidest = kWidestPicture - kLeft - kRight;  ///< pixels for the span
constexpr double kPixelsPerAction = 18;  ///< of the shortest action, so that its number can be read
constexpr double kPixelsPerDigit = 7;
constexpr const char* kMark = "#c01c28";  ///< of the busiest rank and the slowest stage

struct Look {
  const char* name;
  std::array<const char*, 2> fill;  ///< even chunks, odd chunks
  std::array<const char*, 2> ink;
};
const Look kLooks[] = {{"forward", {"#9ecbff", "#2f6fb3"}, {"#0b2239", "#ffffff"}},
                       {"backward", {"#ffc58a", "#c2571a"}, {"#3d1d00", "#ffffff"}},
                       {"weight gradient", {"#a8e0b0", "#2e7d4f"}, {"#0d2e17", "#ffffff"}}};

struct IdleLook {
  const char* fill;
  const char* name;
};
/// [IdleReason]
const IdleLook kIdleLooks[kNumIdleReasons] = {{"#e6e6e6", "filling"},
                                              {"#f5b5b5", "waiting for a stage"},
                                              {"#cdb4ee", "waiting for a transfer"},
                                              {"#ffec99", "host"},
                                              {"#e6e6e6", "draining"}};

const Look& look_of(Phase phase) { return kLooks[static_cast<std::size_t>(phase)]; }

/// Text for XML 1.0: markup escaped, control characters (which no escape makes legal) replaced.
std::string escape(const std::string& text) {
  std::string escaped;
  for (const char character : text) {
    switch (character) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        escaped += static_cast<unsigned char>(character) < 0x20 ? '?' : character;
    }
  }
  return escaped;
}

std::string with_unit(double value, const std::string& unit) {
  return unit.empty() ? fmt::format("{:.4g}", value) : fmt::format("{:.4g} {}", value, unit);
}

/// 1, 2 or 5 times a power of ten, so that the axis has about `num_ticks`.
double tick_distance(double span, double num_ticks) {
  const double rough = span / num_ticks, power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough) return factor * power;
  }
  return 10 * power;
}

/// For a picture of `span`, in which the actions of `timeline` can be read.
double pixels_of_span(const Timeline& timeline, double span) {
  double shortest = span;
  for (const RankTimeline& line : timeline.ranks) {
    for (const TimedAction& timed : line.actions) {
      if (timed.end > timed.start) shortest = std::min(shortest, timed.end - timed.start);
    }
  }
  if (shortest <= 0) return kNarrowest;
  return std::clamp(span / shortest * kPixelsPerAction, kNarrowest, kWidest);
}

std::string shares_text(double shares) { return fmt::format("{:.3g} share{}", shares, shares == 1 ? "" : "s"); }

std::string title_of(const Timeline& timeline, const std::string& unit) {
  const Schedule& schedule = timeline.schedule;
  const std::string chunks = schedule.num_chunks == 1 ? "" : fmt::format(" with {} chunks each", schedule.num_chunks);
  return fmt::format("{}: {} rank{}{}, {} microbatch{}; span {}, bubble {:.1f} %", schedule.name, schedule.num_ranks,
                     schedule.num_ranks == 1 ? "" : "s", chunks, schedule.num_microbatches,
                     schedule.num_microbatches == 1 ? "" : "es", with_unit(timeline.span, unit), 100 * timeline.bubble);
}

/// The one that takes longest for all its actions, when that is more than 1 % above the mean; else -1.
int slowest_stage(const Timeline& timeline) {
  const Schedule& schedule = timeline.schedule;
  std::vector<double> times(static_cast<std::size_t>(schedule.num_ranks) * schedule.num_chunks, 0);
  for (const RankTimeline& line : timeline.ranks) {
    for (const TimedAction& timed : line.actions) times[timed.stage] += timed.end - timed.start;
  }
  const auto slowest = std::max_element(times.begin(), times.end());
  const double mean = std::accumulate(times.begin(), times.end(), 0.0) / static_cast<double>(times.size());
  return *slowest > 1.01 * mean ? static_cast<int>(slowest - times.begin()) : -1;
}

std::string in_red(const std::string& text, bool is_red) {
  return is_red ? fmt::format("<tspan fill=\"{}\" font-weight=\"bold\">{}</tspan>", kMark, text) : text;
}

double longest_span(const std::vector<Panel>& panels) {
  double span = 0;
  for (const Panel& panel : panels) span = std::max(span, panel.timeline->span);
  return span;
}

class Picture {
 public:
  Picture(const std::vector<Panel>& panels, const std::string& unit, const std::vector<std::string>& heading)
      : panels_(panels),
        unit_(unit),
        heading_(heading),
        span_(longest_span(panels)),
        width_(pixels_of_span(*panels.front().timeline, span_)),
        scale_(span_ > 0 ? width_ / span_ : 0) {
    for (const Panel& panel : panels) idle_.push_back(panel.idle.empty() ? idle_times(*panel.timeline) : panel.idle);
  }

  std::string draw() {
    const double rows = static_cast<double>(panels_.front().timeline->ranks.size()) * (kRowHeight + kRowGap);
    const double panel_height = kTitleHeight + rows + kAxisHeight;
    const double above = kHeadingHeight * static_cast<double>(heading_.size());
    const double height = above + kTop - kTitleHeight + static_cast<double>(panels_.size()) * panel_height;
    add(R"(<?xml version="1.0" encoding="UTF-8"?>)"
        "\n<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} "
        "{1:.0f}\" "
        "font-family=\"sans-serif\" font-size=\"11\">\n",
        kLeft + width_ + kRight, height);
    add("<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n");
    for (std::size_t line = 0; line < heading_.size(); ++line) {
      add("<text x=\"{}\" y=\"{:.1f}\" font-size=\"12\" fill=\"#222222\">{}</text>\n", kLeft,
          16 + kHeadingHeight * static_cast<double>(line), escape(heading_[line]));
    }
    draw_legend(above + 30);
    double title_y = above + 20;
    top_ = above + kTop;
    for (std::size_t i = 0; i < panels_.size(); ++i) {
      const Panel& panel = panels_[i];
      bottom_ = top_ + rows;
      add("<text x=\"{}\" y=\"{:.1f}\" font-size=\"14\" fill=\"#222222\">{}</text>\n", kLeft, title_y,
          escape(panel.title));
      draw_axis();
      const int busiest = busiest_rank(*panel.timeline).value_or(-1), slowest = slowest_stage(*panel.timeline);
      for (int rank = 0; rank < panel.timeline->schedule.num_ranks; ++rank)
        draw_rank(*panel.timeline, idle_[i][rank], rank, rank == busiest, slowest);
      top_ += panel_height;
      title_y = top_ - kTitleHeight / 2;
    }
    add("</svg>\n");
    return std::move(svg_);
  }

 private:
  template <typename... Arguments>
  void add(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    fmt::format_to(std::back_inserter(svg_), format, std::forward<Arguments>(arguments)...);
  }

  void draw_legend(double y) {
    const Schedule& schedule = panels_.front().timeline->schedule;
    const int num_shades = std::min(schedule.num_chunks, 2);
    double x = kLeft;
    const auto box = [&](const char* fill) {
      add("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"12\" height=\"12\" fill=\"{}\"/>", x, y, fill);
      x += 13;
    };
    const auto text = [&](std::string_view words) {
      add("<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"#222222\">{}</text>\n", x + 4, y + 10, words);
      x += 13 + 5.5 * static_cast<double>(words.size());
    };
    for (const Phase phase : {Phase::kForward, Phase::kBackward, Phase::kWeight}) {
      if (phase == Phase::kWeight && last_phase(schedule) != Phase::kWeight) continue;
      for (int shade = 0; shade < num_shades; ++shade) box(look_of(phase).fill[shade]);
      text(look_of(phase).name);
    }
    box(kIdleLooks[static_cast<std::size_t>(IdleReason::kFill)].fill);
    text("filling, draining");
    for (const IdleReason reason : {IdleReason::kStage, IdleReason::kTransfer, IdleReason::kHost}) {
      const IdleLook& look = kIdleLooks[static_cast<std::size_t>(reason)];
      box(look.fill);
      text(look.name);
    }
    if (num_shades == 2) text("light: even chunks, dark: odd chunks");
  }

  void draw_axis() {
    add("<line x1=\"{0}\" y1=\"{1:.1f}\" x2=\"{2:.1f}\" y2=\"{1:.1f}\" stroke=\"#555555\"/>\n", kLeft, bottom_,
        kLeft + width_);
    if (span_ <= 0) return;
    const double distance = tick_distance(span_, width_ / 90);
    for (int tick = 0; tick * distance <= span_ * (1 + 1e-9); ++tick) {
      const double x = kLeft + tick * distance * scale_;
      add("<line x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" stroke=\"#e0e0e0\"/>", x, top_ - 4,
          bottom_ + 4);
      add("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\" fill=\"#555555\">{:.6g}</text>\n", x, bottom_ + 17,
          tick * distance);
    }
    add("<text x=\"{}\" y=\"{:.1f}\" fill=\"#555555\">time{}</text>\n", kLeft, bottom_ + 34,
        escape(unit_.empty() ? "" : " (" + unit_ + ")"));
  }

  void draw_rank(const Timeline& timeline, const std::vector<Idle>& idle, int rank, bool is_busiest,
                 int slowest_stage) {
    const RankTimeline& line = timeline.ranks[rank];
    const double y = top_ + rank * (kRowHeight + kRowGap);
    std::vector<std::string> stages;
    for (const int stage : timeline.schedule.stage_of[rank])
      stages.push_back(in_red(std::to_string(stage), stage == slowest_stage));
    add("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\" fill=\"#222222\">{}, stage{} {}</text>\n", kLeft - 8, y + 17,
        in_red(fmt::format("rank {}", rank), is_busiest), stages.size() == 1 ? "" : "s", base::join(stages, ", "));
    add("<rect x=\"{}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\" fill=\"#f4f4f4\"/>\n", kLeft, y,
        timeline.span * scale_, kRowHeight);
    for (const Idle& gap : idle) draw_idle(gap, y);
    for (const TimedAction& timed : line.actions) draw_action(timed, y);
    add("<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"#222222\">idle {:.1f} %, peak {}{}</text>\n", kLeft + width_ + 8,
        y + 17, 100 * line.bubble, shares_text(rank_shares(line.peak_in_flight, timeline.schedule)),
        is_busiest ? ", " + in_red("busiest", true) : "");
  }

  void draw_idle(const Idle& gap, double y) {
    const IdleLook& look = kIdleLooks[static_cast<std::size_t>(gap.reason)];
    const std::string stage = gap.stage >= 0 ? fmt::format(" (stage {})", gap.stage) : "";
    add("<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\" fill=\"{}\"><title>{}{}: {} to "
        "{}</title></rect>\n",
        kLeft + gap.start * scale_, y, (gap.end - gap.start) * scale_, kRowHeight, look.fill, look.name, stage,
        with_unit(gap.start, ""), escape(with_unit(gap.end, unit_)));
  }

  void draw_action(const TimedAction& timed, double y) {
    const Look& look = look_of(timed.action.phase);
    const std::size_t shade = timed.action.chunk % 2;
    const double x = kLeft + timed.start * scale_, width = (timed.end - timed.start) * scale_;
    const std::string number = std::to_string(timed.action.microbatch);
    add("<g><title>{} of microbatch {}, chunk {} (stage {}): {} to {}</title>", look.name, number, timed.action.chunk,
        timed.stage, with_unit(timed.start, ""), escape(with_unit(timed.end, unit_)));
    add("<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\" fill=\"{}\" stroke=\"#ffffff\" "
        "stroke-width=\"0.5\"/>",
        x, y, width, kRowHeight, look.fill[shade]);
    if (width >= kPixelsPerDigit * static_cast<double>(number.size())) {
      add("<text x=\"{:.2f}\" y=\"{:.1f}\" text-anchor=\"middle\" fill=\"{}\">{}</text>", x + width / 2, y + 17,
          look.ink[shade], number);
    }
    add("</g>\n");
  }

  const std::vector<Panel>& panels_;
  const std::string& unit_;
  const std::vector<std::string>& heading_;
  std::vector<std::vector<std::vector<Idle>>> idle_;  ///< [panel][rank]
  double span_, width_, scale_;
  double top_ = 0, bottom_ = 0;  ///< of the rows of the panel being drawn
  std::string svg_;
};

char letter(const Action& action) { return (action.chunk % 2 == 0 ? "FBW" : "fbw")[static_cast<int>(action.phase)]; }

std::string row_of(const RankTimeline& line, double span, int num_columns) {
  std::string row(static_cast<std::size_t>(num_columns), '.');
  auto next = line.actions.begin();
  for (int column = 0; column < num_columns; ++column) {
    const double middle = span * (column + 0.5) / num_columns;
    while (next != line.actions.end() && next->end <= middle) ++next;
    if (next != line.actions.end() && next->start <= middle)
      row[static_cast<std::size_t>(column)] = letter(next->action);
  }
  return row;
}

/// One column per unit of time shows all when every action begins and ends on a whole one.
bool has_whole_times(const Timeline& timeline) {
  const auto is_whole = [](double time) { return std::floor(time) == time; };
  return std::all_of(timeline.ranks.begin(), timeline.ranks.end(), [&](const RankTimeline& line) {
    return std::all_of(line.actions.begin(), line.actions.end(),
                       [&](const TimedAction& timed) { return is_whole(timed.start) && is_whole(timed.end); });
  });
}

std::string legend_of(const Schedule& schedule) {
  const bool has_weight = last_phase(schedule) == Phase::kWeight;
  std::string legend = schedule.num_chunks == 1 ? "F forward, B backward" : "F B";
  if (has_weight) legend += schedule.num_chunks == 1 ? ", W weight gradient" : " W";
  if (schedule.num_chunks > 1)
    legend += fmt::format(" chunk{}, {} chunk{}", schedule.num_chunks == 2 ? " 0" : "s 0, 2, ..",
                          has_weight ? "f b w" : "f b", schedule.num_chunks == 2 ? " 1" : "s 1, 3, ..");
  return legend + ", . idle; peak in rank shares: activations of one microbatch for all chunks of a rank\n";
}

}  // namespace

double rank_shares(double chunk_activations, const Schedule& schedule) {
  return chunk_activations / schedule.num_chunks;
}

double peak_rank_shares(const Timeline& timeline) {
  int peak = 0;
  for (const RankTimeline& line : timeline.ranks) peak = std::max(peak, line.peak_in_flight);
  return rank_shares(peak, timeline.schedule);
}

std::string render_text(const Schedule& schedule) {
  std::string text;
  for (std::size_t rank = 0; rank < schedule.actions.size(); ++rank) {
    std::vector<std::string> words;
    for (const Action& action : schedule.actions[rank]) words.push_back(notation(action));
    text += fmt::format("rank {:<3} {}\n", rank, base::join(words, " "));
  }
  return text;
}

std::string render_text(const Timeline& timeline, int width, const std::string& unit) {
  const bool is_short = timeline.span >= 1 && timeline.span <= width && has_whole_times(timeline);
  const int num_columns = is_short ? static_cast<int>(timeline.span) : std::max(width, 1);
  std::string text;
  for (std::size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    const RankTimeline& line = timeline.ranks[rank];
    text += fmt::format("rank {:<3} {}  idle {:4.1f} %  peak {:.3g}\n", rank, row_of(line, timeline.span, num_columns),
                        100 * line.bubble, rank_shares(line.peak_in_flight, timeline.schedule));
  }
  return text +
         fmt::format("{}: span {}, bubble {:.1f} %\n", timeline.schedule.name, with_unit(timeline.span, unit),
                     100 * timeline.bubble) +
         legend_of(timeline.schedule);
}

std::string render_svg(const Timeline& timeline, const std::string& unit) {
  return render_svg({{.title = title_of(timeline, unit), .timeline = &timeline}}, unit);
}

std::string render_svg(const std::vector<Panel>& panels, const std::string& unit,
                       const std::vector<std::string>& heading) {
  return Picture(panels, unit, heading).draw();
}

}  // namespace pharos::pipeline
