# Writes the model catalog as a C++ table: cmake -DDIRECTORY=model_specs/catalog -DOUTPUT=catalog_data.cpp -P THIS
# Names are taken out here, so that a program that looks one up parses a single entry.
cmake_minimum_required(VERSION 3.25)
file(GLOB files "${DIRECTORY}/*.json")
list(SORT files)
set(rows "")
foreach(file IN LISTS files)
  file(READ "${file}" text)
  string(JSON id ERROR_VARIABLE problem GET "${text}" id)
  if(problem)
    message(FATAL_ERROR "${file}: ${problem}")
  endif()
  set(aliases "")
  string(JSON count LENGTH "${text}" aliases)
  foreach(index RANGE 1 ${count})
    if(count EQUAL 0)
      break()
    endif()
    math(EXPR index "${index} - 1")
    string(JSON alias GET "${text}" aliases ${index})
    string(APPEND aliases "${alias}\\n")
  endforeach()
  string(APPEND rows "    CatalogEntry{\"${id}\",\n                 \"${aliases}\",\n                 R\"json(${text})json\"},\n")
endforeach()
file(WRITE "${OUTPUT}" "// Generated from model_specs/catalog/*.json.
#include \"model_specs/catalog_data.h\"

namespace vramfit {

std::span<const CatalogEntry> catalog_data() {
  static constexpr CatalogEntry kEntries[] = {
${rows}  };
  return kEntries;
}

}  // namespace vramfit
")
