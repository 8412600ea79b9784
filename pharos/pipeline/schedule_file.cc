#include "pharos/pipeline/schedule_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/base/json.h"
#include "pharos/base/text.h"
#include "pharos/pipeline/schedules/generators.h"

namespace pharos::pipeline {
namespace {

using nlohmann::json;

constexpr int kLargestSize = 65536;        ///< of ranks, chunks and microbatches
constexpr double kMostForwards = 1 << 24;  ///< keeps a slip of the pen from filling the memory
constexpr std::size_t kMostFaultsShown = 8;
const char* const kActionRule =
    "an action is F, B or W, the microbatch, and for a chunk other than 0 a point and the chunk: F0, B3, W3.1";

[[noreturn]] void fail(const std::string& where, std::string what, std::string why, std::string fix) {
  throw base::UserError({.what = std::move(what), .where = where, .why = std::move(why), .fix = std::move(fix)});
}

std::string excerpt(const json& value) {
  std::string text = value.dump();
  if (text.size() > 40) text = text.substr(0, 40) + "…";
  return text;
}

int read_size(const json& document, const char* key, std::optional<int> fallback, const std::string& where) {
  if (!document.contains(key)) {
    if (fallback) return *fallback;
    fail(where, fmt::format("The schedule has no '{}'.", key), "it must say how many there are.",
         fmt::format("Add \"{}\": a whole number.", key));
  }
  const json& value = document.at(key);
  if (!value.is_number_integer() || value.get<double>() < 1 || value.get<double>() > kLargestSize) {
    fail(fmt::format("{}, {}", where, key), fmt::format("{} = {} is not a size.", key, excerpt(value)),
         fmt::format("it must be a whole number from 1 to {}.", kLargestSize), "Correct it.");
  }
  return value.get<int>();
}

/// Number at the start of `text`, which loses it; digits only.
std::optional<int> take_number(std::string_view& text) {
  int number = 0;
  if (text.empty() || text.front() < '0' || text.front() > '9') return std::nullopt;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

std::vector<Action> parse_actions(const std::string& text, const std::string& where) {
  constexpr std::string_view kSpace = " \t\r\n";
  std::vector<Action> actions;
  for (std::size_t begin = text.find_first_not_of(kSpace); begin != std::string::npos;) {
    const std::size_t end = std::min(text.find_first_of(kSpace, begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    const auto action = parse_action(word);
    if (!action) {
      fail(fmt::format("{}, action {}", where, actions.size()),
           fmt::format("'{}' is not an action.", word.substr(0, 40)), std::string(kActionRule) + ".", "Correct it.");
    }
    actions.push_back(*action);
    begin = text.find_first_not_of(kSpace, end);
  }
  return actions;
}

const json& list_of_ranks(const json& document, const char* key, int num_ranks, const std::string& where) {
  const json& list = document.at(key);
  if (!list.is_array() || list.size() != static_cast<std::size_t>(num_ranks)) {
    fail(fmt::format("{}, {}", where, key),
         list.is_array() ? fmt::format("{} has {} entries for {} ranks.", key, list.size(), num_ranks)
                         : fmt::format("{} = {} is not a list.", key, excerpt(list)),
         "it must be a list with one entry for each rank.", "Add or remove entries, or correct 'ranks'.");
  }
  return list;
}

std::vector<std::vector<int>> parse_stages(const json& document, const Schedule& schedule, const std::string& where) {
  const json& list = list_of_ranks(document, "stages", schedule.num_ranks, where);
  std::vector<std::vector<int>> stages;
  for (std::size_t rank = 0; rank < list.size(); ++rank) {
    const json& entry = list[rank];
    const bool is_sound = entry.is_array() && entry.size() == static_cast<std::size_t>(schedule.num_chunks) &&
                          std::all_of(entry.begin(), entry.end(), [](const json& stage) {
                            return stage.is_number_integer() && stage.get<double>() >= 0 && stage.get<double>() <= 1e9;
                          });
    if (!is_sound) {
      fail(fmt::format("{}, stages[{}]", where, rank), fmt::format("{} is not the stages of a rank.", excerpt(entry)),
           fmt::format("it must be a list of {} stage number(s), one for each chunk.", schedule.num_chunks),
           "Correct it.");
    }
    stages.push_back(entry.get<std::vector<int>>());
  }
  return stages;
}

void require_known_keys(const json& document, const std::string& where) {
  const std::vector<std::string> known = {"name", "ranks", "chunks", "microbatches", "stages", "actions"};
  for (const auto& [key, value] : document.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    const auto nearest = base::nearest_names(key, known, 1);
    fail(fmt::format("{}, {}", where, key), fmt::format("A schedule has no '{}'.", key),
         fmt::format("the keys are {}.", base::join(known, ", ")),
         nearest.empty() ? "Remove it." : fmt::format("Did you mean {}?", nearest.front()));
  }
}

void require_sound(const Schedule& schedule, const std::string& where) {
  if (last_phase(schedule) == Phase::kForward) {
    fail(where + ", actions", fmt::format("The schedule '{}' has no backward.", schedule.name),
         "it is for training: each forward needs its backward.", "Add a B for every F.");
  }
  std::vector<std::string> faults = check(schedule);
  if (faults.empty()) return;
  const std::size_t num_faults = faults.size();
  if (num_faults > kMostFaultsShown) {
    faults.resize(kMostFaultsShown);
    faults.push_back(fmt::format("{} more", num_faults - kMostFaultsShown));
  }
  fail(where, fmt::format("The schedule '{}' cannot run: {} fault(s).", schedule.name, num_faults),
       base::join(faults, "; ") + ".", "Correct the lists of these ranks.");
}

}  // namespace

std::optional<Action> parse_action(std::string_view text) {
  const auto phase = text.empty() ? std::string_view::npos : std::string_view("FBW").find(text.front());
  if (phase == std::string_view::npos) return std::nullopt;
  text.remove_prefix(1);
  const auto microbatch = take_number(text);
  if (!microbatch) return std::nullopt;
  Action action{static_cast<Phase>(phase), *microbatch, 0};
  if (text.empty()) return action;
  if (text.front() != '.') return std::nullopt;
  text.remove_prefix(1);
  const auto chunk = take_number(text);
  if (!chunk || !text.empty()) return std::nullopt;
  action.chunk = *chunk;
  return action;
}

Schedule parse_schedule(const std::string& text, const std::string& where) {
  const json document = base::parse_json(text, where);
  if (!document.is_object()) {
    fail(where, fmt::format("{} is not a schedule.", excerpt(document)), "a schedule is a JSON object.",
         "Write {\"ranks\": …, \"microbatches\": …, \"actions\": […]}.");
  }
  require_known_keys(document, where);
  if (document.contains("name") && !document.at("name").is_string()) {
    fail(where + ", name", fmt::format("name = {} is not text.", excerpt(document.at("name"))),
         "it is shown to people.", "Put it in quotes, or leave it out.");
  }
  if (const std::string name = document.value("name", ""); std::any_of(
          name.begin(), name.end(), [](unsigned char character) { return character < 0x20 || character == 0x7f; })) {
    fail(where + ", name", fmt::format("name = {} has control characters.", excerpt(document.at("name"))),
         "it is shown to people.", "Use letters and digits.");
  }
  if (!document.contains("actions")) {
    fail(where, "The schedule has no 'actions'.", "they are what the ranks do.",
         "Add \"actions\": one text for each rank, for example \"F0 B0\".");
  }
  const int num_ranks = read_size(document, "ranks", std::nullopt, where);
  const int num_chunks = read_size(document, "chunks", 1, where);
  const int num_microbatches = read_size(document, "microbatches", std::nullopt, where);
  const json& actions = list_of_ranks(document, "actions", num_ranks, where);
  if (const double num_forwards = 1.0 * num_ranks * num_chunks * num_microbatches; num_forwards > kMostForwards) {
    fail(where,
         fmt::format("{} ranks x {} chunks x {} microbatches are too many.", num_ranks, num_chunks, num_microbatches),
         fmt::format("a schedule may have {:.0f} forwards.", kMostForwards), "Correct the sizes.");
  }
  Schedule schedule = empty_schedule(document.value("name", "file"), num_ranks, num_chunks, num_microbatches);
  if (document.contains("stages")) schedule.stage_of = parse_stages(document, schedule, where);
  for (int rank = 0; rank < num_ranks; ++rank) {
    const std::string place = fmt::format("{}, actions[{}]", where, rank);
    if (!actions[rank].is_string()) {
      fail(place, fmt::format("{} is not text.", excerpt(actions[rank])), std::string(kActionRule) + ".",
           "Write the rank's actions in one text, with spaces between them.");
    }
    schedule.actions[rank] = parse_actions(actions[rank].get_ref<const std::string&>(), place);
  }
  require_sound(schedule, where);
  return schedule;
}

Schedule schedule_from_file(const std::filesystem::path& path) {
  return parse_schedule(base::read_file(path), path.string());
}

std::string schedule_to_json(const Schedule& schedule) {
  std::vector<std::string> stages, lists;
  for (int rank = 0; rank < schedule.num_ranks; ++rank) {
    std::vector<std::string> words;
    for (const Action& action : schedule.actions[rank]) words.push_back(notation(action));
    stages.push_back(json(schedule.stage_of[rank]).dump());
    lists.push_back("    " + json(base::join(words, " ")).dump());
  }
  return fmt::format(
      "{{\n  \"name\": {},\n  \"ranks\": {},\n  \"chunks\": {},\n  \"microbatches\": {},\n  \"stages\": [{}],\n"
      "  \"actions\": [\n{}\n  ]\n}}\n",
      json(schedule.name).dump(), schedule.num_ranks, schedule.num_chunks, schedule.num_microbatches,
      base::join(stages, ", "), base::join(lists, ",\n"));
}

}  // namespace pharos::pipeline
