#include "pharos/launch/image/image_work.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "pharos/base/clock.h"
#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/base/text.h"

namespace pharos::launch {
namespace {

/// Commands that take something back must not hang where the first one did.
constexpr std::int64_t kUndoLimitMs = 60'000;

/// Beside the image: a rename within one file system is one step. mkdtemp replaces the X.
std::string folder_pattern(const std::filesystem::path& result) {
  std::string name(1, '.');
  name.append(result.filename().string()).append(".XXXXXX");
  return (result.parent_path() / name).string();
}

std::filesystem::path make_temporary_folder(const std::filesystem::path& result) {
  const std::filesystem::path parent = result.parent_path();
  base::make_directories(parent);
  std::string pattern = folder_pattern(result);
  if (mkdtemp(pattern.data()) == nullptr) {
    throw base::UserError({.what = "Cannot write to the folder " + parent.string() + ": " + std::strerror(errno) + ".",
                           .where = "--output",
                           .fix = "Name a folder that this user may write to."});
  }
  return pattern;
}

}  // namespace

bool is_image_word(const std::string& word) {
  return !word.empty() && word[0] != '.' && word[0] != '-' &&
         std::all_of(word.begin(), word.end(), [](unsigned char letter) {
           return std::isalnum(letter) != 0 || letter == '.' || letter == '_' || letter == '-';
         });
}

std::string path_word(const std::filesystem::path& path) {
  return path.native().starts_with('-') ? "./" + path.string() : path.string();
}

std::vector<std::string> squashfs_options() {
  return {"-comp", "zstd", "-Xcompression-level", "3", "-no-progress", "-quiet"};
}

ImageWork::ImageWork(std::filesystem::path result, bool is_dry_run, const base::InterruptGuard* guard,
                     std::ostream& progress)
    : result_(std::move(result)),
      is_dry_run_(is_dry_run),
      guard_(guard),
      progress_(progress),
      start_ns_(base::monotonic_ns()) {
  folder_ = is_dry_run ? std::filesystem::path(folder_pattern(result_)) : make_temporary_folder(result_);
}

ImageWork::~ImageWork() {
  for (auto words = undo_.rbegin(); words != undo_.rend(); ++words) {
    if (is_dry_run_) {
      progress_ << base::shell_line(*words) << "\n";
      continue;
    }
    try {
      base::run_command({.words = *words, .limit_ms = kUndoLimitMs});
    } catch (const std::exception& error) {
      progress_ << "image: could not clean up: " << error.what() << "\n";
    }
  }
  std::error_code ignored;
  if (!is_dry_run_) std::filesystem::remove_all(folder_, ignored);
  progress_ << std::flush;
}

void ImageWork::note(const std::string& title) {
  if (!is_dry_run_) progress_ << "image: " << title << std::endl;
}

void ImageWork::undo(std::vector<std::string> words) { undo_.push_back(std::move(words)); }

base::CommandResult ImageWork::run(const std::string& title, const std::vector<std::string>& words,
                                   const std::filesystem::path& input_file) {
  if (is_dry_run_) {
    progress_ << base::shell_line(words);
    if (!input_file.empty()) progress_ << " < " << base::shell_line({input_file.string()});
    progress_ << "\n";
    return {};
  }
  note(title);
  base::CommandResult result = base::run_command({
      .words = words,
      .input_file = input_file,
      .on_line = [this](std::string_view line) { progress_ << "  " << line << std::endl; },
      .guard = guard_,
  });
  if (result.exit_code != 0) fail(title, words, result);
  return result;
}

void ImageWork::fail(const std::string& title, const std::vector<std::string>& words,
                     const base::CommandResult& result) const {
  const std::string said = base::last_lines(result.error.empty() ? result.output : result.error, 6);
  const std::string command = base::shell_line(words);
  for (const char* full : {"No space left on device", "Disk quota exceeded", "no space left on device"}) {
    if (result.error.find(full) == std::string::npos && result.output.find(full) == std::string::npos) continue;
    throw base::UserError({.what = "The disk is full: " + title + " could not be finished.",
                           .where = command,
                           .why = said,
                           .fix = "Free space where images are built and in " + folder_.parent_path().string() +
                                  ", or write elsewhere with --output. What was unfinished is removed."});
  }
  throw base::UserError(
      {.what = title + " failed (exit code " + std::to_string(result.exit_code) + ").",
       .where = command,
       .why = said,
       .fix = "Correct what the output above names: a download that failed needs the network or a proxy "
              "(--build-arg HTTPS_PROXY=…), a killed compiler more memory. Run that line by hand to see it "
              "alone, then build again: steps that were done are kept by the builder. Nothing unfinished is "
              "left."});
}

void ImageWork::squash_tar(const std::filesystem::path& tar) {
  std::vector<std::string> words = {"mksquashfs", "-", unfinished_image().string(), "-tar"};
  for (const std::string& option : squashfs_options()) words.push_back(option);
  run("writing the squashfs file", words, tar);
  std::error_code ignored;
  if (!is_dry_run_) std::filesystem::remove(tar, ignored);
}

void ImageWork::finish() {
  if (is_dry_run_) {
    progress_ << base::shell_line({"mv", unfinished_image().string(), result_.string()}) << "\n";
    return;
  }
  std::error_code error;
  const std::uintmax_t num_bytes = std::filesystem::file_size(unfinished_image(), error);
  if (error || num_bytes == 0) {
    throw base::UserError({.what = "The image was not written although every command succeeded.",
                           .where = unfinished_image().string(),
                           .fix = "See what the last command printed."});
  }
  std::filesystem::rename(unfinished_image(), result_, error);
  if (error) {
    throw base::UserError({.what = "Cannot rename the finished image: " + error.message() + ".",
                           .where = result_.string(),
                           .fix = "Remove what stands there or choose another --name."});
  }
  base::sync_directory(result_.parent_path());
  note(result_.string() + ", " + base::format_bytes(static_cast<double>(num_bytes)) + ", in " +
       base::format_duration(base::monotonic_ns() - start_ns_));
}

}  // namespace pharos::launch
