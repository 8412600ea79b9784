#include "pharos/lens/life/interrupt.h"

namespace pharos::lens {
namespace {

/// Shared with the exceptions: one may outlive the thread that made it.
std::shared_ptr<std::atomic<int>>& counter() {
  static thread_local auto count = std::make_shared<std::atomic<int>>(0);
  return count;
}

}  // namespace

Interrupt::Interrupt() : num_alive_(counter()) { ++*num_alive_; }
Interrupt::Interrupt(const Interrupt& other) noexcept : std::exception(other), num_alive_(other.num_alive_) {
  ++*num_alive_;
}
Interrupt& Interrupt::operator=(const Interrupt& other) noexcept {
  if (this == &other) return *this;
  ++*other.num_alive_;
  --*num_alive_;
  num_alive_ = other.num_alive_;
  return *this;
}
Interrupt::~Interrupt() { --*num_alive_; }

const char* Interrupt::what() const noexcept { return "interrupted"; }

bool is_interrupted() { return counter()->load() > 0; }

}  // namespace pharos::lens
