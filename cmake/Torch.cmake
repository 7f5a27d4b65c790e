# What LibTorch sources need: the wheel, a precompiled header, and a job pool, as one of them takes up to 1.3 GB.
find_package(LibTorch REQUIRED)

cmake_host_system_information(RESULT memory_mib QUERY TOTAL_PHYSICAL_MEMORY)
math(EXPR torch_jobs "${memory_mib} / 2048")
if(torch_jobs LESS 1)
  set(torch_jobs 1)
endif()
set_property(GLOBAL APPEND PROPERTY JOB_POOLS torch=${torch_jobs})
option(VRAMFIT_TORCH_PCH "Precompile LibTorch's headers (150 MB in the build folder, several times faster builds)" ON)

# vramfit_uses_torch(TARGET): gives a target of ours LibTorch's headers and CPU libraries, the precompiled header and the job pool.
# The header is compiled once, by the target vramfit_torch_pch; all users need the same flags, hence the same options.
function(vramfit_uses_torch target)
  target_link_libraries(${target} PRIVATE LibTorch::cpu)
  set_target_properties(${target} PROPERTIES JOB_POOL_COMPILE torch)
  if(VRAMFIT_TORCH_PCH)
    if(NOT TARGET vramfit_torch_pch)
      file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/torch_pch.cpp" CONTENT "// The carrier of the precompiled header.\n")
      add_library(vramfit_torch_pch STATIC "${CMAKE_BINARY_DIR}/torch_pch.cpp")
      target_include_directories(vramfit_torch_pch PRIVATE "${CMAKE_SOURCE_DIR}")
      target_link_libraries(vramfit_torch_pch PRIVATE vramfit_options fmt::fmt LibTorch::cpu)
      target_precompile_headers(vramfit_torch_pch PRIVATE "${CMAKE_SOURCE_DIR}/cmake/torch_pch.h")
      set_target_properties(vramfit_torch_pch PROPERTIES JOB_POOL_COMPILE torch)
    endif()
    target_precompile_headers(${target} REUSE_FROM vramfit_torch_pch)
  endif()
endfunction()
