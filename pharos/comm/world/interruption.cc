#include "pharos/comm/interruption.h"

#include <atomic>

namespace pharos::comm {
namespace {

std::atomic<bool (*)()> check{nullptr};

}  // namespace

void set_interruption_check(bool (*is_interrupted)()) { check = is_interrupted; }

bool is_interrupted() {
  const auto ask = check.load();
  return ask != nullptr && ask();
}

}  // namespace pharos::comm
