#include "pharos/checkpoint/safetensors.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "pharos/base/error.h"
#include "pharos/checkpoint/safetensors_index.h"
#include "pharos/checkpoint/test_support.h"

namespace pharos::checkpoint {
namespace {

using test::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A file of this header and `data_bytes` zeros.
std::string file_of(const std::string& json, std::size_t data_bytes) {
  std::string file(8, '\0');
  for (int i = 0; i < 8; ++i) file[i] = static_cast<char>(json.size() >> (8 * i) & 0xff);
  return file + json + std::string(data_bytes, '\0');
}

SafetensorsHeader parse(const std::string& file) {
  return parse_safetensors_header(std::as_bytes(std::span(file)), "x.safetensors");
}

template <typename Function>
std::string error_of(const Function& function) {
  try {
    function();
  } catch (const base::UserError& error) {
    return error.what();
  }
  return "no error";
}

TEST(SafetensorsHeader, ReadsEveryType) {
  const char* names[] = {"BOOL", "U8",  "I8",  "F8_E4M3", "F8_E5M2", "I16", "U16", "F16",
                         "BF16", "I32", "U32", "F32",     "I64",     "U64", "F64"};
  const std::size_t sizes[] = {1, 1, 1, 1, 1, 2, 2, 2, 2, 4, 4, 4, 8, 8, 8};
  for (int i = 0; i < 15; ++i) {
    const auto header = parse(file_of(R"({"a":{"dtype":")" + std::string(names[i]) +
                                          R"(","shape":[3],"data_offsets":[0,)" + std::to_string(3 * sizes[i]) + "]}}",
                                      3 * sizes[i]));
    EXPECT_STREQ(element_type_name(header.find("a")->type), names[i]);
    EXPECT_EQ(element_size_bytes(header.find("a")->type), sizes[i]);
    EXPECT_EQ(element_type(scalar_type(header.find("a")->type)), header.find("a")->type);
  }
}

TEST(SafetensorsHeader, KeepsMetadataScalarsAndEmptyTensors) {
  const auto header = parse(file_of(
      R"({"__metadata__":{"format":"pt"},"e":{"dtype":"F32","shape":[0,7],"data_offsets":[4,4]},"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}  )",
      4));
  EXPECT_EQ(header.metadata.at("format"), "pt");
  EXPECT_THAT(header.find("e")->shape, ElementsAre(0, 7));
  EXPECT_TRUE(header.find("s")->shape.empty());
  EXPECT_EQ(header.find("x"), nullptr);
}

struct Fault {
  const char* json;
  std::size_t data_bytes;
  const char* message;
};

const Fault kFaults[] = {
    {R"([1])", 0, "byte 8"},
    {R"({"a":)", 0, "byte 13"},
    {R"({"a":3})", 0, "is not an object"},
    {R"({"a":{"shape":[1],"data_offsets":[0,4]}})", 4, "dtype is missing"},
    {R"({"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}})", 4, "'F31' is not known"},
    {R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4, "whole number"},
    {R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", 4, "whole number"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4, "not a pair"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4, "ascending"},
    {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, "need 8 bytes, data_offsets give 4"},
    {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}})", 4, "63 bits"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 3, "ends at byte"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 5, "belong to no tensor"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8, "leaves a hole"},
    {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
     8, "overlaps"},
    {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2,
     "appears twice"},
    {R"({"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}})", 1, "appears twice"},
    {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}})", 1, "'x' is unknown"},
    {R"({"a":{"dtype":"U8","shape":[[[[1]]]],"data_offsets":[0,1]}})", 1, "nests deeper"},
    {R"({"__metadata__":{"a":1}})", 0, "not a string"},
};

TEST(SafetensorsHeader, NamesEveryFaultWithFileAndByte) {
  for (const Fault& fault : kFaults) {
    const std::string error = error_of([&] { parse(file_of(fault.json, fault.data_bytes)); });
    EXPECT_THAT(error, HasSubstr(fault.message)) << fault.json;
    EXPECT_THAT(error, HasSubstr("x.safetensors, byte ")) << fault.json;
  }
  EXPECT_THAT(error_of([] { parse("abc"); }), HasSubstr("byte 3"));
  EXPECT_THAT(error_of([] { parse(std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10)); }),
              HasSubstr("at most 100 000 000"));
  EXPECT_THAT(error_of([] { parse(std::string("\x08\0\0\0\0\0\0\0{}", 10)); }), HasSubstr("the file ends after 2"));
}

TEST(SafetensorsHeader, AnyTruncationIsAnError) {
  const std::string whole = file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8);
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_NE(error_of([&] { parse(whole.substr(0, size)); }), "no error") << size;
  parse(whole);
}

