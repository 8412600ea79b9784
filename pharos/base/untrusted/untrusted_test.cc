#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pharos/base/error.h"
#include "pharos/base/untrusted/printable.h"
#include "pharos/base/untrusted/regular_file.h"

namespace pharos::base {
namespace {

TEST(Printable, ShowsControlCharactersAndWhatIsNoText) {
  struct Case {
    std::string_view text;
    const char* shown;
  };
  const Case kCases[] = {
      {"lost, é → 終 🙂", "lost, é → 終 🙂"},
      {"\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"},
      {"a\nb\r\tc\x7f", "a\\nb\\r\\tc\\x7f"},
      {std::string_view("a\0b", 3), "a\\x00b"},
      {"\xC2\x9B"
       "31m\xC2\xA0.",
       "\\x9b31m\xC2\xA0."},  // CSI of eight bits; a blank that does not break
      {"\x9b\xff", "\\x9b\\xff"},
      {"\xC0\x9B", "\\xc0\\x9b"},  // longer than it need be
      {"\xE0\x82\x9B", "\\xe0\\x82\\x9b"},
      {"\xED\xA0\x80", "\\xed\\xa0\\x80"},           // half of a pair
      {"\xF4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"},  // beyond Unicode
      {"\xE7\xB5", "\\xe7\\xb5"},                    // cut off
  };
  for (const Case& each : kCases) EXPECT_EQ(printable(each.text), each.shown);
}

TEST(Printable, IsCutBetweenCharacters) {
  EXPECT_EQ(shortened("abc", 3), "abc");
  EXPECT_EQ(shortened("abcd", 3), "abc…");
  EXPECT_EQ(shortened("aéb", 2), "a…");
  EXPECT_EQ(shortened("\x80\x80\x80\x80\x80\x80", 5), "\x80\x80…");
}

TEST(RegularFile, RefusesWhatIsNone) {
  const auto folder = std::filesystem::temp_directory_path() / ("pharos_untrusted_" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder / "folder");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  std::filesystem::create_symlink(folder / "pipe", folder / "link");
  for (const auto& path : {folder / "pipe", folder / "link", folder / "folder", std::filesystem::path("/dev/null")}) {
    for (const int flags : {O_RDONLY, O_WRONLY | O_CREAT | O_APPEND, O_RDWR}) {
      try {
        ::close(open_regular_file(path, flags));
        ADD_FAILURE() << path;
      } catch (const UserError& error) {
        EXPECT_THAT(error.what(), testing::HasSubstr("is not a regular file"));
      }
    }
  }
  EXPECT_THROW(open_regular_file(folder / "absent", O_RDONLY), UserError);
  const int descriptor = open_regular_file(folder / "new", O_WRONLY | O_CREAT | O_APPEND);
  EXPECT_EQ(::write(descriptor, "x", 1), 1);
  ::close(descriptor);
  EXPECT_EQ(std::filesystem::file_size(folder / "new"), 1u);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace pharos::base
