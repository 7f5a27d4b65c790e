# Functions that the lists in tests/ use. Labels: `ci` is what ./test runs, `full` what only ./test --full runs.
set(VRAMFIT_TEST_PYTHON "" CACHE FILEPATH "Python with the packages of scripts/requirements-test.txt")
if(NOT VRAMFIT_TEST_PYTHON AND EXISTS "${VRAMFIT_VENV}/bin/python")
  set(VRAMFIT_TEST_PYTHON "${VRAMFIT_VENV}/bin/python")
endif()
find_package(Python3 REQUIRED COMPONENTS Interpreter)

# What every test gets. Threads of OpenMP that wait would spin, on cores that other tests and ranks want: four fifths of the
# processor time of run/ledger_cover_test. The exit code is the sanitizers' own, as 1 is what a test may expect; tests/sanitizers says what they don't
# report, and why. Stand-ins for CUDA's libraries are not instrumented: those of the preset `release` serve.
set(VRAMFIT_TEST_ENVIRONMENT "OMP_NUM_THREADS=1" "OMP_WAIT_POLICY=PASSIVE")
if(VRAMFIT_SANITIZE)
  list(APPEND VRAMFIT_TEST_ENVIRONMENT
    "ASAN_OPTIONS=exitcode=99:detect_stack_use_after_return=1" "UBSAN_OPTIONS=print_stacktrace=1"
    "LSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/tests/sanitizers/leaks.txt:print_suppressions=0"
    "TSAN_OPTIONS=exitcode=99:history_size=4:suppressions=${CMAKE_SOURCE_DIR}/tests/sanitizers/races.txt:print_suppressions=0")
  if(VRAMFIT_EXECUTOR)
    list(APPEND VRAMFIT_TEST_ENVIRONMENT "VRAMFIT_PHANTOM_LIB=${CMAKE_SOURCE_DIR}/build/release/lib/phantom")
  endif()
endif()

# Tests are started longest limit first, so that none of the long ones is left to run alone at the end. Each counts as one process,
# also those that start several ranks: these wait for each other and for files, and another test uses that time.

# vramfit_tests(FOLDER LIBRARIES lib... SOURCES x_test.cpp... [CASES x_test.cpp...] [SUPPORT x.cpp...] [FULL x_test.cpp...]
#               [SHARDS x_test.cpp=N...] [FULL_SHARDS x_test.cpp...] [TIMEOUT seconds])
# One binary FOLDER_tests; each source is one ctest entry `FOLDER/x_test` (label ci) without the cases of
# TEST_SUITE("full"). Sources named in FULL hold such a suite and get a second entry `FOLDER/x_test/full`. Sources named
# in SHARDS are run N times, each doing its share of rows (tests/support/shard.h); of those in FULL_SHARDS, too, all shares but the
# first are labelled full. CASES are sources whose objects one of the libraries is.
function(vramfit_tests folder)
  cmake_parse_arguments(ARG "" "TIMEOUT" "LIBRARIES;SOURCES;CASES;SUPPORT;FULL;SHARDS;FULL_SHARDS" ${ARGN})
  if(ARG_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "vramfit_tests(${folder}): unknown arguments ${ARG_UNPARSED_ARGUMENTS}")
  endif()
  foreach(name IN LISTS ARG_FULL)
    if(NOT name IN_LIST ARG_SOURCES)
      message(FATAL_ERROR "vramfit_tests(${folder}): ${name} is in FULL but not in SOURCES")
    endif()
  endforeach()
  if(NOT ARG_SOURCES)
    return()
  endif()
  set(target ${folder}_tests)
  add_executable(${target} ${ARG_SOURCES} ${ARG_SUPPORT})
  target_link_libraries(${target} PRIVATE vramfit_options vramfit_test_main ${ARG_LIBRARIES})
  if(NOT "${ARG_LIBRARIES}" MATCHES "vramfit_(executor|ops)") # theirs is LibTorch's (cmake/Torch.cmake)
    target_compile_options(${target} PRIVATE ${VRAMFIT_QUICK_OPTIONS}) # tests spend their time in the libraries
    vramfit_precompiled(${target} vramfit_test_pch test_pch.h LIBRARIES doctest::doctest fmt::fmt OPTIONS ${VRAMFIT_QUICK_OPTIONS})
  endif()
  vramfit_together(${target})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  foreach(source IN LISTS ARG_SOURCES ARG_CASES)
    get_filename_component(stem "${source}" NAME_WE)
    set(shards 1)
    foreach(entry IN LISTS ARG_SHARDS)
      if(entry MATCHES "^${stem}\\.cpp=([0-9]+)$")
        set(shards ${CMAKE_MATCH_1})
      endif()
    endforeach()
    foreach(suite ci full)
      if(suite STREQUAL "full" AND NOT source IN_LIST ARG_FULL)
        continue()
      endif()
      set(filter "--test-suite-exclude=full")
      set(name "${folder}/${stem}")
      if(suite STREQUAL "full")
        set(filter "--test-suite=full")
        string(APPEND name "/full")
      endif()
      foreach(shard RANGE 1 ${shards})
        set(entry_name "${name}")
        if(shards GREATER 1)
          set(entry_name "${name}/${shard}of${shards}")
        endif()
        add_test(NAME "${entry_name}" COMMAND ${target} "--source-file=*/${folder}/${source}" "${filter}" --no-intro
                 WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}")
        set(label "${suite}")
        if(shard GREATER 1 AND source IN_LIST ARG_FULL_SHARDS)
          set(label full)
        endif()
        set_tests_properties("${entry_name}" PROPERTIES LABELS "${label}" TIMEOUT ${ARG_TIMEOUT} COST ${ARG_TIMEOUT}
          ENVIRONMENT "VRAMFIT_TEST_SHARD=${shard}/${shards};${VRAMFIT_TEST_ENVIRONMENT}")
      endforeach()
    endforeach()
  endforeach()
endfunction()

# vramfit_python_test(NAME SCRIPT [LABELS ci|full|gpu] [TIMEOUT s] [RUN_SERIAL] [ORACLE] [ARGS ...])
# Runs a script that exits 0 when it passes. ORACLE: needs the packages of scripts/requirements-test.txt; without them the test
# is registered, and fails saying so. The script finds the programs in $VRAMFIT_BIN_DIR.
function(vramfit_python_test name script)
  cmake_parse_arguments(ARG "ORACLE;RUN_SERIAL" "TIMEOUT" "LABELS;ARGS" ${ARGN})
  set(python "${Python3_EXECUTABLE}")
  if(ARG_ORACLE)
    set(python "${VRAMFIT_TEST_PYTHON}")
    if(NOT python)
      set(python sh -c "echo 'needs a Python with scripts/requirements-test.txt: run ./test, or pass -DVRAMFIT_TEST_PYTHON=...' >&2; exit 1" sh)
    endif()
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS ci)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 600)
  endif()
  add_test(NAME "${name}" COMMAND ${python} "${CMAKE_CURRENT_SOURCE_DIR}/${script}" ${ARG_ARGS}
           WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}")
  set_tests_properties("${name}" PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT} COST ${ARG_TIMEOUT}
    RUN_SERIAL "${ARG_RUN_SERIAL}"
    ENVIRONMENT "VRAMFIT_BIN_DIR=${CMAKE_RUNTIME_OUTPUT_DIRECTORY};VRAMFIT_SOURCE_DIR=${CMAKE_SOURCE_DIR};PYTHONDONTWRITEBYTECODE=1;${VRAMFIT_TEST_ENVIRONMENT}")
endfunction()
