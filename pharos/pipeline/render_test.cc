#include "pharos/pipeline/render.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace pharos::pipeline {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(RenderText, ListsActions) {
  EXPECT_EQ(render_text(one_forward_one_backward(2, 2)), "rank 0   F0 F1 B0 B1\nrank 1   F0 B0 F1 B1\n");
  EXPECT_THAT(render_text(zero_bubble_v(1, 1)), "rank 0   F0 F0.1 B0.1 W0.1 B0 W0\n");
}

TEST(RenderText, DrawsTime) {
  EXPECT_EQ(render_text(simulate(one_forward_one_backward(2, 2), even_costs(2)), 100, "ms"),
            "rank 0   FF..BB.BB  idle 33.3 %  peak 2\n"
            "rank 1   .FBBFBB..  idle 33.3 %  peak 1\n"
            "1f1b: span 9 ms, bubble 33.3 %\n"
            "F forward, B backward, . idle; peak in rank shares: activations of one microbatch for all chunks of a "
            "rank\n");
  EXPECT_THAT(render_text(simulate(zero_bubble_v(1, 1), even_costs(2))),
              HasSubstr("rank 0   FfbwBW  idle  0.0 %  peak 1\n"));
  EXPECT_THAT(render_text(simulate(zero_bubble_v(2, 4), even_costs(4))),
              HasSubstr("\nF B W chunk 0, f b w chunk 1, . idle"));
}

TEST(RenderText, FitsTheWidth) {
  const std::string text = render_text(simulate(gpipe(2, 500), even_costs(2, 0.3, 0.3, 0.3)), 60);
  EXPECT_EQ(text.find("  idle"), 9U + 60);
}

// A span of one unit in which six actions run still shows them.
TEST(RenderText, ShowsActionsOfAShortWholeSpan) {
  const std::string text = render_text(simulate(zero_bubble_v(1, 1), even_costs(2, 0.25, 0.125, 0.125)), 48);
  for (const char* part : {"FFF", "fff", "bbb", "www", "BBB", "WWW"}) EXPECT_THAT(text, HasSubstr(part));
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

/// What breaks the rules of well-formed XML 1.0 (of those a picture can break), or nothing.
class XmlReader {
 public:
  explicit XmlReader(const std::string& text) : text_(text) {}

  std::string fault() {
    if (text_.starts_with("<?xml")) at_ = text_.find("?>") + 2;
    std::vector<std::string> open;
    bool has_root = false;
    while (at_ < text_.size()) {
      const std::size_t tag = std::min(text_.find('<', at_), text_.size());
      const std::string between = text_.substr(at_, tag - at_);
      if (!is_text(between)) return "character data: " + between;
      if (open.empty() && between.find_first_not_of(" \n") != std::string::npos) return "text outside the root";
      if (tag == text_.size()) break;
      at_ = tag + 1;
      const bool is_end = at_ < text_.size() && text_[at_] == '/';
      if (is_end) ++at_;
      const std::string name = take_name();
      if (name.empty()) return "a tag without a name";
      if (open.empty() && has_root) return "a second root";
      has_root = true;
      bool is_empty = false;
      if (!is_end && !take_attributes(is_empty)) return "attributes of " + name;
      if (at_ >= text_.size() || text_[at_++] != '>') return "no end of tag " + name;
      if (is_end && (open.empty() || open.back() != name)) return "end tag " + name + " without start";
      if (is_end) {
        open.pop_back();
      } else if (!is_empty) {
        open.push_back(name);
      }
    }
    if (!open.empty()) return "no end tag of " + open.back();
    return has_root ? "" : "no root";
  }

 private:
  static bool is_text(const std::string& text) {
    for (std::size_t i = 0; i < text.size(); ++i) {
      const auto character = static_cast<unsigned char>(text[i]);
      if (character < 0x20 && character != '\n' && character != '\t' && character != '\r') return false;
      if (character == '<') return false;
      if (character != '&') continue;
      const std::string entity = text.substr(i, text.find(';', i) - i);
      if (!std::set<std::string>{"&amp", "&lt", "&gt", "&quot", "&apos"}.contains(entity)) return false;
    }
    return true;
  }

  std::string take_name() {
    std::string name;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '-')) {
      name += text_[at_++];
    }
    return name;
  }

  bool take_attributes(bool& is_empty) {
    std::set<std::string> names;
    while (at_ < text_.size() && text_[at_] == ' ') {
      ++at_;
      const std::string name = take_name();
      if (name.empty() || !names.insert(name).second || text_.substr(at_, 2) != "=\"") return false;
      const std::size_t end = text_.find('"', at_ + 2);
      if (end == std::string::npos || !is_text(text_.substr(at_ + 2, end - at_ - 2))) return false;
      at_ = end + 1;
    }
    is_empty = at_ < text_.size() && text_[at_] == '/';
    if (is_empty) ++at_;
    return true;
  }

  const std::string& text_;
  std::size_t at_ = 0;
};

