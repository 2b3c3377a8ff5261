# Tests on emulated cards.
if(NOT has_emulated_cards)
    nearstep_register_test(fpga.cards_are_skipped COMMAND ${CMAKE_COMMAND} -E echo
        "The tests of cards are skipped: they want emulated cards, and these Debian's XRT 2.13 on amd64 (launch/setup)."
        LABELS fpga TIMEOUT 60 PROPERTIES SKIP_REGULAR_EXPRESSION skipped)
    return()
endif()
add_subdirectory(emulator)

# Tests also call XRT themselves.
add_library(nearstep_xrt INTERFACE)
target_include_directories(nearstep_xrt SYSTEM INTERFACE ${XRT_INCLUDE_DIR})
target_link_libraries(nearstep_xrt INTERFACE ${XRT_COREUTIL_LIBRARY})

# nearstep_card_test(fpga/x_test CARDS 4 LINKS ...): runs with this many emulated cards.
function(nearstep_card_test path)
    cmake_parse_arguments(arg "" "CARDS;TIMEOUT" "LINKS;NEEDS" ${ARGN})
    # Scratch folders must be on a filesystem with direct I/O, which tmpfs may lack.
    set(environment TEST_TMPDIR=${CMAKE_BINARY_DIR}/ XILINX_XRT=${CMAKE_BINARY_DIR}/emulated-card
        XRT_INI_PATH=${CMAKE_BINARY_DIR}/emulated-card/xrt.ini NEARSTEP_EMULATED_CARDS=${arg_CARDS})
    nearstep_test(${path} PROGRAM fpga_card_tests LINKS nearstep_xrt ${arg_LINKS} LABELS fpga TIMEOUT ${arg_TIMEOUT}
        ENVIRONMENT ${environment} NEEDS nearstep_emulated_card ${arg_NEEDS})
endfunction()

foreach(test emulated_card_test card_device_test card_test)
    nearstep_card_test(fpga/${test} CARDS 4 LINKS nearstep::csd nearstep_xclbin_writer ${CMAKE_DL_LIBS} TIMEOUT 900
        NEEDS emulated_cards)
endforeach()
nearstep_register_test(fpga.first_run COMMAND ${NEARSTEP_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/check_first_run.py
    $<TARGET_FILE:nearstep> ${CMAKE_BINARY_DIR}/emulated-card LABELS fpga TIMEOUT 900 NEEDS emulated_cards READS .
    ENVIRONMENT ${test_environment})
