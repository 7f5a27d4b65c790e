// Loops of a kernel compiled for the widest vectors that the CPU has, not only for what every x86-64 has.
#pragma once

// Before a loop whose arrays either coincide element by element or don't overlap. Without it the compiler tests for
// overlap at run time, and a loop in place then runs one element at a time.
#if defined(__clang__)
#define VRAMFIT_INDEPENDENT_ELEMENTS _Pragma("clang loop vectorize(assume_safety)")
#else
#define VRAMFIT_INDEPENDENT_ELEMENTS _Pragma("GCC ivdep")
#endif

namespace vramfit::kernels {

#if defined(__x86_64__)

/// The calls in these are inlined, so they are compiled for the same vectors.
template <typename F>
[[gnu::flatten, gnu::noinline, gnu::target("avx512f,avx512bw,avx512dq,avx512vl")]] void with_avx512(const F& f) {
  f();
}
template <typename F>
[[gnu::flatten, gnu::noinline, gnu::target("avx2")]] void with_avx2(const F& f) {
  f();
}

enum class Vectors { sse2, avx2, avx512 };

inline Vectors find_vectors() {
  const bool has_avx512 = __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
                          __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
  if (has_avx512) return Vectors::avx512;
  return __builtin_cpu_supports("avx2") != 0 ? Vectors::avx2 : Vectors::sse2;
}

/// f(), with the same result for every width: no sum changes its order and no multiply-add is fused.
template <typename F>
void on_widest(const F& f) {
  static const Vectors kVectors = find_vectors();
  if (kVectors == Vectors::avx512) return with_avx512(f);
  if (kVectors == Vectors::avx2) return with_avx2(f);
  f();
}

#else

template <typename F>
void on_widest(const F& f) {
  f();
}

#endif

}  // namespace vramfit::kernels
