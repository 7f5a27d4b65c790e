// libcurl, loaded when the first download happens: linking it would cost every start of the program 15 ms for the
// libraries that it brings along.
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

}  // namespace vramfit
