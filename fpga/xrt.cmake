# Finds XRT. has_xrt is true if cards can be built: they need its headers, and load its library when they are used.
# has_emulated_cards is true if XRT is the release of Debian 12, which emulated cards need.
set(has_xrt FALSE)
set(has_emulated_cards FALSE)

option(NEARSTEP_XRT "Use XRT where it is found" ON)
find_path(XRT_INCLUDE_DIR xrt/xrt_device.h PATH_SUFFIXES xrt HINTS $ENV{XILINX_XRT}/include)
# Never libxrt_core: its driver would then be the only one.
find_library(XRT_COREUTIL_LIBRARY NAMES xrt_coreutil libxrt_coreutil.so.2 HINTS $ENV{XILINX_XRT}/lib)
find_path(UUID_INCLUDE_DIR uuid/uuid.h)
find_path(BOOST_INCLUDE_DIR boost/any.hpp)

if(NEARSTEP_XRT AND XRT_INCLUDE_DIR AND UUID_INCLUDE_DIR AND BOOST_INCLUDE_DIR AND CMAKE_SYSTEM_PROCESSOR STREQUAL
    x86_64)
    set(has_xrt TRUE)
    file(STRINGS ${XRT_INCLUDE_DIR}/version.h xrt_version REGEX "xrt_build_version\\[\\]")
    string(REGEX REPLACE ".*\"([0-9.]+)\".*" "\\1" xrt_version "${xrt_version}")
    find_library(XRT_SWEMU_ARCHIVE NAMES libxrt_swemu.a)
    find_library(XRT_NOOP_LIBRARY NAMES xrt_noop libxrt_noop.so.2)
    if(xrt_version MATCHES "^2\\.13\\." AND XRT_COREUTIL_LIBRARY AND XRT_SWEMU_ARCHIVE)
        set(has_emulated_cards TRUE)
        message(STATUS "XRT ${xrt_version}: cards and emulated cards")
    else()
        message(STATUS
            "XRT ${xrt_version} is not Debian's 2.13 for amd64: cards, but no emulated cards and none of their tests")
    endif()
else()
    message(STATUS
        "No XRT (launch/setup installs it on Debian 12): a program without csd.device = \"xrt\", and none of its tests")
endif()
