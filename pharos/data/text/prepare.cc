#include "pharos/data/text/prepare.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "pharos/base/clock.h"
#include "pharos/base/error.h"
#include "pharos/data/indexed/indexed_dataset_writer.h"

namespace pharos::data {
namespace {

constexpr std::int64_t kProgressInterval_ns = 500'000'000;
constexpr std::size_t kBlockBytes = 1 << 20;

class Preparation {
 public:
  Preparation(const std::string& prefix, const Tokenizer& tokenizer, const PrepareOptions& options, TokenType type)
      : tokenizer_(tokenizer),
        options_(options),
        writer_(prefix, type),
        next_report_ns_(base::monotonic_ns() + kProgressInterval_ns) {}

  void set_total_bytes(std::int64_t bytes) { progress_.total_bytes = bytes; }

  void add_file(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) {
      throw base::UserError({.what = "Cannot read '" + path.string() + "'.",
                             .where = path.string(),
                             .fix = "Check the spelling of the path and its permissions."});
    }
    const std::int64_t documents_before = writer_.num_documents();
    if (options_.jsonl_key) {
      add_jsonl(file, path);
    } else if (options_.mode == DocumentMode::kFile) {
      add_whole_file(file);
    } else {
      add_lines(file);
    }
    if (file.bad())
      throw base::UserError(
          {.what = "Reading '" + path.string() + "' failed.", .where = path.string(), .fix = "Check the disk."});
    if (writer_.num_documents() == documents_before) {
      throw base::UserError({.what = "'" + path.string() + "' holds no text.",
                             .where = path.string(),
                             .why = "Nothing in it makes a document in the chosen mode.",
                             .fix = "Give a file with text, or another --split-on or --jsonl-key."});
    }
  }

  void finish() {
    writer_.finish();
    report();
  }
  const IndexedDatasetWriter& writer() const { return writer_; }
  std::int64_t input_bytes() const { return progress_.input_bytes; }

 private:
  void end_document() {
    if (options_.append_end_of_document) {
      const std::int64_t end = tokenizer_.end_of_document();
      writer_.add_tokens({&end, 1});
    }
    writer_.end_document();
  }

  void add_document(std::string_view text) {
    ids_.clear();
    tokenizer_.encode(text, ids_);
    if (ids_.empty()) return;
    writer_.add_tokens(ids_);
    end_document();
  }

  /// Blocks end after a newline where they have one, so that a tokenizer sees whole lines.
  void add_whole_file(std::istream& file) {
    std::string block;
    bool has_tokens = false;
    for (bool more = true; more;) {
      const std::size_t kept = block.size();
      block.resize(kept + kBlockBytes);
      file.read(block.data() + kept, kBlockBytes);
      const auto count = static_cast<std::size_t>(file.gcount());
      block.resize(kept + count);
      more = count == kBlockBytes;
      const std::size_t newline = more ? block.rfind('\n') : std::string::npos;
      const std::size_t end = newline == std::string::npos ? block.size() : newline + 1;
      has_tokens |= add_text(std::string_view(block).substr(0, end));
      block.erase(0, end);
      count_input(static_cast<std::int64_t>(count));
    }
    if (has_tokens) end_document();
  }

  bool add_text(std::string_view text) {
    bool has_tokens = false;
    const auto limit = static_cast<std::size_t>(options_.sequence_tokens);
    while (!text.empty()) {
      std::size_t piece = text.size();
      bool full = false;
      if (limit > 0) {
        const std::size_t used = static_cast<std::size_t>(writer_.tokens_in_sequence());
        if (used >= limit) {
          writer_.end_sequence();
          continue;
        }
        const std::size_t room = limit - used;
        if (piece > room) {
          const std::size_t newline = text.rfind('\n', room - 1);
          piece = newline != std::string_view::npos && newline + 1 > room / 2 ? newline + 1 : room;
          full = true;
        }
      }
      ids_.clear();
      tokenizer_.encode(text.substr(0, piece), ids_);
      writer_.add_tokens(ids_);
      has_tokens |= !ids_.empty();
      if (full && writer_.tokens_in_sequence() > 0) writer_.end_sequence();
      text.remove_prefix(piece);
    }
    return has_tokens;
  }

  void add_lines(std::istream& file) {
    const bool paragraphs = options_.mode == DocumentMode::kBlankLine;
    std::string line, paragraph;
    while (std::getline(file, line)) {
      count_input(static_cast<std::int64_t>(line.size()) + 1);
      if (!line.empty() && line.back() == '\r') line.pop_back();
      if (!paragraphs) {
        add_document(line);
      } else if (!line.empty()) {
        if (!paragraph.empty()) paragraph += '\n';
        paragraph += line;
      } else {
        add_paragraph(paragraph);
      }
    }
    add_paragraph(paragraph);
  }

