#include "pharos/pipeline/render.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "pharos/base/text.h"

namespace pharos::pipeline {
namespace {

constexpr double kLeft = 70, kRight = 150, kTop = 56, kRowHeight = 26, kRowGap = 6, kAxisHeight = 44;
constexpr double kTitleHeight = 28;                  ///< of panels below the first
constexpr double kNarrowest = 900, kWidest = 16000;  ///< pixels for the span
constexpr double kPixelsPerAction = 18;              ///< of the shortest action, so that its number can be read
constexpr double kPixelsPerDigit = 7;

struct Look {
  const char* name;
  std::array<const char*, 2> fill;  ///< even chunks, odd chunks
  std::array<const char*, 2> ink;
};
const Look kLooks[] = {{"forward", {"#9ecbff", "#2f6fb3"}, {"#0b2239", "#ffffff"}},
                       {"backward", {"#ffc58a", "#c2571a"}, {"#3d1d00", "#ffffff"}},
                       {"weight gradient", {"#a8e0b0", "#2e7d4f"}, {"#0d2e17", "#ffffff"}}};

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

std::string title_of(const Timeline& timeline, const std::string& unit) {
  const Schedule& schedule = timeline.schedule;
  const std::string chunks = schedule.num_chunks == 1 ? "" : fmt::format(" with {} chunks each", schedule.num_chunks);
  return fmt::format("{}: {} ranks{}, {} microbatches; span {}, bubble {:.1f} %", schedule.name, schedule.num_ranks,
                     chunks, schedule.num_microbatches, with_unit(timeline.span, unit), 100 * timeline.bubble);
}

double longest_span(const std::vector<Panel>& panels) {
  double span = 0;
  for (const Panel& panel : panels) span = std::max(span, panel.timeline->span);
  return span;
}

class Picture {
 public:
  Picture(const std::vector<Panel>& panels, const std::vector<LegendEntry>& gap_legend, const std::string& unit)
      : panels_(panels),
        gap_legend_(gap_legend),
        unit_(unit),
        span_(longest_span(panels)),
        width_(pixels_of_span(*panels.front().timeline, span_)),
        scale_(span_ > 0 ? width_ / span_ : 0) {}

  std::string draw() {
    const double rows = static_cast<double>(panels_.front().timeline->ranks.size()) * (kRowHeight + kRowGap);
    const double panel_height = kTitleHeight + rows + kAxisHeight;
    const double height = kTop - kTitleHeight + static_cast<double>(panels_.size()) * panel_height;
    add(R"(<?xml version="1.0" encoding="UTF-8"?>)"
        "\n<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} "
        "{1:.0f}\" "
        "font-family=\"sans-serif\" font-size=\"11\">\n",
        kLeft + width_ + kRight, height);
    add("<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n");
    draw_legend();
    double title_y = 20;
    top_ = kTop;
    for (const Panel& panel : panels_) {
      bottom_ = top_ + rows;
      add("<text x=\"{}\" y=\"{:.1f}\" font-size=\"14\" fill=\"#222222\">{}</text>\n", kLeft, title_y,
          escape(panel.title));
      draw_axis();
      for (std::size_t rank = 0; rank < panel.timeline->ranks.size(); ++rank) draw_rank(panel, rank);
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

  void draw_legend() {
    const int num_shades = std::min(panels_.front().timeline->schedule.num_chunks, 2);
    double x = kLeft;
    for (const Look& look : kLooks) {
      for (int shade = 0; shade < num_shades; ++shade) {
        add("<rect x=\"{:.1f}\" y=\"30\" width=\"12\" height=\"12\" fill=\"{}\"/>", x, look.fill[shade]);
        x += 13;
      }
      add("<text x=\"{:.1f}\" y=\"40\" fill=\"#222222\">{}</text>\n", x + 4, look.name);
      x += 110;
    }
    for (const LegendEntry& entry : gap_legend_) {
      add("<rect x=\"{:.1f}\" y=\"30\" width=\"12\" height=\"12\" fill=\"{}\"/>", x, entry.fill);
      add("<text x=\"{:.1f}\" y=\"40\" fill=\"#222222\">{}</text>\n", x + 17, escape(entry.text));
      x += 26 + 5.5 * static_cast<double>(entry.text.size());
    }
    if (num_shades == 2) {
      add("<text x=\"{:.1f}\" y=\"40\" fill=\"#555555\">light: even chunks, dark: odd chunks</text>\n", x);
    }
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

  void draw_rank(const Panel& panel, std::size_t rank) {
    const RankTimeline& line = panel.timeline->ranks[rank];
    const double y = top_ + static_cast<double>(rank) * (kRowHeight + kRowGap);
    add("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\" fill=\"#222222\">rank {}</text>\n", kLeft - 8, y + 17, rank);
    add("<rect x=\"{}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\" fill=\"#f4f4f4\"/>\n", kLeft, y,
        panel.timeline->span * scale_, kRowHeight);
    if (!panel.gaps.empty()) {
      for (const Gap& gap : panel.gaps[rank]) draw_gap(gap, y);
    }
    for (const TimedAction& timed : line.actions) draw_action(timed, y);
    add("<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"#222222\">idle {:.1f} %, peak {}</text>\n", kLeft + width_ + 8, y + 17,
        100 * line.bubble, line.peak_in_flight);
  }

  void draw_gap(const Gap& gap, double y) {
    add("<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\" fill=\"{}\"><title>{}: {} to "
        "{}</title></rect>\n",
        kLeft + gap.start * scale_, y, (gap.end - gap.start) * scale_, kRowHeight, gap.fill, escape(gap.text),
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
  const std::vector<LegendEntry>& gap_legend_;
  const std::string& unit_;
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

}  // namespace

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
  const bool is_short_and_even =
      timeline.span >= 1 && timeline.span <= width && std::floor(timeline.span) == timeline.span;
  const int num_columns = is_short_and_even ? static_cast<int>(timeline.span) : std::max(width, 1);
  std::string text;
  for (std::size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    const RankTimeline& line = timeline.ranks[rank];
    text += fmt::format("rank {:<3} {}  idle {:4.1f} %  peak {}\n", rank, row_of(line, timeline.span, num_columns),
                        100 * line.bubble, line.peak_in_flight);
  }
  return text + fmt::format("{}: span {}, bubble {:.1f} %\n", timeline.schedule.name, with_unit(timeline.span, unit),
                            100 * timeline.bubble);
}

std::string render_svg(const Timeline& timeline, const std::string& unit) {
  return render_svg({{.title = title_of(timeline, unit), .timeline = &timeline, .gaps = {}}}, {}, unit);
}

std::string render_svg(const std::vector<Panel>& panels, const std::vector<LegendEntry>& gap_legend,
                       const std::string& unit) {
  return Picture(panels, gap_legend, unit).draw();
}

}  // namespace pharos::pipeline
