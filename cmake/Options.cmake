# Hardening, warnings and sanitizers for every target of ours, and helpers the folders' lists use.

# What turns a write out of bounds into an end with a message, for files, configurations and variables may be anybody's. Stand-ins
# that are made from other people's headers have this alone. tests/style/binaries.py reads the results.
add_library(vramfit_hardening INTERFACE)
target_compile_options(vramfit_hardening INTERFACE -fstack-protector-strong)
# Without optimization glibc warns that it can't check; sanitizers check more, and see less of what goes through its checks.
if(NOT VRAMFIT_SANITIZE)
  target_compile_options(vramfit_hardening INTERFACE "$<$<CONFIG:Release,RelWithDebInfo,MinSizeRel>:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=2>")
endif()
# Programs can be loaded anywhere, as Debian's compiler makes them unasked; shared libraries ask for PIC themselves.
target_compile_options(vramfit_hardening INTERFACE "$<$<NOT:$<BOOL:$<TARGET_PROPERTY:POSITION_INDEPENDENT_CODE>>>:-fPIE>")
target_link_options(vramfit_hardening INTERFACE "$<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:-pie>"
  -Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack)

add_library(vramfit_options INTERFACE)
target_link_libraries(vramfit_options INTERFACE vramfit_hardening)
target_compile_features(vramfit_options INTERFACE cxx_std_20)
target_compile_options(vramfit_options INTERFACE -Wall -Wextra -Wshadow -Wconversion -Wswitch-enum)
# Warnings differ between compilers; the one that packages are built with is not the one that sources are written for. They also differ
# with what sanitizers put in: GCC 12 then takes copies of strings for writes out of bounds. The same sources are built without them, too.
if(PROJECT_IS_TOP_LEVEL AND NOT VRAMFIT_HEADERS AND NOT VRAMFIT_SANITIZE)
  target_compile_options(vramfit_options INTERFACE -Werror)
endif()
# GCC 12 takes copies of short std::strings for reads out of bounds (GCC bug 105329), which shows when headers are precompiled.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(vramfit_options INTERFACE -Wno-array-bounds)
endif()
# Not $<BOOL:...>: the comma of address,undefined breaks generator expressions.
if(VRAMFIT_SANITIZE)
  target_compile_options(vramfit_options INTERFACE "-fsanitize=${VRAMFIT_SANITIZE}" -fno-sanitize-recover=all
                                                   -fno-omit-frame-pointer)
  target_link_options(vramfit_options INTERFACE "-fsanitize=${VRAMFIT_SANITIZE}")
  # Accesses are checked by calls, not in place: a quarter less time to compile, which is most of what a sanitizer's run takes.
  if(VRAMFIT_SANITIZE MATCHES "address" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(vramfit_options INTERFACE "SHELL:--param asan-instrumentation-with-call-threshold=0")
  endif()
  if(VRAMFIT_SANITIZE_WITHOUT)
    target_compile_options(vramfit_options INTERFACE "-fno-sanitize=${VRAMFIT_SANITIZE_WITHOUT}")
  endif()
endif()

# Code that little time is spent in: -O1 takes a third less time to compile than -O3. GCC 12 knows too little of lengths there to warn of
# copies that are too long.
set(VRAMFIT_QUICK_OPTIONS "$<$<CONFIG:Release>:-O1;-Wno-stringop-overflow;-Wno-stringop-overread>")

# vramfit_library(name [QUICK] SOURCES...): a static library of one folder, includes from the root.
function(vramfit_library name)
  cmake_parse_arguments(ARG "QUICK" "" "" ${ARGN})
  add_library(${name} STATIC ${ARG_UNPARSED_ARGUMENTS})
  target_compile_features(${name} PUBLIC cxx_std_20)
  target_include_directories(${name} PUBLIC "$<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}>" "$<INSTALL_INTERFACE:include/vramfit>")
  target_link_libraries(${name} PRIVATE "$<BUILD_INTERFACE:vramfit_options>")
  if(ARG_QUICK)
    target_compile_options(${name} PRIVATE ${VRAMFIT_QUICK_OPTIONS})
    vramfit_precompiled(${name} vramfit_quick_pch std_pch.h LIBRARIES fmt::fmt OPTIONS ${VRAMFIT_QUICK_OPTIONS})
  else()
    vramfit_precompiled(${name} vramfit_std_pch std_pch.h LIBRARIES fmt::fmt)
  endif()
endfunction()

# vramfit_listed_sources(out list folder): folder/x.cpp for each line WORD(x ...) of a list that C++ includes as well. Lines
# whose first word is a text have no source.
function(vramfit_listed_sources out list folder)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${list}")
  file(STRINGS "${list}" lines REGEX "^[A-Z_]+\\([a-z]")
  list(TRANSFORM lines REPLACE "^[A-Z_]+\\(([a-z0-9_]+).*" "${folder}/\\1.cpp")
  set(${out} "${lines}" PARENT_SCOPE)
endfunction()
