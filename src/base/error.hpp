// The exceptions of nearstep and the checks that throw them.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace nearstep {

// Everything that nearstep throws. what() is a sentence with the values in it and what to do.
class Error : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

// A mistake of the user's: a config, a file, a size, a launch. The program ends with exit code 2
// and this one sentence. Must be thrown on all ranks alike once MPI is up (see mpi::Communicator).
class ConfigError : public Error {
public:
    using Error::Error;
};

// A file operation failed; the message names file, offset and reason.
class IoError : public Error {
public:
    using Error::Error;
};

class MpiError : public Error {
public:
    using Error::Error;
};

class CudaError : public Error {
public:
    using Error::Error;
};

class Hdf5Error : public Error {
public:
    using Error::Error;
};

// A card or its driver failed, or took longer than it may; the message names the card.
class XrtError : public Error {
public:
    using Error::Error;
};

// A contract inside the program was broken.
class ContractError : public Error {
public:
    using Error::Error;
};

// Its arguments as one text, each written as by operator<<.
template <typename... Parts>
std::string text(const Parts&... parts) {
    std::ostringstream out;
    (out << ... << parts);
    return out.str();
}

// The caller's place in the source. std::source_location is not used: clang-tidy 14 cannot see it.
struct Where {
    const char* file = __builtin_FILE();
    int line = __builtin_LINE();
};

// Throws ContractError naming the place unless `holds`; `contract` says what should have been true.
void expects(bool holds, std::string_view contract, const Where& where = Where());

}  // namespace nearstep
