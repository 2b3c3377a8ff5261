#include "config/removed_keys.hpp"

#include <algorithm>
#include <array>

namespace nearstep::config {

namespace {

struct Removed {
    std::string_view key;
    const char* instead;
};

constexpr std::array kRemoved = {
    Removed{"compress.where", "for \"host\", write exchange.transport = \"host\""},
    Removed{"csd.memory_gb", "write csd.tiers.memory"},
    Removed{"csd.run_timeout_s", "write exchange.timeout_s, of which a card has a quarter"},
    Removed{"csd.where", "for \"host\", write csd.device = \"host\""},
    Removed{"exchange.scatter",
            "for \"flat\", write placement.gradients = \"replicated\"; \"hierarchical\" is the "
            "default"},
    Removed{"link.shape", "for false, write link.scale = 0"},
    Removed{"plan.csds_per_node", "write hosts.devices, or leave it to csd.per_rank"},
    Removed{"plan.gpus_per_node", "write hosts.ranks"},
};

}  // namespace

const char* instead_of(std::string_view key) {
    const auto* const found = std::ranges::find(kRemoved, key, &Removed::key);
    return found == kRemoved.end() ? nullptr : found->instead;
}

}  // namespace nearstep::config
