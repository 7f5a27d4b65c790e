#include "model_specs/hub/curl_library.h"

#include <doctest/doctest.h>

#include <cstdarg>
#include <string>

#undef curl_easy_setopt

namespace vramfit {
namespace {

// A libcurl of which only easy_setopt is there: an older one knows no protocols by name.
bool is_older = false;
std::string names;
long bits = 0;  // NOLINT(google-runtime-int): libcurl's own type

CURLcode record_option(CURL* /*handle*/, CURLoption option, ...) {
  va_list values;
  va_start(values, option);
  CURLcode code = CURLE_OK;
  if (option == CURLOPT_PROTOCOLS_STR && !is_older) {
    names = va_arg(values, const char*);
  } else if (int(option) == 181) {
    bits = va_arg(values, long);  // NOLINT(google-runtime-int)
  } else {
    code = CURLE_UNKNOWN_OPTION;
  }
  va_end(values);
  return code;
}

CURLcode allowed(bool older, bool with_http) {
  is_older = older;
  names.clear();
  bits = 0;
  CurlLibrary curl;
  curl.easy_setopt = &record_option;
  return allow_protocols(curl, nullptr, with_http);
}

TEST_CASE("protocols are named to a libcurl that knows names") {
  CHECK(allowed(false, false) == CURLE_OK);
  CHECK(names == "https");
  CHECK(bits == 0);
  CHECK(allowed(false, true) == CURLE_OK);
  CHECK(names == "http,https");
}

TEST_CASE("an older libcurl gets the same protocols as bits") {
  CHECK(allowed(true, false) == CURLE_OK);
  CHECK(bits == CURLPROTO_HTTPS);
  CHECK(allowed(true, true) == CURLE_OK);
  CHECK(bits == (CURLPROTO_HTTP | CURLPROTO_HTTPS));
}

}  // namespace
}  // namespace vramfit
