#include "record.h"

static void record_with_steps(const char* call) {
  char line[64];
  snprintf(line, sizeof line, "%s after %d steps", call, finished_steps());
  record(line);
}

int cudaProfilerStart(void) {
  record_with_steps("start");
  return getenv("FAKE_CUDA_FAILS") != NULL ? 100 : 0;
}

int cudaProfilerStop(void) {
  record_with_steps("stop");
  return 0;
}

const char* cudaGetErrorString(int error) { return error == 100 ? "no CUDA-capable device is detected" : "unknown"; }
