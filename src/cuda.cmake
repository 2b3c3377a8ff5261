# Finds CUDA for the .cu sources. Without CUDA other sources replace them. Sets has_cuda.
set(NEARSTEP_CUDA "auto" CACHE STRING "auto: with CUDA where its compiler is found; on: or fail; off: without")
set(NEARSTEP_CUDA_ARCHITECTURES "80-virtual;90-real" CACHE STRING
    "GPUs to compile for: code for Hopper, and what the driver compiles for any other since Ampere")
set(has_cuda OFF)
if(NOT NEARSTEP_CUDA STREQUAL "off")
    include(CheckLanguage)
    check_language(CUDA)
    if(CMAKE_CUDA_COMPILER)
        # Each target sets its own architectures; those of the compiler test do not matter.
        set(CMAKE_CUDA_ARCHITECTURES OFF)
        enable_language(CUDA)
        set(has_cuda ON)
        set(cuda_flags "${CMAKE_CUDA_FLAGS}")
        # CMake before 3.26 does not know that nvcc supports C++20.
        set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
        if(ccache_program)
            set(CMAKE_CUDA_COMPILER_LAUNCHER ${ccache_launcher} ${ccache_program})
        endif()
    elseif(NEARSTEP_CUDA STREQUAL "on")
        message(FATAL_ERROR "NEARSTEP_CUDA is on and there is no nvcc: pass -DCMAKE_CUDA_COMPILER=<path to nvcc>.")
    endif()
endif()
message(STATUS "GPU kernels: ${has_cuda}")

# PyTorch's CMake configuration, if it has CUDA, changes how all CUDA code is compiled. Call this after it to
# restore the settings of the top folder.
macro(nearstep_forget_cuda_settings)
    unset(CMAKE_CUDA_STANDARD)
    set(CMAKE_CUDA_FLAGS "${cuda_flags}")
endmacro()
