# Stand-ins for CUDA libraries (docs/phantom.md): hand-written sources, completed by what phantom/generate makes.
# The nvidia/ folder of the environment's packages holds headers and libraries of CUDA 13.
file(GLOB LIBTORCH_SITE "${VRAMFIT_VENV}/lib/python3*/site-packages")
find_package(Python3 REQUIRED COMPONENTS Interpreter)

# The driver's headers. The executor's build has looked for the folder already (FindLibTorch).
find_path(LIBTORCH_CUDART_INCLUDE cuda_runtime_api.h PATHS "${LIBTORCH_SITE}/nvidia/cu13/include" NO_DEFAULT_PATH REQUIRED)

set(PHANTOM_LIBRARY_DIRECTORY "${CMAKE_BINARY_DIR}/lib/phantom")
set(PHANTOM_GENERATE_DIRECTORY "${CMAKE_SOURCE_DIR}/phantom/generate")

# A virtual environment with the CUDA 12 wheels (scripts/phantom-wheel makes one); without it there is no CUDA 12 set.
set(VRAMFIT_CUDA12_VENV "$ENV{VRAMFIT_CUDA12_VENV}" CACHE PATH "Environment with the CUDA 12 wheels; empty: no stand-ins for CUDA 12")
set(PHANTOM_CUDA12_SITE "")
if(VRAMFIT_CUDA12_VENV)
  file(GLOB PHANTOM_CUDA12_SITE "${VRAMFIT_CUDA12_VENV}/lib/python3*/site-packages")
  file(GLOB header "${PHANTOM_CUDA12_SITE}/nvidia/*/include/cuda_runtime_api.h")
  if(NOT header)
    message(FATAL_ERROR "VRAMFIT_CUDA12_VENV=${VRAMFIT_CUDA12_VENV} has no CUDA 12 wheels: scripts/phantom-wheel makes one")
  endif()
endif()

# Another environment's CUDA 13 wheels, newer than those of the torch that is built against.
set(VRAMFIT_CUDA13_VENV "" CACHE PATH "Environment whose CUDA 13 headers the stand-ins are made from; empty: VRAMFIT_VENV")
set(PHANTOM_CUDA13_SITE "${LIBTORCH_SITE}")
if(VRAMFIT_CUDA13_VENV)
  file(GLOB PHANTOM_CUDA13_SITE "${VRAMFIT_CUDA13_VENV}/lib/python3*/site-packages")
endif()

