// For libraries that are compiled once for many systems (scripts/values_libraries.py): what headers of g++ 12 take from
// libstdc++ and that of g++ 8, the oldest that PyTorch's own wheels run with, doesn't have. It stays within the
// library.
#include <new>
#include <sstream>
#include <string>

namespace std {  // NOLINT(cert-dcl58-cpp)

void __throw_bad_array_new_length() {  // NOLINT(bugprone-reserved-identifier,readability-identifier-naming)
  throw bad_array_new_length();
}

template basic_ostringstream<char>::basic_ostringstream();
#if _GLIBCXX_USE_CXX11_ABI
template string basic_stringbuf<char>::str() &&;
#endif

}  // namespace std
