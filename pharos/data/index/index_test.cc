// Random streams, md5, .npy, splits and blends against values that numpy, PyTorch, Python and RFC 1321 give.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "pharos/data/index/blend_index.h"
#include "pharos/data/index/gpt_index.h"
#include "pharos/data/index/index_cache.h"
#include "pharos/data/index/md5.h"
#include "pharos/data/index/npy.h"
#include "pharos/data/index/random_streams.h"
#include "pharos/data/index/split.h"
#include "pharos/data/test_support.h"

namespace pharos::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<int> shuffled(NumpyLegacyRandom& random, int size) {
  std::vector<int> values(static_cast<std::size_t>(size));
  std::iota(values.begin(), values.end(), 0);
  random.shuffle(std::span(values));
  return values;
}

// numpy.random.RandomState(seed).shuffle(arange(n))
TEST(RandomStreams, ShufflesAsNumpysRandomState) {
  NumpyLegacyRandom random(1234);
  EXPECT_THAT(shuffled(random, 10), ElementsAre(7, 2, 9, 1, 0, 8, 4, 5, 6, 3));
  EXPECT_THAT(shuffled(random, 6), ElementsAre(5, 0, 3, 4, 2, 1)) << "the same stream goes on";
  NumpyLegacyRandom zero(0);
  EXPECT_THAT(shuffled(zero, 10), ElementsAre(2, 8, 4, 9, 1, 6, 7, 3, 0, 5));
}

TEST(RandomStreams, DrawsStayInRangeAlsoBeyond32Bits) {
  NumpyLegacyRandom random(5);
  std::uint64_t largest = 0;
  const std::uint64_t maximum = (std::uint64_t{1} << 33) + 7;
  for (int i = 0; i < 1000; ++i) largest = std::max(largest, random.draw(maximum));
  EXPECT_LE(largest, maximum);
  EXPECT_GT(largest, std::uint64_t{1} << 32);
  std::mt19937 words(9);
  const std::uint64_t high = words();
  const std::uint64_t low = words();
  NumpyLegacyRandom wide(9);
  EXPECT_EQ(wide.draw(~std::uint64_t{0}), (high << 32) | low) << "the high word comes first";
}

// numpy 2.4.6: default_rng(0).integers(1, 4096, size=100000, dtype=int32)
TEST(RandomStreams, DrawsAsNumpysDefaultGenerator) {
  NumpyPcg64 random(0);
  std::vector<std::int64_t> values(100'000);
  for (auto& value : values) value = random.integer(1, 4096);
  EXPECT_THAT(std::vector(values.begin(), values.begin() + 12),
              ElementsAre(3484, 2609, 2094, 1105, 1261, 168, 309, 68, 718, 3331, 2660, 3738));
  EXPECT_THAT(std::vector(values.end() - 4, values.end()), ElementsAre(2592, 61, 100, 769));
  EXPECT_EQ(std::accumulate(values.begin(), values.end(), std::int64_t{0}), 204'637'097);
}

// torch.randperm(10, generator=torch.Generator().manual_seed(seed))
TEST(RandomStreams, PermutesAsTorch) {
  EXPECT_THAT(torch_randperm(10, 0), ElementsAre(4, 1, 7, 5, 3, 9, 0, 8, 6, 2));
  EXPECT_THAT(torch_randperm(10, 3), ElementsAre(6, 0, 3, 7, 8, 5, 1, 9, 2, 4));
  EXPECT_TRUE(torch_randperm(0, 3).empty());
  EXPECT_THAT(torch_randperm(1, 3), ElementsAre(0));
}

TEST(Md5, GivesTheDigestsOfRfc1321) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "d41d8cd98f00b204e9800998ecf8427e"},
      {"a", "0cc175b9c0f1b6a831c399e269772661"},
      {"abc", "900150983cd24fb0d6963f7d28e17f72"},
      {"message digest", "f96b697d7cb7938d525a2f31aaf161d0"},
      {"abcdefghijklmnopqrstuvwxyz", "c3fcd3d76192e4007dfb496cca67e13b"},
      {"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789", "d174ab98d277d9f5a5611c2c9f419d9f"},
      {"12345678901234567890123456789012345678901234567890123456789012345678901234567890",
       "57edf4a22be3c955ac49da2e2107b67a"},
  };
  for (const auto& [text, digest] : cases) EXPECT_EQ(md5_hex(text), digest) << text;
}

