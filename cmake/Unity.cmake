# Sources are compiled several at a time: their headers, and what templates make of them, take longer than they do. CMake's own unity builds write absolute
# paths, by which a compiler cache takes another clone's sources for other ones.
option(VRAMFIT_UNITY "Compile sources eight at a time: a third of the time from nothing, longer after a change" ON)

# vramfit_together(TARGET [SOURCES source...] [ALONE source...]): TARGET's sources, or these of them, are compiled eight at a time. Names of their own must differ.
# ALONE: rows of tables, whose functions have equal names on purpose. Generated sources, those with options or definitions of their own, which must be set before,
# and those that bring in a whole namespace stay alone, too.
function(vramfit_together target)
  cmake_parse_arguments(ARG "" "" "SOURCES;ALONE" ${ARGN})
  if(NOT VRAMFIT_UNITY)
    return()
  endif()
  if(NOT ARG_SOURCES)
    get_target_property(ARG_SOURCES ${target} SOURCES)
  endif()
  set(count 0)
  foreach(source IN LISTS ARG_SOURCES)
    get_source_file_property(options "${source}" COMPILE_OPTIONS)
    get_source_file_property(definitions "${source}" COMPILE_DEFINITIONS)
    get_filename_component(path "${source}" ABSOLUTE)
    cmake_path(IS_PREFIX CMAKE_BINARY_DIR "${path}" is_generated)
    if(options OR definitions OR is_generated OR source IN_LIST ARG_ALONE)
      continue()
    endif()
    file(STRINGS "${path}" namespaces REGEX "^using namespace ")
    if(namespaces)
      continue()
    endif()
    set_source_files_properties("${source}" PROPERTIES HEADER_FILE_ONLY ON)
    file(RELATIVE_PATH path "${CMAKE_SOURCE_DIR}" "${path}")
    math(EXPR number "${count} / 8")
    math(EXPR count "${count} + 1")
    string(APPEND together_${number} "#include \"${path}\"\n")
  endforeach()
  foreach(each RANGE ${number})
    set(file "${CMAKE_CURRENT_BINARY_DIR}/together/${target}_${each}.cpp")
    file(CONFIGURE OUTPUT "${file}" CONTENT "${together_${each}}")
    target_sources(${target} PRIVATE "${file}")
    # A type of a source's own may be a member of a class that a header names: the class, too, is seen by one source alone. A local name that another source has
    # at its top shadows nothing there (preset `debug` compiles sources alone and warns of all).
    set_source_files_properties("${file}" PROPERTIES COMPILE_OPTIONS "-Wno-subobject-linkage;-Wno-shadow;-Wshadow=local")
  endforeach()
  target_include_directories(${target} PRIVATE "${CMAKE_SOURCE_DIR}")
endfunction()
