#include "pharos/train/agreement.h"

#include <algorithm>
#include <exception>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "pharos/base/error.h"
#include "pharos/base/text.h"
#include "pharos/config/recipe/run_yaml.h"
#include "pharos/config/schema/schema.h"

namespace pharos::train {
namespace {

std::string dump(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// Every field and its value, as text. Threads and the place of a process may differ between ranks.
std::map<std::string, std::string> values_of(const config::RunConfig& config) {
  std::map<std::string, std::string> values;
  for (const config::Field& field : config::schema().fields()) {
    if (field.name == "dist.local_rank" || field.name == "dist.num_threads") continue;
    values[field.name] = config::to_flow_text(field.read(config));
  }
  return values;
}

std::string difference_text(const std::map<std::string, std::string>& first,
                            const std::map<std::string, std::string>& mine) {
  std::vector<std::string> lines;
  for (const auto& [name, value] : mine) {
    const auto other = first.find(name);
    const std::string theirs = other == first.end() ? "(not known)" : other->second;
    if (theirs != value) lines.push_back(name + " is " + theirs + " on rank 0 and " + value + " here");
  }
  return base::join(lines, "; ");
}

}  // namespace

void together(comm::World& world, const std::string& key, const std::function<void()>& work) {
  std::exception_ptr own;
  std::optional<comm::Failure> failure;
  try {
    work();
  } catch (const std::exception& error) {
    own = std::current_exception();
    failure = {.is_user_error = dynamic_cast<const base::UserError*>(&error) != nullptr, .text = error.what()};
  }
  std::vector<std::string> all;
  try {
    all = world.exchange(key, failure ? dump({failure->is_user_error, failure->text}) : "", failure);
  } catch (const std::exception&) {
    if (!own) throw;
  }
  if (own) std::rethrow_exception(own);
  const auto failed = std::find_if(all.begin(), all.end(), [](const std::string& text) { return !text.empty(); });
  if (failed == all.end()) return;
  const auto json = nlohmann::json::parse(*failed);
  const std::string text = "Rank " + std::to_string(failed - all.begin()) + " failed: " + json.at(1).get<std::string>();
  if (json.at(0)) throw base::UserError({.what = text});
  throw base::TrainingError(text);
}

void compare_configurations(comm::World& world, const config::ResolvedConfig& resolved) {
  if (world.size() == 1) return;
  const auto mine = values_of(resolved.config);
  const auto first =
      nlohmann::json::parse(world.announce("configuration", dump(mine))).get<std::map<std::string, std::string>>();
  together(world, "configurations agree", [&] {
    const std::string differences = difference_text(first, mine);
    if (differences.empty()) return;
    throw base::UserError({.what = "The ranks do not have the same configuration: " + differences + ".",
                           .where = "rank " + std::to_string(world.rank()),
                           .why = "Every rank computes a part of one model; they must agree on it.",
                           .fix = "Start all ranks with the same recipe and overrides."});
  });
}

}  // namespace pharos::train
