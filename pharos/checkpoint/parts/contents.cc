#include "pharos/checkpoint/parts/contents.h"

#include <algorithm>

namespace pharos::checkpoint {

Contents weights_of(const std::vector<tensor::Parameter*>& parameters) {
  Contents contents;
  for (tensor::Parameter* parameter : parameters)
    contents.push_back({.parameter = parameter, .values = parameter->data});
  return contents;
}

std::set<std::string> piece_names(const std::vector<tensor::Parameter*>& parameters) {
  std::set<std::string> names;
  for (const tensor::Parameter* parameter : parameters) {
    for (const tensor::Piece& piece : parameter->pieces) names.insert(piece.name);
  }
  return names;
}

void drop_state(Contents& contents) {
  std::erase_if(contents, [](const Held& held) { return !held.kind.empty(); });
}

std::vector<std::string> state_kinds(const Contents& contents) {
  std::vector<std::string> kinds;
  for (const Held& held : contents) {
    const bool is_new = std::find(kinds.begin(), kinds.end(), held.kind) == kinds.end();
    if (!held.kind.empty() && is_new) kinds.push_back(held.kind);
  }
  return kinds;
}

std::string stored_name(const std::string& kind, const tensor::Piece& piece) {
  return kind.empty() ? piece.name : kind + "/" + piece.name;
}

}  // namespace pharos::checkpoint
