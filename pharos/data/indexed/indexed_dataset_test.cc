// .bin/.idx: every element type, and every kind of damage with the byte it is reported at.
#include "pharos/data/indexed/indexed_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "pharos/data/indexed/indexed_dataset_writer.h"
#include "pharos/data/test_support.h"

namespace pharos::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr TokenType kTypes[] = {TokenType::kUint8, TokenType::kInt8,    TokenType::kInt16,   TokenType::kInt32,
                                TokenType::kInt64, TokenType::kFloat64, TokenType::kFloat32, TokenType::kUint16};

/// Two documents: sequences of 3 and 2 tokens, and one of 4.
void write_small(const std::string& prefix, TokenType type = TokenType::kUint16) {
  IndexedDatasetWriter writer(prefix, type);
  writer.add_tokens(std::vector<std::int64_t>{1, 2, 3});
  writer.end_sequence();
  writer.add_tokens(std::vector<std::int64_t>{4, 5});
  writer.end_document();
  writer.add_tokens(std::vector<std::int64_t>{6, 7, 8, 100});
  writer.end_document();
  writer.finish();
}

TEST(IndexedDataset, HoldsEveryElementType) {
  for (const TokenType type : kTypes) {
    const TemporaryFolder folder;
    write_small(folder / "a", type);
    const IndexedDataset dataset(folder / "a");
    EXPECT_EQ(dataset.index().token_type(), type);
    EXPECT_EQ(dataset.num_documents(), 2);
    EXPECT_EQ(dataset.num_sequences(), 3);
    EXPECT_EQ(dataset.num_tokens(), 9);
    EXPECT_EQ(dataset.index().document_start(1), 2);
    std::int64_t tokens[3] = {};
    dataset.read(2, 1, 3, tokens);
    EXPECT_THAT(tokens, testing::ElementsAre(7, 8, 100)) << name(type);
    EXPECT_THAT(dataset.where(2, 1), HasSubstr("byte " + std::to_string(6 * size_bytes(type))));
  }
}

TEST(IndexedDataset, ChoosesTheTypeByTheVocabulary) {
  EXPECT_EQ(token_type_for_vocabulary(257), TokenType::kUint16);
  EXPECT_EQ(token_type_for_vocabulary(65499), TokenType::kUint16);
  EXPECT_EQ(token_type_for_vocabulary(65500), TokenType::kInt32);
}

