#include "pharos/lens/otlp/gzip.h"

#include <zlib.h>

#include "pharos/base/error.h"

namespace pharos::lens::otlp {

std::string gzip(std::string_view bytes) {
  constexpr int kLevel = 3, kGzipWindow = 15 + 16, kMemoryLevel = 8;
  z_stream stream{};
  PHAROS_CHECK(deflateInit2(&stream, kLevel, Z_DEFLATED, kGzipWindow, kMemoryLevel, Z_DEFAULT_STRATEGY) == Z_OK,
               "zlib cannot be initialised");
  std::string compressed(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(compressed.data());
  stream.avail_out = static_cast<uInt>(compressed.size());
  const int code = deflate(&stream, Z_FINISH);
  compressed.resize(stream.total_out);
  deflateEnd(&stream);
  PHAROS_CHECK(code == Z_STREAM_END, "zlib ended with code " + std::to_string(code));
  return compressed;
}

}  // namespace pharos::lens::otlp
