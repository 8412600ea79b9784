// An image for the CPU: packages of this machine's Debian release, unpacked and not configured, beside the program.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/base/text.h"
#include "pharos/launch/image/build.h"
#include "pharos/launch/image/image_work.h"
#include "pharos/launch/image/own_files.h"

namespace pharos::launch {
namespace {

namespace fs = std::filesystem;

/// What a shell and scripts in the image need beside the libraries' packages.
const std::vector<std::string> kPackages = {"base-files", "bash",     "ca-certificates", "coreutils", "dash",
                                            "grep",       "hostname", "libc-bin",        "procps",    "sed"};

constexpr std::string_view kAccounts =
    "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n";
constexpr std::string_view kGroups = "root:x:0:\nnogroup:x:65534:\n";
constexpr std::string_view kEnvironment =
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\nLC_ALL=C.UTF-8\n";

void need_program(const std::string& name, const std::string& package) {
  if (base::find_program(name)) return;
  throw base::UserError({.what = "There is no program " + name + ".",
                         .where = "folders of PATH",
                         .why = "--cpu makes the image with it.",
                         .fix = "Install " + package + ": apt-get install " + package + "."});
}

std::string release_field(const std::string& name) {
  std::istringstream lines(base::read_file("/etc/os-release"));
  std::string line;
  while (std::getline(lines, line)) {
    if (!line.starts_with(name + "=")) continue;
    std::string value = line.substr(name.size() + 1);
    std::erase(value, '"');
    return value;
  }
  return "";
}

/// apt's sources on this machine: its mirror or proxy is the one that can be reached.
std::vector<std::string> apt_sources() {
  std::vector<std::string> sources;
  std::error_code error;
  if (fs::exists("/etc/apt/sources.list", error)) sources.emplace_back("/etc/apt/sources.list");
  for (const auto& entry : fs::directory_iterator("/etc/apt/sources.list.d", error)) {
    const auto extension = entry.path().extension();
    if (extension == ".list" || extension == ".sources") sources.push_back(entry.path().string());
  }
  std::sort(sources.begin(), sources.end());
  return sources;
}

/// apt's settings for fetching (proxies, time-outs, where passwords of mirrors are), for mmdebstrap's own apt.
std::string apt_settings(const base::InterruptGuard* guard) {
  const base::CommandResult dump = base::run_command({.words = {"apt-config", "dump"}, .guard = guard});
  std::string settings = "Dir::Etc::netrc \"/etc/apt/auth.conf\";\nDir::Etc::netrcparts \"/etc/apt/auth.conf.d\";\n";
  std::istringstream lines(dump.output);
  std::string line;
  while (std::getline(lines, line)) {
    const bool is_fetching = line.starts_with("Acquire::") && !line.starts_with("Acquire::IndexTargets");
    if (is_fetching && !line.ends_with(" \"\";")) settings += line + "\n";
  }
  return settings;
}

/// A folder that is laid over the packages. Libraries are linked to, and copied when it is.
class Overlay {
 public:
  explicit Overlay(fs::path root) : root_(std::move(root)) {}

  void write(const fs::path& path, std::string_view content) const {
    base::write_file_atomically(place(path), content);
    fs::permissions(root_ / path, fs::perms(0644));
  }
  void make_folder(const fs::path& path) const { base::make_directories(root_ / path); }
  void link(const fs::path& path, const fs::path& target) const {
    fs::create_symlink(fs::canonical(target), place(path));
  }

