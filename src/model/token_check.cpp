// Checks tokens before they are used as indices. Used by network.cpp.
#include "base/error.hpp"
#include "model/network.hpp"

namespace nearstep::model {

void check_tokens(std::span<const std::int32_t> tokens, const config::ModelSettings& settings) {
    for (const std::int32_t token : tokens) {
        if (token < 0 || token >= settings.vocabulary) {
            throw Error(text("Token ", token, " is outside model.vocabulary ", settings.vocabulary,
                             ": raise it (text as bytes needs 256)."));
        }
    }
}

void check_batch(const MicroBatch& batch, const config::ModelSettings& settings) {
    expects(batch.rows > 0 && batch.columns > 0 && batch.columns <= settings.context,
            "a micro-batch has 1 row or more, and 1 to model.context columns");
    const auto tokens =
        static_cast<std::size_t>(batch.rows) * static_cast<std::size_t>(batch.columns);
    expects(batch.tokens.size() == tokens && batch.targets.size() == tokens,
            "tokens and targets hold rows x columns elements");
    check_tokens(batch.tokens, settings);
    check_tokens(batch.targets, settings);
}

}  // namespace nearstep::model
