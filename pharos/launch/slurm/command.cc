#include "pharos/launch/slurm/command.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <sstream>

#include "pharos/base/clock.h"
#include "pharos/base/environment.h"
#include "pharos/base/error.h"

namespace pharos::launch::slurm {
namespace {

[[noreturn]] void fail(const std::string& program) {
  throw base::UserError({.what = "'" + program + "' cannot be started: " + std::strerror(errno) + ".",
                         .where = program,
                         .fix = "Check the limits of this user (ulimit -a)."});
}

struct Pipe {
  explicit Pipe(const std::string& program) {
    if (pipe2(ends.data(), O_CLOEXEC) != 0) fail(program);
  }
  ~Pipe() {
    close_write();
    if (ends[0] >= 0) close(ends[0]);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  void close_write() {
    if (ends[1] >= 0) close(ends[1]);
    ends[1] = -1;
  }
  /// false at the end.
  bool read_into(std::string& text) {
    std::array<char, 4096> buffer = {};
    const ssize_t count = read(ends[0], buffer.data(), buffer.size());
    if (count > 0) text.append(buffer.data(), static_cast<std::size_t>(count));
    return count > 0 || (count < 0 && errno == EINTR);
  }
  std::array<int, 2> ends = {-1, -1};
};

pid_t start(const std::vector<std::string>& words, const Pipe& output, const Pipe& errors) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const pid_t process = fork();
  if (process < 0) fail(words.front());
  if (process > 0) return process;
  const int nothing = open("/dev/null", O_RDONLY);
  dup2(nothing, STDIN_FILENO);
  dup2(output.ends[1], STDOUT_FILENO);
  dup2(errors.ends[1], STDERR_FILENO);
  execvp(arguments[0], arguments.data());
  _exit(127);
}

}  // namespace

CommandResult run_command(const std::vector<std::string>& words, std::optional<std::chrono::milliseconds> limit,
                          const std::function<void(std::string_view)>& on_output) {
  CommandResult result;
  Pipe output(words.front());
  Pipe errors(words.front());
  const pid_t process = start(words, output, errors);
  output.close_write();
  errors.close_write();
  const std::int64_t end_ns = base::monotonic_ns() + (limit ? limit->count() * 1'000'000 : 0);
  std::array<pollfd, 2> ends = {pollfd{output.ends[0], POLLIN, 0}, pollfd{errors.ends[0], POLLIN, 0}};
  bool is_late = false;
  while (ends[0].fd >= 0 || ends[1].fd >= 0) {
    const std::int64_t left_ms = (end_ns - base::monotonic_ns()) / 1'000'000;
    is_late = limit && left_ms <= 0;
    if (is_late) break;
    if (poll(ends.data(), ends.size(), limit ? static_cast<int>(std::min<std::int64_t>(left_ms + 1, 60'000)) : -1) < 0)
      continue;
    if (ends[0].revents != 0) {
      if (!output.read_into(result.output)) ends[0].fd = -1;
      if (on_output) on_output(result.output);
    }
    if (ends[1].revents != 0 && !errors.read_into(result.errors)) ends[1].fd = -1;
  }
  if (is_late) kill(process, SIGKILL);
  int status = 0;
  while (waitpid(process, &status, 0) < 0 && errno == EINTR) {
  }
  result.code = is_late ? 124 : WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

std::optional<std::filesystem::path> find_in_path(const std::string& name) {
  std::istringstream folders(base::get_environment("PATH").value_or(""));
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::filesystem::path path = std::filesystem::path(folder.empty() ? "." : folder) / name;
    std::error_code ignored;
    if (std::filesystem::is_regular_file(path, ignored) && access(path.c_str(), X_OK) == 0) return path;
  }
  return std::nullopt;
}

}  // namespace pharos::launch::slurm
