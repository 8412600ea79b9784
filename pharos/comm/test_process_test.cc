#include "pharos/comm/test_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

namespace pharos::comm::testing {

Process::Process(std::vector<std::string> arguments, const std::vector<std::string>& variables) {
  std::string program(PHAROS_COMM_PROBE);
  std::vector<char*> argv{program.data()}, envp;
  for (auto& argument : arguments) argv.push_back(argument.data());
  for (auto** entry = environ; *entry != nullptr; ++entry) envp.push_back(*entry);
  for (const auto& variable : variables) envp.push_back(const_cast<char*>(variable.c_str()));
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  std::array<int, 2> pipe;
  EXPECT_EQ(::pipe2(pipe.data(), O_CLOEXEC), 0);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, pipe[1], STDERR_FILENO);
  EXPECT_EQ(::posix_spawn(&pid_, PHAROS_COMM_PROBE, &actions, nullptr, argv.data(), envp.data()), 0);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(pipe[1]);
  errors_ = pipe[0];
}

Ended Process::wait() {
  Ended ended;
  std::array<char, 4096> buffer;
  for (ssize_t size; (size = ::read(errors_, buffer.data(), buffer.size())) > 0;) {
    ended.errors.append(buffer.data(), static_cast<std::size_t>(size));
  }
  ::close(errors_);
  ::waitpid(pid_, &ended.status, 0);
  return ended;
}

}  // namespace pharos::comm::testing
