#include "config/card_keys.hpp"

namespace nearstep::config {

std::vector<Key> card_keys(CsdSettings& csd) {
    return {
        {.name = "csd.cards",
         .target = &csd.cards,
         .meaning = "PCI address or index of the card for each folder of csd.path; empty: the card "
                    "behind the same PCIe switch as the folder's drive",
         .may_be_empty = true,
         .is_for_sites = true},
        {.name = "csd.xclbin",
         .target = &csd.xclbin,
         .meaning = "file with the cards' kernels",
         .may_be_empty = true,
         .is_for_sites = true},
        {.name = "csd.run_timeout_s",
         .target = &csd.run_timeout_s,
         .unit = "s",
         .meaning = "longest wait for a card to update or digest one subgroup",
         .limits = between(1, kMostSeconds),
         .is_for_sites = true},
        {.name = "csd.host_engine",
         .target = &csd.host_engine,
         .unit = "devices",
         .meaning = "devices, numbered over all ranks, whose state the host updates instead of "
                    "their card, for example when a card is too hot; the bits are the same",
         .limits = between(0, kMostDevices),
         .may_be_empty = true,
         .is_for_sites = true},
    };
}

}  // namespace nearstep::config
