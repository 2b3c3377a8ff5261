// One row of the benchmark of devices: devices on one disk that take steps and prove their state.
#pragma once

#include "base/dtype.hpp"
#include "codec/codec.hpp"
#include "csd/device.hpp"
#include "csd/engine.hpp"
#include "csd/transfer_handler.hpp"
#include "memory/buffer.hpp"
#include "shard/partition.hpp"
#include "store/subgroup_header.hpp"
#include "store/transport.hpp"
#include "trace/traffic.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace nearstep::bench {

// What a row measures; the names of other rows say what its rate is held against.
struct CsdRowSettings {
    std::string name = {};
    std::string what = {};     // for people
    std::string ceiling = {};  // row; empty: it is a ceiling itself
    std::string beside = {};   // row that differs in one thing; may be empty
    int devices = 1;
    int slots = 3;
    csd::StateFormat state = csd::StateFormat::fp32;
    bool is_raw = false;  // moves only
    bool is_durable = false;
    store::PayloadDigest digest = store::PayloadDigest::present;
    store::IoKind io = store::IoKind::automatic;
};

// What all rows share.
struct CsdScene {
    std::string folder;          // of the state files
    std::size_t parameters = 0;  // whole tiles
    std::size_t subgroup_tiles = 16;
    const codec::Codec* codec = nullptr;
    memory::Buffer vector = {};  // 16-bit parameters, of whoever stepped last
};

// The same start state, gradient and scalars for every row. Owns its state files, which it removes.
class CsdRow {
public:
    // Throws as csd::make_emulated_device. `scene` outlives the row.
    CsdRow(CsdRowSettings settings, CsdScene& scene);
    CsdRow(const CsdRow&) = delete;
    CsdRow& operator=(const CsdRow&) = delete;
    ~CsdRow();

    // Bytes of storage that the row takes.
    static std::size_t storage_bytes(const CsdRowSettings& settings, const CsdScene& scene);

    // Takes all parameters through `steps` steps; a durable row flushes each. Seconds.
    double run(int steps);

    // Compares the first, middle and last subgroup of every device with the scalar engine applied
    // in memory as many times as the row stepped (a raw row: with the start state), bit for bit,
    // and the scene's vector with their masters. Right after run(). Returns the subgroups compared;
    // throws Error naming the first that differs.
    std::size_t verify();

    const CsdRowSettings& settings() const { return settings_; }
    std::string describe_io() const { return devices_.front()->describe_io(); }

private:
    std::string file_of(int device) const;
    void add_device(int device, const shard::Partition& partition);
    void write_start_state(csd::Device& device);
    void verify_subgroup(csd::Device& device, std::size_t subgroup);

    CsdRowSettings settings_;
    CsdScene& scene_;
    trace::Traffic traffic_;
    std::vector<std::unique_ptr<csd::Device>> devices_;
    std::vector<std::unique_ptr<csd::TransferHandler>> handlers_;  // end before their devices
    std::int64_t generation_ = 0;
};

}  // namespace nearstep::bench
