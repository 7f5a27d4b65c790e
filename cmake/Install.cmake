# What `cmake --install` and CPack copy: lib/vramfit, laid out like the build folder, since programs look for what they need beside
# themselves, and a link in bin. The engine stays tied to the LibTorch that it was built with, so the Debian package leaves it out.
set(home lib/vramfit)
install(TARGETS vramfit DESTINATION ${home}/bin COMPONENT program)
file(MAKE_DIRECTORY "${CMAKE_BINARY_DIR}/link")
file(CREATE_LINK "../${home}/bin/vramfit" "${CMAKE_BINARY_DIR}/link/vramfit" SYMBOLIC)
install(FILES "${CMAKE_BINARY_DIR}/link/vramfit" DESTINATION bin COMPONENT program)
if(TARGET vramfit_phantom)
  install(DIRECTORY "${CMAKE_BINARY_DIR}/lib/phantom" DESTINATION ${home}/lib COMPONENT program USE_SOURCE_PERMISSIONS)
endif()
if(TARGET vramfit-train)
  set_target_properties(vramfit-train PROPERTIES INSTALL_RPATH "${LIBTORCH_SITE}/torch/lib" BUILD_WITH_INSTALL_RPATH ON)
  install(TARGETS vramfit-train DESTINATION ${home}/bin COMPONENT engine)
endif()

# What find_package(vramfit) finds: headers, static libraries and a CMake package.
include(CMakePackageConfigHelpers)
set(folders base model_specs job program estimator planner)
set(package lib/cmake/vramfit)
foreach(folder IN LISTS folders)
  set_target_properties(vramfit_${folder} PROPERTIES EXPORT_NAME ${folder})
  install(TARGETS vramfit_${folder} EXPORT vramfit ARCHIVE DESTINATION ${home} COMPONENT development)
  install(DIRECTORY "${CMAKE_SOURCE_DIR}/${folder}" DESTINATION include/vramfit COMPONENT development
    FILES_MATCHING PATTERN "*.h" PATTERN "*.def" PATTERN curl_library.h EXCLUDE PATTERN catalog EXCLUDE)
endforeach()
install(EXPORT vramfit FILE vramfitTargets.cmake NAMESPACE vramfit:: DESTINATION ${package} COMPONENT development)
configure_package_config_file("${CMAKE_SOURCE_DIR}/cmake/vramfitConfig.cmake.in" "${CMAKE_BINARY_DIR}/vramfitConfig.cmake"
  INSTALL_DESTINATION ${package} NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file("${CMAKE_BINARY_DIR}/vramfitConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_BINARY_DIR}/vramfitConfig.cmake" "${CMAKE_BINARY_DIR}/vramfitConfigVersion.cmake" DESTINATION ${package}
  COMPONENT development)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_CONTACT "the authors of vramfit")
set(CPACK_RESOURCE_FILE_LICENSE "${CMAKE_SOURCE_DIR}/LICENSE")
set(CPACK_COMPONENTS_ALL program development)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6 (>= 2.34), libstdc++6 (>= 12), libfmt9, libyaml-0-2, libzstd1")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "libcurl4")
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "libfmt-dev")  # to compile with the headers
set(CPACK_STRIP_FILES ON)
include(CPack)
