// hf_load FOLDER [--tensor-parallel N --rank R]: loads a Hugging Face folder as a rank of a run does, and prints how
// long that took and how far the process's memory grew, as one JSON object.
#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "pharos/base/clock.h"
#include "pharos/base/memory.h"
#include "pharos/hf/hf_config.h"
#include "pharos/hf/weights.h"
#include "pharos/model/transformer.h"

int main(int argc, char** argv) {
  CLI::App app("Loads a Hugging Face folder", "hf_load");
  std::string folder;
  std::int64_t tensor_parallel = 1, rank = 0;
  int num_threads = 2;
  app.add_option("FOLDER", folder)->required();
  app.add_option("--tensor-parallel", tensor_parallel);
  app.add_option("--rank", rank);
  app.add_option("--threads", num_threads);
  CLI11_PARSE(app, argc, argv);
  using namespace pharos;
  at::set_num_threads(num_threads);
  config::ModelConfig config = hf::read_hf_config(folder).model;
  config.tensor_model_parallel_size = tensor_parallel;
  const comm::Mesh mesh(tensor_parallel, {.tensor = tensor_parallel});
  model::Transformer model(config, model::whole_model(config), mesh, rank);
  const std::int64_t before_bytes = base::process_memory().resident_bytes;
  const std::int64_t start_ns = base::monotonic_ns();
  hf::check_weights(model.parameters(), folder, mesh, rank);
  model.allocate(at::kCPU);
  const std::int64_t allocated_ns = base::monotonic_ns();
  hf::load_weights(model.parameters(), folder, mesh, rank);
  const std::int64_t end_ns = base::monotonic_ns();
  std::int64_t local_bytes = 0;
  for (const tensor::Parameter* parameter : model.parameters())
    local_bytes += static_cast<std::int64_t>(parameter->data.nbytes());
  std::cout << nlohmann::json{{"local_bytes", local_bytes},
                              {"growth_bytes", base::process_memory().peak_resident_bytes - before_bytes},
                              {"allocate_s", static_cast<double>(allocated_ns - start_ns) / 1e9},
                              {"load_s", static_cast<double>(end_ns - allocated_ns) / 1e9}}
                   .dump()
            << "\n";
}
