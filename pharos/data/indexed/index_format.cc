#include "pharos/data/indexed/index_format.h"

#include <cstring>
#include <string_view>

#include "pharos/base/error.h"

namespace pharos::data {
namespace {

constexpr std::string_view kMagic("MMIDIDX\0\0", 9);

template <typename Value>
Value load(const std::byte* at) {
  Value value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

/// Reports one fault of the pair of files.
struct Faults {
  const std::string& index_path;
  const std::string& bin_path;

  [[noreturn]] void index(std::uint64_t byte, const std::string& why) const {
    throw base::UserError({.what = "The index '" + index_path + "' is damaged.",
                           .where = index_path + ", byte " + std::to_string(byte),
                           .why = why,
                           .fix = "Run `pharos data prepare` again, or copy both the .bin and the .idx file again."});
  }
  [[noreturn]] void bin(std::uint64_t byte, const std::string& why) const {
    throw base::UserError({.what = "The tokens '" + bin_path + "' do not belong to their index.",
                           .where = bin_path + ", byte " + std::to_string(byte),
                           .why = why,
                           .fix = "Run `pharos data prepare` again, or copy both the .bin and the .idx file again."});
  }
};

bool is_token_type(std::uint8_t code) { return code >= 1 && code <= 8; }

void check_header(std::span<const std::byte> index, const Faults& faults) {
  if (index.empty()) faults.index(0, "The file is empty.");
  if (index.size() < kIndexHeaderBytes) {
    faults.index(index.size(), "The file ends inside its header of " + std::to_string(kIndexHeaderBytes) + " bytes.");
  }
  if (std::memcmp(index.data(), kMagic.data(), kMagic.size()) != 0) {
    faults.index(0, "It does not start with MMIDIDX and two zero bytes, so it is not an index of this format.");
  }
  const auto version = load<std::uint64_t>(index.data() + 9);
  if (version != 1) faults.index(9, "The format version is " + std::to_string(version) + "; only version 1 exists.");
  const auto code = load<std::uint8_t>(index.data() + 17);
  if (!is_token_type(code))
    faults.index(17, "The element type has code " + std::to_string(code) + "; codes are 1 to 8.");
}

/// The two counts must account for every byte of the file.
void check_size(std::span<const std::byte> index, const Faults& faults) {
  const auto sequences = load<std::uint64_t>(index.data() + 18);
  const auto boundaries = load<std::uint64_t>(index.data() + 26);
  const std::uint64_t body = index.size() - kIndexHeaderBytes;
  const std::string has = " The file has " + std::to_string(index.size()) + " bytes.";
  if (sequences > body / 12) {
    faults.index(18,
                 "The number of sequences, " + std::to_string(sequences) + ", needs more bytes than there are." + has);
  }
  const std::uint64_t rest = body - 12 * sequences;
  if (boundaries > rest / 8) {
    faults.index(26, "The number of document boundaries, " + std::to_string(boundaries) +
                         ", needs more bytes than there are." + has);
  }
  if (boundaries < 1) faults.index(26, "There is no document boundary; even an empty dataset has one.");
  const std::uint64_t end = kIndexHeaderBytes + 12 * sequences + 8 * boundaries;
  if (end == index.size()) return;
  if (end + sequences == index.size()) {
    faults.index(
        end, "It is the index of a multimodal dataset (a mode for every sequence follows); only text is supported.");
  }
  faults.index(end, std::to_string(index.size() - end) + " bytes follow the end of the index." + has);
}

/// Sequences lie back to back from byte 0 of .bin to its end. Returns the number of tokens.
std::int64_t check_sequences(const IndexView& view, std::uint64_t bin_size_bytes, const Faults& faults) {
  const std::int64_t count = view.num_sequences();
  const auto width = static_cast<std::uint64_t>(size_bytes(view.token_type()));
  std::uint64_t end = 0;  // no overflow: it is compared with the size of .bin after each step of at most 2^34
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t length = view.length(i);
    if (length < 0) {
      faults.index(kIndexHeaderBytes + 4 * i,
                   "Sequence " + std::to_string(i) + " has the length " + std::to_string(length) + ".");
    }
    if (view.offset_bytes(i) != static_cast<std::int64_t>(end)) {
      faults.index(kIndexHeaderBytes + 4 * count + 8 * i,
                   "Sequence " + std::to_string(i) + " is said to start at byte " +
                       std::to_string(view.offset_bytes(i)) + " of the .bin file, but the one before it ends at " +
                       std::to_string(end) + ".");
    }
    end += static_cast<std::uint64_t>(length) * width;
    if (end > bin_size_bytes) {
      faults.bin(bin_size_bytes, "It ends here, but sequence " + std::to_string(i) + " of the index reaches to byte " +
                                     std::to_string(end) + ": it is truncated, or it belongs to another index.");
    }
  }
  if (end != bin_size_bytes) {
    faults.bin(end, "The index ends here, but the file has " + std::to_string(bin_size_bytes) + " bytes.");
  }
  return static_cast<std::int64_t>(end / width);
}

/// Document boundaries rise from 0 to the number of sequences.
void check_documents(const IndexView& view, const Faults& faults) {
  const std::uint64_t base = kIndexHeaderBytes + 12 * view.num_sequences();
  std::int64_t previous = 0;
  for (std::int64_t i = 0; i <= view.num_documents(); ++i) {
    const std::int64_t start = view.document_start(i);
    if (i == 0 && start != 0)
      faults.index(base, "The first document starts at sequence " + std::to_string(start) + ", not 0.");
    if (start < previous) {
      faults.index(base + 8 * i, "Document boundary " + std::to_string(i) + " is " + std::to_string(start) +
                                     ", below the one before it (" + std::to_string(previous) + ").");
    }
    previous = start;
  }
  if (previous != view.num_sequences()) {
    faults.index(base + 8 * view.num_documents(), "The last document ends at sequence " + std::to_string(previous) +
                                                      ", but there are " + std::to_string(view.num_sequences()) +
                                                      " sequences.");
  }
}

}  // namespace

std::size_t size_bytes(TokenType type) {
  switch (type) {
    case TokenType::kUint8:
    case TokenType::kInt8:
      return 1;
    case TokenType::kInt16:
    case TokenType::kUint16:
      return 2;
    case TokenType::kInt32:
    case TokenType::kFloat32:
      return 4;
    case TokenType::kInt64:
    case TokenType::kFloat64:
      return 8;
  }
  return 8;
}

const char* name(TokenType type) {
  switch (type) {
    case TokenType::kUint8:
      return "uint8";
    case TokenType::kInt8:
      return "int8";
    case TokenType::kInt16:
      return "int16";
    case TokenType::kInt32:
      return "int32";
    case TokenType::kInt64:
      return "int64";
    case TokenType::kFloat64:
      return "float64";
    case TokenType::kFloat32:
      return "float32";
    case TokenType::kUint16:
      return "uint16";
  }
  return "unknown";
}

TokenType token_type_for_vocabulary(std::int64_t vocab_size) {
  return vocab_size < 65500 ? TokenType::kUint16 : TokenType::kInt32;
}

std::int64_t IndexView::length(std::int64_t i) const { return load<std::int32_t>(lengths_ + 4 * i); }
std::int64_t IndexView::offset_bytes(std::int64_t i) const { return load<std::int64_t>(offsets_ + 8 * i); }
std::int64_t IndexView::document_start(std::int64_t i) const { return load<std::int64_t>(boundaries_ + 8 * i); }

IndexView parse_index(std::span<const std::byte> index, std::uint64_t bin_size_bytes, const std::string& index_path,
                      const std::string& bin_path) {
  const Faults faults{index_path, bin_path};
  check_header(index, faults);
  check_size(index, faults);

  IndexView view;
  view.token_type_ = static_cast<TokenType>(load<std::uint8_t>(index.data() + 17));
  view.num_sequences_ = static_cast<std::int64_t>(load<std::uint64_t>(index.data() + 18));
  view.num_boundaries_ = static_cast<std::int64_t>(load<std::uint64_t>(index.data() + 26));
  view.lengths_ = index.data() + kIndexHeaderBytes;
  view.offsets_ = view.lengths_ + 4 * view.num_sequences_;
  view.boundaries_ = view.offsets_ + 8 * view.num_sequences_;
  view.num_tokens_ = check_sequences(view, bin_size_bytes, faults);
  check_documents(view, faults);
  return view;
}

}  // namespace pharos::data
