#include "pharos/cli/generate/generate_command.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace pharos::cli {
namespace {

const std::string kReplacement = "\xEF\xBF\xBD";

struct Case {
  const char* name;
  std::string bytes;
  std::string text;
};

const Case kCases[] = {
    {"ASCII", "light", "light"},
    {"two, three and four bytes", "é€😀", "é€😀"},
    {"a lone continuation", "a\x80z", "a" + kReplacement + "z"},
    {"a byte that never occurs", "\xFF\xC0", kReplacement + kReplacement},
    {"an overlong slash", "\xC0\xAF", kReplacement + kReplacement},
    {"a surrogate", "\xED\xA0\x80", kReplacement + kReplacement + kReplacement},
    {"above U+10FFFF", "\xF4\x90\x80\x80", kReplacement + kReplacement + kReplacement + kReplacement},
    {"a character cut short by another",
     "\xE2\x82"
     "A",
     kReplacement + "A"},  // one for the maximal beginning
    {"unfinished at the end", "ok\xF0\x9F\x98", "ok" + kReplacement},
    {"nothing", "", ""},
};

// However the bytes are cut, the text is the same, and every part of it is whole characters.
TEST(Utf8Stream, GivesWholeCharactersHoweverTheBytesAreCut) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    for (std::size_t length = 1; length <= 5; ++length) {
      Utf8Stream stream;
      std::string text;
      for (std::size_t at = 0; at < c.bytes.size(); at += length) text += stream.push(c.bytes.substr(at, length));
      EXPECT_EQ(text + stream.finish(), c.text) << "in parts of " << length;
    }
  }
}

TEST(Utf8Stream, HoldsBackAnUnfinishedCharacter) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("a\xE2"), "a");
  EXPECT_EQ(stream.push("\x82"), "");
  EXPECT_EQ(stream.push("\xAC!"), "€!");
  EXPECT_EQ(stream.finish(), "");
}

}  // namespace
}  // namespace pharos::cli
