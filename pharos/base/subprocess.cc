#include "pharos/base/subprocess.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <utility>

#include "pharos/base/clock.h"
#include "pharos/base/environment.h"
#include "pharos/base/error.h"
#include "pharos/base/text.h"

namespace pharos::base {
namespace {

constexpr std::size_t kMaxOutputBytes = std::size_t{16} << 20;
constexpr std::int64_t kPatienceNs = 2'000'000'000;

class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() { close(); }
  void close() {
    if (number_ >= 0) ::close(number_);
    number_ = -1;
  }
  int number() const { return number_; }

 private:
  int number_ = -1;
};

[[noreturn]] void fail_to_start(const Command& command, int error) {
  throw UserError({.what = "Cannot run " + command.words[0] + ": " + std::strerror(error) + ".",
                   .fix = "Check that this process may start others and open files (ulimit -u, ulimit -n)."});
}

std::pair<Descriptor, Descriptor> make_pipe(const Command& command) {
  std::array<int, 2> ends = {};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) fail_to_start(command, errno);
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

std::vector<std::string> variables_of(const Command& command) {
  std::vector<std::string> all = command.variables;
  const auto is_given = [&](std::string_view text) {
    const std::string_view name = text.substr(0, text.find('=') + 1);
    return std::any_of(command.variables.begin(), command.variables.end(),
                       [&](const std::string& variable) { return variable.starts_with(name); });
  };
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    if (!is_given(*variable)) all.emplace_back(*variable);
  }
  return all;
}

/// Pointers as exec wants them; `texts` must outlive them.
std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

/// One end of the command's outputs, taken apart into lines.
struct Stream {
  Descriptor descriptor;
  std::string* text = nullptr;
  std::string line = {};

  /// False at the end.
  bool read(const std::function<void(std::string_view)>& on_line) {
    std::array<char, 65536> buffer = {};
    const ssize_t size = ::read(descriptor.number(), buffer.data(), buffer.size());
    if (size < 0) return errno == EINTR || errno == EAGAIN;
    const std::string_view part(buffer.data(), static_cast<std::size_t>(size));
    text->append(part.substr(0, kMaxOutputBytes - std::min(kMaxOutputBytes, text->size())));
    if (on_line) {
      line.append(part);
      // A progress line that is written anew ends in a carriage return.
      for (std::size_t end = 0; (end = line.find_first_of("\n\r")) != std::string::npos; line.erase(0, end + 1)) {
        if (end > 0) on_line(std::string_view(line).substr(0, end));
      }
      if (size == 0 && !line.empty()) on_line(std::exchange(line, {}));
    }
    return size > 0;
  }
};

