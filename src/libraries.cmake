# Libraries of the program and its tests, besides MPI, Threads and XXH3, which simulations need, too.

if(NEARSTEP_PACKAGE)
    set(NEARSTEP_PYTHON ${Python_EXECUTABLE})  # pip's interpreter
elseif(NOT NEARSTEP_FUZZ)
    # The Python interpreter whose PyTorch is used: launch/setup's, else the first on the path.
    find_program(NEARSTEP_PYTHON NAMES python python3 HINTS "${CMAKE_SOURCE_DIR}/.venv/bin" NO_CMAKE_FIND_ROOT_PATH)
    execute_process(
        COMMAND ${NEARSTEP_PYTHON} -c "import torch; print(torch.utils.cmake_prefix_path, int(torch._C._GLIBCXX_USE_CXX11_ABI), sep=';')"
        OUTPUT_VARIABLE torch_facts OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE torch_failed)
    if(torch_failed)
        message(FATAL_ERROR "${NEARSTEP_PYTHON} has no PyTorch: run launch/setup, or pass -DNEARSTEP_PYTHON=<one that has>.")
    endif()
    list(POP_FRONT torch_facts torch_prefix torch_abi)
    if(NOT torch_abi EQUAL 1)
        message(FATAL_ERROR "This PyTorch was built with the old C++ ABI; GoogleTest and every other library use the new one.")
    endif()
    list(PREPEND CMAKE_PREFIX_PATH ${torch_prefix})
    find_package(Torch REQUIRED)
    find_package(CLI11 REQUIRED)
endif()
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
