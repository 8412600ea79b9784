#include "pharos/pipeline/report/measured_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <tuple>

#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/base/untrusted/regular_file.h"
#include "pharos/pipeline/schedule_file.h"

namespace pharos::pipeline {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr const char* kPrefix = "pipeline_rank_";

/// Another program's end may have cut the last line.
bool ends_within_a_line(const fs::path& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file || file.tellg() <= 0) return false;
  file.seekg(-1, std::ios::end);
  return file.get() != '\n';
}

std::string to_line(const MeasuredStep& step) {
  std::int64_t begin_ns = step.actions.empty() ? 0 : step.actions.front().asked_ns;
  std::string actions;
  std::vector<std::int64_t> asked, start, end;
  for (const MeasuredAction& measured : step.actions) {
    if (!actions.empty()) actions += ' ';
    actions += notation(measured.action);
    asked.push_back(measured.asked_ns - begin_ns);
    start.push_back(measured.start_ns - begin_ns);
    end.push_back(measured.end_ns - begin_ns);
  }
  return nlohmann::ordered_json{{"step", step.step},
                                {"schedule", step.schedule},
                                {"ranks", step.num_ranks},
                                {"chunks", step.num_chunks},
                                {"microbatches", step.num_microbatches},
                                {"rank", step.rank},
                                {"global_rank", step.global_rank},
                                {"replica", step.replica},
                                {"stages", step.stages},
                                {"bytes_sent", step.bytes_sent},
                                {"peak_activation_bytes", step.peak_activation_bytes},
                                {"begin_ns", begin_ns},
                                {"actions", actions},
                                {"asked_ns", asked},
                                {"start_ns", start},
                                {"end_ns", end}}
             .dump(-1, ' ', false, json::error_handler_t::replace) +
         "\n";
}

/// Reads one line; every fault is a UserError that names `where`.
class LineReader {
 public:
  LineReader(const json& line, const std::string& where) : line_(line), where_(where) {}

  MeasuredStep read() const {
    require(line_.is_object(), "it is no object");
    MeasuredStep step{.step = integer("step", 0),
                      .schedule = text("schedule"),
                      .num_ranks = small("ranks", 1),
                      .num_chunks = small("chunks", 1),
                      .num_microbatches = small("microbatches", 1),
                      .rank = small("rank", 0)};
    step.global_rank = integer("global_rank", 0);
    step.replica = integer("replica", 0);
    step.bytes_sent = integer("bytes_sent", 0);
    step.peak_activation_bytes = integer("peak_activation_bytes", 0);
    for (const std::int64_t stage : integers("stages")) step.stages.push_back(static_cast<int>(stage));
    read_actions(step);
    require(step.rank < step.num_ranks, "its rank is not one of its ranks");
    require(step.stages.size() == static_cast<std::size_t>(step.num_chunks), "it has not one stage for each chunk");
    require(static_cast<std::size_t>(step.num_microbatches) <= step.actions.size(),
            "it has fewer actions than microbatches");
    return step;
  }

 private:
  void require(bool is_so, const std::string& fault) const {
    if (is_so) return;
    throw base::UserError({.what = "This is no measured step of a pipeline: " + fault + ".",
                           .where = where_,
                           .fix = "Remove the line, or the file when another program wrote it."});
  }

  const json& value(const char* key) const {
    const auto found = line_.find(key);
    require(found != line_.end(), fmt::format("it has no '{}'", key));
    return *found;
  }

  std::string text(const char* key) const {
    require(value(key).is_string(), fmt::format("'{}' is no text", key));
    return value(key).get<std::string>();
  }

  std::int64_t integer(const char* key, std::int64_t least) const {
    require(value(key).is_number_integer() && value(key).get<std::int64_t>() >= least,
            fmt::format("'{}' is no whole number from {}", key, least));
    return value(key).get<std::int64_t>();
  }

  int small(const char* key, int least) const {
    constexpr std::int64_t kLargest = 1 << 24;
    const std::int64_t number = integer(key, least);
    require(number <= kLargest, fmt::format("'{}' is above {}", key, kLargest));
    return static_cast<int>(number);
  }

  std::vector<std::int64_t> integers(const char* key) const {
    const json& list = value(key);
    require(list.is_array() &&
                std::all_of(list.begin(), list.end(), [](const json& entry) { return entry.is_number_integer(); }),
            fmt::format("'{}' is no list of whole numbers", key));
    return list.get<std::vector<std::int64_t>>();
  }

