// Plain sockets of the rendezvous. Knows no torch.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace pharos::comm {

/// Socket that listens on `port` (0: any free one) of the loopback interface or of all, closed on exec. UserError.
int open_listen_socket(std::uint16_t port, bool is_local_only);
/// Port a socket listens on. UserError when it is no socket.
std::uint16_t port_of(int listen_socket);
void close_on_exec(int descriptor);
/// "localhost", "127.0.0.1", "::1", ….
bool is_loopback_address(const std::string& address);

/// Connects to the master, trying again while nobody listens, and hangs up. Returns the numeric address of this host's
/// interface that leads there. UserError after `timeout`, MeetingInterrupted when
/// this process is asked to stop.
std::string reach_master(const std::string& host, std::uint16_t port, std::chrono::milliseconds timeout);

/// Numeric address of the first interface that leads out of this host; empty where there is none.
std::string first_outer_address();

}  // namespace pharos::comm
