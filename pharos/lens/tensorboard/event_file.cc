#include "pharos/lens/tensorboard/event_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <protozero/pbf_writer.hpp>
#include <stdexcept>
#include <utility>

#include "pharos/base/clock.h"
#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/lens/tensorboard/crc32c.h"

namespace pharos::lens {
namespace {

constexpr std::size_t kBufferBytes = 65536;

// Field numbers of event.proto, summary.proto, tensor.proto and tensor_shape.proto.
enum EventField : std::uint32_t { kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5 };
constexpr std::uint32_t kSummaryValue = 1;
enum ValueField : std::uint32_t { kTag = 1, kSimpleValue = 2, kTensor = 8, kMetadata = 9 };
constexpr std::uint32_t kMetadataPluginData = 1;
constexpr std::uint32_t kPluginName = 1;
enum TensorField : std::uint32_t { kDataType = 1, kTensorShape = 2, kStringValue = 8 };
constexpr std::uint32_t kShapeDimension = 2;
constexpr std::uint32_t kDimensionSize = 1;
constexpr std::int32_t kDataTypeString = 7;

void append_little_endian(std::string& bytes, std::uint64_t value, int num_bytes) {
  for (int i = 0; i < num_bytes; ++i) bytes += static_cast<char>(value >> (8 * i));
}

double now_s() { return static_cast<double>(base::wall_ns()) / 1e9; }

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 && name[0] != 0 ? name : "unknown";
}

/// Event with one value, which `fill` completes.
template <typename Fill>
std::string make_event(std::string_view tag, std::int64_t step, Fill&& fill) {
  std::string bytes;
  protozero::pbf_writer event(bytes);
  event.add_double(kWallTime, now_s());
  event.add_int64(kStep, step);
  protozero::pbf_writer summary(event, kSummary);
  protozero::pbf_writer value(summary, kSummaryValue);
  value.add_string(kTag, tag.data(), tag.size());
  fill(value);
  value.commit();
  summary.commit();
  return bytes;
}

}  // namespace

EventFile::EventFile(const std::filesystem::path& folder) {
  base::make_directories(folder);
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%010lld", static_cast<long long>(base::wall_ns() / 1'000'000'000));
  const std::string stem =
      std::string("events.out.tfevents.") + seconds + "." + host_name() + "." + std::to_string(getpid()) + ".";
  for (int number = 0; descriptor_ < 0; ++number) {
    path_ = folder / (stem + std::to_string(number));
    descriptor_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
    if (descriptor_ < 0 && errno != EEXIST) {
      throw base::UserError(
          {.what = "The TensorBoard event file " + path_.string() + " cannot be made: " + std::strerror(errno) + ".",
           .fix = "Make its folder writable, or choose another one."});
    }
  }
  std::string event;
  protozero::pbf_writer writer(event);
  writer.add_double(kWallTime, now_s());
  writer.add_string(kFileVersion, "brain.Event:2");
  add_record(event);
}

EventFile::~EventFile() {
  write_buffer();
  close(descriptor_);
}

void EventFile::add_scalar(std::string_view tag, double value, std::int64_t step) {
  add_record(make_event(tag, step, [value](protozero::pbf_writer& writer) {
    writer.add_float(kSimpleValue, static_cast<float>(value));
  }));
}

void EventFile::add_text(std::string_view tag, std::string_view text, std::int64_t step) {
  add_record(make_event(tag, step, [text](protozero::pbf_writer& writer) {
    {
      protozero::pbf_writer metadata(writer, kMetadata);
      protozero::pbf_writer plugin(metadata, kMetadataPluginData);
      plugin.add_string(kPluginName, "text");
    }
    protozero::pbf_writer tensor(writer, kTensor);
    tensor.add_enum(kDataType, kDataTypeString);
    {
      protozero::pbf_writer shape(tensor, kTensorShape);
      protozero::pbf_writer dimension(shape, kShapeDimension);
      dimension.add_int64(kDimensionSize, 1);
    }
    tensor.add_bytes(kStringValue, text.data(), text.size());
  }));
}

void EventFile::add_record(std::string_view event) {
  std::string length;
  append_little_endian(length, event.size(), 8);
  buffer_ += length;
  append_little_endian(buffer_, masked_crc32c(length), 4);
  buffer_ += event;
  append_little_endian(buffer_, masked_crc32c(event), 4);
  ++num_buffered_;
  if (buffer_.size() >= kBufferBytes) flush();
}

void EventFile::flush() {
  const int error = write_buffer();
  if (error == 0 || std::exchange(has_complained_, true)) return;
  throw std::runtime_error("The TensorBoard event file " + path_.string() +
                           " cannot be written: " + std::strerror(error));
}

int EventFile::write_buffer() noexcept {
  const off_t size_before = lseek(descriptor_, 0, SEEK_END);
  std::size_t written = 0;
  int error = 0;
  while (written < buffer_.size() && error == 0) {
    const ssize_t count = write(descriptor_, buffer_.data() + written, buffer_.size() - written);
    if (count >= 0) {
      written += static_cast<std::size_t>(count);
    } else if (errno != EINTR) {
      error = errno;
    }
  }
  if (error != 0) {
    num_lost_ += num_buffered_;
    // Readers stop for good at half a record; if even this fails, later records are lost to them as well.
    if (written != 0 && ftruncate(descriptor_, size_before) != 0) errno = 0;
  }
  buffer_.clear();
  num_buffered_ = 0;
  return error;
}

}  // namespace pharos::lens
