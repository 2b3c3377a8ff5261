// Makes nearstep's exceptions from failed system calls and broken contracts. Used everywhere.
#include "base/error.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

namespace nearstep {

bool is_mistake_in_path(int code) {
    constexpr std::array kMistakes{EACCES, EPERM, EROFS,        ENOENT, ENOTDIR, EISDIR,
                                   EEXIST, ELOOP, ENAMETOOLONG, ENOSPC, EDQUOT,  EFBIG,
                                   EINVAL, EXDEV, EOPNOTSUPP,   ENOSYS, ETXTBSY, ENOTEMPTY};
    return std::ranges::find(kMistakes, code) != kMistakes.end();
}

void throw_path_error(const std::string& what, int code, const std::string& advice,
                      const std::string& reason) {
    const std::string start =
        text(what, " (", reason.empty() ? std::generic_category().message(code) : reason, "): ");
    if (is_mistake_in_path(code)) {
        throw PathError(start + advice, code);
    }
    if (code == EMFILE || code == ENFILE) {
        throw IoError(start + "let this process open more files, as with ulimit -n 65536.");
    }
    throw IoError(start + "check the drive or the server that it is on, then start again.");
}

void expects(bool holds, std::string_view contract, const Where& where) {
    if (!holds) {
        throw ContractError(
            text("Broken contract at ", where.file, ":", where.line, ": ", contract, "."));
    }
}

}  // namespace nearstep
