#include "pharos/cli/image/image_command.h"

#include <torch/headeronly/version.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <ctime>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "pharos/base/error.h"
#include "pharos/base/text.h"
#include "pharos/cli/exit_status.h"
#include "pharos/cli/text_option.h"
#include "pharos/config/recipe/recipe.h"
#include "pharos/launch/image/build.h"
#include "pharos/launch/image/container.h"
#include "pharos/launch/image/inspect.h"

namespace pharos::cli {
namespace {

/// Runs `work`; when a signal ended it, this process ends by that signal after everything is taken back.
template <class Work>
void until_signal(const Work& work) {
  int signal = 0;
  try {
    const base::InterruptGuard guard;
    work(&guard);
  } catch (const base::InterruptedError& interrupted) {
    signal = interrupted.signal();
  }
  if (signal == 0) return;
  std::cerr << "interrupted; nothing unfinished is left\n";
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

/// The folder that the shipped recipes lie in.
std::filesystem::path shipped_recipes() {
  for (const std::filesystem::path& folder : config::recipe_folders()) {
    if (std::filesystem::exists(folder / "quickstart.yaml")) return folder;
  }
  throw base::UserError({.what = "The shipped recipes are not found, and the image would be without them.",
                         .fix = "Set PHAROS_RECIPE_PATH to the folder with quickstart.yaml."});
}

struct BuildOptions {
  launch::ImageRequest request;
  bool is_cpu = false;
};

void build(const BuildOptions& options) {
  until_signal([&](const base::InterruptGuard* guard) {
    if (options.is_cpu) {
      build_cpu_image(options.request, shipped_recipes(),
                      {{"PHAROS_VERSION", PHAROS_VERSION}, {"TORCH_VERSION", TORCH_VERSION}}, guard, std::cout);
    } else {
      build_image(options.request, guard, std::cout);
    }
  });
}

void add_build_command(CLI::App& image) {
  CLI::App* command = image.add_subcommand(
      "build", "Build NAME+TAG.sqsh from a Dockerfile (docker, podman or buildah), or with --cpu from Debian packages");
  auto options = std::make_shared<BuildOptions>();
  launch::ImageRequest& request = options->request;
  command->add_option("-n,--name", request.name, "Name of the image")->required();
  command->add_option("-t,--tag", request.tag, "Its tag")->capture_default_str();
  command->add_option("-o,--output", request.output, "Folder to write to")->check(filled_text())->capture_default_str();
  command->add_flag("--dry-run", request.is_dry_run, "Print the commands and run none");
  CLI::Option* cpu = command->add_flag(
      "--cpu", options->is_cpu, "An image for the CPU of Debian packages and this program; needs no container engine");
  command->add_option("-f,--file", request.dockerfile, "Dockerfile (default: docker/Dockerfile in --context)")
      ->check(filled_text())
      ->excludes(cpu);
  command->add_option("--context", request.context, "Folder that the Dockerfile copies from")
      ->check(filled_text())
      ->capture_default_str()
      ->excludes(cpu);
  command->add_option("--builder", request.builder, "docker, podman, buildah, or auto: the first that works")
      ->check(CLI::IsMember({"auto", "docker", "podman", "buildah"}))
      ->capture_default_str()
      ->excludes(cpu);
  command
      ->add_option("--build-arg", request.build_arguments,
                   "NAME=VALUE for an ARG of the Dockerfile; wins over versions.env beside it")
      ->allow_extra_args(false)
      ->excludes(cpu);
  command->callback([options] { build(*options); });
}

void inspect(const std::string& path, bool is_json) {
  const launch::ImageFacts facts = launch::inspect_image(path);
  std::tm time = {};
  const std::time_t created = facts.created_s;
  gmtime_r(&created, &time);
  char text[32] = {};
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &time);
  if (is_json) {
    nlohmann::ordered_json document = {{"file", path},
                                       {"bytes", facts.file_bytes},
                                       {"files", facts.num_files},
                                       {"created", text},
                                       {"compression", facts.compression},
                                       {"has_pharos", facts.has_pharos},
                                       {"versions", nlohmann::ordered_json::object()}};
    for (const launch::NamedVersion& version : facts.versions) document["versions"][version.name] = version.version;
    std::cout << document.dump(2) << "\n";
    return;
  }
  std::cout << path << ": " << base::format_bytes(static_cast<double>(facts.file_bytes)) << ", " << facts.num_files
            << " files, " << facts.compression << ", created " << text << "\n";
  if (!facts.has_pharos) std::cout << "Pharos is not in it: there is no /usr/local/share/pharos/versions.env.\n";
  for (const launch::NamedVersion& version : facts.versions) {
    std::cout << "  " << version.name << " " << version.version << "\n";
  }
}

void add_inspect_command(CLI::App& image) {
  CLI::App* command = image.add_subcommand("inspect", "Size, age and versions of what an image holds");
  auto path = std::make_shared<std::string>();
  auto is_json = std::make_shared<bool>(false);
  command->add_option("file", *path, "Image, a squashfs file")->required();
  command->add_flag("--json", *is_json, "One JSON object");
  command->callback([path, is_json] { inspect(*path, *is_json); });
}

void add_run_command(CLI::App& image) {
  CLI::App* command = image.add_subcommand(
      "run", "Run a command in an unpacked image, in a mount namespace of its own: image run FILE -- COMMAND…");
  auto run = std::make_shared<launch::ContainerRun>();
  auto mounts = std::make_shared<std::vector<std::string>>();
  command->add_option("file", run->image, "Image, a squashfs file")->required();
  command->add_option("command", run->words, "Command and its arguments, after --")->required();
  command
      ->add_option("-m,--mount", *mounts, "SOURCE:TARGET or SOURCE:TARGET:ro; several with commas or several --mount")
      ->allow_extra_args(false);
  command->add_option("-w,--workdir", run->work_folder, "Folder in the image to run in (default: /)")
      ->check(filled_text());
  command->add_option("--unpack-to", run->unpack_folder, "Folder to unpack in, for as long as the command runs")
      ->check(filled_text())
      ->capture_default_str();
  command->callback([run, mounts] {
    for (const std::string& text : *mounts) {
      for (launch::ContainerMount& mount : launch::parse_mounts(text)) run->mounts.push_back(std::move(mount));
    }
    until_signal([&](const base::InterruptGuard* guard) { set_exit_code(run_in_image(*run, *guard)); });
  });
}

}  // namespace

void add_image_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("image", "Images that jobs run in: build, look into, run");
  command->require_subcommand(1);
  add_build_command(*command);
  add_inspect_command(*command);
  add_run_command(*command);
}

}  // namespace pharos::cli
