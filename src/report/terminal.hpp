// The terminal on which a run's lines appear, if it is one.
#pragma once

#include <string>

namespace nearstep::report {

struct Terminal {
    int columns = 0;  // 0: not a terminal, or one that cannot rewrite a line
    bool has_colours = false;

    // Describes the terminal at the end of this process's stdout. Open MPI gives a rank a
    // pseudo-terminal without a size and copies from there to its own stdout; then mpirun's stdout
    // counts. Rewriting needs a TERM other than "dumb"; colours are off if NO_COLOR is set
    // (no-color.org).
    static Terminal of_stdout();
};

// The first `columns` characters of UTF-8 text.
std::string cut(const std::string& line, int columns);

}  // namespace nearstep::report
