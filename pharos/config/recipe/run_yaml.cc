#include "pharos/config/recipe/run_yaml.h"

#include <algorithm>

#include "pharos/base/error.h"
#include "pharos/config/schema/schema.h"

namespace pharos::config {
namespace {

constexpr std::size_t kCommentColumn = 56;
constexpr std::string_view kFirstLine =
    "# Every setting of a run, as resolved. Whole only with '...' as its last line.\n";
constexpr std::string_view kLastLine = "...\n";  // the end of a YAML document

/// A text that would be read as interpolation is written with a backslash.
Value escaped(const Value& value) {
  Value result = value;
  for (std::size_t at = 0; (at = result.text.find("${", at)) != std::string::npos; at += 3) {
    if (result.is_string()) result.text.insert(at, 1, '\\');
  }
  for (Value& element : result.list) element = escaped(element);
  for (auto& entry : result.map) entry.second = escaped(entry.second);
  return result;
}

std::string commented(std::string line, const std::string& origin) {
  std::size_t width = 0;
  for (const char c : line) width += (static_cast<unsigned char>(c) & 0xC0) != 0x80 ? 1 : 0;
  line.append(width < kCommentColumn ? kCommentColumn - width : 1, ' ');
  std::string plain = origin;
  std::replace(plain.begin(), plain.end(), '\n', ' ');
  return line + "# " + plain + "\n";
}

/// Defaults of fields without effect would only hide the others.
bool is_written(const ResolvedConfig& resolved, const Field& field) {
  const RunConfig& config = resolved.config;
  if (field.section == "mixed_precision" && !config.mixed_precision.given) return false;
  if (field.section == "comm_overlap" && !config.comm_overlap.given) return false;
  if (!(field.read(config) == field.default_value)) return true;
  return resolved.origin_of(field.name).kind != Origin::Kind::kDefault || field.need == Need::kEffective ||
         field.name == "mixed_precision.name" || field.name == "comm_overlap.tp_comm_overlap";
}

}  // namespace

std::string to_recipe_yaml(const ResolvedConfig& resolved) {
  std::string text;
  if (!resolved.recipe_name.empty())
    text += "description: " + to_flow_text(Value::of_string("resolved from recipe " + resolved.recipe_name)) + "\n";
  if (!resolved.parameters.empty()) {
    text += "resolved_parameters:\n";
    for (const auto& [name, value] : resolved.parameters) {
      text += commented("  " + name + ": " + to_flow_text(value), value.origin.text);
    }
  }
  text += "config:\n";
  for (const std::string& section : schema().sections()) {
    std::string body;
    for (const Field& field : schema().fields()) {
      if (field.section != section || !is_written(resolved, field)) continue;
      const bool whole = field.name == section;
      const std::string name = whole ? section : field.name.substr(section.size() + 1);
      const std::string line =
          (whole ? "  " : "    ") + name + ": " + to_flow_text(escaped(field.read(resolved.config)));
      body += commented(line, resolved.origin_of(field.name).text);
      if (whole) {
        text += body;
        body.clear();
      }
    }
    if (!body.empty()) text += "  " + section + ":\n" + body;
  }
  return text;
}

std::string to_yaml(const ResolvedConfig& resolved) {
  return std::string(kFirstLine) + to_recipe_yaml(resolved) + std::string(kLastLine);
}

void check_is_whole(std::string_view text, const std::filesystem::path& path) {
  const bool is_cut_in_first_line = !text.empty() && kFirstLine.starts_with(text);
  const bool is_ours = is_cut_in_first_line || text.starts_with(kFirstLine);
  const std::string last_line = std::string("\n").append(kLastLine);
  if (!is_ours || text.ends_with(last_line)) return;
  throw base::UserError(
      {.what = "'" + path.string() + "' is damaged: its end is missing.",
       .where = path.string(),
       .why = "The last line of such a file is '...'; without it settings may be missing, too.",
       .fix = "Restore the file, or take the one in a checkpoint of the run: iter_N/run_config.yaml."});
}

ResolvedConfig load_run_yaml(const std::filesystem::path& path) {
  std::error_code ignored;
  const bool is_folder = std::filesystem::is_directory(path, ignored);
  std::filesystem::path file = is_folder ? path / "run.yaml" : path;
  // A bare file name must not be taken for the name of a recipe.
  if (!file.has_parent_path()) file = std::filesystem::path(".") / file;
  return resolve({.recipe = file.string()});
}

std::vector<Difference> compare(const RunConfig& left, const RunConfig& right) {
  std::vector<Difference> differences;
  for (const Field& field : schema().fields()) {
    const Value on_left = field.read(left), on_right = field.read(right);
    if (!(on_left == on_right)) differences.push_back({field.name, to_flow_text(on_left), to_flow_text(on_right)});
  }
  return differences;
}

}  // namespace pharos::config