 private:
  fs::path place(const fs::path& path) const {
    base::make_directories((root_ / path).parent_path());
    return root_ / path;
  }
  fs::path root_;
};

void fill(const Overlay& overlay, const OwnFiles& own, const fs::path& recipes,
          const std::vector<NamedVersion>& versions) {
  overlay.link("usr/local/bin/pharos", own.program);
  for (const fs::path& library : own.libraries) overlay.link("usr/local/lib/pharos" / library.filename(), library);
  overlay.link("usr/local/share/pharos/recipes", recipes);
  overlay.write("etc/ld.so.conf.d/pharos.conf", "/usr/local/lib/pharos\n");
  overlay.write("etc/environment", kEnvironment);
  overlay.write("etc/passwd", kAccounts);
  overlay.write("etc/group", kGroups);
  overlay.write("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n");
  overlay.make_folder("workspace");
  std::string table = "# Versions of what this image is made of.\n";
  for (const NamedVersion& version : versions) table += version.name + "=" + version.version + "\n";
  overlay.write("usr/local/share/pharos/versions.env", table);
}

/// Debian's layout since 12; a package's files follow the links.
constexpr const char* kMergeUsr =
    "for folder in bin sbin lib lib32 lib64 libx32; do mkdir -p \"$1/usr/$folder\"; ln -s usr/$folder \"$1/$folder\"; "
    "done";

/// Run by mmdebstrap with the image's root as $1; $0 is no argument of a hook, so paths are written into it.
std::string finishing_hook(const fs::path& overlay) {
  std::string hook = "set -e; cp -RL --no-preserve=ownership " + base::shell_line({overlay.string()}) + "/. \"$1\"/;";
  if (base::find_program("strip")) {
    hook += " strip --strip-unneeded \"$1\"/usr/local/bin/pharos \"$1\"/usr/local/lib/pharos/*;";
  }
  hook += " chmod 1777 \"$1/tmp\"; /sbin/ldconfig -r \"$1\";";
  // What a package's own script would have made.
  hook += " cat \"$1\"/usr/share/ca-certificates/mozilla/*.crt > \"$1/etc/ssl/certs/ca-certificates.crt\";";
  // This machine's mirror, proxy and passwords stay here; there is no apt in the image that would want others.
  hook += " rm -rf \"$1\"/etc/apt/apt.conf.d/99mmdebstrap \"$1\"/etc/apt/sources.list \"$1\"/etc/apt/sources.list.d/*;";
  hook += " rm -f \"$1/etc/resolv.conf\" \"$1/etc/hostname\";";
  return hook;
}

}  // namespace

void build_cpu_image(const ImageRequest& request, const fs::path& recipes, const std::vector<NamedVersion>& versions,
                     const base::InterruptGuard* guard, std::ostream& progress) {
  const fs::path result = image_path(request);
  need_program("mmdebstrap", "mmdebstrap");
  need_program("mksquashfs", "squashfs-tools");
  const OwnFiles own = find_own_files(guard);
  const std::string release = release_field("VERSION_CODENAME");
  ImageWork work(result, request.is_dry_run, guard, progress);
  const fs::path overlay = work.temporary("overlay"), settings = work.temporary("apt.conf");
  const fs::path packages_folder = work.temporary("packages");  // unpacked here: removed however mmdebstrap ends
  if (!work.is_dry_run()) {
    fs::permissions(overlay.parent_path(), fs::perms(0755));  // a user's mmdebstrap reads it under other numbers
    base::make_directories(packages_folder);
    fs::permissions(packages_folder, fs::perms(01777));
    fill(Overlay(overlay), own, recipes, versions);
    base::write_file_atomically(settings, apt_settings(guard));
  }
  // What it made as a user has owners that only it may remove.
  if (geteuid() != 0) work.undo({"mmdebstrap", "--unshare-helper", "rm", "-rf", packages_folder.string()});
  std::vector<std::string> packages = kPackages;
  packages.insert(packages.end(), own.packages.begin(), own.packages.end());
  const fs::path tar = work.temporary("image.tar");
  std::vector<std::string> words = {"env",
                                    "TMPDIR=" + packages_folder.string(),
                                    "mmdebstrap",
                                    "--variant=extract",
                                    "--include=" + base::join(packages, ","),
                                    "--aptopt=" + settings.string(),
                                    std::string("--setup-hook=") + kMergeUsr,
                                    "--extract-hook=" + finishing_hook(overlay)};
  for (const char* folder : {"doc", "locale", "man", "info", "lintian", "bug"}) {
    words.push_back(std::string("--dpkgopt=path-exclude=/usr/share/") + folder + "/*");
  }
  words.push_back(release);
  words.push_back(tar.string());
  for (const std::string& source : apt_sources()) words.push_back(source);
  work.run("unpacking Debian packages", words);
  work.squash_tar(tar);
  work.finish();
}

}  // namespace pharos::launch
