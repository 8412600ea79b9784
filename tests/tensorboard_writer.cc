// Writes an event file as a training run does, for tests/tensorboard_test.py: tensorboard_writer FOLDER [kill].
// With `kill` the process kills itself with one point not yet flushed.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <string_view>

#include "pharos/lens/tensorboard/training_scalars.h"

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3 || (argc == 3 && std::string_view(argv[2]) != "kill")) {
    std::fprintf(stderr, "usage: tensorboard_writer FOLDER [kill]\n");
    return 2;
  }
  using namespace pharos::lens;
  EventFile file(argv[1]);
  file.add_text("arguments", "train_iters: 3", 0);
  for (int iteration = 1; iteration <= 3; ++iteration) {
    TrainingScalars scalars;
    scalars.iteration = iteration;
    scalars.consumed_samples = 16 * iteration;
    scalars.losses = {{"lm loss", 4.0 / iteration}};
    scalars.learning_rate = 1e-4 * iteration;
    scalars.iteration_time_s = 0.125;
    write_scalars(file, scalars);
  }
  ValidationScalars validation;
  validation.iteration = 3;
  validation.consumed_samples = 48;
  validation.loss = 1.5;
  validation.has_perplexity = true;
  write_scalars(file, validation);
  if (argc == 3) {
    file.add_scalar("lm loss", 0, 4);
    kill(getpid(), SIGKILL);
  }
  return 0;
}
