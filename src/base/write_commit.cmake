# Writes the commit of SOURCE_DIR, with "+" for uncommitted changes, to OUTPUT unless it stands there.
execute_process(COMMAND git -C ${SOURCE_DIR} describe --always --abbrev=12 --dirty=+ --exclude=*
    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT commit)
    set(commit "unknown")
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#define NEARSTEP_COMMIT \"${commit}\"\n")
