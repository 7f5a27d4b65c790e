# What LibTorch sources need: the wheel, a precompiled header, and a job pool, as one of them takes up to 1.3 GB.
find_package(LibTorch REQUIRED)

cmake_host_system_information(RESULT memory_mib QUERY TOTAL_PHYSICAL_MEMORY)
math(EXPR torch_jobs "${memory_mib} / 2048")
if(torch_jobs LESS 1)
  set(torch_jobs 1)
endif()
set_property(GLOBAL APPEND PROPERTY JOB_POOLS torch=${torch_jobs})

# vramfit_uses_torch(TARGET): gives a target of ours LibTorch's headers and CPU libraries, the precompiled header and the job pool.
# All users need the same flags, hence the same options.
function(vramfit_uses_torch target)
  target_link_libraries(${target} PRIVATE LibTorch::cpu)
  vramfit_precompiled(${target} vramfit_torch_pch torch_pch.h LIBRARIES fmt::fmt LibTorch::cpu)
  set_target_properties(${target} PROPERTIES JOB_POOL_COMPILE torch)
  if(TARGET vramfit_torch_pch)
    set_target_properties(vramfit_torch_pch PROPERTIES JOB_POOL_COMPILE torch)
  endif()
endfunction()
