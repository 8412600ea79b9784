#include "pharos/cli/hf_command.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "pharos/cli/exit_status.h"
#include "pharos/hf/verify.h"

namespace pharos::cli {
namespace {

struct VerifyArguments {
  std::string folder;
  std::string oracle;
  std::string device = "cpu";
  bool json = false;
};

constexpr int kOutsideTolerance = 1;

}  // namespace

void add_hf_command(CLI::App& app) {
  CLI::App* hf = app.add_subcommand("hf", "Hugging Face checkpoints");
  hf->require_subcommand(1);
  CLI::App* verify = hf->add_subcommand("verify",
                                        "Compare what Pharos computes from a Hugging Face folder with a reference: "
                                        "logits, loss, gradients, optimizer steps");
  const auto arguments = std::make_shared<VerifyArguments>();
  verify->add_option("FOLDER", arguments->folder, "Folder with config.json and *.safetensors")->required();
  verify->add_option("--oracle", arguments->oracle, "oracle.safetensors, with trajectory.json beside it or in FOLDER")
      ->required();
  verify->add_option("--device", arguments->device, "Where to compute: cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  verify->add_flag("--json", arguments->json, "Print one JSON object");
  verify->footer(
      "Exit code 0: all within tolerance; 1: some are not; 2: a file is missing, damaged or of another model.");
  verify->callback([arguments] {
    const auto device = arguments->device == "cuda" ? config::DeviceKind::kCuda : config::DeviceKind::kCpu;
    const hf::VerifyResult result = hf::verify(arguments->folder, arguments->oracle, device);
    if (arguments->json) {
      std::cout << hf::to_json(result).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
    } else {
      std::cout << hf::render_table(result);
    }
    if (!result.ok()) set_exit_code(kOutsideTolerance);
  });
}

}  // namespace pharos::cli
