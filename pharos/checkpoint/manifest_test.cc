#include "pharos/checkpoint/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <random>

#include "pharos/base/error.h"

namespace pharos::checkpoint {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

/// A matrix of 4 rows and 6 columns in three parts, two of them in one file.
json good_manifest() {
  return json::parse(R"({
    "format": "pharos-checkpoint", "format_version": 2, "iteration": 3, "parallel": {"tp": 1}, "state_kinds": [],
    "tensors": {"w": {"shape": [4, 6], "dtype": "F32", "slices": [
      {"file": "a.safetensors", "offset": [0, 0], "shape": [2, 6], "entry": "w@0,0"},
      {"file": "a.safetensors", "offset": [2, 0], "shape": [1, 2], "entry": "w@2,0"},
      {"file": "b.safetensors", "offset": [2, 2], "shape": [1, 4], "entry": "w@2,2"},
      {"file": "b.safetensors", "offset": [3, 0], "shape": [1, 6]}]}},
    "files": [{"name": "a.safetensors", "size_bytes": 1, "crc32": "00000000"},
              {"name": "b.safetensors", "size_bytes": 1, "crc32": "00000000"}]})");
}

std::string problem_of(const json& manifest) {
  try {
    check_manifest(parse_manifest(manifest, "here"), "here");
  } catch (const base::UserError& error) {
    return error.what();
  }
  return "";
}

TEST(Manifest, RoundTripKeepsEntries) {
  EXPECT_EQ(problem_of(good_manifest()), "");
  EXPECT_EQ(to_json(parse_manifest(good_manifest(), "here")), good_manifest());
  json first = good_manifest();  // version 1 knew no entries
  first["format_version"] = 1;
  first["tensors"]["w"]["slices"] = json::parse(R"([{"file": "a.safetensors", "offset": [0, 0], "shape": [1, 6]},
                      {"file": "b.safetensors", "offset": [1, 0], "shape": [3, 6]}])");
  EXPECT_EQ(problem_of(first), "");
}

TEST(Manifest, DamagedListsAreRefused) {
  struct Case {
    const char* change;  ///< merge patch of slice `index`
    std::size_t index;
    const char* problem;
  };
  for (const Case& item : {
           Case{R"({"offset": [1, 0]})", 0, "overlap"},
           Case{R"({"offset": [2, 1]})", 2, "overlap"},
           Case{R"({"offset": [2, 3]})", 2, "outside"},
           Case{R"({"offset": [-1, 0]})", 0, "outside"},
           Case{R"({"offset": [3]})", 3, "outside"},
           Case{R"({"shape": [1]})", 3, "outside"},
           Case{R"({"shape": [1, 7]})", 3, "outside"},
           Case{R"({"shape": [1, 5]})", 3, "do not cover"},
           Case{R"({"shape": [0, 6]})", 3, "do not cover"},
           Case{R"({"shape": [9223372036854775807, 2]})", 1, "outside"},
           Case{R"({"entry": "w@0,0"})", 1, "two parts are said to be the entry 'w@0,0'"},
           Case{R"({"entry": "w"})", 2, "two parts are said to be the entry 'w'"},
           Case{R"({"entry": 7})", 1, "type"},
           Case{R"({"file": "c.safetensors"})", 1, "not listed"},
           Case{R"({"file": "../a"})", 1, "plain file name"},
           Case{R"({"file": null})", 1, "file"},
           Case{R"({"offset": null})", 1, "offset"},
       }) {
    json manifest = good_manifest();
    manifest["tensors"]["w"]["slices"][item.index].merge_patch(json::parse(item.change));
    EXPECT_THAT(problem_of(manifest), HasSubstr(item.problem)) << item.change;
  }
  for (const std::int64_t version : {0, 3}) {
    json manifest = good_manifest();
    manifest["format_version"] = version;
    EXPECT_THAT(problem_of(manifest), HasSubstr("this program reads 1 and 2"));
  }
}

TEST(Manifest, AScalarHasOnePart) {
  json manifest = good_manifest();
  json slice = {{"file", "a.safetensors"}, {"offset", json::array()}, {"shape", json::array()}};
  manifest["tensors"]["w"]["shape"] = json::array();
  manifest["tensors"]["w"]["slices"] = {slice};
  EXPECT_EQ(problem_of(manifest), "");
  slice["file"] = "b.safetensors";
  manifest["tensors"]["w"]["slices"].push_back(slice);
  EXPECT_THAT(problem_of(manifest), HasSubstr("overlap"));
  manifest["tensors"]["w"]["slices"] = json::array();
  EXPECT_THAT(problem_of(manifest), HasSubstr("do not cover"));
}

/// Whether every cell of a 4 x 6 matrix is painted once and nothing beside it, not even by a rectangle without cells.
bool covers_exactly(const json& slices) {
  int painted[4][6] = {};
  for (const json& slice : slices) {
    const auto offset = slice["offset"].get<std::vector<int>>(), shape = slice["shape"].get<std::vector<int>>();
    if (offset[0] < 0 || offset[1] < 0 || offset[0] + shape[0] > 4 || offset[1] + shape[1] > 6) return false;
    for (int row = 0; row < shape[0]; ++row) {
      for (int column = 0; column < shape[1]; ++column) ++painted[offset[0] + row][offset[1] + column];
    }
  }
  return std::all_of(&painted[0][0], &painted[0][0] + 24, [](int count) { return count == 1; });
}

// Random cuts of the matrix, some of them damaged: accepted exactly when every cell is painted once.
TEST(Manifest, AcceptsExactlyWhatCovers) {
  std::mt19937 random(5);
  const auto below = [&](int bound) { return static_cast<int>(random() % static_cast<unsigned>(bound)); };
  int num_accepted = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::array<int, 4>> boxes{{0, 0, 4, 6}};
    for (int cut = below(6); cut > 0; --cut) {
      auto& box = boxes[static_cast<std::size_t>(below(static_cast<int>(boxes.size())))];
      const std::size_t axis = random() % 2;
      const int length = box[2 + axis] > 0 ? below(box[2 + axis]) : 0;
      auto rest = box;
      box[2 + axis] = length;
      rest[axis] += length;
      rest[2 + axis] -= length;
      boxes.push_back(rest);
    }
    std::shuffle(boxes.begin(), boxes.end(), random);
    if (below(2) == 0) boxes[random() % boxes.size()][random() % 2] += below(3) - 1;
    json manifest = good_manifest();
    json& slices = manifest["tensors"]["w"]["slices"] = json::array();
    for (const auto& box : boxes) {
      slices.push_back({{"file", "a.safetensors"},
                        {"offset", {box[0], box[1]}},
                        {"shape", {box[2], box[3]}},
                        {"entry", std::to_string(slices.size())}});
    }
    const bool accepted = problem_of(manifest).empty();
    num_accepted += accepted ? 1 : 0;
    if (accepted != covers_exactly(slices)) ADD_FAILURE() << slices;
  }
  EXPECT_GT(num_accepted, 1000);
  EXPECT_LT(num_accepted, 2500);
}

}  // namespace
}  // namespace pharos::checkpoint
