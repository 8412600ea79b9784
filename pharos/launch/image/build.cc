#include "pharos/launch/image/build.h"

#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/base/text.h"
#include "pharos/launch/image/image_work.h"

namespace pharos::launch {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string> kBuilders = {"docker", "podman", "buildah"};
constexpr std::int64_t kProbeLimitMs = 30'000;

/// Why `builder` cannot be used; none when it can.
std::optional<std::string> why_unusable(const std::string& builder, const base::InterruptGuard* guard) {
  if (!base::find_program(builder)) return "is not in PATH";
  // docker is only a client: without its daemon every command fails, after minutes of sending the context for some.
  const base::CommandResult result =
      base::run_command({.words = {builder, "info"}, .limit_ms = kProbeLimitMs, .guard = guard});
  if (result.timed_out) return "does not answer within 30 s";
  if (result.exit_code == 0) return std::nullopt;
  const std::string said = base::last_lines(result.error.empty() ? result.output : result.error, 1);
  return "cannot be used: " + (said.empty() ? "exit code " + std::to_string(result.exit_code) : said);
}

std::string choose_builder(const ImageRequest& request, const base::InterruptGuard* guard, std::ostream& progress) {
  const bool is_auto = request.builder == "auto";
  if (request.is_dry_run && !is_auto) return request.builder;
  std::vector<std::string> reasons;
  for (const std::string& builder : is_auto ? kBuilders : std::vector<std::string>{request.builder}) {
    const auto reason = why_unusable(builder, guard);
    if (!reason) {
      for (const std::string& other : reasons) progress << "image: " << other << "\n";
      return builder;
    }
    reasons.push_back(builder + " " + *reason);
  }
  if (request.is_dry_run) return kBuilders.front();
  throw base::UserError(
      {.what = is_auto ? "There is nothing to build an image with." : "The builder " + reasons.front() + ".",
       .where = is_auto ? "" : "--builder " + request.builder,
       .why = is_auto ? base::join(reasons, "; ") + "." : "",
       .fix = "Install docker, podman or buildah, or start docker's daemon (systemctl start docker) and let this user "
              "reach it (group docker). --cpu builds an image for the CPU without any of them."});
}

void need_mksquashfs() {
  if (base::find_program("mksquashfs")) return;
  throw base::UserError({.what = "There is no program mksquashfs.",
                         .where = "folders of PATH",
                         .why = "Without enroot, it writes the squashfs file.",
                         .fix = "Install squashfs-tools, for example apt-get install squashfs-tools."});
}

fs::path dockerfile_of(const ImageRequest& request) {
  const fs::path path = request.dockerfile.empty() ? request.context / "docker" / "Dockerfile" : request.dockerfile;
  std::error_code error;
  if (fs::is_regular_file(path, error)) return path;
  throw base::UserError({.what = "There is no Dockerfile " + path.string() + ".",
                         .where = request.dockerfile.empty() ? "--context" : "--file",
                         .fix = "Name one with --file, or run this in the source tree of Pharos."});
}

/// KEY=VALUE of versions.env for what the Dockerfile declares, then the user's.
std::vector<std::string> build_arguments(const ImageRequest& request, const fs::path& dockerfile) {
  std::vector<std::string> arguments;
  const auto is_given = [&](const std::string& name) {
    return std::any_of(request.build_arguments.begin(), request.build_arguments.end(),
                       [&](const std::string& text) { return text.starts_with(name + "="); });
  };
  const fs::path versions = dockerfile.parent_path() / "versions.env";
  if (fs::exists(versions)) {
    const auto declared = declared_arguments(base::read_regular_file(dockerfile));
    for (const NamedVersion& version : read_version_table(versions)) {
      const bool is_declared = std::find(declared.begin(), declared.end(), version.name) != declared.end();
      if (is_declared && !is_given(version.name)) arguments.push_back(version.name + "=" + version.version);
    }
  }
  for (const std::string& argument : request.build_arguments) {
    if (argument.find('=') == std::string::npos || argument[0] == '=') {
      throw base::UserError({.what = "Cannot read the build argument '" + argument + "'.",
                             .where = "--build-arg",
                             .fix = "Write NAME=VALUE, for example NCCL_VERSION=2.29.3-1."});
    }
    arguments.push_back(argument);
  }
  return arguments;
}

/// ENV of an image as lines for /etc/environment, which enroot and `pharos image run` read: an exported file system
/// has lost it. `inspected`: what `BUILDER inspect` printed.
std::string environment_lines(const std::string& builder, const std::string& inspected) {
  std::string lines;
  try {
    const auto document = nlohmann::json::parse(inspected);
    const auto& config = builder == "buildah" ? document.at("OCIv1").at("config") : document.at(0).at("Config");
    const auto variables = config.find("Env");
    if (variables == config.end() || variables->is_null()) return lines;
    for (const auto& variable : *variables) lines += variable.get<std::string>() + "\n";
  } catch (const nlohmann::json::exception& error) {
    throw base::UserError({.what = "Cannot read what `" + builder + " inspect` says of the image.",
                           .why = error.what(),
                           .fix = "Check the version of " + builder + "."});
  }
  return lines;
}

class DockerfileBuild {
 public:
  DockerfileBuild(const ImageRequest& request, const base::InterruptGuard* guard, std::ostream& progress)
      : request_(request),
        dockerfile_(dockerfile_of(request)),
        arguments_(build_arguments(request, dockerfile_)),
        builder_(choose_builder(request, guard, progress)),
        has_enroot_(builder_ != "buildah" && base::find_program("enroot")),
        reference_(request.name + ":" + request.tag),
        container_("pharos-image-" + std::to_string(getpid())),
        guard_(guard),
        work_(image_path(request), request.is_dry_run, guard, progress) {
    if (!has_enroot_ && !request.is_dry_run) need_mksquashfs();
  }

