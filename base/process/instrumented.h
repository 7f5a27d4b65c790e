// Whether a sanitizer watches this build: it takes longer, keeps what is freed, and looks for leaks at the end.
#pragma once

namespace vramfit {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kIsInstrumented = true;
#else
inline constexpr bool kIsInstrumented = false;
#endif

}  // namespace vramfit