TEST(Safetensors, RoundTripKeepsBitsTypesAndShapes) {
  const TemporaryFolder folder;
  NamedTensors tensors;
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble})
    tensors.emplace_back(c10::toString(type), at::randn({3, 5}).to(type));
  for (const auto type : {at::kLong, at::kInt, at::kByte})
    tensors.emplace_back(c10::toString(type), at::arange(7).to(type));
  tensors.emplace_back("scalar", at::full({}, 2.5f));
  tensors.emplace_back("empty", at::empty({0, 3}));
  tensors.emplace_back("transposed", at::randn({4, 6}).t());
  const auto path = folder.path() / "a.safetensors";
  write_safetensors(path, tensors, {{"k", "v"}});
  const SafetensorsFile file(path);
  EXPECT_EQ(file.header().metadata.at("k"), "v");
  EXPECT_EQ(file.header().data_offset_bytes % 8, 0u);
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor read = file.view(name);
    EXPECT_EQ(read.scalar_type(), tensor.scalar_type());
    EXPECT_TRUE(at::equal(read, tensor)) << name;
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1) << "temporary file left";
}

TEST(Safetensors, SlicesAreCopiesOfTheRightPart) {
  const TemporaryFolder folder;
  const at::Tensor whole = at::arange(24, at::kFloat).view({4, 6});
  write_safetensors(folder.path() / "a.safetensors", {{"w", whole}});
  const SafetensorsFile file(folder.path() / "a.safetensors");
  const at::Tensor part = file.slice("w", {1, 2}, {2, 3});
  EXPECT_TRUE(at::equal(part, whole.narrow(0, 1, 2).narrow(1, 2, 3)));
  at::Tensor(part).zero_();
  EXPECT_TRUE(at::equal(file.view("w"), whole));
  EXPECT_THAT(error_of([&] {
                file.slice("w", {3, 0}, {2, 6});
              }),
              HasSubstr("shape [4, 6] has no part of shape [2, 6] at [3, 0]"));
  EXPECT_THAT(error_of([&] { file.slice("w", {0}, {1}); }), HasSubstr("no part"));
  EXPECT_THAT(error_of([&] { file.view("x"); }), HasSubstr("no tensor 'x'"));
}

// Several blocks, rows longer than one, an axis that is not in the order of the file, every second row, another type.
TEST(Safetensors, PartsAreCopiedToWhereTheyBelong) {
  const TemporaryFolder folder;
  const at::Tensor tall = at::arange(3'000'000, at::kInt).view({1500, 2000}), wide = tall.view({2, 1'500'000});
  write_safetensors(folder.path() / "a.safetensors", {{"tall", tall}, {"wide", wide}});
  const SafetensorsFile file(folder.path() / "a.safetensors");
  const at::Tensor target = at::full({1000, 1400}, -1, at::kDouble);
  file.copy_to("tall", {10, 5}, target.t().narrow(0, 100, 1200).narrow(1, 50, 900));
  EXPECT_TRUE(at::equal(target.narrow(0, 50, 900).narrow(1, 100, 1200),
                        tall.narrow(0, 10, 1200).narrow(1, 5, 900).t().to(at::kDouble)));
  EXPECT_EQ(target.eq(-1).sum().item<std::int64_t>(), 1000 * 1400 - 900 * 1200);
  const at::Tensor rows = at::empty({2, 1'499'000}, at::kInt);
  file.copy_to("wide", {0, 500}, rows);
  EXPECT_TRUE(at::equal(rows, wide.narrow(1, 500, 1'499'000)));
  const at::Tensor odd = at::empty({750, 2000}, at::kInt);
  file.copy_strided("tall", 2000, {4000, 1}, odd);
  EXPECT_TRUE(at::equal(odd, tall.view({750, 2, 2000}).select(1, 1)));
  file.copy_to("tall", {1500, 0}, at::empty({0, 2000}));
  EXPECT_THROW(file.copy_strided("tall", 4000, {4000, 1}, odd), base::InternalError);
}

TEST(Safetensors, TensorsAreWrittenInParts) {
  const TemporaryFolder folder;
  const at::Tensor values = at::arange(24, at::kFloat).view({6, 4});
  {
    SafetensorsWriter writer(
        folder.path() / "a.safetensors",
        {{"w", ElementType::kF32, {6, 4}}, {"none", ElementType::kF32, {0}}, {"s", ElementType::kF32, {}}});
    writer.write_part(values.narrow(0, 0, 1));
    writer.write_part(values.narrow(0, 1, 5));
    EXPECT_THROW(writer.write(at::ones({1})), base::InternalError);
    writer.write(at::empty({0}));
    EXPECT_THROW(writer.close(), base::InternalError);
    writer.write(at::full({}, 2.5f));
    writer.close();
  }
  const SafetensorsFile file(folder.path() / "a.safetensors");
  EXPECT_TRUE(at::equal(file.view("w"), values));
  EXPECT_EQ(file.view("s").item<float>(), 2.5f);
}

