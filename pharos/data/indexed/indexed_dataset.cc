#include "pharos/data/indexed/indexed_dataset.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "pharos/base/error.h"

namespace pharos::data {
namespace {

/// Widens `count` values; the position of the first that is not a whole number, or -1.
template <typename Value>
std::int64_t widen(const std::byte* source, std::int64_t count, std::int64_t* tokens) {
  for (std::int64_t i = 0; i < count; ++i) {
    Value value;
    std::memcpy(&value, source + i * static_cast<std::int64_t>(sizeof(Value)), sizeof(Value));
    if constexpr (std::is_floating_point_v<Value>) {
      if (!(std::fabs(value) < 9e15) || std::trunc(value) != value) return i;
    }
    tokens[i] = static_cast<std::int64_t>(value);
  }
  return -1;
}

std::int64_t widen(TokenType type, const std::byte* source, std::int64_t count, std::int64_t* tokens) {
  switch (type) {
    case TokenType::kUint8:
      return widen<std::uint8_t>(source, count, tokens);
    case TokenType::kInt8:
      return widen<std::int8_t>(source, count, tokens);
    case TokenType::kInt16:
      return widen<std::int16_t>(source, count, tokens);
    case TokenType::kInt32:
      return widen<std::int32_t>(source, count, tokens);
    case TokenType::kInt64:
      return widen<std::int64_t>(source, count, tokens);
    case TokenType::kFloat64:
      return widen<double>(source, count, tokens);
    case TokenType::kFloat32:
      return widen<float>(source, count, tokens);
    case TokenType::kUint16:
      return widen<std::uint16_t>(source, count, tokens);
  }
  return -1;
}

base::MappedFile open_part(const std::string& prefix, const char* extension) {
  const std::string path = prefix + extension;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    throw base::UserError(
        {.what = "There is no dataset '" + prefix + "': the file '" + path + "' does not exist.",
         .where = path,
         .why = "A dataset is a pair of files, PREFIX.bin and PREFIX.idx, named by their common prefix.",
         .fix = "Check the spelling, or make it with `pharos data prepare TEXT --output " + prefix + "`."});
  }
  return base::MappedFile(path);
}

}  // namespace

std::string dataset_prefix(const std::string& path) {
  if (path.ends_with(".bin") || path.ends_with(".idx")) return path.substr(0, path.size() - 4);
  return path;
}

IndexedDataset::IndexedDataset(std::string prefix)
    : prefix_(std::move(prefix)), index_file_(open_part(prefix_, ".idx")), bin_file_(open_part(prefix_, ".bin")) {
  view_ = parse_index({index_file_.data(), index_file_.size_bytes()}, bin_file_.size_bytes(), prefix_ + ".idx",
                      prefix_ + ".bin");
  if (view_.num_tokens() == 0) {
    throw base::UserError({.what = "The dataset '" + prefix_ + "' holds no tokens.",
                           .where = prefix_ + ".bin",
                           .why = "Its " + std::to_string(view_.num_sequences()) + " sequences are empty.",
                           .fix = "Prepare it again from a text that is not empty."});
  }
}

void IndexedDataset::read(std::int64_t sequence, std::int64_t first, std::int64_t count, std::int64_t* tokens) const {
  PHAROS_CHECK(
      sequence >= 0 && sequence < num_sequences() && first >= 0 && count >= 0 && first + count <= length(sequence),
      "tokens [" + std::to_string(first) + ", +" + std::to_string(count) + ") of sequence " + std::to_string(sequence));
  const auto width = static_cast<std::int64_t>(data::size_bytes(view_.token_type()));
  const std::byte* source = bin_file_.data() + view_.offset_bytes(sequence) + first * width;
  const std::int64_t fault = widen(view_.token_type(), source, count, tokens);
  if (fault < 0) return;
  throw base::UserError(
      {.what = "The dataset '" + prefix_ + "' holds a value that is no token id.",
       .where = where(sequence, first + fault),
       .why = std::string("Its elements are ") + name(view_.token_type()) + ", and this one is not a whole number.",
       .fix = "Prepare the dataset again with an integer type."});
}

std::string IndexedDataset::where(std::int64_t sequence, std::int64_t token) const {
  const auto byte =
      view_.offset_bytes(sequence) + token * static_cast<std::int64_t>(data::size_bytes(view_.token_type()));
  return prefix_ + ".bin, byte " + std::to_string(byte) + " (sequence " + std::to_string(sequence) + ", token " +
         std::to_string(token) + ")";
}

}  // namespace pharos::data
