// libcurl, loaded at the first download: linking it would add 15 ms to every start of the program, because of the
// libraries that it depends on.
#pragma once

#include <curl/curl.h>

namespace vramfit {

struct CurlLibrary {
  CURL* (*easy_init)() = nullptr;
  CURLcode (*easy_setopt)(CURL*, CURLoption, ...) = nullptr;
  CURLcode (*easy_perform)(CURL*) = nullptr;
  CURLcode (*easy_getinfo)(CURL*, CURLINFO, ...) = nullptr;
  void (*easy_cleanup)(CURL*) = nullptr;
  const char* (*easy_strerror)(CURLcode) = nullptr;
  curl_slist* (*slist_append)(curl_slist*, const char*) = nullptr;
  void (*slist_free_all)(curl_slist*) = nullptr;
};

/// Loads and initializes it once; throws ModelError when it isn't installed.
const CurlLibrary& curl_library();

/// Nothing but https, or http too, for the handle's requests: by the protocols' names, or by bits, which libcurl before
/// 7.85 takes instead. Returns what easy_setopt does.
CURLcode allow_protocols(const CurlLibrary& curl, CURL* handle, bool with_http);

}  // namespace vramfit
