#pragma once
// Whether a sanitizer watches, under which tests take ten times as long: those of many alike do fewer of them there.

namespace bonfire::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kUnderSanitizer = true;
#else
inline constexpr bool kUnderSanitizer = false;
#endif

}  // namespace bonfire::testing
