#include "pharos/checkpoint/folder.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <system_error>

#include "pharos/base/clock.h"
#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/base/text.h"
#include "pharos/checkpoint/manifest.h"

namespace pharos::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "iter_";
constexpr std::string_view kTemporaryMark = ".tmp.";
constexpr std::string_view kReplacedMark = ".old";

std::optional<std::int64_t> parse_number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

std::vector<fs::path> entries(const fs::path& folder) {
  std::vector<fs::path> result;
  std::error_code ignored;
  for (const auto& item : fs::directory_iterator(folder, ignored)) result.push_back(item.path());
  std::sort(result.begin(), result.end());
  return result;
}

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

bool is_checkpoint(const fs::path& folder) {
  return is_there(folder / kManifestFile) && is_there(folder / kMetadataFile);
}

/// "STEM.tmp.4711" or "STEM.old.tmp.4711", and the process that writes it.
struct TemporaryName {
  std::string stem;
  std::int64_t writer;
};

/// nullopt for other names.
std::optional<TemporaryName> parse_temporary(const std::string& name) {
  const std::size_t mark = name.rfind(kTemporaryMark);
  if (mark == std::string::npos) return std::nullopt;
  std::string stem = name.substr(0, mark);
  if (stem.ends_with(kReplacedMark)) stem.resize(stem.size() - kReplacedMark.size());
  const auto writer = parse_number(std::string_view(name).substr(mark + kTemporaryMark.size()));
  return writer ? std::optional(TemporaryName{std::move(stem), *writer}) : std::nullopt;
}

/// Whether `process`, which made `entry`, still runs. Numbers of processes are used again: one that began after `entry`
/// was last written to is another.
bool is_running(std::int64_t process, const fs::path& entry) {
  constexpr std::int64_t kSecondNs = 1'000'000'000;
  if (process == ::getpid() || (::kill(static_cast<pid_t>(process), 0) != 0 && errno != EPERM)) return false;
  struct stat written {};
  const auto start_ns = base::start_of_process_monotonic_ns(process);
  if (!start_ns || ::stat(entry.c_str(), &written) != 0) return true;
  const std::int64_t age_ns = base::wall_ns() - written.st_mtim.tv_sec * kSecondNs - written.st_mtim.tv_nsec;
  return base::monotonic_ns() - *start_ns > age_ns - kSecondNs;
}

/// Temporary folders and files in `folder` for whose stem `is_ours` holds, and whose writer does not run any more.
template <typename Predicate>
void remove_temporaries(const fs::path& folder, const Predicate& is_ours) {
  for (const fs::path& entry : entries(folder)) {
    const auto temporary = parse_temporary(entry.filename().string());
    if (!temporary || !is_ours(temporary->stem) || is_running(temporary->writer, entry)) continue;
    std::error_code ignored;  // what cannot be removed does no harm but to the disk's space
    fs::remove_all(entry, ignored);
  }
}

std::string list_iterations(const fs::path& path) {
  std::vector<std::string> names;
  for (const std::int64_t iteration : complete_iterations(path)) names.push_back(std::to_string(iteration));
  if (names.size() > 8) names = {names[0], "…", names[names.size() - 3], names[names.size() - 2], names.back()};
  return names.empty() ? "none" : base::join(names, ", ");
}

[[noreturn]] void throw_foreign(const fs::path& folder, const std::string& format) {
  const bool is_hugging_face = format == "Hugging Face";
  throw base::UserError(
      {.what = "'" + folder.string() + "' holds a checkpoint in the format " + format + ", not one of Pharos.",
       .where = folder.string(),
       .why =
           "Pharos loads its own checkpoints (manifest.json with safetensors) and runs no code or pickle from a file.",
       .fix = is_hugging_face ? "Start from these weights with model.hf_path."
                              : "Convert it to a Hugging Face folder and start from that with model.hf_path."});
}

Found find_step(const fs::path& path, std::int64_t step) {
  const fs::path folder = path / iteration_folder_name(step);
  if (is_checkpoint(folder)) return {folder, {}};
  if (const std::string format = foreign_format(folder); !format.empty()) throw_foreign(folder, format);
  throw base::UserError(
      {.what = "checkpoint.ckpt_step = " + std::to_string(step) + " is not in '" + path.string() + "'.",
       .where = folder.string(),
       .why = "Complete checkpoints there: " + list_iterations(path) + ".",
       .fix = "Choose one of them, or leave checkpoint.ckpt_step out to take the newest."});
}

