# Headers that most sources include, compiled once for all targets that are built with the same flags. Sources still include what they
# use, so that they compile without this (preset `tidy`).
option(VRAMFIT_PCH "Precompile the standard library's and LibTorch's headers (300 MB in the build folder, a third less time)" ON)

# vramfit_precompiled(TARGET CARRIER HEADER [LIBRARIES lib...] [OPTIONS option...]): gives TARGET the header cmake/HEADER. The library
# CARRIER, made by the first call that names it, compiles it; OPTIONS are the carrier's and must be all its users' too.
function(vramfit_precompiled target carrier header)
  cmake_parse_arguments(ARG "" "" "LIBRARIES;OPTIONS" ${ARGN})
  if(NOT VRAMFIT_PCH)
    return()
  endif()
  if(NOT TARGET ${carrier})
    file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/${carrier}.cpp" CONTENT "// The carrier of a precompiled header.\n")
    add_library(${carrier} STATIC "${CMAKE_BINARY_DIR}/${carrier}.cpp")
    target_compile_features(${carrier} PRIVATE cxx_std_20)
    target_include_directories(${carrier} PRIVATE "${CMAKE_SOURCE_DIR}")
    target_link_libraries(${carrier} PRIVATE vramfit_options ${ARG_LIBRARIES})
    target_compile_options(${carrier} PRIVATE ${ARG_OPTIONS})
    target_precompile_headers(${carrier} PRIVATE "${CMAKE_SOURCE_DIR}/cmake/${header}")
  endif()
  target_precompile_headers(${target} REUSE_FROM ${carrier})
endfunction()
