# Warnings and sanitizers for every target of ours, and helpers the folders' lists use.
add_library(vramfit_options INTERFACE)
target_compile_features(vramfit_options INTERFACE cxx_std_20)
target_compile_options(vramfit_options INTERFACE -Wall -Wextra -Wshadow -Wconversion -Wswitch-enum)
if(PROJECT_IS_TOP_LEVEL)
  target_compile_options(vramfit_options INTERFACE -Werror)
endif()
# Not $<BOOL:...>: the comma of address,undefined breaks generator expressions.
if(VRAMFIT_SANITIZE)
  target_compile_options(vramfit_options INTERFACE "-fsanitize=${VRAMFIT_SANITIZE}" -fno-sanitize-recover=all
                                                   -fno-omit-frame-pointer)
  target_link_options(vramfit_options INTERFACE "-fsanitize=${VRAMFIT_SANITIZE}")
endif()

# vramfit_library(name SOURCES... ): a static library of one folder, includes from the root.
function(vramfit_library name)
  add_library(${name} STATIC ${ARGN})
  target_include_directories(${name} PUBLIC "${CMAKE_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE vramfit_options)
endfunction()