/// The folder the tracker names, or the reason why it is no use.
std::optional<fs::path> follow_tracker(const fs::path& path, std::string& reason) {
  if (!is_there(path / kTrackerFile)) {
    reason = std::string("the tracker file ") + kTrackerFile + " is missing";
    return std::nullopt;
  }
  if (std::error_code error; !fs::is_regular_file(path / kTrackerFile, error)) {  // a pipe would be waited for
    reason = std::string("the tracker file ") + kTrackerFile + " is no file";
    return std::nullopt;
  }
  std::string text = base::read_file(path / kTrackerFile);
  const std::size_t end = text.find_last_not_of(" \t\r\n");
  text = end == std::string::npos ? "" : text.substr(0, end + 1);
  const auto iteration = parse_number(text);
  if (!iteration && text != "release") {
    reason = std::string("the tracker file ") + kTrackerFile + " holds neither an iteration nor 'release'";
    return std::nullopt;
  }
  const fs::path folder = path / (iteration ? iteration_folder_name(*iteration) : "release");
  if (const std::string format = foreign_format(folder); !format.empty()) throw_foreign(folder, format);
  if (is_complete(folder)) return folder;
  reason = std::string("the tracker file names '") + folder.filename().string() + "', which is missing or incomplete";
  return std::nullopt;
}

}  // namespace

std::string iteration_folder_name(std::int64_t iteration) {
  const std::string digits = std::to_string(iteration);
  return std::string(kPrefix) + std::string(digits.size() < 7 ? 7 - digits.size() : 0, '0') + digits;
}

std::optional<std::int64_t> iteration_of_folder_name(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const auto iteration = parse_number(name.substr(kPrefix.size()));
  if (!iteration || iteration_folder_name(*iteration) != name) return std::nullopt;
  return iteration;
}

std::string temporary_folder_name(std::int64_t iteration, std::int64_t writer) {
  return iteration_folder_name(iteration) + std::string(kTemporaryMark) + std::to_string(writer);
}

bool is_complete(const fs::path& folder) {
  if (!is_checkpoint(folder)) return false;
  try {
    const Manifest manifest = read_manifest(folder);
    return std::all_of(manifest.files.begin(), manifest.files.end(),
                       [&](const StoredFile& file) { return compare_file(file, folder, false).empty(); });
  } catch (const base::UserError&) {
    return false;
  }
}

std::vector<std::int64_t> complete_iterations(const fs::path& save) {
  std::vector<std::int64_t> iterations;
  for (const fs::path& entry : entries(save)) {
    const auto iteration = iteration_of_folder_name(entry.filename().string());
    if (iteration && is_complete(entry)) iterations.push_back(*iteration);
  }
  std::sort(iterations.begin(), iterations.end());
  return iterations;
}

std::string foreign_format(const fs::path& folder) {
  if (is_there(folder / ".metadata")) return "torch_dist (PyTorch distributed checkpoint)";
  bool has_safetensors = false;
  for (const fs::path& entry : entries(folder)) {
    const std::string name = entry.filename().string(), extension = entry.extension().string();
    if (extension == ".distcp") return "torch_dist (PyTorch distributed checkpoint)";
    if (name.starts_with("mp_rank_") || extension == ".pt" || extension == ".pth" ||
        (name.starts_with("pytorch_model") && extension == ".bin")) {
      return "torch (pickled tensors)";
    }
    has_safetensors = has_safetensors || extension == ".safetensors";
  }
  if (has_safetensors && is_there(folder / "config.json")) return "Hugging Face";
  return "";
}

