#include "pharos/base/subprocess.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "pharos/base/error.h"
#include "pharos/base/file.h"

namespace pharos::base {
namespace {

Command shell(const std::string& script) { return {.words = {"sh", "-c", script}}; }

bool is_alive(const std::string& pid) {
  std::ifstream status("/proc/" + pid + "/stat");
  std::string number, name, state;
  return static_cast<bool>(status >> number >> name >> state) && state != "Z";
}

TEST(Subprocess, TakesBothOutputsAndTheCode) {
  struct Case {
    const char* script;
    int code;
    const char* output;
    const char* error;
  };
  const Case cases[] = {
      {"echo out; echo err >&2", 0, "out\n", "err\n"},
      {"printf nothing-after; exit 7", 7, "nothing-after", ""},
      {"kill -KILL $$", 137, "", ""},
      {"read line || echo no input", 0, "no input\n", ""},
      {"exec 1>&- 2>&-; sleep 0.1; exit 3", 3, "", ""},
  };
  for (const Case& expected : cases) {
    const CommandResult result = run_command(shell(expected.script));
    EXPECT_EQ(result.exit_code, expected.code) << expected.script;
    EXPECT_EQ(result.output, expected.output) << expected.script;
    EXPECT_EQ(result.error, expected.error) << expected.script;
    EXPECT_FALSE(result.timed_out);
  }
}

TEST(Subprocess, MoreThanAPipeHolds) {
  const CommandResult result = run_command(shell("head -c 3000000 /dev/zero; head -c 300000 /dev/zero >&2"));
  EXPECT_EQ(result.output.size(), 3'000'000u);
  EXPECT_EQ(result.error.size(), 300'000u);
}

TEST(Subprocess, GivesLinesAsTheyCome) {
  std::vector<std::string> lines;
  Command command = shell("echo one; printf 'two\\rthree\\n\\nfour'");
  command.on_line = [&](std::string_view line) { lines.emplace_back(line); };
  run_command(command);
  EXPECT_EQ(lines, (std::vector<std::string>{"one", "two", "three", "four"}));
}

TEST(Subprocess, VariablesFolderAndInput) {
  const auto input = std::filesystem::temp_directory_path() / ("subprocess_input_" + std::to_string(getpid()));
  write_file_atomically(input, "from a file");
  setenv("SUBPROCESS_TEST", "of the parent", 1);
  Command command = shell("cat; echo; pwd; echo $SUBPROCESS_TEST; env | grep -c SUBPROCESS_TEST=");
  command.variables = {"SUBPROCESS_TEST=of the command"};
  command.folder = "/";
  command.input_file = input;
  EXPECT_EQ(run_command(command).output, "from a file\n/\nof the command\n1\n");
  unsetenv("SUBPROCESS_TEST");
  std::filesystem::remove(input);
  EXPECT_THROW(run_command(command), UserError);
}

TEST(Subprocess, AMissingProgramIsNamed) {
  try {
    run_command({.words = {"no-such-program"}});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("no-such-program"), std::string::npos);
  }
  EXPECT_EQ(find_program("sh").value().filename(), "sh");
  EXPECT_FALSE(find_program("/etc/passwd"));
  EXPECT_FALSE(find_program("/etc"));
}

TEST(Subprocess, ALimitEndsTheWholeGroup) {
  Command command = shell("sleep 1000 & echo $!; wait");
  command.limit_ms = 300;
  const CommandResult result = run_command(command);
  EXPECT_TRUE(result.timed_out);
  EXPECT_EQ(result.exit_code, 128 + SIGTERM);
  const std::string child = result.output.substr(0, result.output.find('\n'));
  for (int i = 0; i < 500 && is_alive(child); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_FALSE(is_alive(child));  // told to end; when it has ended is for the kernel
}

TEST(Subprocess, AProcessThatIsLeftBehindIsNotWaitedFor) {
  const CommandResult result = run_command(shell("sleep 5 & echo $!"));
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_TRUE(is_alive(result.output.substr(0, result.output.find('\n'))));
  kill(static_cast<pid_t>(std::stol(result.output)), SIGKILL);
}

TEST(Subprocess, AnExceptionEndsTheCommand) {
  std::string pid;
  Command command = shell("echo $$; exec sleep 1000");
  command.on_line = [&](std::string_view line) {
    pid = line;
    throw InternalError("enough");
  };
  EXPECT_THROW(run_command(command), InternalError);
  EXPECT_FALSE(is_alive(pid));
}

TEST(Subprocess, ASignalUnderTheGuardEndsTheCommandAndNotTheProcess) {
  const InterruptGuard guard;
  const pthread_t self = pthread_self();
  std::string pid;
  Command command = shell("echo $$; exec sleep 1000");
  command.guard = &guard;
  command.on_line = [&](std::string_view line) {
    pid = line;
    pthread_kill(self, SIGTERM);
  };
  try {
    run_command(command);
    FAIL();
  } catch (const InterruptedError& error) {
    EXPECT_EQ(error.signal(), SIGTERM);
  }
  EXPECT_FALSE(is_alive(pid));
}

TEST(Subprocess, ShellLinesComeBackAsTheyWere) {
  const std::vector<std::string> words = {"printf", "%s|", "plain", "", "with space", "it's", "$HOME", "a=b"};
  EXPECT_EQ(run_command(shell(shell_line(words))).output, "plain||with space|it's|$HOME|a=b|");
  EXPECT_THROW(shell_line({"fine", std::string("a\0b", 3)}), UserError);
}

TEST(Subprocess, LastLines) {
  EXPECT_EQ(last_lines("one\ntwo\n\nthree\n", 2), "two\nthree");
  EXPECT_EQ(last_lines("one", 5), "one");
  EXPECT_EQ(last_lines("\n \n", 5), "");
}

}  // namespace
}  // namespace pharos::base
