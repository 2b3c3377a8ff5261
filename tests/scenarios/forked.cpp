// The program as a function of a library, which tests/support/forked.py loads once for many runs;
// with the word command_server first it is command_server.cpp.
#define main nearstep_main
#include "app/main.cpp"
#undef main
#define main command_server_main
#include "command_server.cpp"
#undef main

#include <string_view>

// Nothing is caught above a main(): std::terminate() is called where an error is thrown, as it is
// in the program.
extern "C" __attribute__((visibility("default"))) int nearstep_forked(int argc, char** argv) {
    if (argc > 1 && std::string_view(argv[1]) == "command_server") {
        return command_server_main(argc - 1, argv + 1);
    }
    return nearstep_main(argc, argv);
}
