# nearstep_embed_gpu_files(OUT) writes the C++ source OUT, which has the text of all src/*/*.cu, and of
# the headers that they include, for memory/gpu_launch.hpp. NVRTC compiles them on the user's machine.
function(nearstep_embed_gpu_files out)
    file(GLOB waiting RELATIVE ${CMAKE_SOURCE_DIR}/src CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/*/*.cu)
    set(names ${waiting})
    while(waiting)
        list(POP_FRONT waiting name)
        set_property(DIRECTORY ${CMAKE_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
            ${CMAKE_SOURCE_DIR}/src/${name})
        file(STRINGS ${CMAKE_SOURCE_DIR}/src/${name} includes REGEX "^#include \"")
        foreach(line ${includes})
            string(REGEX REPLACE "^#include \"(.*)\".*$" "\\1" header "${line}")
            if(NOT header IN_LIST names)
                list(APPEND names ${header})
                list(APPEND waiting ${header})
            endif()
        endforeach()
    endwhile()
    set(source
        "#include \"memory/gpu_launch.hpp\"\n\n#include <array>\n\nnamespace nearstep::memory {\n\nnamespace {\n\n")
    list(LENGTH names count)
    math(EXPR count "${count} + 6")  # those at the end
    string(APPEND source "constexpr std::array<GpuFile, ${count}> kFiles = {{\n")
    foreach(name ${names})
        file(READ ${CMAKE_SOURCE_DIR}/src/${name} text)
        string(APPEND source "    {\"${name}\", R\"gpu_file(${text})gpu_file\"},\n")
    endforeach()
    # NVRTC has no headers of the C++ library.
    file(READ ${CMAKE_SOURCE_DIR}/src/memory/gpu_std.cuh text)
    set_property(DIRECTORY ${CMAKE_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
        ${CMAKE_SOURCE_DIR}/src/memory/gpu_std.cuh)
    string(APPEND source "    {\"gpu_std\", R\"gpu_file(${text})gpu_file\"},\n")
    foreach(name cmath cstddef cstdint cstring type_traits)
        string(APPEND source "    {\"${name}\", \"#include \\\"gpu_std\\\"\\n\"},\n")
    endforeach()
    string(APPEND source "}};\n\n}  // namespace\n\n")
    string(APPEND source
        "std::span<const GpuFile> gpu_files() { return kFiles; }\n\n}  // namespace nearstep::memory\n")
    file(CONFIGURE OUTPUT ${out} CONTENT "${source}" @ONLY)
endfunction()
