// For tests: folders of counters that change over recorded moments (tests/data/counters/README.md).
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "pharos/base/file.h"
#include "pharos/lens/test_support.h"

namespace pharos::profile {

class RecordedTree {
 public:
  /// file: below tests/data/counters.
  explicit RecordedTree(const std::string& file) : recording_(std::string(PHAROS_TEST_DATA) + "/counters/" + file) {
    EXPECT_TRUE(recording_.good()) << file;
    std::getline(recording_, line_);
  }

  const std::filesystem::path& root() const { return folder_.path(); }

  /// Makes the folder what it was at the next moment, which must be `moment`.
  void advance_to(const std::string& moment) {
    ASSERT_EQ(line_, "@ " + moment);
    while (std::getline(recording_, line_) && !line_.starts_with("@ ")) {
      const std::size_t space = line_.find(' ');
      if (line_.starts_with("- ")) {
        std::filesystem::remove_all(root() / line_.substr(2));
      } else {
        write(line_.substr(0, space), line_.substr(space + 1));
      }
    }
  }

  void write(const std::string& path, const std::string& value) const {
    std::filesystem::create_directories((root() / path).parent_path());
    std::ofstream(root() / path) << value << "\n";
  }

 private:
  lens::TemporaryFolder folder_;
  std::ifstream recording_;
  std::string line_;
};

}  // namespace pharos::profile
