// The program as a function of a library, which tests/support/forked.py loads once for many runs.
#define main nearstep_main
#include "app/main.cpp"
#undef main

// Nothing is caught above a main(): std::terminate() is called where an error is thrown, as it is
// in the program.
extern "C" __attribute__((visibility("default"))) int nearstep_forked(int argc, char** argv) {
    return nearstep_main(argc, argv);
}
