# Tests on emulated cards.
if(NOT has_emulated_cards)
    nearstep_register_test(fpga.cards_are_skipped COMMAND ${CMAKE_COMMAND} -E echo
        "The tests of cards are skipped: they want emulated cards, which want Debian's XRT 2.13 on amd64 (launch/setup)."
        LABELS fpga TIMEOUT 60 PROPERTIES SKIP_REGULAR_EXPRESSION skipped)
    return()
endif()

# A test kernel on emulated cards, for tests of the emulator itself.
add_library(nearstep_test_models SHARED ${CMAKE_CURRENT_SOURCE_DIR}/test_kernel_model.cpp)
target_include_directories(nearstep_test_models PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/tests)

# nearstep_card_test(fpga/x_test CARDS 4 LINKS ...): with this many emulated cards, whose kernels are
# nearstep's, or with MODELS those of a library.
function(nearstep_card_test path)
    cmake_parse_arguments(arg "" "CARDS;MODELS;TIMEOUT" "LINKS;SOURCES;NEEDS" ${ARGN})
    if(NOT arg_TIMEOUT)
        set(arg_TIMEOUT 300)
    endif()
    # Scratch folders on a file system that takes direct I/O, which a tmpfs may not.
    set(environment TEST_TMPDIR=${CMAKE_BINARY_DIR}/ XILINX_XRT=${CMAKE_BINARY_DIR}/emulated-card
        XRT_INI_PATH=${CMAKE_BINARY_DIR}/emulated-card/xrt.ini NEARSTEP_EMULATED_CARDS=${arg_CARDS})
    if(arg_MODELS)
        list(APPEND environment NEARSTEP_KERNEL_MODELS=$<TARGET_FILE:${arg_MODELS}>)
    endif()
    nearstep_test(${path} PROGRAM fpga_card_tests LINKS nearstep_xrt ${arg_LINKS} LABELS fpga SOURCES ${arg_SOURCES} TIMEOUT ${arg_TIMEOUT}
        ENVIRONMENT ${environment} NEEDS nearstep_emulated_card ${arg_MODELS} ${arg_NEEDS})
endfunction()

nearstep_card_test(fpga/emulated_card_test CARDS 4 MODELS nearstep_test_models LINKS nearstep_xclbin_writer ${CMAKE_DL_LIBS})
nearstep_card_test(fpga/card_device_test CARDS 4 LINKS nearstep::csd ${CMAKE_DL_LIBS} TIMEOUT 900 NEEDS emulated_cards)
nearstep_card_test(fpga/card_test CARDS 4 LINKS nearstep::csd nearstep_xclbin_writer ${CMAKE_DL_LIBS} NEEDS emulated_cards)
