// Stands for the header of this name; see gloo/forward.h.
#pragma once

#include <gloo/forward.h>
