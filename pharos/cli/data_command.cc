#include "pharos/cli/data_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <iostream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "pharos/base/clock.h"
#include "pharos/base/error.h"
#include "pharos/base/text.h"
#include "pharos/cli/integer_option.h"
#include "pharos/config/limits.h"
#include "pharos/data/datasets.h"
#include "pharos/data/indexed/indexed_dataset.h"
#include "pharos/data/text/ngram.h"
#include "pharos/data/text/prepare.h"

namespace pharos::cli {
namespace {

data::Split parse_split_name(const std::string& text) {
  for (const data::Split split : {data::Split::kTrain, data::Split::kValid, data::Split::kTest}) {
    if (text == data::name(split)) return split;
  }
  throw base::UserError({.what = "'" + text + "' is not the name of a split.",
                         .where = "command line",
                         .fix = "Use train, valid or test."});
}

// --- prepare ---------------------------------------------------------------------------------------------------------

struct PrepareArguments {
  std::vector<std::string> inputs;
  std::string output;
  std::string jsonl_key;
  std::string split_on;
  std::string tokenizer = "byte";
  std::string token_type = "auto";
  bool append_end_of_document = true;
  std::int64_t sequence_tokens = 8192;
  bool has_sequence_tokens = false;
  bool has_jsonl_key = false;
  bool json = false;
};

data::PrepareOptions prepare_options(const PrepareArguments& arguments) {
  data::PrepareOptions options;
  if (arguments.has_jsonl_key) options.jsonl_key = arguments.jsonl_key;
  if (arguments.split_on == "line") options.mode = data::DocumentMode::kLine;
  if (arguments.split_on == "blank-line") options.mode = data::DocumentMode::kBlankLine;
  if (arguments.has_sequence_tokens && (options.jsonl_key || options.mode != data::DocumentMode::kFile)) {
    throw base::UserError({.what = "--sequence-tokens has no meaning with --split-on " +
                                   (options.jsonl_key ? "or --jsonl-key" : arguments.split_on) + ".",
                           .where = "command line",
                           .why = "Only whole files are stored in pieces; here every document is a sequence already.",
                           .fix = "Leave out --sequence-tokens."});
  }
  options.sequence_tokens = arguments.sequence_tokens;
  options.append_end_of_document = arguments.append_end_of_document;
  if (arguments.token_type == "uint16") options.token_type = data::TokenType::kUint16;
  if (arguments.token_type == "int32") options.token_type = data::TokenType::kInt32;
  return options;
}

void show_progress(const data::PrepareProgress& progress) {
  const double share = progress.total_bytes > 0 ? 100.0 * static_cast<double>(progress.input_bytes) /
                                                      static_cast<double>(progress.total_bytes)
                                                : 0;
  fmt::print(stderr, "\r{:5.1f} %  {} documents  {} tokens ", share,
             base::format_count(static_cast<double>(progress.num_documents)),
             base::format_count(static_cast<double>(progress.num_tokens)));
}

/// A prefix without a file name would make hidden files; one that is an input would destroy it.
void check_output(const std::string& prefix, const PrepareArguments& arguments) {
  if (std::filesystem::path(prefix).filename().empty()) {
    throw base::UserError({.what = "--output '" + arguments.output + "' names no file.",
                           .where = "command line",
                           .fix = "Give a prefix such as data/text; data/text.bin and data/text.idx are written."});
  }
  if (arguments.has_jsonl_key && arguments.jsonl_key.empty()) {
    throw base::UserError(
        {.what = "--jsonl-key is empty.", .where = "command line", .fix = "Name the key that holds the text."});
  }
  for (const auto& input : arguments.inputs) {
    for (const char* suffix : {".bin", ".idx"}) {
      std::error_code ignored;
      if (!std::filesystem::equivalent(input, prefix + suffix, ignored)) continue;
      throw base::UserError({.what = "'" + input + "' is both input and output.",
                             .where = "command line",
                             .fix = "Choose another --output."});
    }
  }
}

void run_prepare(const PrepareArguments& arguments) {
  const std::string prefix = data::dataset_prefix(arguments.output);
  check_output(prefix, arguments);
  data::PrepareOptions options = prepare_options(arguments);
  const bool shows_progress = !arguments.json && ::isatty(STDERR_FILENO) == 1;
  if (shows_progress) options.progress = show_progress;
  const std::vector<std::filesystem::path> inputs(arguments.inputs.begin(), arguments.inputs.end());
  const data::PrepareSummary summary = data::prepare(inputs, prefix, data::ByteTokenizer(), options);
  if (shows_progress) fmt::print(stderr, "\r{:60}\r", "");
  const double seconds = static_cast<double>(summary.duration_ns) * 1e-9;
  if (arguments.json) {
    std::cout << nlohmann::ordered_json{{"prefix", prefix},
                                        {"documents", summary.num_documents},
                                        {"sequences", summary.num_sequences},
                                        {"tokens", summary.num_tokens},
                                        {"token_type", data::name(summary.token_type)},
                                        {"input_bytes", summary.input_bytes},
                                        {"output_bytes", summary.output_bytes},
                                        {"seconds", seconds}}
                     .dump(2, ' ', false, nlohmann::json::error_handler_t::replace)
              << "\n";
    return;
  }
  fmt::print("{0}.bin, {0}.idx: {1} documents, {2} sequences, {3} tokens ({4}), {5} written in {6} ({7}/s)\n", prefix,
             summary.num_documents, summary.num_sequences, summary.num_tokens, data::name(summary.token_type),
             base::format_bytes(static_cast<double>(summary.output_bytes)), base::format_duration(summary.duration_ns),
             base::format_bytes(static_cast<double>(summary.input_bytes) / seconds));
}

void add_prepare(CLI::App& data_app) {
  auto arguments = std::make_shared<PrepareArguments>();
  CLI::App* app =
      data_app.add_subcommand("prepare", "Turn text files into a tokenized dataset (PREFIX.bin, PREFIX.idx).");
  app->add_option("INPUT", arguments->inputs, "text or .jsonl files")->required();
  app->add_option("--output", arguments->output, "prefix of the files to write")->required();
  CLI::Option* key = app->add_option("--jsonl-key", arguments->jsonl_key,
                                     "input is one JSON object a line; the key that holds the text");
  app->add_option("--split-on", arguments->split_on, "what is a document: file (default), blank-line, line")
      ->check(CLI::IsMember({"file", "blank-line", "line"}))
      ->excludes(key);
  app->add_option("--tokenizer", arguments->tokenizer, "byte: a token is a byte, 256 ends a document")
      ->check(CLI::IsMember({"byte"}));
  app->add_option("--token-type", arguments->token_type, "element type of .bin: auto, uint16, int32")
      ->check(CLI::IsMember({"auto", "uint16", "int32"}));
  app->add_flag("--append-eod,!--no-append-eod", arguments->append_end_of_document,
                "end every document with the end-of-document token (default)");
  CLI::Option* pieces =
      app->add_option("--sequence-tokens", arguments->sequence_tokens,
                      "whole files are stored in sequences of at most this many tokens (default 8192; 0: one)")
          ->check(whole_number<std::int64_t>(0, std::numeric_limits<std::int32_t>::max()));
  app->add_flag("--json", arguments->json, "print the summary as JSON");
  app->callback([arguments, pieces, key] {
    arguments->has_sequence_tokens = pieces->count() > 0;
    arguments->has_jsonl_key = key->count() > 0;
    run_prepare(*arguments);
  });
}

// --- inspect ---------------------------------------------------------------------------------------------------------

struct InspectArguments {
  std::vector<std::string> prefixes;
  std::int64_t samples = 1;
  std::string split_name = "train";
  std::string split = "969,30,1";
  std::int64_t seq_length = 0;
  std::int64_t seed = 1234;
  std::int64_t num_samples = -1;
  std::string path_to_cache;
  bool json = false;
};

nlohmann::ordered_json describe_part(const data::GptDataset& dataset) {
  const auto [first, second] = dataset.part().sequences;
  return {{"length", dataset.length()},
          {"tokens_per_epoch", dataset.plan().tokens_per_epoch},
          {"epochs", dataset.plan().num_epochs},
          {"sequences", {first, second}}};
}

/// A blend describes each of its datasets in "datasets" and sums their tokens.
nlohmann::ordered_json describe(const data::SampleDataset& dataset) {
  if (const auto* single = dynamic_cast<const data::GptDataset*>(&dataset)) return describe_part(*single);
  nlohmann::ordered_json json{{"length", dataset.length()}, {"datasets", nlohmann::ordered_json::array()}};
  for (const auto& part : dynamic_cast<const data::BlendedDataset&>(dataset).datasets()) {
    nlohmann::ordered_json entry{{"prefix", part->part().path}};
    entry.update(describe_part(*part));
    json["datasets"].push_back(std::move(entry));
  }
  return json;
}

void print_samples(const InspectArguments& arguments, const nlohmann::ordered_json& json) {
  if (arguments.json) {
    std::cout << json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
    return;
  }
  for (const auto& [key, value] : json.items()) {
    if (key != "samples" && key != "labels") fmt::print("{}: {}\n", key, value.dump());
  }
  for (std::size_t i = 0; i < json["samples"].size(); ++i) fmt::print("sample {}: {}\n", i, json["samples"][i].dump());
}

void run_inspect(const InspectArguments& arguments) {
  if (arguments.samples < 0)
    throw base::UserError({.what = "--samples = " + std::to_string(arguments.samples) + " is negative.",
                           .where = "command line",
                           .fix = "Give 0 or more."});
  const data::ByteTokenizer tokenizer;
  data::GptDatasetOptions options;
  options.set_tokenizer(tokenizer);
  options.vocab_size = 0;  // a look at the data of any tokenizer
  options.seq_length = arguments.seq_length;
  options.random_seed = arguments.seed;
  options.use_cache = !arguments.path_to_cache.empty();
  if (options.use_cache) options.path_to_cache = arguments.path_to_cache;

  const data::Split split = parse_split_name(arguments.split_name);
  const auto index = static_cast<std::size_t>(split);
  data::SampleCounts counts{0, 0, 0};
  counts[index] = arguments.num_samples < 0 ? std::nullopt : std::optional(arguments.num_samples);
  const data::DatasetSet set =
      data::build_datasets({.blend = arguments.prefixes, .split = arguments.split}, counts, options);
  if (!set[index]) {
    throw base::UserError({.what = "The split '" + arguments.split + "' gives " + arguments.split_name +
                                   " no share, so it has no samples.",
                           .where = "command line",
                           .fix = "Choose another --split-name or --split."});
  }
  nlohmann::ordered_json json{{"split_name", arguments.split_name}};
  json.update(describe(*set[index]));
  json["samples"] = nlohmann::ordered_json::array();
  json["labels"] = nlohmann::ordered_json::array();
  for (std::int64_t i = 0; i < std::min(arguments.samples, set[index]->length()); ++i) {
    const data::Sample sample = set[index]->get(i);
    json["samples"].push_back(sample.tokens);
    json["labels"].push_back(sample.labels);
  }
  print_samples(arguments, json);
}

void add_inspect(CLI::App& data_app) {
  auto arguments = std::make_shared<InspectArguments>();
  CLI::App* app = data_app.add_subcommand("inspect", "Print the first samples a dataset would give to training.");
  app->add_option("PREFIX", arguments->prefixes, "dataset, or a blend: several, or WEIGHT PREFIX WEIGHT PREFIX …")
      ->required();
  app->add_option("--samples", arguments->samples, "how many samples to print (default 1)")->check(whole_number());
  app->add_option("--split-name", arguments->split_name, "train (default), valid or test");
  app->add_option("--split", arguments->split, "shares of training, validation and test (default 969,30,1)");
  app->add_option("--seq-length", arguments->seq_length, "tokens of a sample")->required()->check(whole_number());
  app->add_option("--seed", arguments->seed, "seed of the shuffle (default 1234)")->check(whole_number());
  app->add_option("--num-samples", arguments->num_samples,
                  "samples the run will draw (default: one epoch; a weighted blend needs it)")
      ->check(whole_number<std::int64_t>(1, config::kMostSteps * config::kMostBatch));
  app->add_option("--path-to-cache", arguments->path_to_cache,
                  "folder of index caches to use and to fill (default: none)");
  app->add_flag("--json", arguments->json, "print JSON");
  app->callback([arguments] { run_inspect(*arguments); });
}

// --- info ------------------------------------------------------------------------------------------------------------

struct InfoArguments {
  std::string prefix;
  bool json = false;
};

void run_info(const InfoArguments& arguments) {
  const data::IndexedDataset dataset(data::dataset_prefix(arguments.prefix));
  std::int64_t shortest = dataset.length(0);
  std::int64_t longest = 0;
  for (std::int64_t i = 0; i < dataset.num_sequences(); ++i) {
    shortest = std::min(shortest, dataset.length(i));
    longest = std::max(longest, dataset.length(i));
  }
  if (arguments.json) {
    std::cout << nlohmann::ordered_json{{"prefix", dataset.prefix()},
                                        {"documents", dataset.num_documents()},
                                        {"sequences", dataset.num_sequences()},
                                        {"tokens", dataset.num_tokens()},
                                        {"token_type", data::name(dataset.index().token_type())},
                                        {"bytes", dataset.size_bytes()},
                                        {"shortest_sequence", shortest},
                                        {"longest_sequence", longest}}
                     .dump(2, ' ', false, nlohmann::json::error_handler_t::replace)
              << "\n";
    return;
  }
  fmt::print("{}\n  documents  {}\n  sequences  {} of {} to {} tokens\n  tokens     {} ({})\n  size       {}\n",
             dataset.prefix(), dataset.num_documents(), dataset.num_sequences(), shortest, longest,
             dataset.num_tokens(), data::name(dataset.index().token_type()),
             base::format_bytes(static_cast<double>(dataset.size_bytes())));
}

void add_info(CLI::App& data_app) {
  auto arguments = std::make_shared<InfoArguments>();
  CLI::App* app = data_app.add_subcommand("info", "Check a dataset's files and print what they hold.");
  app->add_option("PREFIX", arguments->prefix, "dataset")->required();
  app->add_flag("--json", arguments->json, "print JSON");
  app->callback([arguments] { run_info(*arguments); });
}

// --- trigram ---------------------------------------------------------------------------------------------------------

struct TrigramArguments {
  std::string prefix;
  std::string split = "90,5,5";
  bool json = false;
};

void run_trigram(const TrigramArguments& arguments) {
  const data::IndexedDataset dataset(data::dataset_prefix(arguments.prefix));
  const data::SplitShares shares = data::parse_split(arguments.split);
  const auto train = shares.sequences(data::Split::kTrain, dataset.num_sequences());
  if (!train || train->first == train->second) {
    throw base::UserError({.what = "The split '" + arguments.split + "' leaves nothing to train the trigram model on.",
                           .where = "command line",
                           .fix = "Give the first part a larger share."});
  }
  // With both a validation and a test part the weights are fitted on the first and the test part is untouched. The
  // figure for validation is then a little too good, which makes it harder to beat, not easier.
  const auto valid = shares.sequences(data::Split::kValid, dataset.num_sequences());
  const auto test = shares.sequences(data::Split::kTest, dataset.num_sequences());
  const bool fits_on_valid = valid && valid->first < valid->second && test && test->first < test->second;
  data::TrigramModel model;
  model.train(dataset, {train->first, train->second},
              fits_on_valid ? data::SequenceRange{valid->first, valid->second} : data::SequenceRange{});

  nlohmann::ordered_json parts = nlohmann::ordered_json::object();
  std::string last;
  for (const data::Split split : {data::Split::kValid, data::Split::kTest}) {
    const auto range = shares.sequences(split, dataset.num_sequences());
    if (!range || range->first == range->second) continue;
    const auto score = model.score(dataset, {range->first, range->second});
    if (score.num_tokens == 0) continue;
    last = data::name(split);
    parts[last] = {{"nats_per_byte", score.nats_per_token()},
                   {"bits_per_byte", score.nats_per_token() / 0.6931471805599453},
                   {"tokens", score.num_tokens}};
  }
  if (last.empty()) {
    throw base::UserError(
        {.what = "The split '" + arguments.split + "' of " + std::to_string(dataset.num_sequences()) +
                 " sequences leaves nothing to measure on.",
         .where = dataset.prefix(),
         .fix = "Give validation or test a larger share, or prepare the text as more sequences (--sequence-tokens)."});
  }
  const nlohmann::ordered_json json{{"nats_per_byte", parts[last]["nats_per_byte"]},
                                    {"split", arguments.split},
                                    {"split_name", last},
                                    {"weights_fitted_on", fits_on_valid ? "valid" : "train"},
                                    {"parts", parts}};
  if (arguments.json) {
    std::cout << json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
    return;
  }
  for (const auto& [name, part] : parts.items()) {
    fmt::print("trigram model on {:5}: {:.4f} nats per byte ({:.4f} bits), {} tokens\n", name,
               part["nats_per_byte"].get<double>(), part["bits_per_byte"].get<double>(),
               part["tokens"].get<std::int64_t>());
  }
}

void add_trigram(CLI::App& data_app) {
  auto arguments = std::make_shared<TrigramArguments>();
  CLI::App* app =
      data_app.add_subcommand("trigram", "Nats per byte of a trigram model: the number a language model has to beat.");
  app->add_option("PREFIX", arguments->prefix, "dataset of bytes")->required();
  app->add_option("--split", arguments->split, "trained on the first part, measured on the others (default 90,5,5)");
  app->add_flag("--json", arguments->json, "print JSON");
  app->callback([arguments] { run_trigram(*arguments); });
}

}  // namespace

void add_data_command(CLI::App& app) {
  CLI::App* data_app = app.add_subcommand("data", "Prepare and look at training data.");
  data_app->require_subcommand(1);
  add_prepare(*data_app);
  add_inspect(*data_app);
  add_info(*data_app);
  add_trigram(*data_app);
}

}  // namespace pharos::cli
