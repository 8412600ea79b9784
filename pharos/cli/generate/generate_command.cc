#include "pharos/cli/generate/generate_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "pharos/base/error.h"
#include "pharos/base/memory.h"
#include "pharos/base/text.h"
#include "pharos/cli/generate/generate_source.h"
#include "pharos/cli/integer_option.h"
#include "pharos/config/derived.h"
#include "pharos/config/limits.h"
#include "pharos/model/generate.h"

namespace pharos::cli {
namespace {

constexpr const char* kReplacement = "\xEF\xBF\xBD";  // U+FFFD

/// Bytes of the character that starts with `lead`; 0 when none does.
std::size_t character_length(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead < 0xC2) return 0;
  if (lead < 0xE0) return 2;
  if (lead < 0xF0) return 3;
  return lead < 0xF5 ? 4 : 0;
}

/// Whether `byte` may follow as byte `index` (from 1) of a character that starts with `lead` (Unicode table 3-7).
bool may_follow(unsigned char lead, std::size_t index, unsigned char byte) {
  unsigned char low = 0x80, high = 0xBF;
  if (index == 1) {
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  }
  return byte >= low && byte <= high;
}

struct Arguments {
  std::string source;
  std::optional<std::string> prompt;
  std::optional<std::string> prompt_id_list;
  std::vector<std::int64_t> prompt_ids;
  model::GenerateOptions options;
  std::int64_t num_samples = 1;
  bool is_streaming = true;
  bool as_json = false;
};

[[noreturn]] void refuse_prompt_ids(const std::string& list, const std::string& problem) {
  throw base::UserError({.what = "--prompt-ids " + list + ": " + problem + ".",
                         .where = "command line",
                         .fix = "Give token ids with commas between them, for example --prompt-ids 1,2,3."});
}

/// "1,2,3" as numbers; nothing may be missing between the commas.
std::vector<std::int64_t> parse_prompt_ids(const std::string& list) {
  std::vector<std::int64_t> ids;
  std::string_view rest = list;
  while (true) {
    const std::string word(rest.substr(0, rest.find(',')));
    if (const std::string problem = whole_number<std::int64_t>(0)(word); !problem.empty()) {
      refuse_prompt_ids(list, problem);
    }
    ids.push_back(std::stoll(word));
    if (word.size() == rest.size()) return ids;
    rest.remove_prefix(word.size() + 1);
  }
}

std::string read_prompt(const Arguments& arguments) {
  std::string text = arguments.prompt.value_or("");
  if (text != "-") return text;
  std::string input{std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
  if (std::cin.bad() || (input.empty() && !std::cin.eof())) {
    throw base::UserError({.what = "The prompt cannot be read from standard input.",
                           .where = "--prompt -",
                           .fix = "Pipe text into it, or give it behind --prompt."});
  }
  if (!input.empty() && input.back() == '\n') input.pop_back();  // the end of the line, which `echo` adds
  return input;
}

/// Prompt as token ids; an empty one becomes the token that ends documents, after which documents begin.
std::vector<std::int64_t> encode_prompt(const Arguments& arguments, const GenerateSource& source,
                                        const std::string& text) {
  if (!arguments.prompt_ids.empty()) return arguments.prompt_ids;
  if (!text.empty() && source.tokenizer == nullptr) {
    throw base::UserError(
        {.what = "The prompt is text, but this model has no tokenizer that Pharos reads.",
         .where = arguments.source,
         .why = fmt::format("Its vocabulary of {} tokens is neither bytes (256 or 257) nor a null tokenizer's.",
                            *source.model->config().vocab_size),
         .fix = "Give token ids instead, for example --prompt-ids 1,2,3; the output is ids too."});
  }
  std::vector<std::int64_t> ids;
  if (!text.empty()) source.tokenizer->encode(text, ids);
  if (!ids.empty()) return ids;
  if (source.stop_tokens.empty()) {
    throw base::UserError({.what = "The prompt is empty, and the model has no end-of-document token to start from.",
                           .where = arguments.source,
                           .fix = "Give --prompt TEXT or --prompt-ids 1,2,3."});
  }
  return {source.stop_tokens.front()};
}

/// Prints a sample to standard output: characters of a byte model as they become whole, else ids with blanks between.
class Printer {
 public:
  Printer(const data::Tokenizer* text_tokenizer, bool is_streaming)
      : tokenizer_(text_tokenizer), is_streaming_(is_streaming) {}

  void begin(const std::string& prompt) {
    stream_ = {};
    is_first_ = true;
    write(stream_.push(prompt));
  }
  /// False when nobody reads standard output any more.
  bool token(std::int64_t id) {
    if (tokenizer_ != nullptr) {
      write(stream_.push(tokenizer_->decode(std::vector<std::int64_t>{id})));
    } else {
      write((is_first_ ? "" : " ") + std::to_string(id));
    }
    is_first_ = false;
    return std::cout.good();
  }
  void end() {
    write(stream_.finish() + "\n");
    std::cout.flush();
  }

 private:
  void write(const std::string& text) {
    std::cout << text;
    if (is_streaming_ && !text.empty()) std::cout.flush();
  }

  const data::Tokenizer* tokenizer_;
  bool is_streaming_;
  bool is_first_ = true;
  Utf8Stream stream_;
};

std::string whole_text(const data::Tokenizer& tokenizer, const std::vector<std::int64_t>& ids) {
  Utf8Stream stream;
  std::string text = stream.push(tokenizer.decode(ids));
  return text + stream.finish();
}

/// One line; text of a model without tokenizer is left out.
void print_json(const Arguments& arguments, const GenerateSource& source, const std::vector<std::int64_t>& prompt,
                const model::Generation& generation) {
  const double seconds = static_cast<double>(generation.prefill_ns + generation.decode_ns) * 1e-9;
  nlohmann::json line = {
      {"source", arguments.source},
      {"sample", arguments.options.sample},
      {"seed", arguments.options.seed},
      {"temperature", arguments.options.sampling.temperature},
      {"top_k", arguments.options.sampling.top_k},
      {"top_p", arguments.options.sampling.top_p},
      {"prompt_tokens", prompt},
      {"tokens", generation.tokens},
      {"stop_reason", model::stop_reason_name(generation.reason)},
      {"prefill_seconds", static_cast<double>(generation.prefill_ns) * 1e-9},
      {"seconds", seconds},
      {"tokens_per_second", seconds > 0 ? static_cast<double>(generation.tokens.size()) / seconds : 0}};
  if (source.iteration) line["iteration"] = *source.iteration;
  if (source.is_text()) {
    line["prompt"] = whole_text(*source.tokenizer, prompt);
    line["text"] = whole_text(*source.tokenizer, generation.tokens);
  }
  std::cout << line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << std::endl;
}

void print_notes(const model::Transformer& model, std::size_t prompt_size, const model::Generation& generation) {
  const std::int64_t length = static_cast<std::int64_t>(prompt_size + generation.tokens.size());
  const std::int64_t trained = model.config().seq_length;
  if (generation.reason == model::StopReason::kPositionLimit) {
    std::cerr << fmt::format("note: stopped at {} tokens, prompt included: the model has no further position.\n",
                             length);
  } else if (length > trained) {
    std::cerr << fmt::format(
        "note: {} tokens, prompt included, are more than the {} of a training sample; the end may be poor.\n", length,
        trained);
  }
}

/// Keys and values of the whole text are kept.
void check_cache(const model::Transformer& model, std::int64_t num_tokens) {
  const config::ModelConfig& config = model.config();
  const double bytes = 2.0 * 4 * static_cast<double>(*config.num_layers) * static_cast<double>(num_tokens) *
                       static_cast<double>(config::num_query_groups_or_default(config)) *
                       static_cast<double>(config::kv_channels_or_default(config));
  const std::int64_t available = base::available_memory_bytes();
  if (available == 0 || bytes <= static_cast<double>(available)) return;
  throw base::UserError(
      {.what = fmt::format("Keys and values of {} tokens need {} of memory; {} are available.", num_tokens,
                           base::format_bytes(bytes), base::format_bytes(static_cast<double>(available))),
       .where = "command line",
       .fix = "Lower --max-tokens."});
}

void run_generate(Arguments arguments) {
  model::validate(arguments.options.sampling);
  if (arguments.prompt_id_list) arguments.prompt_ids = parse_prompt_ids(*arguments.prompt_id_list);
  const GenerateSource source = load_generate_source(arguments.source);
  for (const std::string& warning : source.warnings) std::cerr << "note: " << warning << "\n";
  const std::string text = arguments.prompt_ids.empty() ? read_prompt(arguments) : std::string();
  const std::vector<std::int64_t> prompt = encode_prompt(arguments, source, text);
  arguments.options.stop_tokens = source.stop_tokens;
  check_cache(*source.model, static_cast<std::int64_t>(prompt.size()) + arguments.options.max_tokens);
  const data::Tokenizer* text_tokenizer = source.is_text() ? source.tokenizer.get() : nullptr;
  Printer printer(text_tokenizer, arguments.is_streaming);
  model::Generator generator(*source.model);
  for (std::int64_t sample = 0; sample < arguments.num_samples; ++sample) {
    arguments.options.sample = sample;
    if (arguments.as_json) {
      const model::Generation generation = generator.generate(prompt, arguments.options);
      print_json(arguments, source, prompt, generation);
      print_notes(*source.model, prompt.size(), generation);
    } else {
      if (arguments.num_samples > 1)
        std::cout << fmt::format("=== sample {} of {} ===\n", sample + 1, arguments.num_samples);
      printer.begin(text_tokenizer != nullptr ? text_tokenizer->decode(prompt) : "");
      const auto generation =
          generator.generate(prompt, arguments.options, [&](std::int64_t token) { return printer.token(token); });
      printer.end();
      print_notes(*source.model, prompt.size(), generation);
    }
    if (!std::cout.good())
      throw base::UserError({.what = "Standard output cannot be written.", .fix = "Check the disk or the reader."});
  }
}

}  // namespace

std::string Utf8Stream::push(std::string_view bytes) {
  pending_ += bytes;
  std::string text;
  std::size_t at = 0;
  while (at < pending_.size()) {
    const auto lead = static_cast<unsigned char>(pending_[at]);
    const std::size_t length = character_length(lead);
    std::size_t count = 1;
    while (count < length && at + count < pending_.size() &&
           may_follow(lead, count, static_cast<unsigned char>(pending_[at + count]))) {
      ++count;
    }
    if (count < length && at + count == pending_.size()) break;  // may still become a character
    text += count == length ? pending_.substr(at, count) : kReplacement;
    at += count;
  }
  pending_.erase(0, at);
  return text;
}

std::string Utf8Stream::finish() {
  const bool is_unfinished = !pending_.empty();
  pending_.clear();
  return is_unfinished ? kReplacement : "";
}

void add_generate_command(CLI::App& app) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("generate", "Generate text from a trained model");
  command
      ->add_option("source", arguments->source,
                   "Run folder, checkpoint (or folder of checkpoints), or Hugging Face folder")
      ->required();
  CLI::Option* prompt = command->add_option("--prompt", arguments->prompt,
                                            "Text to continue; - reads standard input; empty starts a document");
  command->add_option("--prompt-ids", arguments->prompt_id_list, "Token ids to continue, for example 1,2,3")
      ->allow_extra_args(false)
      ->excludes(prompt);
  auto& options = arguments->options;
  command->add_option("--max-tokens", options.max_tokens, "Most tokens to generate")
      ->check(whole_number<std::int64_t>(1, config::kMostTokens))
      ->capture_default_str();
  command
      ->add_option("--temperature", options.sampling.temperature,
                   "Divides the logits; 0 always takes the most probable token")
      ->capture_default_str();
  command->add_option("--top-k", options.sampling.top_k, "Draw from the K most probable tokens; 0: from all")
      ->check(whole_number<std::int64_t>(0))
      ->capture_default_str();
  command
      ->add_option("--top-p", options.sampling.top_p,
                   "Draw from the fewest tokens that reach this probability; 1: from all")
      ->capture_default_str();
  command->add_option("--seed", options.seed, "The same seed gives the same text")
      ->check(whole_number<std::uint64_t>())
      ->capture_default_str();
  command->add_option("--num-samples", arguments->num_samples, "Independent continuations")
      ->check(whole_number<std::int64_t>(1, config::kMostBatch))
      ->capture_default_str();
  command->add_flag("!--no-stream", arguments->is_streaming, "Print when done instead of token by token");
  command->add_flag("--json", arguments->as_json, "One JSON object a sample, with token ids and times");
  command->callback([arguments] { run_generate(*arguments); });
}

}  // namespace pharos::cli
