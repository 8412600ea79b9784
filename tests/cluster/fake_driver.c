// Stands in for libraries a machine without GPUs lacks: NVML with two devices, NCCL, libfabric, NCCL's network plug-in.
// FAKE_NVML_HANG=1: the driver is stuck. FAKE_NVML_BROKEN=1: it refuses. FAKE_NVML_ERRORS=N: memory errors of device 1.
// FAKE_NCCL_VERSION: what ncclGetVersion() says.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { kSuccess = 0, kNotSupported = 3, kMismatch = 18 };

static int number_of(const char* variable, int otherwise) {
  const char* text = getenv(variable);
  return text == NULL ? otherwise : atoi(text);
}

static long index_of(void* device) { return (long)device - 1; }

int nvmlInit_v2(void) {
  while (number_of("FAKE_NVML_HANG", 0)) pause();
  return number_of("FAKE_NVML_BROKEN", 0) ? kMismatch : kSuccess;
}
int nvmlShutdown(void) { return kSuccess; }
const char* nvmlErrorString(int code) { return code == kMismatch ? "Driver/library version mismatch" : "error"; }

int nvmlSystemGetDriverVersion(char* text, unsigned size) {
  snprintf(text, size, "570.86.15");
  return kSuccess;
}
int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = 12080;
  return kSuccess;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 2;
  return kSuccess;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = (void*)(long)(index + 1);
  return kSuccess;
}
int nvmlDeviceGetName(void* device, char* name, unsigned size) {
  (void)device;
  snprintf(name, size, "NVIDIA H200");
  return kSuccess;
}
struct memory {
  unsigned long long total, free, used;
};
int nvmlDeviceGetMemoryInfo(void* device, struct memory* memory) {
  (void)device;
  memory->total = 141ULL << 30;
  memory->free = 140ULL << 30;
  memory->used = 1ULL << 30;
  return kSuccess;
}
int nvmlDeviceGetTemperature(void* device, int sensor, unsigned* value) {
  (void)sensor;
  *value = 30 + (unsigned)index_of(device);
  return kSuccess;
}
int nvmlDeviceGetTotalEccErrors(void* device, int kind, int counter, unsigned long long* count) {
  (void)kind;
  (void)counter;
  *count = index_of(device) == 1 ? (unsigned long long)number_of("FAKE_NVML_ERRORS", 0) : 0;
  return kSuccess;
}

int ncclGetVersion(int* version) {
  *version = number_of("FAKE_NCCL_VERSION", 22903);
  return kSuccess;
}
unsigned fi_version(void) { return 2u << 16 | 1u; }