std::string xml_fault(const std::string& text) { return XmlReader(text).fault(); }

TEST(RenderSvg, TheReaderOfThisTestFindsFaults) {
  EXPECT_EQ(xml_fault("<a b=\"1\"><c/>x &amp; y</a>\n"), "");
  for (const char* text : {"", "<a>", "<a></b>", "<a b=1/>", "<a b=\"1\" b=\"2\"/>", "<a/><a/>", "<a>&</a>",
                           "<a>x &q; y</a>", "<a b=\"<\"/>", "<a>\x01</a>", "<a/>x", "<a"}) {
    EXPECT_NE(xml_fault(text), "") << text;
  }
}

TEST(RenderSvg, IsXmlWithEveryAction) {
  for (Schedule schedule : {gpipe(1, 1), one_forward_one_backward(4, 12), interleaved(2, 3, 4, 2), zero_bubble_1p(3, 5),
                            zero_bubble_v(4, 8), dual_pipe_v(3, 7), forward_only(2, 2)}) {
    schedule.name += " <\"&'>\x01";
    const Timeline timeline =
        simulate(schedule, even_costs(schedule.num_ranks * schedule.num_chunks, 1, 1.5, 0.5, 0.1));
    const std::string svg = render_svg(timeline, "<ms>");
    EXPECT_EQ(xml_fault(svg), "") << schedule.name;
    std::size_t num_actions = 0;
    for (const auto& actions : schedule.actions) num_actions += actions.size();
    EXPECT_EQ(count(svg, "<g><title>"), num_actions);
    EXPECT_EQ(count(svg, ", stage"), schedule.actions.size());
    EXPECT_THAT(svg, HasSubstr("time (&lt;ms&gt;)"));
    EXPECT_THAT(svg, HasSubstr("forward of microbatch 0, chunk 0 (stage 0)"));
  }
}

TEST(RenderSvg, PlacesAndNumbersTheBoxes) {
  const std::string svg = render_svg(simulate(one_forward_one_backward(2, 3), even_costs(2, 1, 1, 1)), "ms");
  // The span of 12 units has 900 pixels from x = 130; rank 1 starts after one unit, 75 pixels.
  EXPECT_THAT(svg, HasSubstr("<g><title>forward of microbatch 0, chunk 0 (stage 1): 1 to 2 ms</title>"
                             "<rect x=\"205.00\" y=\"88.0\" width=\"75.00\""));
  EXPECT_THAT(svg, HasSubstr(">2</text></g>"));
  for (const char* part : {">forward</text>", ">backward</text>", "bubble 25.0 %", "idle 25.0 %, peak 2 shares<",
                           "idle 25.0 %, peak 1 share<", ">rank 1, stage 1<"}) {
    EXPECT_THAT(svg, HasSubstr(part));
  }
}

TEST(RenderSvg, LegendHasThePhasesOfTheSchedule) {
  const auto svg = [](const Schedule& schedule) { return render_svg(simulate(schedule, even_costs(2))); };
  EXPECT_THAT(svg(zero_bubble_1p(2, 3)), HasSubstr(">weight gradient</text>"));
  EXPECT_THAT(svg(one_forward_one_backward(2, 3)), Not(HasSubstr(">weight gradient</text>")));
}

// Stage 1 takes twice as long: rank 0 waits for it, rank 1 is the busiest.
TEST(RenderSvg, SaysWhyRanksAreIdle) {
  StageCosts costs = even_costs(2, 1, 1, 1, 0.5);
  costs.forward[1] = 4;
  const std::string svg = render_svg(simulate(one_forward_one_backward(2, 3), costs), "ms");
  for (const char* part : {"<title>waiting for a stage (stage 1): ", "<title>waiting for a transfer (stage 1): ",
                           "<title>filling: 0 to 1.5 ms", "<title>draining: ", "bold\">rank 1</tspan>, stage <tspan",
                           "bold\">busiest</tspan>", ">rank 0, stage 0<"})
    EXPECT_THAT(svg, HasSubstr(part));
  EXPECT_THAT(render_svg(simulate(one_forward_one_backward(2, 3), even_costs(2))), Not(HasSubstr("busiest")));
}

TEST(RenderSvg, IsNeverWiderThanAPage) {
  StageCosts costs = even_costs(4);
  costs.forward[0] = 1e-3;
  const std::string svg = render_svg(simulate(one_forward_one_backward(4, 64), costs));
  const std::size_t at = svg.find("width=\"") + 7;
  EXPECT_LE(std::stod(svg.substr(at)), kWidestPicture);
}

TEST(RenderSvg, DrawsWhatTakesNoTime) {
  EXPECT_EQ(xml_fault(render_svg(simulate(gpipe(2, 2), even_costs(2, 0, 0, 0)))), "");
}

}  // namespace
}  // namespace pharos::pipeline
