// Two GPUs, the first with NVLink: FAKE_NVLINK names a file of two numbers, KiB transmitted and received.
#include <stdio.h>
#include <stdlib.h>

struct field_value {
  unsigned field, scope;
  long long timestamp_us, latency_us;
  int value_type, result;
  unsigned long long value;
};

int nvmlInit_v2(void) { return 0; }

int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 2;
  return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = (void*)(size_t)(index + 1);
  return 0;
}

int nvmlDeviceGetFieldValues(void* device, int count, struct field_value* values) {
  const char* path = getenv("FAKE_NVLINK");
  FILE* file = path != NULL ? fopen(path, "r") : NULL;
  unsigned long long transmitted = 0, received = 0;
  const int is_read = file != NULL && fscanf(file, "%llu %llu", &transmitted, &received) == 2;
  if (file != NULL) fclose(file);
  for (int i = 0; i < count; ++i) {
    const int is_known = values[i].scope == ~0u && (values[i].field == 138 || values[i].field == 139);
    values[i].result = device == (void*)1 && is_read && is_known ? 0 : 3;
    values[i].value = values[i].field == 138 ? transmitted : received;
  }
  return 0;
}