class RunningCommand {
 public:
  RunningCommand(const Command& command, const std::filesystem::path& program) : command_(command) {
    const std::string input = command.input_file.empty() ? "/dev/null" : command.input_file.string();
    const Descriptor input_end(open(input.c_str(), O_RDONLY | O_CLOEXEC));
    if (input_end.number() < 0) {
      throw UserError({.what = "Cannot read " + input + ": " + std::strerror(errno) + ".",
                       .where = "standard input of " + command.words[0]});
    }
    auto [output, output_end] = make_pipe(command);
    auto [error, error_end] = make_pipe(command);
    streams_[0] = {.descriptor = std::move(output), .text = &result_.output};
    streams_[1] = {.descriptor = std::move(error), .text = &result_.error};
    const std::vector<std::string> variables = variables_of(command);
    const std::vector<char*> words = pointers_to(command.words), environment = pointers_to(variables);
    const pid_t parent = getpid();
    pid_ = fork();
    if (pid_ < 0) fail_to_start(command, errno);
    if (pid_ == 0) {
      dup2(input_end.number(), STDIN_FILENO);
      dup2(output_end.number(), STDOUT_FILENO);
      dup2(error_end.number(), STDERR_FILENO);
      become(program, words.data(), environment.data(), parent);
    }
    setpgid(pid_, pid_);  // both sides do it: neither waits for the other
    process_ = Descriptor(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
  }
  ~RunningCommand() {
    if (pid_ > 0) end_early();
  }
  RunningCommand(const RunningCommand&) = delete;
  RunningCommand& operator=(const RunningCommand&) = delete;

  CommandResult run() {
    const std::int64_t deadline_ns = monotonic_ns() + command_.limit_ms.value_or(0) * 1'000'000;
    while (true) {
      if (wait_for_event(command_.limit_ms ? std::optional(deadline_ns) : std::nullopt)) break;
      if (command_.limit_ms && monotonic_ns() >= deadline_ns) {
        result_.timed_out = true;
        end_early();
        break;
      }
    }
    if (pid_ > 0) reap();
    return std::move(result_);
  }

 private:
  [[noreturn]] void become(const std::filesystem::path& program, char* const* words, char* const* environment,
                           pid_t parent) const {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(127);  // it died before the line above
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    for (const int signal : {SIGPIPE, SIGXFSZ, SIGCHLD}) ::signal(signal, SIG_DFL);
    ::signal(SIGTTOU, SIG_IGN);  // its group is in the background of a terminal
    if (!command_.folder.empty() && chdir(command_.folder.c_str()) != 0) fail_in_child(command_.folder.c_str());
    execve(program.c_str(), words, environment);
    fail_in_child(program.c_str());
  }

  [[noreturn]] static void fail_in_child(const char* name) {
    const char* const reason = std::strerror(errno);
    for (const char* text : {name, ": ", reason, "\n"}) {
      if (::write(STDERR_FILENO, text, std::strlen(text)) < 0) break;
    }
    _exit(127);
  }

  /// Waits for output, the end, a signal of the guard or the deadline. True: the outputs are read to their end, or the
  /// command has ended and what it left in the pipes is read. A grandchild that keeps a pipe open is not waited for.
  bool wait_for_event(std::optional<std::int64_t> deadline_ns) {
    std::array<pollfd, 4> events = {};
    for (std::size_t i = 0; i < 2; ++i)
      events[i] = {.fd = streams_[i].descriptor.number(), .events = POLLIN, .revents = 0};
    events[2] = {.fd = process_.number(), .events = POLLIN, .revents = 0};
    events[3] = {.fd = command_.guard == nullptr ? -1 : command_.guard->descriptor(), .events = POLLIN, .revents = 0};
    // Without a process descriptor (an old kernel) the end shows when both outputs close.
    int wait_ms = -1;
    if (deadline_ns) {
      const std::int64_t left_ms = (*deadline_ns - monotonic_ns()) / 1'000'000 + 1;
      wait_ms = static_cast<int>(std::clamp<std::int64_t>(left_ms, 0, 3'600'000));
    }
    if (poll(events.data(), events.size(), wait_ms) < 0 && errno != EINTR) fail_to_start(command_, errno);
    if ((events[3].revents & POLLIN) != 0) interrupt();
    for (std::size_t i = 0; i < 2; ++i) {
      if (events[i].revents != 0 && !streams_[i].read(command_.on_line)) streams_[i].descriptor.close();
    }
    if ((events[2].revents & POLLIN) != 0) {
      drain();
      return true;
    }
    return process_.number() < 0 && streams_[0].descriptor.number() < 0 && streams_[1].descriptor.number() < 0;
  }

  void drain() {
    for (Stream& stream : streams_) {
      if (stream.descriptor.number() < 0) continue;
      fcntl(stream.descriptor.number(), F_SETFL, O_NONBLOCK);
      pollfd event = {.fd = stream.descriptor.number(), .events = POLLIN, .revents = 0};
      while (poll(&event, 1, 0) > 0 && stream.read(command_.on_line)) {
      }
      if (command_.on_line && !stream.line.empty()) command_.on_line(std::exchange(stream.line, {}));
    }
  }

  [[noreturn]] void interrupt() {
    signalfd_siginfo info = {};
    int signal = SIGTERM;
    if (::read(command_.guard->descriptor(), &info, sizeof info) == sizeof info) {
      signal = static_cast<int>(info.ssi_signo);
    }
    end_early();
    throw InterruptedError(signal);
  }

  /// Ends the whole group: SIGTERM, then SIGKILL.
  void end_early() {
    kill(-pid_, SIGTERM);
    const std::int64_t deadline_ns = monotonic_ns() + kPatienceNs;
    int status = 0;
    pid_t ended = 0;
    while ((ended = waitpid(pid_, &status, WNOHANG)) == 0 && monotonic_ns() < deadline_ns) {
      pollfd event = {.fd = process_.number(), .events = POLLIN, .revents = 0};
      poll(&event, 1, 20);
    }
    kill(-pid_, SIGKILL);  // the rest of the group, whose number stays taken while one is left
    if (ended == 0) {
      reap();
    } else {
      take(status);
    }
  }

  void reap() {
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    take(status);
  }

  void take(int status) {
    result_.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    pid_ = -1;
  }

  const Command& command_;
  CommandResult result_;
  std::array<Stream, 2> streams_;
  Descriptor process_;
  pid_t pid_ = -1;
};

bool is_plain(char character) {
  return std::isalnum(static_cast<unsigned char>(character)) != 0 ||
         std::string_view("_-./:=,+@%").find(character) != std::string_view::npos;
}

}  // namespace

