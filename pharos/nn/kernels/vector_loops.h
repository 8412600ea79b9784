// What loops need to become vector code: PHAROS_VECTOR_CLONES makes several bodies of a function, one for each
// instruction set, of which one is chosen when the program is loaded; expf() has vector forms in loops marked
// `#pragma omp simd`. Sanitizers do not see through the resolver that does the choosing, so their builds take the plain
// body.
#pragma once

#include <math.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define PHAROS_VECTOR_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define PHAROS_VECTOR_CLONES
#endif

// glibc has these in libmvec (up to 4 ulp off), but declares them only to compilers that may also reorder sums and
// forget NaN.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
extern "C" {
#pragma omp declare simd notinbranch
float expf(float x) noexcept(true);
}
#endif
