# What `cmake --install` puts in place, and the package that find_package(bonfire) finds there.
include(CMakePackageConfigHelpers)

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/bonfire)
install(TARGETS bonfire EXPORT bonfire_targets)
if(TARGET bonfire_program)
  install(TARGETS bonfire_program)
endif()
# Of the headers those that bonfire.h includes, directly or not, as they are when somebody installs.
install(CODE "set(source_folder \"${PROJECT_SOURCE_DIR}/src\")
              set(include_folder \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_INCLUDEDIR}\")")
install(SCRIPT cmake/install_headers.cmake)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(EXPORT bonfire_targets NAMESPACE bonfire:: DESTINATION ${package_folder} FILE bonfireTargets.cmake)
configure_package_config_file(cmake/bonfireConfig.cmake.in bonfireConfig.cmake INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(bonfireConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/bonfireConfig.cmake ${PROJECT_BINARY_DIR}/bonfireConfigVersion.cmake
        DESTINATION ${package_folder})
