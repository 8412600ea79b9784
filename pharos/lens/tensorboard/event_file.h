// A TensorBoard event file: what `tensorboard --logdir` reads. TFRecords (little-endian u64 length, its masked CRC-32C,
// data, its masked CRC-32C) of Event messages (tensorflow/core/util/event.proto); the first says "brain.Event:2".
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace pharos::lens {

/// Writer of one new file FOLDER/events.out.tfevents.SECONDS.HOST.PID.N; N is 0 unless that file exists. A resumed run
/// makes another file in the same folder, TensorBoard joins them. For one thread at a time.
///
/// Events are collected in memory; flush() hands whole records to the kernel in one write, so that a process that is
/// killed leaves everything up to its last flush.
///
/// A write that fails (full disk) throws std::runtime_error with the reason, the first time only: training goes on
/// without. The events it held are lost and counted, half a record is taken back out of the file, and a later flush
/// tries again.
class EventFile {
 public:
  /// Makes the folder and the file. UserError when that is not possible.
  explicit EventFile(const std::filesystem::path& folder);
  /// Flushes without a word.
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  /// A point of the curve `tag` at x = `step`. Stored as float, the type of the format. Flushes, and may throw, when
  /// 64 KiB have been collected.
  void add_scalar(std::string_view tag, double value, std::int64_t step);

  /// An entry of the "Text" tab; Markdown. Flushes like add_scalar().
  void add_text(std::string_view tag, std::string_view text, std::int64_t step);

  void flush();

  const std::filesystem::path& path() const { return path_; }
  /// Events, the opening one included, that could not be written.
  std::uint64_t num_lost() const { return num_lost_; }

 private:
  void add_record(std::string_view event);
  /// Error number of the system; 0: all is written.
  int write_buffer() noexcept;

  std::filesystem::path path_;
  int descriptor_ = -1;
  std::string buffer_;
  std::uint64_t num_buffered_ = 0;
  std::uint64_t num_lost_ = 0;
  bool has_complained_ = false;
};

}  // namespace pharos::lens
