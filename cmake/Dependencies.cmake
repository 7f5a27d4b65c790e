# The libraries that vramfit is built with: those that are installed, or, with VRAMFIT_HEADERS, headers alone, for programs that must run on
# other systems too (scripts/wheel). Of curl only the headers are needed: the library is loaded when something is downloaded.
set(VRAMFIT_HEADERS "" CACHE PATH "Folder with fmt/, CLI/, nlohmann/, curl/ and zstd/zstd.c, used instead of installed libraries")

if(NOT VRAMFIT_HEADERS)
  find_package(fmt REQUIRED)
  find_package(CLI11 REQUIRED)
  find_package(nlohmann_json REQUIRED)
  find_package(CURL REQUIRED)
  add_library(vramfit_zstd INTERFACE)
  target_link_libraries(vramfit_zstd INTERFACE zstd)
  return()
endif()

enable_language(C)
foreach(name IN ITEMS fmt::fmt fmt::fmt-header-only CLI11::CLI11 nlohmann_json::nlohmann_json)
  add_library(${name} INTERFACE IMPORTED GLOBAL)
  target_include_directories(${name} SYSTEM INTERFACE "${VRAMFIT_HEADERS}")
endforeach()
target_compile_definitions(fmt::fmt INTERFACE FMT_HEADER_ONLY)
target_compile_definitions(fmt::fmt-header-only INTERFACE FMT_HEADER_ONLY)
set(CURL_INCLUDE_DIRS "${VRAMFIT_HEADERS}")
# Without visible functions: what links it would export them to the programs that it is loaded into.
add_library(vramfit_zstd STATIC "${VRAMFIT_HEADERS}/zstd/zstd.c")
target_compile_definitions(vramfit_zstd PRIVATE ZSTDLIB_VISIBLE= ZSTDERRORLIB_VISIBLE= ZDICTLIB_VISIBLE=)
target_include_directories(vramfit_zstd SYSTEM PUBLIC "${VRAMFIT_HEADERS}/zstd")
set_target_properties(vramfit_zstd PROPERTIES POSITION_INDEPENDENT_CODE ON C_VISIBILITY_PRESET hidden)
