# cmake --install: the engine as one shared library with headers, for find_package(nearstep) and the target
# nearstep::engine. The library does not link PyTorch; the program is not installed.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
add_library(nearstep_library SHARED $<TARGET_OBJECTS:nearstep_engine> $<TARGET_OBJECTS:nearstep_config>
    $<TARGET_OBJECTS:nearstep_mpi>)
target_link_libraries(nearstep_library PRIVATE nearstep_engine nearstep_config nearstep_mpi)
target_include_directories(nearstep_library INTERFACE
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/nearstep>)
target_compile_features(nearstep_library INTERFACE cxx_std_20)
set_target_properties(nearstep_library PROPERTIES OUTPUT_NAME nearstep EXPORT_NAME engine LINKER_LANGUAGE CXX
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR} INSTALL_RPATH_USE_LINK_PATH
    ON)
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/nearstep)
install(TARGETS nearstep_library EXPORT nearstep LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT nearstep NAMESPACE nearstep:: FILE nearstepConfig.cmake DESTINATION ${package})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/nearstepConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/nearstepConfigVersion.cmake DESTINATION ${package})
# The headers of a program that uses the engine: what nearstep/run.hpp and mpi/session.hpp include, and the errors.
# They include no others, or else the program of tests/embedding does not compile.
set(headers ${CMAKE_INSTALL_INCLUDEDIR}/nearstep)
install(DIRECTORY include/nearstep DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
foreach(header arith/formats base/dtype base/error base/host_device base/statistics base/words codec/delta_tally
    config/engine_settings
        config/enumerations config/group_size shard/element_range shard/gradient trace/run_facts trace/traffic)
    cmake_path(GET header PARENT_PATH folder)
    install(FILES src/${header}.hpp DESTINATION ${headers}/${folder})
endforeach()
install(FILES mpi/communicator.hpp mpi/session.hpp DESTINATION ${headers}/mpi)
