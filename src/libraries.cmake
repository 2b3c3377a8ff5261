# Libraries of the program and its tests, besides PyTorch, MPI, Threads and XXH3, which simulations need, too.

find_package(nlohmann_json REQUIRED)
if(NEARSTEP_FUZZ)
    # A header-only library, so that it is instrumented as well. Its assertions are off, as in Debian's library:
    # each only precedes a branch that refuses the input.
    add_library(PkgConfig::TOMLPLUSPLUS INTERFACE IMPORTED)
    target_compile_options(PkgConfig::TOMLPLUSPLUS INTERFACE "-DTOML_ASSERT(expr)=static_assert(true)")
else()
    pkg_check_modules(TOMLPLUSPLUS REQUIRED IMPORTED_TARGET tomlplusplus)
endif()
pkg_check_modules(LIBURING REQUIRED IMPORTED_TARGET liburing)
pkg_check_modules(HWLOC REQUIRED IMPORTED_TARGET hwloc)
# The serial flavour: rank files need no parallel HDF5. Debian calls it hdf5-serial.
pkg_check_modules(HDF5_SERIAL IMPORTED_TARGET hdf5-serial)
if(TARGET PkgConfig::HDF5_SERIAL)
    add_library(nearstep_hdf5 INTERFACE)
    target_link_libraries(nearstep_hdf5 INTERFACE PkgConfig::HDF5_SERIAL)
else()
    set(HDF5_PREFER_PARALLEL OFF)
    find_package(HDF5 REQUIRED COMPONENTS C)
    if(HDF5_IS_PARALLEL)
        message(FATAL_ERROR "Only a parallel HDF5 was found: install the serial one (Debian: libhdf5-dev).")
    endif()
    add_library(nearstep_hdf5 INTERFACE)
    target_include_directories(nearstep_hdf5 SYSTEM INTERFACE ${HDF5_INCLUDE_DIRS})
    target_link_libraries(nearstep_hdf5 INTERFACE ${HDF5_LIBRARIES})
endif()
