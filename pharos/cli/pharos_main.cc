#include "pharos/cli/commands.h"

int main(int argc, char** argv) { return pharos::cli::run(argc, argv); }
