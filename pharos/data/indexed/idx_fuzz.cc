// libFuzzer entry: any bytes as an .idx file. The first two bytes of the input choose the size of the .bin file.
#include <cstddef>
#include <cstdint>
#include <span>

#include "pharos/base/error.h"
#include "pharos/data/indexed/index_format.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::uint64_t bin_size_bytes = data[0] + 256U * data[1];
  try {
    const auto view = pharos::data::parse_index({reinterpret_cast<const std::byte*>(data) + 2, size - 2},
                                                bin_size_bytes, "a.idx", "a.bin");
    // What was accepted can be used: every sequence lies inside .bin, every document inside the sequences.
    const auto width = static_cast<std::int64_t>(size_bytes(view.token_type()));
    for (std::int64_t i = 0; i < view.num_sequences(); ++i) {
      const std::int64_t end = view.offset_bytes(i) + view.length(i) * width;
      if (view.offset_bytes(i) < 0 || end > static_cast<std::int64_t>(bin_size_bytes)) __builtin_trap();
    }
    for (std::int64_t i = 0; i < view.num_documents(); ++i) {
      if (view.document_start(i) > view.document_start(i + 1) || view.document_start(i + 1) > view.num_sequences())
        __builtin_trap();
    }
  } catch (const pharos::base::UserError&) {  // refused: what damaged files deserve
  }
  return 0;
}
