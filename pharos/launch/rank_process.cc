#include "pharos/launch/rank_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "pharos/base/error.h"

namespace pharos::launch {
namespace {

[[noreturn]] void fail_to_listen(std::uint16_t port, int error) {
  if (port != 0) {
    throw base::UserError(
        {.what = "Port " + std::to_string(port) + " of 127.0.0.1 cannot be used: " + std::strerror(error) + ".",
         .where = "environment variable MASTER_PORT",
         .why = "The ranks of a job meet at this port.",
         .fix = "Unset MASTER_PORT, then a free port is taken, or name another."});
  }
  throw base::UserError({.what = std::string("No port of 127.0.0.1 can be opened: ") + std::strerror(error) + ".",
                         .why = "The ranks of a job meet at a local port.",
                         .fix = "Check that this process may open sockets and that ports are free."});
}

std::int64_t num_cores() {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof cores, &cores) == 0 ? std::max(CPU_COUNT(&cores), 1)
                                                         : std::max(1L, sysconf(_SC_NPROCESSORS_ONLN));
}

/// Pointers as exec wants them; `texts` must outlive them.
std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

void write_text(std::string_view text) {
  if (::write(STDERR_FILENO, text.data(), text.size()) < 0) return;  // nobody is left to be told
}

/// Between fork and exec: only calls that are safe in a process whose other threads are gone.
[[noreturn]] void become(const ProcessOptions& options, char* const* arguments, char* const* variables,
                         pid_t launcher) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launcher) _exit(127);  // it died before the line above
  signal(SIGTTOU, SIG_IGN);               // rank 0 writes to the terminal although its group is in the background
  signal(SIGCHLD, SIG_DFL);
  const int nothing = open("/dev/null", O_RDWR);
  if (nothing >= 0) dup2(nothing, STDIN_FILENO);
  if (nothing > STDERR_FILENO) close(nothing);
  if (options.output_descriptor >= 0) {
    dup2(options.output_descriptor, STDOUT_FILENO);
    dup2(options.output_descriptor, STDERR_FILENO);
  }
  if (options.inherit_descriptor >= 0) fcntl(options.inherit_descriptor, F_SETFD, 0);
  sigprocmask(SIG_SETMASK, &options.signal_mask, nullptr);
  execve(options.program.c_str(), arguments, variables);
  write_text("error: cannot execute ");
  write_text(options.program.c_str());
  write_text("\n");
  _exit(127);
}

}  // namespace

ListenSocket::ListenSocket(std::uint16_t port) : descriptor_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  if (descriptor_ < 0) fail_to_listen(port, errno);
  const int yes = 1;  // connections of the attempt before linger on the same port
  setsockopt(descriptor_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(descriptor_, generic, length) != 0 || listen(descriptor_, SOMAXCONN) != 0 ||
      getsockname(descriptor_, generic, &length) != 0) {
    const int error = errno;
    close(descriptor_);
    fail_to_listen(port, error);
  }
  port_ = ntohs(address.sin_port);
}

ListenSocket::~ListenSocket() { close(descriptor_); }

std::vector<std::string> own_variables() {
  std::vector<std::string> variables;
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    variables.emplace_back(*variable);
  }
  return variables;
}

std::vector<std::string> rank_variables(const std::vector<std::string>& inherited, const RankPlace& place) {
  std::vector<std::string> variables = inherited;
  const auto erase = [&variables](const std::string& name) {
    return std::erase_if(variables, [&](const std::string& text) { return text.starts_with(name + "="); });
  };
  const auto set = [&](const std::string& name, const std::string& value) {
    erase(name);
    variables.push_back(name + "=" + value);
  };
  set("RANK", std::to_string(place.rank));
  set("WORLD_SIZE", std::to_string(place.num_ranks));
  set("LOCAL_RANK", std::to_string(place.rank));
  set("LOCAL_WORLD_SIZE", std::to_string(place.num_ranks));
  set("MASTER_ADDR", "127.0.0.1");
  set("MASTER_PORT", std::to_string(place.port));
  erase("PHAROS_LISTEN_SOCKET");
  if (place.rank == 0) set("PHAROS_LISTEN_SOCKET", std::to_string(place.listen_descriptor));
  const bool is_set = std::any_of(variables.begin(), variables.end(), [](const std::string& text) {
    return text.starts_with("OMP_NUM_THREADS=") && text != "OMP_NUM_THREADS=";
  });
  if (!is_set) set("OMP_NUM_THREADS", std::to_string(std::max<std::int64_t>(1, num_cores() / place.num_ranks)));
  return variables;
}

pid_t start_process(const ProcessOptions& options) {
  const std::vector<char*> arguments = pointers_to(options.arguments);
  const std::vector<char*> variables = pointers_to(options.variables);
  const pid_t launcher = getpid();
  const pid_t pid = fork();
  if (pid == 0) become(options, arguments.data(), variables.data(), launcher);
  if (pid > 0) return pid;
  throw base::UserError({.what = std::string("Cannot start another process: ") + std::strerror(errno) + ".",
                         .fix = "Start fewer ranks, or raise the limit of processes (ulimit -u) or memory."});
}

std::filesystem::path own_program() {
  const std::filesystem::path link = "/proc/self/exe";
  std::error_code error;
  const std::filesystem::path path = std::filesystem::read_symlink(link, error);
  struct stat named = {}, running = {};
  if (error || stat(path.c_str(), &named) != 0 || stat(link.c_str(), &running) != 0) return link;
  return named.st_ino == running.st_ino && named.st_dev == running.st_dev ? path : link;
}

}  // namespace pharos::launch
