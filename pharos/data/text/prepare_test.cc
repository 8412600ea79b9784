// Text in, .bin/.idx out; the fixtures' files byte for byte.
#include "pharos/data/text/prepare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pharos/data/indexed/indexed_dataset.h"
#include "pharos/data/test_support.h"

namespace pharos::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

const ByteTokenizer kTokenizer;

/// Every sequence as text; an end of document shows as '$', a boundary between documents as an entry "/".
std::vector<std::string> contents(const std::string& prefix) {
  const IndexedDataset dataset(prefix);
  std::vector<std::string> result;
  for (std::int64_t document = 0; document < dataset.num_documents(); ++document) {
    if (document > 0) result.emplace_back("/");
    for (auto i = dataset.index().document_start(document); i < dataset.index().document_start(document + 1); ++i) {
      std::vector<std::int64_t> ids(static_cast<std::size_t>(dataset.length(i)));
      dataset.read(i, 0, dataset.length(i), ids.data());
      std::string text;
      for (const std::int64_t id : ids) text += id == 256 ? '$' : static_cast<char>(id);
      result.push_back(text);
    }
  }
  return result;
}

std::vector<std::string> prepared(const std::string& text, const PrepareOptions& options) {
  const TemporaryFolder folder;
  write_text(folder / "in", text);
  prepare({folder / "in"}, folder / "out", kTokenizer, options);
  return contents(folder / "out");
}

TEST(Prepare, CutsDocumentsByMode) {
  const std::string text = "one\ntwo\n\n\nthree\n \t\n\nfour";
  EXPECT_THAT(prepared(text, {}), ElementsAre(text + "$"));
  EXPECT_THAT(prepared(text, {.append_end_of_document = false}), ElementsAre(text));
  EXPECT_THAT(prepared(text, {.mode = DocumentMode::kLine}),
              ElementsAre("one$", "/", "two$", "/", "three$", "/", " \t$", "/", "four$"));
  EXPECT_THAT(prepared(text, {.mode = DocumentMode::kBlankLine}),
              ElementsAre("one\ntwo$", "/", "three\n \t$", "/", "four$"));
  EXPECT_THAT(prepared("a\r\nb\r\n", {.mode = DocumentMode::kLine}), ElementsAre("a$", "/", "b$"));
}

TEST(Prepare, StoresAFileInPiecesCutAtNewlines) {
  // "ghi\n" is not cut off: its newline lies in the first half of the ten bytes that fit.
  EXPECT_THAT(prepared("abcdef\nghi\njklmnopqrstuvwxyz\n", {.sequence_tokens = 10}),
              ElementsAre("abcdef\n", "ghi\njklmno", "pqrstuvwxy", "z\n$"));
  EXPECT_THAT(prepared("abcd", {.sequence_tokens = 2}), ElementsAre("ab", "cd$"));
  EXPECT_THAT(prepared("abcd", {.sequence_tokens = 1}), ElementsAre("a", "b", "c", "d$"));
}

TEST(Prepare, StreamsFilesLargerThanABlock) {
  std::string text;
  for (int i = 0; text.size() < (std::size_t{5} << 19); ++i)
    text += "line " + std::to_string(i) + (i % 1000 == 0 ? "\n\n" : "\n");
  const auto joined = [](const std::vector<std::string>& parts) {
    std::string all;
    for (const auto& part : parts) all += part;
    return all;
  };
  const std::vector<std::string> pieces = prepared(text, {});
  EXPECT_EQ(joined(pieces), text + "$");
  for (const std::string& piece : pieces) EXPECT_LE(piece.size(), 8193U);
  EXPECT_EQ(prepared(text, {.sequence_tokens = 0}), std::vector<std::string>{text + "$"});
  const std::string one_line(3 << 20, 'x');
  EXPECT_EQ(joined(prepared(one_line, {})), one_line + "$");
}

TEST(Prepare, TakesAnyBytes) {
  std::string text;
  for (int byte = 0; byte < 256; ++byte) text += static_cast<char>(byte);
  const TemporaryFolder folder;
  write_text(folder / "in", text);
  prepare({folder / "in"}, folder / "out", kTokenizer, {});
  const IndexedDataset dataset(folder / "out");
  std::vector<std::int64_t> ids(257);
  dataset.read(0, 0, 257, ids.data());
  for (std::int64_t i = 0; i < 257; ++i) EXPECT_EQ(ids[static_cast<std::size_t>(i)], i);
  EXPECT_EQ(kTokenizer.decode(ids), text);
}

