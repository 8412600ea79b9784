#include "pharos/comm/watchdog/thread_stack.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <signal.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>

namespace pharos::comm {
namespace {

// Not one of those that people and SLURM send to ask a run to save and leave.
int stack_signal() { return SIGRTMIN + 5; }

constexpr int kMostFrames = 64;

// Written by the handler: nothing there may allocate or lock.
std::array<void*, kMostFrames> frames;
std::atomic<int> num_frames = -1;
static_assert(std::atomic<int>::is_always_lock_free);

void take_stack(int) {
  const int error = errno;
  num_frames.store(::backtrace(frames.data(), kMostFrames), std::memory_order_release);
  errno = error;
}

std::string name_of(void* address) {
  Dl_info info{};
  std::array<char, 64> text;
  if (::dladdr(address, &info) == 0 || info.dli_fname == nullptr) {
    std::snprintf(text.data(), text.size(), "%p", address);
    return text.data();
  }
  const std::string file = info.dli_fname;
  // With its offset in the file, addr2line finds the line where the program keeps its own names to itself.
  const bool is_named = info.dli_sname != nullptr;
  const auto* base = static_cast<const char*>(is_named ? info.dli_saddr : info.dli_fbase);
  std::snprintf(text.data(), text.size(), "+0x%tx", static_cast<const char*>(address) - base);
  std::string name;
  if (is_named) {
    int status = 0;
    const std::unique_ptr<char, decltype(&std::free)> plain(
        abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status), &std::free);
    name = status == 0 ? plain.get() : info.dli_sname;
  }
  return name.append(text.data()).append(" (").append(file.substr(file.rfind('/') + 1)).append(")");
}

}  // namespace

void prepare_thread_stack() {
  std::array<void*, 2> unused;
  ::backtrace(unused.data(), 2);
  struct sigaction action {};
  action.sa_handler = &take_stack;
  action.sa_flags = SA_RESTART;
  ::sigaction(stack_signal(), &action, nullptr);
}

std::vector<std::string> thread_stack(pthread_t thread) {
  num_frames.store(-1);
  if (::pthread_kill(thread, stack_signal()) != 0) return {};
  for (int waited_ms = 0; num_frames.load(std::memory_order_acquire) < 0; ++waited_ms) {
    if (waited_ms == 1000) return {};
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::vector<std::string> lines;
  // The first two are the handler and the kernel's return from it.
  for (int i = 2; i < num_frames.load(); ++i) lines.push_back(name_of(frames[static_cast<std::size_t>(i)]));
  return lines;
}

}  // namespace pharos::comm