TEST(Safetensors, ViewOutlivesFileAndReadsMisalignedData) {
  const TemporaryFolder folder;
  std::string content =
      file_of(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8);  // data at byte 62: not a multiple of 4
  const float values[2] = {1.5f, -2.f};
  std::memcpy(content.data() + content.size() - 8, values, 8);
  test::write_text(folder.path() / "a.safetensors", content);
  at::Tensor view;
  {
    const SafetensorsFile file(folder.path() / "a.safetensors");
    EXPECT_NE(file.header().data_offset_bytes % 4, 0u);
    view = file.view("w");
  }
  const at::Tensor copy = SafetensorsFile(folder.path() / "a.safetensors").slice("w", {1}, {1});
  EXPECT_EQ(copy.item<float>(), -2.f);
  EXPECT_EQ(view[0].item<float>(), 1.5f);
  EXPECT_EQ(view[1].item<float>(), -2.f);
}

TEST(SafetensorsSet, ReadsIndexedShardsAndNamesEveryFault) {
  const TemporaryFolder folder;
  const at::Tensor a = at::randn({2, 2}), b = at::randn({3});
  write_safetensors(folder.path() / "model-1.safetensors", {{"a", a}});
  write_safetensors(folder.path() / "model-2.safetensors", {{"b", b}});
  {
    const SafetensorsSet without_index(folder.path());
    EXPECT_THAT(without_index.names(), ElementsAre("a", "b"));
  }
  const auto index = folder.path() / "model.safetensors.index.json";
  test::write_text(index, R"({"weight_map":{"a":"model-1.safetensors","b":"model-2.safetensors"}})");
  const SafetensorsSet set(folder.path());
  EXPECT_TRUE(at::equal(set.view("a"), a));
  EXPECT_TRUE(at::equal(set.slice("b", {1}, {2}), b.narrow(0, 1, 2)));
  EXPECT_EQ(set.find("c"), nullptr);

  test::write_text(index, R"({"weight_map":{"a":"model-3.safetensors","b":"model-1.safetensors"}})");
  const std::string error = error_of([&] { SafetensorsSet(folder.path()); });
  EXPECT_THAT(error, HasSubstr("'model-3.safetensors' is missing"));
  EXPECT_THAT(error, HasSubstr("'model-1.safetensors' does not hold 'b'"));
  test::write_text(index, R"({"weight_map":{"a":"../model-1.safetensors"}})");
  EXPECT_THAT(error_of([&] { SafetensorsSet(folder.path()); }), HasSubstr("not a plain file name"));
  std::filesystem::remove(index);
  write_safetensors(folder.path() / "model-3.safetensors", {{"a", a}});
  EXPECT_THAT(error_of([&] { SafetensorsSet(folder.path()); }),
              HasSubstr("'a' is in 'model-1.safetensors' and in 'model-3.safetensors'"));
}

TEST(SafetensorsIndex, NamesEveryFault) {
  struct Case {
    const char* json;
    const char* message;
  };
  for (const Case& item :
       {Case{"", "not valid JSON"}, Case{"[]", "'weight_map' is missing"}, Case{"{}", "'weight_map' is missing"},
        Case{R"({"weight_map": []})", "not an object"}, Case{R"({"weight_map": {}})", "lists no tensor"},
        Case{R"({"weight_map": {"a": "b"}, "x": {"y": {"weight_map": 1, "weight_map": 2}}})", "appears twice"},
        Case{R"({"weight_map": {"a": "b", "a": "c"}})", "'a' appears twice"},
        Case{R"({"weight_map": {"a": "b"}, "weight_map": {"a": "c"}})", "'weight_map' appears twice"},
        Case{R"({"weight_map": {"a": 3, "b": null}})",
             "the file of 'a' is 3, which is not a plain file name; the file of 'b' is null"},
        Case{R"({"weight_map": {"a": ".."}})", "not a plain file name"},
        Case{R"({"weight_map": {"a": ""}})", "not a plain file name"},
        Case{R"({"weight_map": {"a": "/etc/passwd"}})", "not a plain file name"},
        Case{R"({"weight_map": {"a": "x/../y"}})", "not a plain file name"},
        Case{R"({"weight_map": {"a": "x\u0000y"}})", "not a plain file name"}}) {
    const std::string error = error_of([&] { parse_safetensors_index(item.json, "i.json"); });
    EXPECT_THAT(error, HasSubstr(item.message)) << item.json;
    EXPECT_THAT(error, HasSubstr("i.json")) << item.json;
  }
  const std::map<std::string, std::string> files{{"a", "1.safetensors"}, {"b", "2.safetensors"}};
  EXPECT_EQ(parse_safetensors_index(render_safetensors_index(files, 12), "i.json"), files);
  std::string deep = R"({"weight_map": {"a": "b"}, "x": )";
  for (int i = 0; i < 100'000; ++i) deep += "[";
  EXPECT_THAT(error_of([&] { parse_safetensors_index(deep, "i.json"); }), HasSubstr("deeper"));
}

}  // namespace
}  // namespace pharos::checkpoint