std::optional<Found> find_checkpoint(const fs::path& path, std::optional<std::int64_t> step) {
  if (!is_there(path)) return std::nullopt;
  if (is_checkpoint(path)) {
    const auto named = iteration_of_folder_name(fs::absolute(path / "").parent_path().filename().string());
    if (!step || (named && *named == *step)) return Found{path, {}};
    return find_step(fs::absolute(path / "").parent_path().parent_path(), *step);
  }
  if (step) return find_step(path, *step);
  std::string reason;
  if (const auto folder = follow_tracker(path, reason)) return Found{*folder, {}};
  const auto iterations = complete_iterations(path);
  if (!iterations.empty()) {
    const fs::path folder = path / iteration_folder_name(iterations.back());
    return Found{folder,
                 {"In '" + path.string() + "' " + reason +
                  "; the newest complete checkpoint is taken instead: " + folder.filename().string() + "."}};
  }
  if (const std::string format = foreign_format(path); !format.empty()) throw_foreign(path, format);
  bool has_folders = is_there(path / kTrackerFile);
  for (const fs::path& entry : entries(path)) {
    if (!iteration_of_folder_name(entry.filename().string())) continue;
    if (const std::string format = foreign_format(entry); !format.empty()) throw_foreign(entry, format);
    has_folders = true;
  }
  if (!has_folders) return std::nullopt;
  throw base::UserError({.what = "'" + path.string() + "' holds no complete checkpoint.",
                         .where = path.string(),
                         .why = reason + ", and no iter_* folder in it is complete.",
                         .fix = "Load from another folder, or start afresh in an empty one."});
}

void write_tracker(const fs::path& save, std::int64_t iteration) {
  base::write_file_atomically(save / kTrackerFile, std::to_string(iteration));
}

void remove_leftovers(const fs::path& save) {
  remove_temporaries(
      save, [](const std::string& stem) { return stem == kTrackerFile || iteration_of_folder_name(stem).has_value(); });
}

void remove_leftovers_of(const fs::path& target) {
  const std::string wanted = target.filename().string();
  remove_temporaries(target.parent_path(), [&](const std::string& stem) { return stem == wanted; });
}

void move_to_free_place(const fs::path& temporary, const fs::path& target) {
  if (::rename(temporary.c_str(), target.c_str()) != 0) {
    const bool is_taken = errno == EEXIST || errno == ENOTEMPTY || errno == ENOTDIR;
    throw base::UserError({.what = "Cannot rename '" + temporary.string() + "' to '" + target.string() +
                                   "': " + std::strerror(errno) + ".",
                           .where = target.string(),
                           .why = is_taken ? "Another process has written there in the meantime." : ""});
  }
  base::sync_directory(target.parent_path());
}

void move_into_place(const fs::path& temporary, const fs::path& target) {
  const auto fail = [&](int error) {
    throw base::UserError({.what = "Cannot rename '" + temporary.string() + "' to '" + target.string() +
                                   "': " + std::strerror(error) + ".",
                           .where = target.string()});
  };
  if (!is_there(target)) {
    if (::rename(temporary.c_str(), target.c_str()) != 0) fail(errno);
  } else if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) != 0) {
    // A file system without exchange: for a moment neither is there, and the tracker's fallback covers a kill in it.
    const fs::path old =
        target.string() + std::string(kReplacedMark) + std::string(kTemporaryMark) + std::to_string(::getpid());
    if (::rename(target.c_str(), old.c_str()) != 0 || ::rename(temporary.c_str(), target.c_str()) != 0) fail(errno);
    std::error_code ignored;
    fs::remove_all(old, ignored);
  }
  base::sync_directory(target.parent_path());
  std::error_code ignored;
  fs::remove_all(temporary, ignored);  // the one that was replaced, after an exchange
}

std::vector<fs::path> remove_old_checkpoints(const fs::path& save, std::int64_t most_recent_k,
                                             const std::vector<fs::path>& keep) {
  PHAROS_CHECK(most_recent_k != 0, "checkpoint.most_recent_k = 0 would keep none");
  std::vector<std::pair<std::int64_t, fs::path>> folders;
  for (const fs::path& entry : entries(save)) {
    if (const auto iteration = iteration_of_folder_name(entry.filename().string()))
      folders.emplace_back(*iteration, entry);
  }
  std::sort(folders.rbegin(), folders.rend());
  std::vector<fs::path> removed;
  for (std::size_t i = 0; i < folders.size() && most_recent_k > 0; ++i) {
    const fs::path& folder = folders[i].second;
    std::error_code error;
    const bool is_kept = std::any_of(keep.begin(), keep.end(),
                                     [&](const fs::path& path) { return fs::equivalent(path, folder, error); });
    if (i < static_cast<std::size_t>(most_recent_k) || is_kept) continue;
    // Renamed first: a folder half removed must not look like a checkpoint.
    const fs::path doomed = save / temporary_folder_name(folders[i].first, ::getpid());
    if (::rename(folder.c_str(), doomed.c_str()) != 0) continue;
    fs::remove_all(doomed, error);
    removed.push_back(folder);
  }
  return removed;
}

}  // namespace pharos::checkpoint
