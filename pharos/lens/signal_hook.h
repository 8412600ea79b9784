// Signals that end a process, seen by telemetry first: the handler only notes them, the exporter thread acts.
#pragma once

namespace pharos::lens::signal_hook {

/// Handles SIGTERM and SIGINT from here on, except where they are ignored.
void install();

/// The signal that came since the last call; 0: none.
int take();

/// Puts back what handled `signal` before install() and sends it to this process.
void pass_on(int signal);

/// Puts back what was there before, where nobody else has put a handler of his own since.
void restore();

}  // namespace pharos::lens::signal_hook
