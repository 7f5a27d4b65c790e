# The libraries that vramfit is built with: those that are installed, or, with VRAMFIT_HEADERS, a folder that scripts/wheel fills, for
# programs that must run on other systems too. Of curl only the headers are needed: the library is loaded when something is downloaded.
set(VRAMFIT_HEADERS "" CACHE PATH "Folder with fmt/, CLI/, nlohmann/, curl/, zstd.h and libzstd.a, used instead of installed libraries")

if(NOT VRAMFIT_HEADERS)
  find_package(fmt REQUIRED)
  find_package(CLI11 REQUIRED)
  find_package(nlohmann_json REQUIRED)
  find_package(CURL REQUIRED)
  add_library(vramfit_zstd INTERFACE)
  target_link_libraries(vramfit_zstd INTERFACE zstd)
  return()
endif()

foreach(name IN ITEMS fmt::fmt fmt::fmt-header-only CLI11::CLI11 nlohmann_json::nlohmann_json)
  add_library(${name} INTERFACE IMPORTED GLOBAL)
  target_include_directories(${name} SYSTEM INTERFACE "${VRAMFIT_HEADERS}")
endforeach()
target_compile_definitions(fmt::fmt INTERFACE FMT_HEADER_ONLY)
target_compile_definitions(fmt::fmt-header-only INTERFACE FMT_HEADER_ONLY)
set(CURL_INCLUDE_DIRS "${VRAMFIT_HEADERS}")
add_library(vramfit_zstd INTERFACE)
target_include_directories(vramfit_zstd SYSTEM INTERFACE "${VRAMFIT_HEADERS}")
target_link_libraries(vramfit_zstd INTERFACE "${VRAMFIT_HEADERS}/libzstd.a")
