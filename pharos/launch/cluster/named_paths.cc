#include "pharos/launch/cluster/named_paths.h"

#include <charconv>

namespace pharos::launch {
namespace fs = std::filesystem;
namespace {

bool is_number(const std::string& text) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && stop == end;
}

void add_blend(std::vector<NamedPath>& paths, const std::string& field, const std::vector<std::string>& entries) {
  for (const std::string& entry : entries) {
    if (entries.size() > 1 && is_number(entry)) continue;  // a weight
    paths.push_back({field, entry, PathKind::kPrefix});
  }
}

}  // namespace

bool is_file_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::vector<NamedPath> paths_of(const config::RunConfig& config) {
  std::vector<NamedPath> paths;
  const auto add = [&paths](const char* field, const std::optional<std::string>& path,
                            PathKind kind = PathKind::kFolder) {
    if (path && !path->empty()) paths.push_back({field, *path, kind});
  };
  add("model.hf_path", config.model.hf_path);
  // A relative name is one of the hub for that tokenizer.
  const auto& tokenizer = config.tokenizer.tokenizer_model;
  if (config.tokenizer.tokenizer_type != config::TokenizerType::kHuggingFace ||
      (tokenizer && tokenizer->starts_with('/')))
    add("tokenizer.tokenizer_model", tokenizer, PathKind::kFile);
  add("tokenizer.vocab_file", config.tokenizer.vocab_file, PathKind::kFile);
  add("tokenizer.merge_file", config.tokenizer.merge_file, PathKind::kFile);
  add("checkpoint.load", config.checkpoint.load);
  add("checkpoint.pretrained_checkpoint", config.checkpoint.pretrained_checkpoint);
  add_blend(paths, "dataset.data_path", config.dataset.data_path);
  add_blend(paths, "dataset.blend", config.dataset.blend);
  for (const auto& blend : config.dataset.blend_per_split) add_blend(paths, "dataset.blend_per_split", blend);
  return paths;
}

bool is_there(const fs::path& path, PathKind kind) {
  if (kind != PathKind::kPrefix) return is_file_there(path);
  return is_file_there(path.string() + ".bin") && is_file_there(path.string() + ".idx");
}

std::string where_from(const config::ResolvedConfig& resolved, const NamedPath& named) {
  for (const auto& [name, value] : resolved.parameters) {
    const bool is_given = value.origin.kind == config::Origin::Kind::kCommandLine;
    if (is_given && value.is_string() && value.text == named.path)
      return value.origin.text + ", " + name + "=" + named.path;
  }
  return resolved.origin_of(named.field).text;
}

bool is_recipe_path(const std::string& recipe) {
  return recipe.find('/') != std::string::npos || recipe.ends_with(".yaml") || recipe.ends_with(".yml");
}

}  // namespace pharos::launch
