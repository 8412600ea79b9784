// What ends the wait for other ranks before they have met: this process was asked to stop. Knows no torch.
#pragma once

#include "pharos/lens/life/interrupt.h"

namespace pharos::comm {

/// The ranks have not met: one of them was asked to stop before. Thrown by World's constructor on all that came.
class MeetingInterrupted : public lens::Interrupt {};

/// Asked again and again while World's constructor waits for other ranks; true on one rank: all stop waiting. A signal
/// is the process's, and so is this; none by default.
void set_interruption_check(bool (*is_interrupted)());
bool is_interrupted();

}  // namespace pharos::comm
