// Plain sockets: the one the store is served on, and how a rank finds the master without c10d's waits of a second.
#include "pharos/comm/world/sockets.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

#include "pharos/base/error.h"
#include "pharos/base/text.h"
#include "pharos/comm/interruption.h"
#include "pharos/comm/world/rendezvous.h"

namespace pharos::comm {
namespace {

using std::chrono::steady_clock;

int bind_and_listen(int family, std::uint16_t port, bool is_local_only) {
  const int socket = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return -1;
  const int yes = 1;
  const int no = 0;
  ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_storage address{};
  socklen_t size = 0;
  if (family == AF_INET6) {
    ::setsockopt(socket, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
    auto& six = reinterpret_cast<sockaddr_in6&>(address);
    six.sin6_family = AF_INET6;
    six.sin6_port = htons(port);
    six.sin6_addr = in6addr_any;
    size = sizeof six;
  } else {
    auto& four = reinterpret_cast<sockaddr_in&>(address);
    four.sin_family = AF_INET;
    four.sin_port = htons(port);
    four.sin_addr.s_addr = htonl(is_local_only ? INADDR_LOOPBACK : INADDR_ANY);
    size = sizeof four;
  }
  if (::bind(socket, reinterpret_cast<sockaddr*>(&address), size) == 0 && ::listen(socket, 4096) == 0) return socket;
  const int error = errno;
  ::close(socket);
  errno = error;
  return -1;
}

std::string numeric_address(const sockaddr* address, socklen_t size) {
  char text[NI_MAXHOST] = "";
  ::getnameinfo(address, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return text;
}

/// Empty: connected, `local_address` is set. Else why not.
std::string connect_once(const addrinfo& target, std::chrono::milliseconds limit, std::string& local_address) {
  const int socket = ::socket(target.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (socket < 0) return std::strerror(errno);
  const auto close_socket = [socket](int*) { ::close(socket); };
  int dummy = 0;
  const std::unique_ptr<int, decltype(close_socket)> closer(&dummy, close_socket);
  if (::connect(socket, target.ai_addr, target.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return std::strerror(errno);
    pollfd waiting{.fd = socket, .events = POLLOUT, .revents = 0};
    if (::poll(&waiting, 1, static_cast<int>(limit.count())) <= 0) return "no answer";
    int error = 0;
    socklen_t size = sizeof error;
    ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return std::strerror(error);
  }
  sockaddr_storage local{};
  socklen_t size = sizeof local;
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&local), &size);
  local_address = numeric_address(reinterpret_cast<sockaddr*>(&local), size);
  return "";
}

std::string try_to_reach(const std::string& host, std::uint16_t port, std::chrono::milliseconds limit,
                         std::string& local_address) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) return std::string("its name cannot be resolved, ") + ::gai_strerror(error);
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  std::string reason = "it has no address";
  for (const auto* target = found; target != nullptr; target = target->ai_next) {
    reason = connect_once(*target, limit, local_address);
    if (reason.empty()) break;
  }
  return reason;
}

}  // namespace

int open_listen_socket(std::uint16_t port, bool is_local_only) {
  int socket = is_local_only ? -1 : bind_and_listen(AF_INET6, port, false);
  // Without IPv6 in the kernel the first try fails for another reason than a port that is taken.
  if (socket < 0 && (is_local_only || errno != EADDRINUSE)) socket = bind_and_listen(AF_INET, port, is_local_only);
  if (socket >= 0) return socket;
  const bool is_taken = errno == EADDRINUSE;
  const auto text = std::to_string(port);
  throw base::UserError({.what = is_taken ? "Port " + text + " of this host is taken by another program."
                                          : "Rank 0 cannot listen on port " + text + ": " + std::strerror(errno) + ".",
                         .where = "MASTER_PORT",
                         .why = "Rank 0 serves the rendezvous of all ranks there.",
                         .fix = is_taken ? "Is an earlier run still there? `ss -ltnp 'sport = :" + text +
                                               "'` names the program. End it or choose another MASTER_PORT."
                                         : "Choose another MASTER_PORT."});
}

std::uint16_t port_of(int listen_socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(listen_socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw base::UserError(
        {.what = "Descriptor " + std::to_string(listen_socket) + " is no socket: " + std::strerror(errno) + ".",
         .where = "PHAROS_LISTEN_SOCKET",
         .fix = "Unset PHAROS_LISTEN_SOCKET: the local launcher sets it for the processes it starts."});
  }
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

void close_on_exec(int descriptor) { ::fcntl(descriptor, F_SETFD, ::fcntl(descriptor, F_GETFD) | FD_CLOEXEC); }

bool is_loopback_address(const std::string& address) {
  return address == "localhost" || address == "::1" || address == "::ffff:127.0.0.1" || address.starts_with("127.");
}

std::string reach_master(const std::string& host, std::uint16_t port, std::chrono::milliseconds timeout) {
  const auto deadline = steady_clock::now() + timeout;
  auto pause = std::chrono::milliseconds(2);
  std::string local_address;
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - steady_clock::now());
    const auto reason = try_to_reach(
        host, port, std::clamp(left, std::chrono::milliseconds(1), std::chrono::milliseconds(5000)), local_address);
    if (reason.empty()) return local_address;
    if (is_interrupted()) throw MeetingInterrupted();
    if (steady_clock::now() + pause >= deadline) {
      throw base::UserError(
          {.what = "The master " + host + ":" + std::to_string(port) + " was not reached within " +
                   base::format_duration(std::chrono::nanoseconds(timeout).count()) + ": " + reason + ".",
           .where = "MASTER_ADDR, MASTER_PORT",
           .why = "Rank 0 serves the rendezvous there; every other rank connects to it.",
           .fix = "Check that rank 0 runs, that its host has this address, and that no firewall is between."});
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::milliseconds(100));
  }
}

std::string first_outer_address() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return "";
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  for (const auto* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET) continue;
    if ((entry->ifa_flags & IFF_UP) == 0 || (entry->ifa_flags & IFF_LOOPBACK) != 0) continue;
    return numeric_address(entry->ifa_addr, sizeof(sockaddr_in));
  }
  return "";
}

}  // namespace pharos::comm