TEST(Prepare, MakesMegatronsFilesByteForByte) {
  const std::pair<const char*, TokenType> corpora[] = {{"licences", TokenType::kUint16},
                                                       {"notices", TokenType::kInt32}};
  for (const auto& [name, type] : corpora) {
    const TemporaryFolder folder;
    const PrepareSummary summary = prepare({kFixtures / (std::string(name) + ".jsonl")}, folder / "out", kTokenizer,
                                           {.jsonl_key = "text", .token_type = type});
    for (const char* extension : {".bin", ".idx"}) {
      EXPECT_EQ(base::read_file(folder / (std::string("out") + extension)),
                base::read_file(kFixtures / (std::string(name) + extension)))
          << name << extension;
    }
    const IndexedDataset dataset(folder / "out");
    EXPECT_EQ(summary.num_documents, dataset.num_documents());
    EXPECT_EQ(summary.num_sequences, dataset.num_sequences());
    EXPECT_EQ(summary.num_tokens, dataset.num_tokens());
    EXPECT_EQ(summary.output_bytes, dataset.size_bytes());
  }
}

TEST(Prepare, JoinsFilesInOrderAndReportsProgress) {
  const TemporaryFolder folder;
  write_text(folder / "1", "first");
  write_text(folder / "2", "second");
  PrepareProgress last;
  prepare({folder / "1", folder / "2"}, folder / "new/deep/out", kTokenizer,
          {.progress = [&](const PrepareProgress& p) { last = p; }});
  EXPECT_THAT(contents(folder / "new/deep/out"), ElementsAre("first$", "/", "second$"));
  EXPECT_EQ(last.input_bytes, 11);
  EXPECT_EQ(last.total_bytes, 11);
  EXPECT_EQ(last.num_documents, 2);
  EXPECT_EQ(last.num_tokens, 13);
}

TEST(Prepare, RefusesWhatHoldsNoText) {
  struct Case {
    const char* text;
    PrepareOptions options;
    std::vector<const char*> message;
  };
  const Case cases[] = {
      {"", {}, {"holds no text"}},
      {"\n\n\n", {.mode = DocumentMode::kLine}, {"holds no text"}},
      {" \n\n \n", {.mode = DocumentMode::kBlankLine}, {"holds no text"}},
      {"{\"text\": \"\"}\n", {.jsonl_key = "text"}, {"holds no text"}},
      {"{\"text\": \"a\"}\n{\"text\": ", {.jsonl_key = "text"}, {"in:2", "not a JSON object"}},
      {"[1]\n", {.jsonl_key = "text"}, {"in:1", "not a JSON object"}},
      {"{\"text\": \"a\"}\n\n{\"body\": \"a\"}\n", {.jsonl_key = "text"}, {"in:3", "no key 'text'"}},
      {"{\"text\": 1}\n", {.jsonl_key = "text"}, {"in:1", "not text"}},
      {"{\"text\": [\"a\", 1]}\n", {.jsonl_key = "text"}, {"in:1", "not text"}},
      {"abc", {.sequence_tokens = -1}, {"--sequence-tokens"}},
      {"abc", {.token_type = TokenType::kInt8}, {"256", "int8"}},
  };
  for (const Case& c : cases) {
    const TemporaryFolder folder;
    write_text(folder / "in", c.text);
    const std::string message = user_error([&] { prepare({folder / "in"}, folder / "out", kTokenizer, c.options); });
    for (const char* part : c.message) EXPECT_THAT(message, HasSubstr(part)) << c.text;
    EXPECT_FALSE(std::filesystem::exists(folder / "out.bin"));
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.string()), {}), 1) << "temporary files are left";
  }
  const TemporaryFolder folder;
  EXPECT_THAT(user_error([&] { prepare({folder / "none"}, folder / "out", kTokenizer, {}); }), HasSubstr("none"));
  EXPECT_THAT(user_error([&] { prepare({folder.string()}, folder / "out", kTokenizer, {}); }), HasSubstr("not a file"));
}

TEST(Prepare, ReportsAFullDisk) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP();
  base::OutputFile file("/dev/full");
  EXPECT_THAT(user_error([&] { file.write("x"); }), HasSubstr("Free space"));
}

TEST(Tokenizers, EncodeAndDecode) {
  EXPECT_THAT(kTokenizer.encode("a\xff"), ElementsAre(97, 255));
  EXPECT_THAT(user_error([&] { kTokenizer.decode(std::vector<std::int64_t>{257}); }), HasSubstr("257"));
  const NullTokenizer null(100);
  EXPECT_EQ(null.end_of_document(), 99);
  EXPECT_EQ(NullTokenizer(100, 7).end_of_document(), 7);
  EXPECT_THAT(null.encode(" 1 22\n3"), ElementsAre(1, 22, 3));
  EXPECT_EQ(null.decode(std::vector<std::int64_t>{1, 22, 99}), "1 22");
  for (const char* text : {"100", "-1", "x", "1x"}) EXPECT_NE(user_error([&] { null.encode(text); }), "") << text;
  EXPECT_THAT(user_error([] { NullTokenizer(0); }), HasSubstr("tokenizer.vocab_size"));
  EXPECT_THAT(user_error([] { NullTokenizer(5, 5); }), HasSubstr("null_tokenizer_eod_id"));
}

}  // namespace
}  // namespace pharos::data