TEST(Npy, ReadsWhatItWrites) {
  const TemporaryFolder folder;
  for (const IntegerType type : {IntegerType::kInt16, IntegerType::kInt32, IntegerType::kUint32, IntegerType::kInt64}) {
    IntegerArray array(type, 5, 2);
    if (type == IntegerType::kInt16) array.values<std::int16_t>()[3] = -7;
    if (type == IntegerType::kInt32) array.values<std::int32_t>()[3] = -7;
    if (type == IntegerType::kUint32) array.values<std::uint32_t>()[3] = 4'000'000'000;
    if (type == IntegerType::kInt64) array.values<std::int64_t>()[3] = -7;
    const std::string body(reinterpret_cast<const char*>(array.bytes().data()), array.bytes().size());
    write_text(folder / "a.npy", npy_header(array) + body);
    const IntegerArray read = read_npy(folder / "a.npy");
    EXPECT_EQ(read.type(), type);
    EXPECT_EQ(read.rows(), 5);
    EXPECT_EQ(read.columns(), 2);
    EXPECT_EQ(read[3], type == IntegerType::kUint32 ? 4'000'000'000 : -7);
    EXPECT_EQ(read[4], 0);
  }
}

// What numpy.save writes for arange(3, dtype=int32), but for the blanks.
TEST(Npy, WritesNumpysHeader) {
  const std::string header = npy_header(IntegerArray(IntegerType::kInt32, 3));
  EXPECT_THAT(header, HasSubstr("{'descr': '<i4', 'fortran_order': False, 'shape': (3,), }"));
  EXPECT_EQ(header.substr(0, 8), std::string("\x93NUMPY\x01\x00", 8));
  EXPECT_EQ(header.size() % 64, 0U);
  EXPECT_EQ(header.back(), '\n');
}

TEST(Npy, RefusesDamage) {
  const TemporaryFolder folder;
  const IntegerArray array(IntegerType::kInt32, 3);
  const std::string whole = npy_header(array) + std::string(12, '\0');
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string text = whole;
    return text.replace(text.find(from), from.size(), to);
  };
  const std::pair<std::string, const char*> cases[] = {
      {"", "inside the header"},
      {whole.substr(0, 30), "inside the header"},
      {whole.substr(0, whole.size() - 1), "its shape"},
      {whole + "x", "its shape"},
      {replaced("NUMPY", "NUMPX"), "magic"},
      {replaced("<i4", "<f4"), "element type"},
      {replaced("<i4", ">i4"), "element type"},
      {replaced("False", "True "), "Fortran"},
      {replaced("(3,)", "(-3)"), "whole numbers"},
      {replaced("(3,), }", "(9223372036854775807, 9223372036854775807), }"), "its shape"},
      {replaced("'shape'", "'shapf'"), "no 'shape'"},
  };
  for (const auto& [text, reason] : cases) {
    write_text(folder / "a.npy", text);
    try {
      read_npy(folder / "a.npy");
      ADD_FAILURE() << "accepted: " << reason;
    } catch (const NpyFault& fault) {
      EXPECT_THAT(fault.what(), HasSubstr(reason));
    }
  }
}

TEST(Split, RoundsCumulativeSharesHalfToEven) {
  struct Case {
    const char* text;
    std::int64_t count;
    std::vector<std::int64_t> bounds;  // begin and end of each part, -1 where there is none
  };
  const Case cases[] = {
      {"969,30,1", 575, {0, 557, 557, 574, 574, 575}},
      {"90,10", 699, {0, 629, 629, 699, -1, -1}},
      {"98,1,1", 575, {0, 564, 564, 569, 569, 575}},
      {"50,50", 5, {0, 2, 2, 5, -1, -1}},   // 2.5 -> 2
      {"50, 50", 7, {0, 4, 4, 7, -1, -1}},  // 3.5 -> 4
      {"1", 3, {0, 3, -1, -1, -1, -1}},
      {"999,0.5,0.5", 400, {0, 400, 400, 400, 400, 400}},
      {"0,1,1", 10, {-1, -1, 0, 5, 5, 10}},
  };
  for (const Case& c : cases) {
    const SplitShares shares = parse_split(c.text);
    std::vector<std::int64_t> bounds;
    for (const Split split : {Split::kTrain, Split::kValid, Split::kTest}) {
      const auto range = shares.sequences(split, c.count).value_or(std::pair<std::int64_t, std::int64_t>(-1, -1));
      bounds.insert(bounds.end(), {range.first, range.second});
    }
    EXPECT_EQ(bounds, c.bounds) << c.text;
  }
  for (const char* text : {"", "0,0,0", "1,2,3,4", "1e-3,1", "-1,2", "1.2.3,4", ".", "a,b"}) {
    EXPECT_THAT(user_error([&] { parse_split(text); }), HasSubstr("dataset.split")) << text;
  }
}

