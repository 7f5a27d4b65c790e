#include "model_specs/hub/curl_library.h"

#include <dlfcn.h>

#include "base/error.h"

// The declarations below would otherwise expand to macros that check the types of variadic calls.
#undef curl_easy_setopt
#undef curl_easy_getinfo

namespace vramfit {
namespace {

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) throw ModelError(std::string("libcurl has no ") + name + ": install libcurl4");
}

CurlLibrary load() {
  void* library = dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) library = dlopen("libcurl-gnutls.so.4", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw ModelError("downloads need libcurl: install it (Debian: libcurl4), or use a catalog name or a local path");
  }
  CURLcode (*global_init)(long) = nullptr;  // NOLINT(google-runtime-int): libcurl's own type
  find(library, "curl_global_init", global_init);
  if (global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) throw ModelError("libcurl can't be initialized");
  CurlLibrary curl;
  find(library, "curl_easy_init", curl.easy_init);
  find(library, "curl_easy_setopt", curl.easy_setopt);
  find(library, "curl_easy_perform", curl.easy_perform);
  find(library, "curl_easy_getinfo", curl.easy_getinfo);
  find(library, "curl_easy_cleanup", curl.easy_cleanup);
  find(library, "curl_easy_strerror", curl.easy_strerror);
  find(library, "curl_slist_append", curl.slist_append);
  find(library, "curl_slist_free_all", curl.slist_free_all);
  return curl;
}

// CURLOPT_PROTOCOLS, an enumerator that newer headers warn of.
constexpr auto kProtocolBits = static_cast<CURLoption>(CURLOPTTYPE_LONG + 181);

}  // namespace

CURLcode allow_protocols(const CurlLibrary& curl, CURL* handle, bool with_http) {
  const CURLcode code = curl.easy_setopt(handle, CURLOPT_PROTOCOLS_STR, with_http ? "http,https" : "https");
  if (code != CURLE_UNKNOWN_OPTION) return code;
  // NOLINTNEXTLINE(google-runtime-int): libcurl's own type
  const long bits = with_http ? CURLPROTO_HTTP | CURLPROTO_HTTPS : CURLPROTO_HTTPS;
  return curl.easy_setopt(handle, kProtocolBits, bits);
}

const CurlLibrary& curl_library() {
  static const CurlLibrary kLibrary = load();
  return kLibrary;
}

}  // namespace vramfit
