#include "pharos/launch/image/inspect.h"

#include <array>
#include <fstream>

#include "pharos/base/error.h"
#include "pharos/base/subprocess.h"
#include "pharos/launch/image/image_work.h"

namespace pharos::launch {
namespace {

constexpr std::size_t kSuperblockBytes = 96;
constexpr const char* kTable = "usr/local/share/pharos/versions.env";

std::uint64_t little_endian(std::string_view bytes, std::size_t offset, std::size_t size) {
  std::uint64_t value = 0;
  for (std::size_t i = size; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[offset + i]);
  return value;
}

/// The table of versions in the image; empty when there is none.
std::string read_table(const std::filesystem::path& path) {
  const base::CommandResult table = base::run_command({.words = {"unsquashfs", "-cat", path_word(path), kTable}});
  const bool is_missing = table.exit_code != 0 && table.error.find("no matches for") != std::string::npos;
  if (table.exit_code == 0) return table.output;
  if (is_missing) return "";
  throw base::UserError({.what = "Cannot read the image " + path.string() + ": it is damaged, or made in another way.",
                         .where = "unsquashfs",
                         .why = base::last_lines(table.error.empty() ? table.output : table.error, 3),
                         .fix = "Copy or build it again."});
}

}  // namespace

ImageFacts parse_superblock(std::string_view bytes, std::int64_t file_bytes, const std::filesystem::path& path) {
  if (bytes.size() < kSuperblockBytes || !bytes.starts_with("hsqs") || little_endian(bytes, 28, 2) != 4) {
    throw base::UserError(
        {.what = path.string() + " is not a squashfs image.", .fix = "`pharos image build` makes one."});
  }
  constexpr std::array<const char*, 7> kCompressions = {"?", "gzip", "lzma", "lzo", "xz", "lz4", "zstd"};
  const std::uint64_t compression = little_endian(bytes, 20, 2);
  const std::uint64_t used_bytes = little_endian(bytes, 40, 8);
  if (used_bytes > static_cast<std::uint64_t>(file_bytes)) {
    throw base::UserError({.what = path.string() + " is cut off.",
                           .why = "It says that it has " + std::to_string(used_bytes) + " bytes, and has " +
                                  std::to_string(file_bytes) + ".",
                           .fix = "Copy or build it again."});
  }
  return {.file_bytes = file_bytes,
          .num_files = static_cast<std::int64_t>(little_endian(bytes, 4, 4)),
          .created_s = static_cast<std::int64_t>(little_endian(bytes, 8, 4)),
          .compression = compression < kCompressions.size() ? kCompressions[compression] : "?"};
}

void require_image_file(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::is_regular_file(path, error)) return;
  const bool is_there = !error && std::filesystem::exists(path, error);
  throw base::UserError(
      {.what = is_there ? path.string() + " is no regular file." : "There is no image " + path.string() + ".",
       .fix = "`pharos image build` makes one; see docs/cluster/image.md."});
}

ImageFacts inspect_image(const std::filesystem::path& path) {
  require_image_file(path);
  std::ifstream file(path, std::ios::binary);
  std::string bytes(kSuperblockBytes, '\0');
  std::error_code error;
  const auto file_bytes = std::filesystem::file_size(path, error);
  if (!file || error) {
    throw base::UserError(
        {.what = "Cannot read the image " + path.string() + ".", .fix = "Make it readable for this user."});
  }
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  bytes.resize(static_cast<std::size_t>(file.gcount()));
  ImageFacts facts = parse_superblock(bytes, static_cast<std::int64_t>(file_bytes), path);
  const std::string table = read_table(path);
  facts.has_pharos = !table.empty();
  if (facts.has_pharos) facts.versions = parse_version_table(table, path / kTable);
  return facts;
}

}  // namespace pharos::launch