TEST(GptIndex, CountsWithoutOverflow) {
  GptIndexRequest request{
      .sequences = {0, 1}, .length = nullptr, .num_samples = std::int64_t{1} << 50, .seq_length = 1 << 10};
  const EpochPlan plan = plan_epochs((std::int64_t{1} << 40) + 1, request);  // a document of 2^40 tokens
  EXPECT_EQ(plan.num_epochs, (std::int64_t{1} << 20));
  EXPECT_GE(plan.num_samples, *request.num_samples);
  request.num_samples = std::int64_t{1} << 60;
  EXPECT_THAT(user_error([&] { plan_epochs(1000, request); }), HasSubstr("more than can be counted"));
}

TEST(GptIndex, CountsAPartialSampleThroughAFloat) {
  GptIndexRequest request{.sequences = {0, 1},
                          .length = nullptr,
                          .num_samples = std::nullopt,
                          .seq_length = 100,
                          .random_seed = 0,
                          .extra_token = true,
                          .keep_partial = true};
  EXPECT_EQ(plan_epochs(43741, request).num_samples, 438);
  EXPECT_EQ(plan_epochs(43701, request).num_samples, 437);
  // 2^24 + 1 does not fit into a 32-bit float: Megatron counts one sample too few, and so do we.
  request.seq_length = 1;
  EXPECT_EQ(plan_epochs((1 << 24) + 2, request).num_samples, 1 << 24);
}

TEST(GptIndex, FindsEveryChangedEntry) {
  const std::vector<std::int64_t> lengths = {7, 1, 30, 4, 11};
  const GptIndexRequest request{.sequences = {0, 5},
                                .length = [&](std::int64_t i) { return lengths[static_cast<std::size_t>(i)]; },
                                .num_samples = 12,
                                .seq_length = 8};
  const EpochPlan plan = plan_epochs(53, request);
  ASSERT_EQ(check_gpt_index(build_gpt_index(request, plan), request, plan), "");
  for (std::int64_t i = 0; i < 5 * plan.num_epochs; ++i) {
    GptIndex index = build_gpt_index(request, plan);
    ++index.document_index.values<std::int32_t>()[static_cast<std::size_t>(i)];
    EXPECT_NE(check_gpt_index(index, request, plan), "") << "document " << i;
  }
  for (std::size_t i = 0; i < 2 * static_cast<std::size_t>(plan.num_samples + 1); ++i) {
    GptIndex index = build_gpt_index(request, plan);
    ++index.sample_index.values<std::int32_t>()[i];
    EXPECT_NE(check_gpt_index(index, request, plan), "") << "sample entry " << i;
  }
  for (std::size_t i = 0; i < static_cast<std::size_t>(plan.num_samples); ++i) {
    GptIndex index = build_gpt_index(request, plan);
    index.shuffle_index.values<std::uint32_t>()[i] ^= 1;
    EXPECT_NE(check_gpt_index(index, request, plan), "") << "shuffle entry " << i;
  }
}

// numpy 2.4.6: w = [0.1 * (i + 1) for i in range(n)]; (w / numpy.sum(w))[0] as float.hex()
TEST(BlendIndex, NormalizesByThePairwiseSum) {
  const std::pair<int, double> cases[] = {{3, 0x1.5555555555555p-3},    {7, 0x1.2492492492492p-5},
                                          {8, 0x1.c71c71c71c71dp-6},    {9, 0x1.6c16c16c16c17p-6},
                                          {30, 0x1.19e0119e0119ep-9},   {127, 0x1.0204081020408p-13},
                                          {128, 0x1.fc07f01fc07f0p-14}, {129, 0x1.f43713d07e84fp-14},
                                          {300, 0x1.7396a101480b0p-16}, {1000, 0x1.0c2ad36ed7f9ap-19}};
  for (const auto& [count, first] : cases) {
    std::vector<double> weights;
    for (int i = 0; i < count; ++i) weights.push_back(0.1 * (i + 1));
    EXPECT_EQ(normalize_weights(weights)[0], first) << count;
  }
}

TEST(BlendIndex, FindsEntriesOutOfOrder) {
  BlendIndex index = build_blend_index({0.5, 0.5}, 20);
  EXPECT_EQ(check_blend_index(index, 2, 20), "");
  EXPECT_NE(check_blend_index(index, 2, 21), "");
  index.dataset_index.values<std::int16_t>()[7] ^= 1;
  EXPECT_NE(check_blend_index(index, 2, 20), "");
}

}  // namespace
}  // namespace pharos::data
