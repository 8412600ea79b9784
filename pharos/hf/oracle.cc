#include "pharos/hf/oracle.h"

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

Trajectory read_trajectory(const fs::path& path, std::int64_t num_batches) {
  const json parsed = base::read_json_file(path);
  Trajectory trajectory;
  try {
    const json& optimizer = parsed.at("optimizer");
    if (optimizer.at("name") != "AdamW") fail(path, "its optimizer is " + optimizer.at("name").dump() + ", not AdamW");
    trajectory.learning_rate = optimizer.at("lr");
    trajectory.beta1 = optimizer.at("betas").at(0);
    trajectory.beta2 = optimizer.at("betas").at(1);
    trajectory.epsilon = optimizer.at("eps");
    trajectory.weight_decay = optimizer.at("weight_decay");
    trajectory.clip_grad_norm = parsed.at("clip_grad_norm");
    for (const json& step : parsed.at("steps")) {
      trajectory.steps.push_back({step.at("batch"), step.at("loss"), step.at("grad_norm")});
      const std::int64_t batch = trajectory.steps.back().batch;
      if (batch < 0 || batch >= num_batches)
        fail(path, "batch " + std::to_string(batch) + " of step " + step.at("step").dump() + " does not exist");
    }
  } catch (const json::exception& error) {
    fail(path, error.what());
  }
  if (trajectory.steps.empty()) fail(path, "it has no steps");
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
