// Jobs of shell scripts: the launcher runs in a process of its own, so that it can be signalled and killed.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/launch/job.h"

namespace pharos::launch::testing {

inline std::string content(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline std::vector<std::string> lines_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

/// A temporary folder `folder`, with the run's folder, which is not made yet, in it.
class JobTest : public ::testing::Test {
 protected:
  JobTest() {
    std::string name = (std::filesystem::temp_directory_path() / "pharos_launch_XXXXXX").string();
    folder = mkdtemp(name.data());
    run_folder = folder / "runs/a";
  }
  ~JobTest() override {
    if (launcher_ > 0) {
      kill(launcher_, SIGKILL);
      waitpid(launcher_, nullptr, 0);
    }
    std::filesystem::remove_all(folder);
  }

  /// A job of `num_ranks` ranks of /bin/sh with `script`, in which $F is the temporary folder. Ranks that are to be
  /// ended are, soon.
  JobOptions job_of(std::int64_t num_ranks, const std::string& script) const {
    base::write_file_atomically(folder / "rank.sh", "F='" + folder.string() + "'\n" + script + "\n");
    JobOptions options;
    options.num_ranks = num_ranks;
    options.program = "/bin/sh";
    options.arguments = {(folder / "rank.sh").string(), "recipe", "a=b"};
    options.run_folder = run_folder;
    options.restart_delay = std::chrono::milliseconds(1);
    options.patience.after_failure = std::chrono::milliseconds(100);
    options.patience.after_terminate = std::chrono::milliseconds(200);
    return options;
  }

  /// Starts a launcher in its own process group; what ranks and launcher print goes to files of the folder. Its own
  /// UserError gives 2 and goes to the report.
  void start(const JobOptions& options) {
    launcher_ = fork();
    if (launcher_ != 0) return;
    setpgid(0, 0);
    const int console = open((folder / "console").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    dup2(console, STDOUT_FILENO);
    dup2(console, STDERR_FILENO);
    std::ofstream report(folder / "report", std::ios::app);
    int code = 2;
    try {
      code = run_local_job(options, report);
    } catch (const base::UserError& error) {
      report << error.what();
    }
    report.close();
    _exit(code);
  }

  /// Exit code of the launcher, or minus the signal that ended it.
  int wait() {
    int status = 0;
    EXPECT_EQ(waitpid(launcher_, &status, 0), launcher_);
    launcher_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

  int run(const JobOptions& options) {
    start(options);
    return wait();
  }

  std::string report() const { return content(folder / "report"); }
  pid_t launcher() const { return launcher_; }

  /// Waits until `condition` holds or the launcher has ended.
  void wait_until(const std::function<bool()>& condition) const {
    siginfo_t info = {};
    while (!condition()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      if (waitid(P_PID, static_cast<id_t>(launcher_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid != 0) {
        ASSERT_TRUE(condition()) << "the launcher has ended: " << report();
      }
    }
  }
  void wait_for_files(const std::vector<std::string>& names) const {
    for (const std::string& name : names) {
      wait_until([&] { return !content(folder / name).empty(); });
    }
  }

  std::filesystem::path folder;
  std::filesystem::path run_folder;

 private:
  pid_t launcher_ = 0;
};

}  // namespace pharos::launch::testing
