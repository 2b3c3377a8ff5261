#include "base/error.hpp"

namespace nearstep {

void expects(bool holds, std::string_view contract, const Where& where) {
    if (!holds) {
        throw ContractError(
            text("Broken contract at ", where.file, ":", where.line, ": ", contract, "."));
    }
}

}  // namespace nearstep
