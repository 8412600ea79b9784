#include "pharos/hf/verify/oracle.h"

#include <ATen/Functions.h>

#include <nlohmann/json.hpp>

#include "pharos/base/error.h"
#include "pharos/base/json.h"
#include "pharos/base/text.h"

namespace pharos::hf {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

[[noreturn]] void fail(const fs::path& path, const std::string& why) {
  throw base::UserError(
      {.what = "'" + path.string() + "' is not an oracle for this model.",
       .where = path.string(),
       .why = why,
       .fix = "Give the oracle.safetensors (with trajectory.json beside it) that was made from this folder."});
}

fs::path find_trajectory(const fs::path& oracle, const fs::path& folder) {
  std::error_code ignored;
  for (const fs::path& place : {oracle.parent_path() / "trajectory.json", folder / "trajectory.json"}) {
    if (fs::exists(place, ignored)) return place;
  }
  fail(oracle, "trajectory.json is neither beside it nor in '" + folder.string() + "'");
}

/// Entries of trajectory.json by place, as in "/optimizer/betas/0"; each must be there and be what is asked for.
class TrajectoryReader {
 public:
  explicit TrajectoryReader(const fs::path& path) : path_(path), root_(base::read_json_file(path)) {}

  const json& at(const std::string& place) const {
    const json::json_pointer pointer(place);
    if (!root_.contains(pointer)) fail(path_, place + " is missing");
    return root_.at(pointer);
  }
  double number(const std::string& place) const {
    const json& value = at(place);
    if (!value.is_number()) fail(path_, place + " is not a number");
    return value.get<double>();
  }
  std::int64_t index(const std::string& place, std::int64_t end) const {
    const json& value = at(place);
    const bool is_valid = value.is_number_integer() && value >= 0 && value < end;
    if (!is_valid) fail(path_, place + " is not a whole number from 0 to " + std::to_string(end - 1));
    return value.get<std::int64_t>();
  }

 private:
  const fs::path& path_;
  json root_;
};

Trajectory read_trajectory(const fs::path& path, std::int64_t num_batches) {
  const TrajectoryReader reader(path);
  if (reader.at("/optimizer/name") != "AdamW") fail(path, "/optimizer/name is not AdamW");
  Trajectory trajectory{.learning_rate = reader.number("/optimizer/lr"),
                        .beta1 = reader.number("/optimizer/betas/0"),
                        .beta2 = reader.number("/optimizer/betas/1"),
                        .epsilon = reader.number("/optimizer/eps"),
                        .weight_decay = reader.number("/optimizer/weight_decay"),
                        .clip_grad_norm = reader.number("/clip_grad_norm"),
                        .steps = {}};
  const json& steps = reader.at("/steps");
  if (!steps.is_array() || steps.empty()) fail(path, "/steps is not a list of steps");
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const std::string place = "/steps/" + std::to_string(i);
    trajectory.steps.push_back({reader.index(place + "/batch", num_batches), reader.number(place + "/loss"),
                                reader.number(place + "/grad_norm")});
  }
  return trajectory;
}

}  // namespace

Oracle read_oracle(const fs::path& path, const fs::path& folder, std::int64_t vocab_size) {
  Oracle oracle{checkpoint::SafetensorsSet(path), {}, {}, {}, {}, {}};
  std::vector<std::string> problems;
  const auto read = [&](const char* name, std::int64_t dims) {
    const auto* entry = oracle.tensors.find(name);
    if (entry == nullptr || entry->type != checkpoint::ElementType::kI64 ||
        static_cast<std::int64_t>(entry->shape.size()) != dims) {
      problems.push_back(std::string(name) + " is missing or not int64 with " + std::to_string(dims) + " axes");
      return at::Tensor();
    }
    const at::Tensor tokens = oracle.tensors.view(name).clone();
    if (tokens.numel() == 0 || tokens.min().item<std::int64_t>() < 0 ||
        tokens.max().item<std::int64_t>() >= vocab_size) {
      problems.push_back(std::string(name) + " is empty or has tokens outside [0, " + std::to_string(vocab_size) + ")");
    }
    return tokens;
  };
  oracle.input_ids = read("input_ids", 2);
  oracle.labels = read("labels", 2);
  oracle.batch_input_ids = read("batches.input_ids", 3);
  oracle.batch_labels = read("batches.labels", 3);
  for (const char* name : {"logits", "loss", "grad_norm"}) {
    if (oracle.tensors.find(name) == nullptr) problems.push_back(std::string(name) + " is missing");
  }
  if (!problems.empty()) fail(path, base::join(problems, "; "));
  if (oracle.input_ids.sizes() != oracle.labels.sizes() ||
      oracle.batch_input_ids.sizes() != oracle.batch_labels.sizes()) {
    fail(path, "inputs and labels differ in shape");
  }
  oracle.trajectory = read_trajectory(find_trajectory(path, folder), oracle.batch_input_ids.size(0));
  return oracle;
}

}  // namespace pharos::hf