  void run() {
    std::vector<std::string> words = {builder_, "build", "--tag", reference_, "--file", path_word(dockerfile_)};
    for (const std::string& argument : arguments_) {
      words.emplace_back("--build-arg");
      words.push_back(argument);
    }
    words.push_back(path_word(request_.context));
    work_.run("building " + reference_ + " with " + builder_, words);
    if (has_enroot_) {
      import_by_enroot();
    } else if (builder_ == "buildah") {
      squash_mounted();
    } else {
      squash_exported();
    }
    work_.finish();
  }

 private:
  void import_by_enroot() {
    const std::string scheme = builder_ == "docker" ? "dockerd://" : "podman://";
    work_.run("importing with enroot",
              {"enroot", "import", "--output", work_.unfinished_image().string(), scheme + reference_});
  }

  /// The file with the image's variables, made for copying into a container of it.
  fs::path environment_file(const std::vector<std::string>& inspect) {
    const fs::path path = work_.temporary("environment");
    if (work_.is_dry_run()) {
      work_.run("", inspect);
      return path;
    }
    const base::CommandResult result = base::run_command({.words = inspect, .guard = guard_});
    if (result.exit_code != 0) {
      throw base::UserError({.what = "`" + base::shell_line(inspect) + "` failed.",
                             .why = base::last_lines(result.error, 3),
                             .fix = "The image was built and then cannot be seen: check " + builder_ + "."});
    }
    base::write_file_atomically(path, environment_lines(builder_, result.output));
    fs::permissions(path, fs::perms(0644));
    return path;
  }

  void squash_exported() {
    work_.undo({builder_, "rm", "--force", container_});
    work_.run("making a container to export", {builder_, "create", "--name", container_, reference_, "true"});
    const fs::path environment = environment_file({builder_, "inspect", "--type", "image", reference_});
    work_.run("adding /etc/environment", {builder_, "cp", environment.string(), container_ + ":/etc/environment"});
    const fs::path tar = work_.temporary("image.tar");
    work_.run("exporting its file system", {builder_, "export", "--output", tar.string(), container_});
    work_.squash_tar(tar);
  }

  void squash_mounted() {
    work_.undo({"buildah", "rm", container_});
    work_.run("making a container to mount", {"buildah", "from", "--name", container_, reference_});
    const fs::path environment = environment_file({"buildah", "inspect", "--type", "image", reference_});
    work_.run("adding /etc/environment", {"buildah", "copy", container_, environment.string(), "/etc/environment"});
    std::vector<std::string> words;
    if (geteuid() != 0) words = {"buildah", "unshare"};  // only there may a user mount, and see owners as they are
    const std::string script =
        "root=$(buildah mount \"$1\") && mksquashfs \"$root\" \"$2\" -noappend " + base::shell_line(squashfs_options());
    for (const std::string& word : {std::string("sh"), std::string("-c"), script, std::string("sh"), container_,
                                    work_.unfinished_image().string()}) {
      words.push_back(word);
    }
    work_.run("writing the squashfs file", words);
  }

  const ImageRequest& request_;
  fs::path dockerfile_;
  std::vector<std::string> arguments_;
  std::string builder_;
  bool has_enroot_ = false;
  std::string reference_;
  std::string container_;
  const base::InterruptGuard* guard_ = nullptr;
  ImageWork work_;
};

}  // namespace

fs::path image_path(const ImageRequest& request) {
  for (const auto& [option, word] : {std::pair("--name", request.name), std::pair("--tag", request.tag)}) {
    if (is_image_word(word)) continue;
    throw base::UserError({.what = std::string(option) + " '" + word + "' cannot be part of an image's name.",
                           .where = "command line",
                           .fix = "Use letters, digits, '.', '_' and '-', and begin with a letter or digit."});
  }
  if (request.output.empty()) {
    throw base::UserError({.what = "The name of the folder to write to is empty.",
                           .where = "--output",
                           .fix = "Name a folder, or leave out the option to write to this one."});
  }
  return fs::absolute(request.output).lexically_normal() / (request.name + "+" + request.tag + ".sqsh");
}

void build_image(const ImageRequest& request, const base::InterruptGuard* guard, std::ostream& progress) {
  DockerfileBuild(request, guard, progress).run();
}

}  // namespace pharos::launch