# phantom_library(TARGET SONAME libx.so.N NAMES REGEX TABLE FILE HEADERS "a.h,b.h -DX"... [SOURCES x.cpp...]
#                 [FOLDER cuda13] [SITE DIR] [REAL FILE...] [NODE NAME])
# A shared library FOLDER/SONAME of hand-written SOURCES, and every other public function: declared in HEADERS (each entry is
# compiled on its own) or exported by the real library, which is looked for in SITE/nvidia/*/lib unless REAL names it. NAMES says
# which declarations are the library's; TABLE what its generated functions do. Symbols get the real library's version node, or NODE.
function(phantom_library target)
  cmake_parse_arguments(ARG "" "SONAME;FOLDER;SITE;NODE;NAMES;TABLE" "HEADERS;SOURCES;REAL" ${ARGN})
  if(ARG_UNPARSED_ARGUMENTS OR NOT ARG_SONAME OR NOT ARG_NAMES OR NOT ARG_TABLE)
    message(FATAL_ERROR "phantom_library(${target}): SONAME, NAMES and TABLE are needed; unknown: ${ARG_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT ARG_SITE)
    set(ARG_SITE "${PHANTOM_CUDA13_SITE}")
  endif()
  file(GLOB includes "${ARG_SITE}/nvidia/*/include")
  if(NOT ARG_REAL)
    file(GLOB ARG_REAL "${ARG_SITE}/nvidia/*/lib/${ARG_SONAME}")
    if(PHANTOM_CUDA12_SITE AND NOT ARG_FOLDER)
      file(GLOB of_cuda12 "${PHANTOM_CUDA12_SITE}/nvidia/*/lib/${ARG_SONAME}")  # one name in both majors: all functions of both
      list(APPEND ARG_REAL ${of_cuda12})
    endif()
  endif()
  set(output "${CMAKE_CURRENT_BINARY_DIR}/${target}")
  get_filename_component(table "${ARG_TABLE}" ABSOLUTE)

  set(targets ${target})
  set(by_hand)
  set(objects)
  set(arguments --compiler "${CMAKE_CXX_COMPILER}" --names "${ARG_NAMES}" --table "${table}" --output "${output}")
  if(ARG_SOURCES)
    add_library(${target}_by_hand OBJECT ${ARG_SOURCES})
    if(NOT ARG_FOLDER)  # those in folders have a library for each major of CUDA, with the same sources
      vramfit_together(${target}_by_hand)
    endif()
    if(ARG_SITE STREQUAL LIBTORCH_SITE)
      target_link_libraries(${target}_by_hand PRIVATE vramfit_options)  # headers of other versions have values that no switch names
    endif()
    list(APPEND targets ${target}_by_hand)
    set(by_hand $<TARGET_OBJECTS:${target}_by_hand>)
    set(objects "--object;$<JOIN:${by_hand},;--object;>")
  endif()
  foreach(path IN LISTS includes)
    list(APPEND arguments --include "${path}")
  endforeach()
  set(generated "${output}/names.cpp")
  set(index 0)
  foreach(headers IN LISTS ARG_HEADERS)
    list(APPEND arguments --headers "${headers}")
    list(APPEND generated "${output}/generated_${index}.cpp")
    math(EXPR index "${index} + 1")
  endforeach()
  foreach(real IN LISTS ARG_REAL)
    list(APPEND arguments --real "${real}")
  endforeach()
  if(ARG_NODE)
    list(APPEND arguments --node "${ARG_NODE}")
  endif()
  set(lists "${output}/exports.map" "${output}/names.txt")
  add_custom_command(OUTPUT ${generated} ${lists}
    COMMAND "${Python3_EXECUTABLE}" -B "${PHANTOM_GENERATE_DIRECTORY}/exports.py" ${arguments} "${objects}"
    DEPENDS ${by_hand} "${table}" ${ARG_REAL}
            "${PHANTOM_GENERATE_DIRECTORY}/exports.py" "${PHANTOM_GENERATE_DIRECTORY}/declarations.py"
            "${PHANTOM_GENERATE_DIRECTORY}/table.py"
    COMMENT "Exports of ${ARG_SONAME}" VERBATIM COMMAND_EXPAND_LISTS)

  add_library(${target} SHARED ${generated} ${by_hand} $<TARGET_OBJECTS:vramfit_phantom_generated>)
  # The public declarations are the libraries' own: deprecated functions are defined too, parameters keep their names.
  target_compile_options(${target} PRIVATE -O1 -g0 -Wno-deprecated-declarations)
  foreach(each IN LISTS targets)
    target_compile_features(${each} PRIVATE cxx_std_20)
    target_include_directories(${each} PRIVATE "${CMAKE_SOURCE_DIR}")
    target_include_directories(${each} SYSTEM PRIVATE ${includes})
    target_link_libraries(${each} PRIVATE vramfit_hardening)
    set_target_properties(${each} PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden
      VISIBILITY_INLINES_HIDDEN ON)
  endforeach()
  target_link_libraries(${target} PRIVATE vramfit_phantom)
  target_link_options(${target} PRIVATE "-Wl,--version-script=${output}/exports.map" "-Wl,--no-undefined")
  set(up "")
  if(ARG_FOLDER)
    set(up "/..")
  endif()
  set_target_properties(${target} PROPERTIES PREFIX "" SUFFIX "" OUTPUT_NAME "${ARG_SONAME}"
    LIBRARY_OUTPUT_DIRECTORY "${PHANTOM_LIBRARY_DIRECTORY}/${ARG_FOLDER}" LINK_DEPENDS "${output}/exports.map"
    INSTALL_RPATH "$ORIGIN${up}" BUILD_WITH_INSTALL_RPATH ON)
  set_property(GLOBAL APPEND PROPERTY PHANTOM_TARGETS ${target})
endfunction()

# phantom_cuda_library(NAME SONAME_12 libx.so.M SONAME_13 libx.so.N ...): phantom_NAME13 in cuda13/, and, with the wheels of CUDA 12 at
# hand, phantom_NAME12 in cuda12/, the same SOURCES against that major's headers. What CUDA 12 has besides is in ONLY_12, one source.
# The rest is phantom_library's; SOURCES come last.
function(phantom_cuda_library name)
  cmake_parse_arguments(ARG "" "SONAME_12;SONAME_13;ONLY_12" "" ${ARGN})
  phantom_library(phantom_${name}13 SONAME ${ARG_SONAME_13} FOLDER cuda13 ${ARG_UNPARSED_ARGUMENTS})
  if(PHANTOM_CUDA12_SITE)
    phantom_library(phantom_${name}12 SONAME ${ARG_SONAME_12} FOLDER cuda12 SITE "${PHANTOM_CUDA12_SITE}" ${ARG_UNPARSED_ARGUMENTS}
      ${ARG_ONLY_12})
  endif()
endfunction()
