// Writes what the user names as a result: files, and what is no file (links, devices, pipes).
//
// An empty path names no result: nothing is checked or written.
// A regular file, or none, is replaced atomically. A symbolic link stays, and its target is
// written. A device, a pipe, and a descriptor such as /dev/stdout or /dev/fd/3 are written to.
#pragma once

#include "base/descriptor.hpp"

#include <string>
#include <vector>

namespace nearstep {

// Throws PathError or IoError unless write_whole_file can write to `path`. Called before a run, so
// that its result is not lost.
void check_writable(const std::string& path);

// Writes `text` to `path`. Throws PathError or IoError.
void write_whole_file(const std::string& path, const std::string& text);

// A file or folder as the user names it; `option` is the words for it, such as "--json".
struct NamedPath {
    std::string option;
    std::string path;
    // Some inputs have no path and are known by their names. This function returns whether a file
    // of this name, in any folder, is such an input. The file may be written during the run.
    bool (*has_name)(const std::string& name) = nullptr;
};

// Throws ConfigError if one of `results` would replace another one, or a file that is one of
// `inputs`, lies in a folder of them or has such a name. Empty paths and what is no regular file do
// not count.
void check_apart(const std::vector<NamedPath>& results, const std::vector<NamedPath>& inputs);

// The regular file that `path` names through its links, or the name that it will have. Throws
// ConfigError for anything else; `what` is the sentence's subject, as in "An export".
std::string regular_output(const std::string& path, const char* what);

// A result of lines that grows during a run.
class LineOutput {
public:
    LineOutput() = default;
    // Changes nothing: checks that begin() can write, and waits for the reader of a pipe. Throws
    // PathError or IoError.
    explicit LineOutput(const std::string& path);

    bool is_open() const { return !path_.empty(); }
    // Whether earlier lines can be read again.
    bool is_regular() const { return is_regular_; }

    // Replaces all lines, or writes to what is no file. Throws PathError or IoError.
    void begin(const std::string& lines);

    // Writes a line, which is with the operating system on return. If it cannot be written whole, a
    // regular file stays without it. Returns 0, or an errno.
    int add(const std::string& line);

private:
    std::string path_;
    Descriptor file_;
    bool is_regular_ = false;
};

}  // namespace nearstep
