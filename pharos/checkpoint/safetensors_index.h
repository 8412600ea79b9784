// model.safetensors.index.json: which file holds which tensor. Works on text alone.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace pharos::checkpoint {

/// Name of a tensor -> name of the file that holds it, a plain one: never a path. `where` is named in messages.
/// UserError with every fault: no JSON, no weight_map, none in it, a tensor that is named twice, a file name that is
/// not a string or leads out of the folder.
std::map<std::string, std::string> parse_safetensors_index(std::string_view text, const std::string& where);

/// The inverse. total_size_bytes: of all tensors.
std::string render_safetensors_index(const std::map<std::string, std::string>& files, std::size_t total_size_bytes);

}  // namespace pharos::checkpoint
