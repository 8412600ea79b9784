#include "pharos/data/mock_sequences.h"

#include "pharos/base/error.h"
#include "pharos/data/index/random_streams.h"

namespace pharos::data {

MockSequences::MockSequences(std::int64_t vocab_size, std::int64_t end_of_document)
    : vocab_size_(vocab_size), end_of_document_(end_of_document), lengths_(100'000) {
  PHAROS_CHECK(vocab_size > 0 && end_of_document >= 0 && end_of_document < vocab_size,
               "end of document " + std::to_string(end_of_document));
  NumpyPcg64 random(0);
  for (std::int32_t& length : lengths_) length = random.integer(1, 4096);
}

void MockSequences::read(std::int64_t sequence, std::int64_t first, std::int64_t count, std::int64_t* tokens) const {
  const std::int64_t last = length(sequence) - 1;
  PHAROS_CHECK(first >= 0 && count >= 0 && first + count <= last + 1, "tokens from " + std::to_string(first));
  for (std::int64_t i = 0; i < count; ++i) {
    tokens[i] = first + i == last ? end_of_document_ : (first + i + 1) % vocab_size_;
  }
}

std::string MockSequences::where(std::int64_t sequence, std::int64_t token) const {
  return "mock data, sequence " + std::to_string(sequence) + ", token " + std::to_string(token);
}

}  // namespace pharos::data
