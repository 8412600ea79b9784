// Exceptions that end the work without being an error of it: a requested stop, a time limit.
#pragma once

#include <atomic>
#include <exception>
#include <memory>

namespace pharos::lens {

/// Base of exceptions that leave scopes without marking their spans as failed: status unset, no event (lens.md section
/// 5.2, the class of Python's KeyboardInterrupt). A scope cannot see what is in flight, so the rule is: while an
/// Interrupt made by a thread is alive, no scope that an exception leaves in that thread is a failure.
class Interrupt : public std::exception {
 public:
  Interrupt();
  Interrupt(const Interrupt& other) noexcept;
  Interrupt& operator=(const Interrupt& other) noexcept;
  ~Interrupt() override;
  const char* what() const noexcept override;

 private:
  std::shared_ptr<std::atomic<int>> num_alive_;
};

/// True while an Interrupt that the calling thread made is alive.
bool is_interrupted();

}  // namespace pharos::lens
