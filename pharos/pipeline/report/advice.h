// What the bubble report advises.
#pragma once

#include "pharos/pipeline/report/report.h"

namespace pharos::pipeline {

/// Of a report that is complete but for its advice.
Advice advice_on(const BubbleReport& report);

}  // namespace pharos::pipeline