std::optional<std::filesystem::path> find_program(const std::string& name) {
  const auto is_program = [](const std::filesystem::path& path) {
    std::error_code error;
    return std::filesystem::is_regular_file(path, error) && access(path.c_str(), X_OK) == 0;
  };
  if (name.find('/') != std::string::npos)
    return is_program(name) ? std::optional(std::filesystem::path(name)) : std::nullopt;
  const std::string folders = get_environment("PATH").value_or("/usr/local/bin:/usr/bin:/bin");
  for (std::size_t begin = 0; begin <= folders.size();) {
    const std::size_t end = std::min(folders.find(':', begin), folders.size());
    const std::string folder = folders.substr(begin, end - begin);
    const std::filesystem::path path = std::filesystem::path(folder.empty() ? "." : folder) / name;
    if (!name.empty() && is_program(path)) return path;
    begin = end + 1;
  }
  return std::nullopt;
}

std::string shell_line(const std::vector<std::string>& words) {
  std::vector<std::string> quoted;
  for (const std::string& word : words) {
    if (const auto nul = word.find('\0'); nul != std::string::npos) {
      throw UserError({.what = "A word of a command line holds a NUL byte, which no command line can carry.",
                       .where = "'" + word.substr(0, nul) + "'",
                       .fix = "Leave the byte out."});
    }
    if (!word.empty() && std::all_of(word.begin(), word.end(), is_plain)) {
      quoted.push_back(word);
      continue;
    }
    std::string text = "'";
    for (const char character : word) text += character == '\'' ? std::string("'\\''") : std::string(1, character);
    quoted.push_back(text + "'");
  }
  return join(quoted, " ");
}

InterruptedError::InterruptedError(int signal)
    : std::runtime_error(std::string("interrupted by signal ") + std::to_string(signal)), signal_(signal) {}

InterruptGuard::InterruptGuard() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, &mask_before_);
  descriptor_ = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
  PHAROS_CHECK(descriptor_ >= 0, std::strerror(errno));
}

InterruptGuard::~InterruptGuard() {
  ::close(descriptor_);
  pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
}

CommandResult run_command(const Command& command) {
  PHAROS_CHECK(!command.words.empty(), "a command without words");
  const auto program = find_program(command.words[0]);
  if (!program) {
    throw UserError({.what = "There is no program " + command.words[0] + ".",
                     .where = command.words[0].find('/') == std::string::npos ? "folders of PATH" : "",
                     .fix = "Install it, or add its folder to PATH."});
  }
  return RunningCommand(command, *program).run();
}

std::string last_lines(std::string_view text, int count) {
  std::vector<std::string> lines;
  while (!text.empty() && std::ssize(lines) < count) {
    const std::size_t begin = text.find_last_of("\r\n");
    const std::string_view line = begin == std::string_view::npos ? text : text.substr(begin + 1);
    if (line.find_first_not_of(" \t") != std::string_view::npos) lines.emplace(lines.begin(), line);
    text = text.substr(0, begin == std::string_view::npos ? 0 : begin);
  }
  return join(lines, "\n");
}

}  // namespace pharos::base
