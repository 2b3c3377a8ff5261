// The keys of [csd]. Used by keys.cpp.
#include "config/keys.hpp"

namespace nearstep::config {

std::vector<Key> device_keys(CsdSettings& csd) {
    return {
        {.name = "csd.device",
         .target = &csd.device,
         .meaning = "kind of computational storage device; emulated: by the host's cores and, for "
                    "state in memory, by the rank's GPU, if it has one; host: by the host's cores "
                    "alone; xrt: a card; the bits are the same",
         .place = KeyPlace::site},
        {.name = "csd.per_rank",
         .target = &csd.per_rank,
         .unit = "devices",
         .meaning = "devices of every rank, or of every storage rank if there are some; or a list "
                    "with one entry per rank",
         .limits = between(0, kMostDevices),
         .place = KeyPlace::config_or_site},
        {.name = "csd.storage_ranks",
         .target = &csd.storage_ranks,
         .unit = "ranks",
         .meaning = "the last ranks, which hold devices and compute nothing; by default one for "
                    "each of hosts.storage",
         .limits = between(0, kMostDevices),
         .place = KeyPlace::config_or_site},
        {.name = "csd.path",
         .target = &csd.path,
         .meaning = "folders for state files; device i of a rank uses the i-th, starting over at "
                    "the end of the list",
         .place = KeyPlace::config_or_site},
        {.name = "csd.speed",
         .target = &csd.speed,
         .unit = "relative",
         .meaning = "relative speed of every device, or a list with one entry per device of all "
                    "ranks; a device has so large a part of the state; "
                    "auto: measured at start, so that all devices end a step together",
         .limits = above_zero(),
         .word = "auto",
         .place = KeyPlace::config_or_site},
    };
}

// The rest of the state lies on the drives.
std::vector<Key> tier_keys(CsdSettings& csd) {
    return {
        {.name = "csd.tiers.gpu",
         .target = &csd.tiers.gpu,
         .unit = "GB",
         .meaning =
             "part of the state of each rank that computes, with both its generations, "
             "which lies in the memory of its GPU; it survives nothing, so csd.durability "
             "is not \"step\"; not in mode base; auto: half of what the network leaves free, or "
             "less if the planner takes less",
         .limits = not_negative(),
         .word = "auto",
         .place = KeyPlace::config_or_site},
        {.name = "csd.tiers.memory",
         .target = &csd.tiers.memory,
         .unit = "GB",
         .meaning = "part of the state files of each rank with drives that lies in /dev/shm; it "
                    "survives a killed process, but no reboot; not in mode base; auto: half of "
                    "what is free, or less if the planner takes less",
         .limits = not_negative(),
         .word = "auto",
         .place = KeyPlace::config_or_site},
    };
}

std::vector<Key> state_keys(CsdSettings& csd) {
    return {
        {.name = "csd.subgroup_tiles",
         .target = &csd.subgroup_tiles,
         .unit = "tiles",
         .meaning = "tiles of 65536 parameters that are read, updated and written together",
         .limits = between(1, kMostTiles)},
        {.name = "csd.slots",
         .target = &csd.slots,
         .unit = "slots",
         .meaning =
             "staging buffers of a device, at least 3; each holds one subgroup, and all but "
             "one are filled during backward. 0: as many as fit an eighth of the node's free "
             "memory, but at least 4; of these all but 8, or from 32 on all but a quarter, keep "
             "their state from step to step, and all do if the whole state fits; state in "
             "/dev/shm needs none. "
             "For state that a GPU updates: an eighth of the GPU's free memory",
         .limits = between(0, kMostSlots),
         .place = KeyPlace::config_or_site},
        {.name = "csd.state",
         .target = &csd.state,
         .meaning =
             "format of masters and moments in storage: 12, 8, 6.03 or 4.03 bytes per parameter"},
        {.name = "csd.durability",
         .target = &csd.durability,
         .meaning = "what survives a crash: every step, checkpoints only, or nothing"},
        {.name = "csd.io",
         .target = &csd.io,
         .meaning = "how state moves; auto: mapped if it lies in memory (/dev/shm), else by "
                    "io_uring, or by threads if io_uring is refused",
         .place = KeyPlace::config_or_site},
    };
}

// Speed and endurance of a device's parts.
std::vector<Key> part_keys(CsdSettings& csd) {
    return {
        {.name = "csd.update_mparam_s",
         .target = &csd.update_mparam_s,
         .unit = "Mparam/s",
         .meaning =
             "highest update rate of a device, before link.scale; not in mode base; 0: no limit",
         .limits = not_negative(),
         .place = KeyPlace::site},
        {.name = "csd.rated_tbw",
         .target = &csd.rated_tbw,
         .unit = "TB",
         .meaning = "rated lifetime writes of a device's drive; 0: unknown",
         .limits = not_negative(),
         .place = KeyPlace::site},
    };
}

std::vector<Key> card_keys(CsdSettings& csd) {
    return {
        {.name = "csd.cards",
         .target = &csd.cards,
         .meaning = "PCI address or index of the card for each folder of csd.path; empty: the card "
                    "behind the same PCIe switch as the folder's drive",
         .may_be_empty = true,
         .place = KeyPlace::site},
        {.name = "csd.xclbin",
         .target = &csd.xclbin,
         .meaning = "file with the cards' kernels",
         .may_be_empty = true,
         .place = KeyPlace::site},
        {.name = "csd.host_engine",
         .target = &csd.host_engine,
         .unit = "devices",
         .meaning = "devices, numbered over all ranks, whose state the host updates instead of "
                    "their card, for example when a card is too hot; the bits are the same",
         .limits = between(0, kMostDevices),
         .may_be_empty = true,
         .place = KeyPlace::site},
    };
}

}  // namespace nearstep::config
