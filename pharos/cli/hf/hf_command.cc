#include "pharos/cli/hf/hf_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>

#include "pharos/base/text.h"
#include "pharos/cli/hf/verify_command.h"
#include "pharos/hf/transfer/export.h"
#include "pharos/hf/transfer/import.h"

namespace pharos::cli {
namespace {

struct ExportArguments {
  std::string checkpoint, target, source, family, dtype;
  std::uint64_t max_shard_bytes = 0;  ///< 0: not given
  bool replaces = false;
};

struct ImportArguments {
  std::string source, target;
  bool replaces = false;
};

void print(const hf::TransferResult& result, const std::string& target) {
  for (const std::string& warning : result.warnings) std::cerr << "warning: " << warning << "\n";
  std::cout << fmt::format("{}: {} tensors of a {} ({}) in {} file{}\n", target, result.num_tensors, result.family,
                           base::format_bytes(static_cast<double>(result.size_bytes)), result.num_files,
                           result.num_files == 1 ? "" : "s");
  if (!result.copied.empty()) std::cout << "copied from the source: " << base::join(result.copied, ", ") << "\n";
}

config::DType dtype_of(const std::string& name) {
  if (name == "bf16") return config::DType::kBFloat16;
  return name == "fp16" ? config::DType::kFloat16 : config::DType::kFloat32;
}

/// Replaces "5GB" by its number of bytes; returns what is wrong with it.
std::string to_bytes(std::string& text) {
  std::string number = text;
  bool is_size = !number.empty() && number.front() >= '0' && number.front() <= '9';  // CLI11 takes -5 for 2^64 - 5
  try {
    is_size = is_size && CLI::AsSizeValue(true)(number).empty() && number != "0";
  } catch (const CLI::ValidationError&) {
    is_size = false;
  }
  if (!is_size) return "'" + text + "' is not a size above 0, for example 500MB or 5GB";
  text = number;
  return "";
}

void run_export(const ExportArguments& arguments) {
  hf::ExportOptions options{.checkpoint = arguments.checkpoint, .target = arguments.target};
  if (!arguments.source.empty()) options.source = arguments.source;
  if (!arguments.family.empty()) options.family = arguments.family;
  if (!arguments.dtype.empty()) options.dtype = dtype_of(arguments.dtype);
  if (arguments.max_shard_bytes > 0) options.max_shard_bytes = arguments.max_shard_bytes;
  options.replaces = arguments.replaces;
  print(hf::export_checkpoint(options), arguments.target);
}

void add_export(CLI::App& hf) {
  CLI::App* command = hf.add_subcommand("export", "Write a checkpoint as a Hugging Face folder");
  const auto arguments = std::make_shared<ExportArguments>();
  command->add_option("CHECKPOINT", arguments->checkpoint, "A run folder, a folder of checkpoints, or one checkpoint")
      ->required();
  command->add_option("OUT", arguments->target, "The new folder")->required();
  command->add_option("--hf-path", arguments->source,
                      "Hugging Face folder the model came from: config.json, tokenizer and division into files are "
                      "taken from it (default: the run's own, where it is still there)");
  command->add_option("--family", arguments->family, "model_type (default: that of the folder, else one that fits)");
  command->add_option("--dtype", arguments->dtype, "Type of the weights (default: as in the checkpoint)")
      ->check(CLI::IsMember({"bf16", "fp16", "fp32"}));
  command
      ->add_option("--max-shard-size", arguments->max_shard_bytes,
                   "Size of a file, for example 5GB (default: files as in --hf-path, else 5GB)")
      ->transform(CLI::Validator(to_bytes, "SIZE"));
  command->add_flag("--force", arguments->replaces, "Replace an earlier export at OUT");
  command->callback([arguments] { run_export(*arguments); });
}

void add_import(CLI::App& hf) {
  CLI::App* command = hf.add_subcommand(
      "import", "Write a Hugging Face folder as a checkpoint, for checkpoint.pretrained_checkpoint and `generate`");
  const auto arguments = std::make_shared<ImportArguments>();
  command->add_option("FOLDER", arguments->source, "Folder with config.json and *.safetensors")->required();
  command->add_option("OUT", arguments->target, "The new folder of checkpoints")->required();
  command->add_flag("--force", arguments->replaces, "Replace an earlier import at OUT");
  command->callback([arguments] {
    print(hf::import_folder({arguments->source, arguments->target, arguments->replaces}), arguments->target);
  });
}

}  // namespace

void add_hf_command(CLI::App& app) {
  CLI::App* hf = app.add_subcommand("hf", "Hugging Face checkpoints");
  hf->require_subcommand(1);
  add_import(*hf);
  add_export(*hf);
  add_verify_command(*hf);
}

}  // namespace pharos::cli
