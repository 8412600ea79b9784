#include "pharos/checkpoint/safetensors_index.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "pharos/base/error.h"
#include "pharos/base/text.h"

namespace pharos::checkpoint {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxProblems = 20;
constexpr int kMaxDepth = 16;

[[noreturn]] void fail(const std::string& where, const std::string& why) {
  throw base::UserError({.what = "'" + where + "' is not a usable index of safetensors files.",
                         .where = where,
                         .why = why,
                         .fix = "Fetch or write the index again, together with the files it lists."});
}

bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

/// Refuses what the library would let pass: a name that is given twice, of which the last would win.
json parse_strictly(std::string_view text, const std::string& where) {
  std::vector<std::set<std::string>> keys;
  const auto check = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > kMaxDepth) fail(where, "it nests deeper than an index does");
    if (event == json::parse_event_t::object_start) keys.resize(static_cast<std::size_t>(depth) + 2);
    if (event == json::parse_event_t::object_start) keys[static_cast<std::size_t>(depth) + 1].clear();
    if (event == json::parse_event_t::key && !keys[static_cast<std::size_t>(depth)].insert(parsed).second)
      fail(where, "'" + parsed.get<std::string>() + "' appears twice");
    return true;
  };
  try {
    return json::parse(text, check);
  } catch (const json::parse_error& error) {
    fail(where + ", byte " + std::to_string(error.byte), std::string("it is not valid JSON: ") + error.what());
  } catch (const json::exception& error) {
    fail(where, std::string("it is not valid JSON: ") + error.what());
  }
}

/// For messages: whatever bytes a name has, and never a page of them.
std::string shown(const json& value) {
  const std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  return text.size() <= 200 ? text : text.substr(0, 200) + "…";
}

}  // namespace

std::map<std::string, std::string> parse_safetensors_index(std::string_view text, const std::string& where) {
  const json parsed = parse_strictly(text, where);
  const auto weight_map = parsed.is_object() ? parsed.find("weight_map") : parsed.end();
  if (!parsed.is_object() || weight_map == parsed.end() || !weight_map->is_object())
    fail(where, "'weight_map' is missing or not an object");
  if (weight_map->empty()) fail(where, "the index lists no tensor");
  std::map<std::string, std::string> files;
  std::vector<std::string> problems;
  for (const auto& [name, file] : weight_map->items()) {
    if (file.is_string() && is_plain_name(file.get_ref<const std::string&>())) {
      files[name] = file.get<std::string>();
    } else {
      problems.push_back("the file of '" + name + "' is " + shown(file) + ", which is not a plain file name");
    }
  }
  const std::size_t num_problems = problems.size();
  if (num_problems > kMaxProblems) {
    problems.resize(kMaxProblems);
    problems.push_back("and " + std::to_string(num_problems - kMaxProblems) + " more");
  }
  if (!problems.empty()) fail(where, base::join(problems, "; "));
  return files;
}

std::string render_safetensors_index(const std::map<std::string, std::string>& files, std::size_t total_size_bytes) {
  const json index = {{"metadata", {{"total_size", total_size_bytes}}}, {"weight_map", files}};
  return index.dump(2) + "\n";
}

}  // namespace pharos::checkpoint
