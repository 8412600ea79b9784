#include "pharos/launch/doctor/node.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iomanip>
#include <sstream>

namespace pharos::launch {

namespace fs = std::filesystem;

fs::path Node::path(const std::string& absolute) const { return root / fs::path(absolute).relative_path(); }

std::optional<std::string> Node::read(const std::string& absolute) const {
  std::ifstream file(path(absolute), std::ios::binary);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  if (file.bad()) return std::nullopt;
  std::string result = std::move(text).str();
  if (result.ends_with('\n')) result.pop_back();
  return result;
}

std::optional<std::int64_t> Node::read_number(const std::string& absolute) const {
  const auto text = read(absolute);
  return text ? number_of(*text) : std::nullopt;
}

std::vector<std::string> Node::list(const std::string& absolute) const {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(path(absolute), error), end; !error && entry != end; entry.increment(error))
    names.push_back(entry->path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

bool Node::exists(const std::string& absolute) const {
  std::error_code ignored;
  return fs::exists(path(absolute), ignored);
}

std::string Node::variable(const std::string& name) const { return environment->get(name).value_or(""); }

std::string field_of(const std::string& text, const std::string& key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(key)) continue;
    std::size_t begin = key.size();
    if (const auto colon = line.find(':', begin); colon != std::string::npos) begin = colon + 1;
    begin = line.find_first_not_of(" \t", begin);
    if (begin == std::string::npos) return {};
    return line.substr(begin, line.find_last_not_of(" \t") + 1 - begin);
  }
  return {};
}

std::int64_t count_of_list(const std::string& list) {
  std::int64_t count = 0;
  std::istringstream parts(list);
  for (std::string part; std::getline(parts, part, ',');) {
    const auto first = number_of(part);
    const auto dash = part.find('-');
    const auto last = dash == std::string::npos ? first : number_of(part.substr(dash + 1));
    if (first && last) count += *last - *first + 1;
  }
  return count;
}

std::string counted(std::int64_t count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

std::optional<std::int64_t> number_of(const std::string& text) {
  std::int64_t number = 0;
  const std::size_t begin = std::min(text.find_first_not_of(" \t"), text.size());
  const auto [end, error] = std::from_chars(text.data() + begin, text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  return number;
}

std::string fixed(double value, int digits) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(digits) << value;
  return std::move(text).str();
}

}  // namespace pharos::launch
