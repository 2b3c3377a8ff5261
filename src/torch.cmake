# PyTorch, which the program links, and the Python that has it.

if(NEARSTEP_PACKAGE AND NOT NEARSTEP_PROGRAM)
    set(NEARSTEP_PYTHON ${Python_EXECUTABLE})  # pip's interpreter
elseif(NOT NEARSTEP_FUZZ)
    # The Python interpreter whose PyTorch is used: launch/setup's, else the first on the path.
    find_program(NEARSTEP_PYTHON NAMES python python3 HINTS "${CMAKE_SOURCE_DIR}/.venv/bin" NO_CMAKE_FIND_ROOT_PATH)
    execute_process(
        COMMAND ${NEARSTEP_PYTHON} -c
        "import torch; print(torch.utils.cmake_prefix_path, int(torch._C._GLIBCXX_USE_CXX11_ABI), sep=';')"
        OUTPUT_VARIABLE torch_facts OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE torch_failed)
    if(torch_failed)
        message(FATAL_ERROR
            "${NEARSTEP_PYTHON} has no PyTorch: run launch/setup, or pass -DNEARSTEP_PYTHON=<one that has>.")
    endif()
    list(POP_FRONT torch_facts torch_prefix torch_abi)
    if(NOT torch_abi EQUAL 1)
        message(FATAL_ERROR
            "This PyTorch was built with the old C++ ABI; GoogleTest and every other library use the new one.")
    endif()
    list(PREPEND CMAKE_PREFIX_PATH ${torch_prefix})
    # A PyTorch for CUDA enables that language, which no source here has.
    set(CMAKE_CUDA_ARCHITECTURES OFF)
    find_package(Torch REQUIRED)
    find_package(CLI11 REQUIRED)
endif()