TEST(IndexedDataset, ReadsMegatronsFiles) {
  const IndexedDataset licences((kFixtures / "licences").string());
  EXPECT_EQ(licences.num_documents(), 575);
  EXPECT_EQ(licences.num_tokens(), 186'332);
  EXPECT_EQ(licences.index().token_type(), TokenType::kUint16);
  const IndexedDataset notices((kFixtures / "notices").string());
  EXPECT_EQ(notices.num_documents(), 164);
  EXPECT_EQ(notices.num_sequences(), 699);
  EXPECT_EQ(notices.index().token_type(), TokenType::kInt32);
}

struct Damage {
  const char* what;
  std::function<void(std::string& index, std::string& bin)> apply;
  std::vector<std::string> message;  // parts of it
};

void put(std::string& bytes, std::size_t at, std::uint64_t value, std::size_t width) {
  std::memcpy(bytes.data() + at, &value, width);
}

// Offsets in write_small's index: lengths from 34, offsets from 46, document boundaries from 70, 94 bytes in all. .bin:
// 18 bytes.
const Damage kDamages[] = {
    {"empty index", [](auto& index, auto&) { index.clear(); }, {"a.idx, byte 0", "empty"}},
    {"index cut in its header", [](auto& index, auto&) { index.resize(20); }, {"a.idx, byte 20", "header"}},
    {"magic", [](auto& index, auto&) { index[3] = 'X'; }, {"a.idx, byte 0", "MMIDIDX"}},
    {"version", [](auto& index, auto&) { put(index, 9, 2, 8); }, {"a.idx, byte 9", "version is 2"}},
    {"element type 0", [](auto& index, auto&) { put(index, 17, 0, 1); }, {"a.idx, byte 17", "code 0"}},
    {"element type 9", [](auto& index, auto&) { put(index, 17, 9, 1); }, {"a.idx, byte 17", "code 9"}},
    {"sequence count too large",
     [](auto& index, auto&) { put(index, 18, 6, 8); },
     {"a.idx, byte 18", "more bytes than there are"}},
    {"sequence count overflows", [](auto& index, auto&) { put(index, 18, ~0ULL, 8); }, {"a.idx, byte 18"}},
    {"sequence count times 12 wraps",
     [](auto& index, auto&) { put(index, 18, 0x1555555555555556ULL, 8); },
     {"a.idx, byte 18"}},
    {"document count too large", [](auto& index, auto&) { put(index, 26, 4, 8); }, {"a.idx, byte 26"}},
    {"document count overflows", [](auto& index, auto&) { put(index, 26, 1ULL << 61, 8); }, {"a.idx, byte 26"}},
    {"no document boundary",
     [](auto& index, auto&) { put(index, 26, 0, 8); },
     {"a.idx, byte 26", "no document boundary"}},
    {"document count too small",
     [](auto& index, auto&) { put(index, 26, 2, 8); },
     {"a.idx, byte 86", "8 bytes follow"}},
    {"index truncated", [](auto& index, auto&) { index.resize(93); }, {"a.idx, byte 26"}},
    {"bytes after the index", [](auto& index, auto&) { index += "xx"; }, {"a.idx, byte 94", "2 bytes follow"}},
    {"multimodal", [](auto& index, auto&) { index += std::string(3, '\0'); }, {"a.idx, byte 94", "multimodal"}},
    {"negative length",
     [](auto& index, auto&) { put(index, 38, 0xffffffff, 4); },
     {"a.idx, byte 38", "Sequence 1 has the length -1"}},
    {"length too small", [](auto& index, auto&) { put(index, 34, 2, 4); }, {"a.idx, byte 54", "Sequence 1"}},
    {"length beyond .bin", [](auto& index, auto&) { put(index, 42, 5, 4); }, {"a.bin, byte 18", "truncated"}},
    {"huge length", [](auto& index, auto&) { put(index, 42, 0x7fffffff, 4); }, {"a.bin, byte 18"}},
    {"offset not 0", [](auto& index, auto&) { put(index, 46, 2, 8); }, {"a.idx, byte 46", "Sequence 0"}},
    {"negative offset", [](auto& index, auto&) { put(index, 54, ~0ULL, 8); }, {"a.idx, byte 54", "-1"}},
    {"offsets fall", [](auto& index, auto&) { put(index, 62, 4, 8); }, {"a.idx, byte 62", "ends at 10"}},
    {"first document not 0", [](auto& index, auto&) { put(index, 70, 1, 8); }, {"a.idx, byte 70", "not 0"}},
    {"documents fall", [](auto& index, auto&) { put(index, 86, 1, 8); }, {"a.idx, byte 86", "below"}},
    {"negative document", [](auto& index, auto&) { put(index, 78, ~0ULL, 8); }, {"a.idx, byte 78", "below"}},
    {"last document too far", [](auto& index, auto&) { put(index, 86, 4, 8); }, {"a.idx, byte 86", "3 sequences"}},
    {".bin truncated", [](auto&, auto& bin) { bin.resize(17); }, {"a.bin, byte 17", "truncated"}},
    {".bin empty", [](auto&, auto& bin) { bin.clear(); }, {"a.bin, byte 0", "truncated"}},
    {".bin too long", [](auto&, auto& bin) { bin += "x"; }, {"a.bin, byte 18", "has 19 bytes"}},
};

TEST(IndexedDataset, ReportsEveryDamageWithFileAndByte) {
  const TemporaryFolder folder;
  write_small(folder / "whole");
  const std::string index = base::read_file(folder / "whole.idx");
  const std::string bin = base::read_file(folder / "whole.bin");
  ASSERT_EQ(index.size(), 94U);
  ASSERT_EQ(bin.size(), 18U);
  for (const Damage& damage : kDamages) {
    std::string damaged_index = index;
    std::string damaged_bin = bin;
    damage.apply(damaged_index, damaged_bin);
    write_text(folder / "a.idx", damaged_index);
    write_text(folder / "a.bin", damaged_bin);
    const std::string message = user_error([&] { IndexedDataset dataset(folder / "a"); });
    for (const std::string& part : damage.message) EXPECT_THAT(message, HasSubstr(part)) << damage.what;
    EXPECT_THAT(message, HasSubstr("fix: ")) << damage.what;
  }
}

TEST(IndexedDataset, NoTruncationIsAccepted) {
  const TemporaryFolder folder;
  write_small(folder / "a");
  const std::string index = base::read_file(folder / "a.idx");
  for (std::size_t size = 0; size < index.size(); ++size) {
    write_text(folder / "a.idx", index.substr(0, size));
    EXPECT_THAT(user_error([&] { IndexedDataset dataset(folder / "a"); }), HasSubstr("a.idx, byte")) << size;
  }
}

TEST(IndexedDataset, SaysWhatIsMissing) {
  const TemporaryFolder folder;
  EXPECT_THAT(user_error([&] { IndexedDataset dataset(folder / "none"); }),
              AllOf(HasSubstr("none.idx"), HasSubstr("pharos data prepare")));
  IndexedDatasetWriter writer(folder / "empty", TokenType::kUint16);
  writer.end_document();
  writer.finish();
  EXPECT_THAT(user_error([&] { IndexedDataset dataset(folder / "empty"); }), HasSubstr("no tokens"));
  EXPECT_EQ(dataset_prefix("a.bin"), "a");
  EXPECT_EQ(dataset_prefix("a.idx"), "a");
  EXPECT_EQ(dataset_prefix("a.b"), "a.b");
}

TEST(IndexedDataset, RefusesFloatsThatAreNoIds) {
  const TemporaryFolder folder;
  write_small(folder / "a", TokenType::kFloat32);
  std::string bin = base::read_file(folder / "a.bin");
  const float half = 2.5F;
  std::memcpy(bin.data() + 4, &half, 4);
  write_text(folder / "a.bin", bin);
  const IndexedDataset dataset(folder / "a");
  std::int64_t tokens[3];
  EXPECT_THAT(user_error([&] { dataset.read(0, 0, 3, tokens); }),
              AllOf(HasSubstr("a.bin, byte 4"), HasSubstr("not a whole number")));
}

TEST(IndexedDatasetWriter, LeavesNothingUnlessFinished) {
  const TemporaryFolder folder;
  {
    IndexedDatasetWriter writer(folder / "a", TokenType::kUint8);
    writer.add_tokens(std::vector<std::int64_t>{1});
    EXPECT_THAT(user_error([&] { writer.add_tokens(std::vector<std::int64_t>{256}); }),
                AllOf(HasSubstr("256"), HasSubstr("uint8")));
    EXPECT_THAT(user_error([&] { writer.add_tokens(std::vector<std::int64_t>{-1}); }), HasSubstr("uint8"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.string()));
  EXPECT_THAT(user_error([&] { IndexedDatasetWriter writer("/proc/nowhere/a", TokenType::kUint8); }),
              HasSubstr("/proc/nowhere"));
}

}  // namespace
}  // namespace pharos::data
