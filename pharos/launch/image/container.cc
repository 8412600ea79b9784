#include "pharos/launch/image/container.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <sstream>

#include "pharos/base/error.h"
#include "pharos/launch/image/image_work.h"
#include "pharos/launch/image/inspect.h"

namespace pharos::launch {
namespace {

namespace fs = std::filesystem;

/// In the child: it says why and leaves as a shell does that cannot run a command.
[[noreturn]] void give_up(const std::string& doing) {
  std::cerr << "error: cannot " << doing << ": " << std::strerror(errno) << "\n" << std::flush;
  _exit(126);
}

void write_or_give_up(const char* path, const std::string& text) {
  std::ofstream file(path);
  if (!(file << text << std::flush)) give_up(std::string("write ") + path);
}

/// A mount namespace; where this process may not have one as it is, together with a user namespace in which it is root.
void enter_namespaces() {
  const uid_t user = geteuid();
  const gid_t group = getegid();
  if (user == 0 && unshare(CLONE_NEWNS) == 0) return;
  if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) {
    give_up(
        "make a user and a mount namespace (root, or the kernel's setting of unprivileged user namespaces, allows it)");
  }
  write_or_give_up("/proc/self/setgroups", "deny");
  write_or_give_up("/proc/self/uid_map", "0 " + std::to_string(user) + " 1");
  write_or_give_up("/proc/self/gid_map", "0 " + std::to_string(group) + " 1");
}

/// Opens `path` below `root` as if root were "/": links in the image lead nowhere else.
int open_inside(int root, const fs::path& path, std::uint64_t flags) {
  open_how how = {};
  how.flags = flags | O_CLOEXEC;
  how.mode = (flags & O_CREAT) != 0 ? 0644 : 0;
  how.resolve = RESOLVE_IN_ROOT;
  return static_cast<int>(syscall(SYS_openat2, root, path.c_str(), &how, sizeof how));
}

/// A descriptor of `path` below `root`, made as a folder or an empty file where it is missing; negative: errno says
/// why.
int open_target(int root, const fs::path& path, bool is_folder) {
  fs::path walked = "/";
  int descriptor = open_inside(root, walked, O_PATH);
  for (auto part = path.begin(); part != path.end() && descriptor >= 0; ++part) {
    if (*part == "/" || part->empty()) continue;
    const bool is_last = std::next(part) == path.end();
    const int parent = descriptor;
    walked /= *part;
    descriptor = open_inside(root, walked, O_PATH);
    if (descriptor < 0 && errno == ENOENT) {
      if (is_last && !is_folder) {
        const int made = openat(parent, part->c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
        if (made >= 0) close(made);
      } else {
        mkdirat(parent, part->c_str(), 0755);
      }
      descriptor = open_inside(root, walked, O_PATH);
    }
    close(parent);
  }
  return descriptor;
}

bool mount_inside(int root, const ContainerMount& one) {
  std::error_code error;
  const int target = open_target(root, one.target, fs::is_directory(one.source, error));
  if (target < 0) return false;
  const std::string path = "/proc/self/fd/" + std::to_string(target);
  const bool is_mounted = mount(one.source.c_str(), path.c_str(), nullptr, MS_BIND | MS_REC, nullptr) == 0;
  close(target);
  if (!is_mounted || !one.is_read_only) return is_mounted;
  const int mounted = open_inside(root, one.target, O_PATH);
  mount_attr attributes = {};
  attributes.attr_set = MOUNT_ATTR_RDONLY;
  const bool is_protected =
      mount_setattr(mounted, "", AT_EMPTY_PATH | AT_RECURSIVE, &attributes, sizeof attributes) == 0;
  close(mounted);
  return is_protected;
}

void set_variables() {
  std::ifstream lines("/etc/environment");
  std::string line;
  while (std::getline(lines, line)) {
    const std::size_t equals = line.find('=');
    if (equals == std::string::npos || equals == 0 || line[0] == '#') continue;
    setenv(line.substr(0, equals).c_str(), line.substr(equals + 1).c_str(), 1);
  }
}

[[noreturn]] void become(const ContainerRun& run, const fs::path& folder) {
  enter_namespaces();
  const auto check = [](bool is_good, const std::string& doing) {
    if (!is_good) give_up(doing);
  };
  check(mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0, "keep mounts from the host");
  check(mount(folder.c_str(), folder.c_str(), nullptr, MS_BIND | MS_REC, nullptr) == 0, "mount the image");
  check(chdir(folder.c_str()) == 0, "enter the image");
  const int root = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
  for (const char* path : {"/proc", "/sys", "/dev"}) {
    check(mount_inside(root, {.source = path, .target = path}), std::string("mount ") + path);
  }
  // Names of hosts resolve as they do outside. An image may hold a link that leads nowhere; then its own way is kept.
  for (const char* path : {"/etc/resolv.conf", "/etc/hosts"}) {
    if (fs::exists(path)) mount_inside(root, {.source = fs::canonical(path), .target = path, .is_read_only = true});
  }
  for (const ContainerMount& one : run.mounts) {
    check(mount_inside(root, one), "mount " + one.source.string() + " at " + one.target.string());
  }
  // The old root is put under the new one and taken away; a root that is no mount (initramfs) allows only chroot.
  if (syscall(SYS_pivot_root, ".", ".") == 0) {
    check(umount2(".", MNT_DETACH) == 0, "leave the host's files");
  } else {
    check(chroot(".") == 0, "make the image the root folder");
  }
  const fs::path work_folder = run.work_folder.empty() ? "/" : run.work_folder;
  check(chdir(work_folder.c_str()) == 0, "enter the folder " + work_folder.string());
  set_variables();
  std::vector<char*> words;
  for (const std::string& word : run.words) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  execvp(words[0], words.data());
  const int code = errno == ENOENT ? 127 : 126;
  std::cerr << "error: cannot run " << run.words[0] << " in the image: " << std::strerror(errno) << "\n" << std::flush;
  _exit(code);
}

class TemporaryFolder {
 public:
  explicit TemporaryFolder(const fs::path& parent) {
    std::string pattern = (parent / "pharos-image.XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) {
      throw base::UserError(
          {.what = "Cannot unpack the image into " + parent.string() + ": " + std::strerror(errno) + ".",
           .where = "--unpack-to",
           .fix = "Name a folder that this user may write to, with room for the unpacked image."});
    }
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

void unpack(const fs::path& image, const fs::path& folder, const base::InterruptGuard* guard) {
  require_image_file(image);
  const base::CommandResult result = base::run_command(
      {.words = {"unsquashfs", "-no-progress", "-no-xattrs", "-dest", folder.string(), path_word(image)},
       .guard = guard});
  // 2: everything is there but for owners and device files, which only root may make.
  if (result.exit_code == 0 || (result.exit_code == 2 && geteuid() != 0)) return;
  throw base::UserError({.what = "Cannot unpack " + image.string() + ".",
                         .where = "unsquashfs",
                         .why = base::last_lines(result.error.empty() ? result.output : result.error, 3),
                         .fix = "Check that it is a squashfs file and that there is room for it unpacked; --unpack-to "
                                "names another folder."});
}

/// Exit code of the command; signals that ask this process to end are handed on to it.
int wait_and_forward(pid_t pid, const base::InterruptGuard& guard) {
  const int process = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  PHAROS_CHECK(process >= 0, std::strerror(errno));
  int status = 0;
  while (waitpid(pid, &status, WNOHANG) == 0) {
    std::array<pollfd, 2> events = {
        {{.fd = process, .events = POLLIN, .revents = 0}, {.fd = guard.descriptor(), .events = POLLIN, .revents = 0}}};
    poll(events.data(), events.size(), -1);
    signalfd_siginfo info = {};
    // A key of the terminal has reached the command as well.
    if (read(guard.descriptor(), &info, sizeof info) == sizeof info && info.ssi_code != SI_KERNEL) {
      kill(pid, static_cast<int>(info.ssi_signo));
    }
  }
  close(process);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

ContainerMount parse_mount(const std::string& text) {
  const auto fail = [&](const std::string& why, const std::string& fix) {
    throw base::UserError({.what = "Cannot mount '" + text + "'.", .where = "--mount", .why = why, .fix = fix});
  };
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ':');) parts.push_back(part);
  const bool has_mode = parts.size() == 3 && (parts[2] == "ro" || parts[2] == "rw");
  if (parts.empty() || parts[0].empty() || parts.size() > 3 || (parts.size() == 3 && !has_mode)) {
    fail("", "Write SOURCE:TARGET or SOURCE:TARGET:ro.");
  }
  ContainerMount mount = {.source = fs::absolute(parts[0]).lexically_normal(),
                          .target = parts.size() > 1 ? fs::path(parts[1]) : fs::absolute(parts[0]).lexically_normal(),
                          .is_read_only = has_mode && parts[2] == "ro"};
  std::error_code error;
  if (!fs::exists(mount.source, error)) fail("There is no " + mount.source.string() + " here.", "Name what exists.");
  if (!mount.target.is_absolute()) fail("The place in the image is not absolute.", "Begin it with a slash.");
  if (mount.target.lexically_normal() == "/") {
    fail("The root folder of the image cannot be mounted over: the image would be gone.", "Name a folder in it.");
  }
  return mount;
}

}  // namespace

std::vector<ContainerMount> parse_mounts(const std::string& text) {
  std::vector<ContainerMount> mounts;
  std::istringstream stream(text);
  for (std::string one; std::getline(stream, one, ',');) {
    if (!one.empty()) mounts.push_back(parse_mount(one));
  }
  return mounts;
}

int run_in_image(const ContainerRun& run, const base::InterruptGuard& guard) {
  const TemporaryFolder folder(run.unpack_folder);
  unpack(run.image, folder.path() / "root", &guard);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    ::signal(SIGXFSZ, SIG_DFL);
    become(run, folder.path() / "root");
  }
  if (pid < 0) {
    throw base::UserError({.what = std::string("Cannot start another process: ") + std::strerror(errno) + ".",
                           .fix = "Raise the limit of processes (ulimit -u)."});
  }
  return wait_and_forward(pid, guard);
}

}  // namespace pharos::launch
