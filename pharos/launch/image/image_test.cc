#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "pharos/base/error.h"
#include "pharos/launch/image/build.h"
#include "pharos/launch/image/container.h"
#include "pharos/launch/image/image_work.h"
#include "pharos/launch/image/inspect.h"
#include "pharos/launch/image/own_files.h"
#include "pharos/launch/image/versions.h"

namespace pharos::launch {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// The message of the UserError that `work` throws.
template <class Work>
std::string fault_of(const Work& work) {
  try {
    work();
  } catch (const base::UserError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(ImageVersions, ReadsNamesAndVersions) {
  const auto versions = parse_version_table("# table\n\nNCCL_VERSION=2.29.3-1  # note\nA=b=c\r\n", "versions.env");
  ASSERT_EQ(versions.size(), 2u);
  EXPECT_EQ(versions[0].name + " " + versions[0].version, "NCCL_VERSION 2.29.3-1");
  EXPECT_EQ(versions[1].name + " " + versions[1].version, "A b=c");
}

TEST(ImageVersions, NamesTheLineItCannotRead) {
  for (const char* line : {"NCCL 2.29", "=1", "A=", "1A=1", "A B=1", "X=1"}) {
    EXPECT_THAT(fault_of([&] { parse_version_table(std::string("X=0\n") + line + "\n", "v.env"); }),
                HasSubstr("v.env:2"))
        << line;
  }
}

TEST(ImageVersions, ArgumentsOfADockerfile) {
  EXPECT_THAT(declared_arguments("ARG A=1\nFROM x\n  arg B\nARG C=1 D\n# ARG E\nENV F=ARG\nARGUMENT G\n"),
              ElementsAre("A", "B", "C", "D"));
}

TEST(ImageName, IsNamedAsEnrootDoes) {
  EXPECT_EQ(image_path({.name = "pharos", .output = "/x/./y"}), "/x/y/pharos+latest.sqsh");
  EXPECT_EQ(image_path({.name = "a", .tag = "2.1_b-c", .output = "/"}), "/a+2.1_b-c.sqsh");
  for (const char* name : {"", "../a", "a/b", "-a", ".a", "a b", "a;b"}) {
    EXPECT_THAT(fault_of([&] { image_path({.name = name}); }), HasSubstr("--name")) << name;
    EXPECT_THAT(fault_of([&] { image_path({.name = "a", .tag = name}); }), HasSubstr("--tag")) << name;
  }
}

TEST(ImageName, NeedsAFolder) {
  EXPECT_THAT(fault_of([] { image_path({.name = "a", .output = ""}); }), HasSubstr("--output"));
}

TEST(ImageOwnFiles, LibrariesOfAProcess) {
  const std::string maps =
      "55d0-55d1 r-xp 00000000 fe:00 1  /usr/local/bin/pharos\n"
      "7f00-7f01 r--p 00000000 fe:00 2  /lib/x86_64-linux-gnu/libc.so.6\n"
      "7f01-7f02 r-xp 00000000 fe:00 2  /lib/x86_64-linux-gnu/libc.so.6\n"
      "7f02-7f03 r-xp 00000000 fe:00 3  /opt/torch lib/libc10.so\n"
      "7f03-7f04 rw-p 00000000 00:00 0  [heap]\n";
  EXPECT_THAT(mapped_libraries(maps), ElementsAre("/lib/x86_64-linux-gnu/libc.so.6", "/opt/torch lib/libc10.so"));
}

TEST(ImageOwnFiles, PackagesOwnLibraries) {
  const OwnFiles own =
      sort_libraries({"/usr/lib/a/libc.so.6", "/lib/a/libz.so.1", "/opt/libc10.so", "/lib/a/libm.so.6"},
                     "libc6:amd64: /lib/a/libc.so.6\n"
                     "libc6:amd64: /lib/a/libm.so.6\n"
                     "diversion by x from: /opt/libc10.so\n"
                     "zlib1g:amd64, zlib-other: /usr/lib/a/libz.so.1\n");
  EXPECT_THAT(own.packages, ElementsAre("libc6", "zlib1g"));
  EXPECT_THAT(own.libraries, ElementsAre("/opt/libc10.so"));
}

TEST(ImageMounts, AsPyxisWritesThem) {
  const auto mounts = parse_mounts("/etc:/a,/usr:/b/c:ro,.:/workspace/pharos:rw,/bin");
  ASSERT_EQ(mounts.size(), 4u);
  EXPECT_EQ(mounts[0].target, "/a");
  EXPECT_FALSE(mounts[0].is_read_only);
  EXPECT_TRUE(mounts[1].is_read_only);
  EXPECT_EQ(mounts[2].source, std::filesystem::current_path() / "");
  EXPECT_FALSE(mounts[2].is_read_only);
  EXPECT_EQ(mounts[3].source, mounts[3].target);
}

TEST(ImageMounts, SaysWhatCannotBeMounted) {
  struct Case {
    const char* text;
    const char* part;
  };
  const Case cases[] = {
      {":/a", "SOURCE:TARGET"},           {"/etc:/a:rx", "SOURCE:TARGET"},
      {"/etc:/a:ro:ro", "SOURCE:TARGET"}, {"/no/such:/a", "There is no /no/such"},
      {"/etc:a", "not absolute"},         {"/etc:/", "The root folder"},
      {"/etc://", "The root folder"},     {"/etc:/a/../.:ro", "The root folder"},
      {"/", "The root folder"},
  };
  for (const Case& one : cases) {
    EXPECT_THAT(fault_of([&] { parse_mounts(one.text); }), HasSubstr(one.part)) << one.text;
  }
}

std::string superblock(int version, std::uint64_t used_bytes) {
  std::string bytes(96, '\0');
  bytes.replace(0, 4, "hsqs");
  const auto put = [&](std::size_t offset, std::uint64_t value, int size) {
    for (int i = 0; i < size; ++i) bytes[offset + static_cast<std::size_t>(i)] = static_cast<char>(value >> (8 * i));
  };
  put(4, 1234, 4);
  put(8, 1'800'000'000, 4);
  put(20, 6, 2);
  put(28, static_cast<std::uint64_t>(version), 2);
  put(40, used_bytes, 8);
  return bytes;
}

TEST(ImageInspect, ReadsTheSuperblock) {
  const ImageFacts facts = parse_superblock(superblock(4, 5000), 8192, "x.sqsh");
  EXPECT_EQ(facts.num_files, 1234);
  EXPECT_EQ(facts.created_s, 1'800'000'000);
  EXPECT_EQ(facts.compression, "zstd");
}

TEST(ImageInspect, RefusesOtherFilesAndCutOnes) {
  EXPECT_THAT(fault_of([] { parse_superblock(superblock(3, 10), 8192, "x.sqsh"); }), HasSubstr("not a squashfs"));
  EXPECT_THAT(fault_of([] { parse_superblock("hsqs", 4, "x.sqsh"); }), HasSubstr("not a squashfs"));
  EXPECT_THAT(fault_of([] { parse_superblock(superblock(4, 9000), 8192, "x.sqsh"); }), HasSubstr("cut off"));
}

TEST(ImageInspect, OpensRegularFilesOnly) {
  const std::string folder = testing::TempDir() + "pharos_inspect_" + std::to_string(getpid());
  std::filesystem::create_directory(folder);
  const std::string pipe = folder + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(fault_of([&] { inspect_image(pipe); }), HasSubstr("no regular file"));
  EXPECT_THAT(fault_of([&] { inspect_image(folder); }), HasSubstr("no regular file"));
  EXPECT_THAT(fault_of([&] { inspect_image(folder + "/gone"); }), HasSubstr("There is no image"));
  EXPECT_THAT(fault_of([&] { inspect_image(folder + std::string(300, 'x')); }), HasSubstr("There is no image"));
  std::filesystem::remove_all(folder);
}

TEST(ImageWords, ArePathsNotOptions) {
  EXPECT_EQ(path_word("-o"), "./-o");
  EXPECT_EQ(path_word("-"), "./-");
  EXPECT_EQ(path_word("-a/b"), "./-a/b");
  EXPECT_EQ(path_word("a/-b"), "a/-b");
  EXPECT_EQ(path_word("/-a"), "/-a");
}

}  // namespace
}  // namespace pharos::launch
