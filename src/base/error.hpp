// Nearstep's exceptions and the checks that throw them.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace nearstep {

// Base of everything that nearstep throws. what() is a sentence that states the values and what to
// do.
class Error : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

// A user's mistake in a config, a file, a size or a launch. The program prints this sentence and
// exits with code 2. Once MPI runs, all ranks must throw it together (see mpi::Communicator).
class ConfigError : public Error {
public:
    using Error::Error;
};

// A folder or file that the user named and the system refuses to make or write. `code` is an errno.
class PathError : public ConfigError {
public:
    PathError(const std::string& sentence, int code) : ConfigError(sentence), code_(code) {}

    int code() const { return code_; }

private:
    int code_;
};

// A file operation failed, and trying again may help. The message names the file and the reason.
class IoError : public Error {
public:
    using Error::Error;
};

// The data read is incomplete or differs from what was written, so reading it again does not help.
class DamageError : public IoError {
public:
    using IoError::IoError;
};

// A newer version of nearstep wrote it, in a format that this one does not know.
class NewerVersionError : public DamageError {
public:
    using DamageError::DamageError;
};

class MpiError : public Error {
public:
    using Error::Error;
};

class CudaError : public Error {
public:
    using Error::Error;
};

// `code` is the errno of the system's call that failed; 0 if HDF5 itself refuses.
class Hdf5Error : public Error {
public:
    explicit Hdf5Error(const std::string& sentence, int code = 0) : Error(sentence), code_(code) {}

    int code() const { return code_; }

private:
    int code_;
};

// A card or its driver failed or timed out. The message names the card.
class XrtError : public Error {
public:
    using Error::Error;
};

// A contract inside the program was broken.
class ContractError : public Error {
public:
    using Error::Error;
};

// Throws the error of a file operation that failed with `code`, an errno: PathError "`what`
// (reason): `advice`" if another path or other permissions can help, else IoError, which speaks of
// the drive. The only place that tells these apart. `reason`: in other words than the system's.
[[noreturn]] void throw_path_error(const std::string& what, int code, const std::string& advice,
                                   const std::string& reason = {});
// Whether `code` is such that another path or other permissions can help.
bool is_mistake_in_path(int code);

// Concatenates its arguments, each formatted with operator<<.
template <typename... Parts>
std::string text(const Parts&... parts) {
    std::ostringstream out;
    (out << ... << parts);
    return out.str();
}

// The items in order, each formatted with operator<<, with `between` between them.
template <typename Items>
std::string joined(const Items& items, std::string_view between = ", ") {
    std::string out;
    for (const auto& item : items) {
        out += out.empty() ? text(item) : text(between, item);
    }
    return out;
}

// The caller's source location. std::source_location is not used: clang-tidy 14 does not know it.
struct Where {
    const char* file = __builtin_FILE();
    int line = __builtin_LINE();
};

// Throws ContractError with the source location unless `holds`. `contract` says what must be true.
void expects(bool holds, std::string_view contract, const Where& where = Where());

}  // namespace nearstep
