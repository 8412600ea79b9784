// Signals that end a process, seen by telemetry first: the handler only notes them, a thread of the hook acts, which
// neither a busy training thread nor an exporter that hangs can hold up.
#pragma once

#include <functional>

namespace pharos::lens::signal_hook {

/// Handles SIGTERM and SIGINT from here on, except where they are ignored: `act` is called with the signal, in the
/// hook's thread. std::system_error when there can be no thread; then nothing was changed. A child made by fork handles
/// them as it would without the hook.
void install(std::function<void(int)> act);

/// Puts back what handled `signal` before install() and sends it to this process.
void pass_on(int signal);

/// Puts back what was there before, where nobody else has put a handler of his own since. A handler of his own that
/// calls ours from then on reaches what was there before.
void restore();

}  // namespace pharos::lens::signal_hook
