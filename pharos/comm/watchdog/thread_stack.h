// The stack of another thread of this process, while that thread hangs.
#pragma once

#include <pthread.h>

#include <string>
#include <vector>

namespace pharos::comm {

/// Makes ready what thread_stack() needs: loads the unwinder (which allocates) and installs the handler of a real-time
/// signal.
void prepare_thread_stack();

/// Innermost call first, "function+0x12 (file)"; empty when the thread does not answer within a second (it blocks
/// signals, or waits in the kernel without being interruptible).
std::vector<std::string> thread_stack(pthread_t thread);

}  // namespace pharos::comm
