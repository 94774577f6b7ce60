// Loops that the compiler is to vectorize for the processor that they run on.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define LAMPWORK_X86 1
#else
#define LAMPWORK_X86 0
#endif

// A function with a version for each level of x86-64; the loader chooses. Sanitizers are not up when it does.
#if LAMPWORK_X86 && !defined(__SANITIZE_ADDRESS__)
#define LAMPWORK_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define LAMPWORK_CLONES
#endif