  void read_actions(MeasuredStep& step) const {
    const std::int64_t begin_ns = integer("begin_ns", 0);
    const auto asked = integers("asked_ns"), start = integers("start_ns"), end = integers("end_ns");
    std::istringstream words(text("actions"));
    for (std::string word; words >> word;) {
      const auto action = parse_action(word);
      require(action.has_value(), fmt::format("'{}' is no action", word.substr(0, 40)));
      const std::size_t position = step.actions.size();
      require(position < std::min({asked.size(), start.size(), end.size()}), "it has more actions than times");
      require(asked[position] <= start[position] && start[position] <= end[position],
              fmt::format("{} ends before it starts, or starts before it was asked for", word));
      step.actions.push_back({.action = *action,
                              .asked_ns = begin_ns + asked[position],
                              .start_ns = begin_ns + start[position],
                              .end_ns = begin_ns + end[position]});
    }
    require(step.actions.size() == std::max({asked.size(), start.size(), end.size()}),
            "it has more times than actions");
  }

  const json& line_;
  const std::string& where_;
};

std::int64_t begin_of(const MeasuredStep& step) { return step.actions.front().asked_ns; }

/// By (step, replica, rank).
using Steps = std::map<std::tuple<std::int64_t, std::int64_t, int>, MeasuredStep>;

Steps read_file(const fs::path& path, std::optional<std::int64_t> only_step, std::int64_t& num_damaged) {
  std::ifstream lines(path, std::ios::binary);
  Steps steps;
  std::int64_t number = 0;
  for (std::string text; std::getline(lines, text);) {
    ++number;
    if (text.empty()) continue;
    const json line = json::parse(text, nullptr, false);
    if (line.is_discarded()) {
      ++num_damaged;
      continue;
    }
    MeasuredStep step = LineReader(line, fmt::format("{}:{}", path.string(), number)).read();
    if (only_step && step.step != *only_step) continue;
    const std::tuple key(step.step, step.replica, step.rank);
    steps.insert_or_assign(key, std::move(step));
    if (steps.size() > kMostMeasuredSteps) steps.erase(steps.begin());
  }
  if (number > 0 || lines.eof()) return steps;
  throw base::UserError({.what = "Cannot read " + path.string() + ".", .fix = "Check its rights."});
}

}  // namespace

MeasuredFile::MeasuredFile(const fs::path& run_folder, std::int64_t global_rank)
    : path_(run_folder / "trace" / fmt::format("{}{:05}.jsonl", kPrefix, global_rank)) {
  base::make_directories(path_.parent_path());
  ::close(base::open_regular_file(path_, O_WRONLY | O_CREAT | O_APPEND));  // a pipe would be waited for
  const bool is_cut = ends_within_a_line(path_);
  errno = 0;
  stream_.open(path_, std::ios::binary | std::ios::app);
  if (is_cut) stream_ << '\n' << std::flush;
  if (stream_) return;
  throw base::UserError({.what = "Cannot write " + path_.string() + ": " + std::strerror(errno) + ".",
                         .fix = "Check the folder of the run and the disk."});
}

void MeasuredFile::append(const MeasuredStep& step) {
  errno = 0;
  stream_ << to_line(step) << std::flush;
  if (stream_) return;
  throw base::UserError({.what = "Cannot write " + path_.string() + ": " + std::strerror(errno) + ".",
                         .why = "It gets what the pipeline measured in each step.",
                         .fix = "Check the disk."});
}

std::vector<MeasuredStep> read_measured_steps(const fs::path& run_folder, std::int64_t* num_damaged_lines,
                                              std::optional<std::int64_t> only_step) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(run_folder / "trace", error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kPrefix) && entry.is_regular_file(error) && entry.path().extension() == ".jsonl")
      paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  Steps by_place;
  std::int64_t num_damaged = 0;
  for (const fs::path& path : paths) {
    for (auto& [place, step] : read_file(path, only_step, num_damaged)) {
      const auto found = by_place.find(place);
      // A run that was resumed with another layout has the place in another file.
      if (found == by_place.end() || begin_of(found->second) < begin_of(step))
        by_place.insert_or_assign(place, std::move(step));
    }
  }
  if (num_damaged_lines != nullptr) *num_damaged_lines = num_damaged;
  std::vector<MeasuredStep> steps;
  for (auto& [place, step] : by_place) steps.push_back(std::move(step));
  return steps;
}

}  // namespace pharos::pipeline
