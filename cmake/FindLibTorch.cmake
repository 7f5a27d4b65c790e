# LibTorch as the torch wheel ships it, in the virtual environment VRAMFIT_VENV.
# Defines LibTorch::cpu (torch_cpu, c10) and LibTorch::cuda (adds torch_cuda, c10_cuda; host code only).
file(GLOB LIBTORCH_SITE "${VRAMFIT_VENV}/lib/python3*/site-packages")
find_path(LIBTORCH_INCLUDE ATen/ATen.h PATHS "${LIBTORCH_SITE}/torch/include" NO_DEFAULT_PATH)
find_library(LIBTORCH_CPU torch_cpu PATHS "${LIBTORCH_SITE}/torch/lib" NO_DEFAULT_PATH)
find_library(LIBTORCH_C10 c10 PATHS "${LIBTORCH_SITE}/torch/lib" NO_DEFAULT_PATH)
# The OpenMP runtime that LibTorch loads. The compiler's own libgomp has the same soname, so this one serves both.
find_library(LIBTORCH_GOMP NAMES libgomp.so.1 PATHS "${LIBTORCH_SITE}/torch/lib" NO_DEFAULT_PATH)
find_library(LIBTORCH_CUDA torch_cuda PATHS "${LIBTORCH_SITE}/torch/lib" NO_DEFAULT_PATH)
find_library(LIBTORCH_C10_CUDA c10_cuda PATHS "${LIBTORCH_SITE}/torch/lib" NO_DEFAULT_PATH)
find_path(LIBTORCH_CUDART_INCLUDE cuda_runtime_api.h PATHS "${LIBTORCH_SITE}/nvidia/cu13/include" NO_DEFAULT_PATH)
# Of the wheels nvidia-cuda-crt and nvidia-cuda-cccl: cuda_runtime.h and cuda_fp16.h include them, torch's own
# requirements lack them, and a CUDA toolkit on the machine would hide that.
find_path(LIBTORCH_CRT_INCLUDE crt/host_defines.h PATHS "${LIBTORCH_SITE}/nvidia/cu13/include" NO_DEFAULT_PATH)
find_path(LIBTORCH_CCCL_INCLUDE nv/target PATHS "${LIBTORCH_SITE}/nvidia/cu13/include" NO_DEFAULT_PATH)
find_path(LIBTORCH_NCCL_INCLUDE nccl.h PATHS "${LIBTORCH_SITE}/nvidia/nccl/include" NO_DEFAULT_PATH)
find_path(GLOO_INCLUDE gloo/rendezvous/store.h)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LIBTORCH_CPU LIBTORCH_C10 LIBTORCH_GOMP LIBTORCH_CUDA LIBTORCH_C10_CUDA LIBTORCH_INCLUDE LIBTORCH_CUDART_INCLUDE
                LIBTORCH_CRT_INCLUDE LIBTORCH_CCCL_INCLUDE LIBTORCH_NCCL_INCLUDE GLOO_INCLUDE
  REASON_FAILURE_MESSAGE "Run ./quickstart, which makes the virtual environment, or pass -DVRAMFIT_VENV=DIR with torch 2.11.0 installed")

if(LibTorch_FOUND AND NOT TARGET LibTorch::cpu)
  add_library(LibTorch::cpu INTERFACE IMPORTED GLOBAL)
  target_include_directories(LibTorch::cpu SYSTEM INTERFACE "${LIBTORCH_INCLUDE}" "${LIBTORCH_INCLUDE}/torch/csrc/api/include"
    "${LIBTORCH_CUDART_INCLUDE}" "${LIBTORCH_NCCL_INCLUDE}" "${GLOO_INCLUDE}")
  # The wheel has fmt's headers of a version of its own, which come before the system's and match no library here.
  target_compile_definitions(LibTorch::cpu INTERFACE FMT_HEADER_ONLY USE_DISTRIBUTED USE_C10D_GLOO USE_C10D_NCCL USE_CUDA)
  target_link_libraries(LibTorch::cpu INTERFACE "${LIBTORCH_CPU}" "${LIBTORCH_C10}")
  # at::parallel_for is a header: without -fopenmp it is a plain loop. ThreadSanitizer can't see libgomp's barriers, and would
  # report every parallel loop as a race.
  if(NOT VRAMFIT_SANITIZE STREQUAL "thread")
    target_compile_options(LibTorch::cpu INTERFACE -fopenmp)
    target_link_libraries(LibTorch::cpu INTERFACE "${LIBTORCH_GOMP}")
  endif()
  target_link_options(LibTorch::cpu INTERFACE "-Wl,--no-as-needed" "-Wl,--unresolved-symbols=ignore-in-shared-libs"
    "-Wl,-rpath,${LIBTORCH_SITE}/torch/lib")
  add_library(LibTorch::cuda INTERFACE IMPORTED GLOBAL)
  target_link_libraries(LibTorch::cuda INTERFACE LibTorch::cpu "${LIBTORCH_CUDA}" "${LIBTORCH_C10_CUDA}")
endif()