  void add_paragraph(std::string& paragraph) {
    if (paragraph.find_first_not_of(" \t\n\v\f\r") != std::string::npos) add_document(paragraph);
    paragraph.clear();
  }

  void add_jsonl(std::istream& file, const std::filesystem::path& path) {
    std::string line;
    for (std::int64_t number = 1; std::getline(file, line); ++number) {
      count_input(static_cast<std::int64_t>(line.size()) + 1);
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      add_json(line, path.string() + ":" + std::to_string(number));
    }
  }

  void add_json(const std::string& line, const std::string& where) {
    const nlohmann::json object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (object.is_discarded() || !object.is_object()) {
      throw base::UserError({.what = "A line is not a JSON object.",
                             .where = where,
                             .why = "With --jsonl-key every line is one JSON object.",
                             .fix = "Correct the line, or leave out --jsonl-key if the file is plain text."});
    }
    const auto found = object.find(*options_.jsonl_key);
    if (found == object.end()) {
      throw base::UserError({.what = "A line has no key '" + *options_.jsonl_key + "'.",
                             .where = where,
                             .fix = "Name the key that holds the text with --jsonl-key."});
    }
    std::vector<std::string> parts;
    if (found->is_string()) {
      parts.push_back(found->get<std::string>());
    } else if (found->is_array() &&
               std::all_of(found->begin(), found->end(), [](const auto& part) { return part.is_string(); })) {
      parts = found->get<std::vector<std::string>>();
    } else {
      throw base::UserError({.what = "The value of '" + *options_.jsonl_key + "' is not text.",
                             .where = where,
                             .why = "It must be a string or a list of strings.",
                             .fix = "Name the key that holds the text with --jsonl-key."});
    }
    add_parts(parts);
  }

  /// One sequence a part; the end of the document belongs to the last one.
  void add_parts(const std::vector<std::string>& parts) {
    bool has_tokens = false;
    for (const std::string& part : parts) {
      ids_.clear();
      tokenizer_.encode(part, ids_);
      if (ids_.empty()) continue;
      if (has_tokens) writer_.end_sequence();
      writer_.add_tokens(ids_);
      has_tokens = true;
    }
    if (has_tokens) end_document();
  }

  void count_input(std::int64_t bytes) {
    progress_.input_bytes = std::min(progress_.input_bytes + bytes, progress_.total_bytes);
    if (!options_.progress) return;
    const std::int64_t now_ns = base::monotonic_ns();
    if (now_ns < next_report_ns_) return;
    next_report_ns_ = now_ns + kProgressInterval_ns;
    report();
  }

  void report() {
    if (!options_.progress) return;
    progress_.num_documents = writer_.num_documents();
    progress_.num_tokens = writer_.num_tokens();
    options_.progress(progress_);
  }

  const Tokenizer& tokenizer_;
  const PrepareOptions& options_;
  IndexedDatasetWriter writer_;
  PrepareProgress progress_;
  std::int64_t next_report_ns_;
  std::vector<std::int64_t> ids_;
};

std::int64_t input_size_bytes(const std::filesystem::path& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (std::filesystem::is_directory(status) || !std::filesystem::exists(status)) {
    throw base::UserError(
        {.what = "The input '" + path.string() + "' is not a file.",
         .where = path.string(),
         .fix = std::filesystem::is_directory(status) ? "Name the files in it." : "Check the spelling of the path."});
  }
  const auto size = std::filesystem::file_size(path, error);
  return error ? 0 : static_cast<std::int64_t>(size);  // a pipe has no size
}

}  // namespace

PrepareSummary prepare(const std::vector<std::filesystem::path>& inputs, const std::string& output_prefix,
                       const Tokenizer& tokenizer, const PrepareOptions& options) {
  const std::int64_t start_ns = base::monotonic_ns();
  if (options.sequence_tokens < 0) {
    throw base::UserError({.what = "--sequence-tokens = " + std::to_string(options.sequence_tokens) + " is negative.",
                           .fix = "Give the most tokens of a sequence, or 0 for one sequence a document."});
  }
  std::int64_t total_bytes = 0;
  for (const auto& input : inputs) total_bytes += input_size_bytes(input);

  const TokenType type = options.token_type.value_or(token_type_for_vocabulary(tokenizer.vocab_size()));
  Preparation preparation(output_prefix, tokenizer, options, type);
  preparation.set_total_bytes(total_bytes);
  for (const auto& input : inputs) preparation.add_file(input);
  preparation.finish();

  const IndexedDatasetWriter& writer = preparation.writer();
  PrepareSummary summary;
  summary.num_documents = writer.num_documents();
  summary.num_sequences = writer.num_sequences();
  summary.num_tokens = writer.num_tokens();
  summary.input_bytes = total_bytes;
  summary.output_bytes = writer.output_bytes();
  summary.duration_ns = base::monotonic_ns() - start_ns;
  summary.token_type = type;
  return summary;
}

}  // namespace pharos::data
