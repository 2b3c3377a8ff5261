// One row of the device benchmark: devices on one disk that take steps and verify their state.
#pragma once

#include "base/dtype.hpp"
#include "codec/codec.hpp"
#include "csd/device.hpp"
#include "csd/transfer_handler.hpp"
#include "csd/update_engine.hpp"
#include "memory/buffer.hpp"
#include "memory/gpu.hpp"
#include "shard/partition.hpp"
#include "store/subgroup_header.hpp"
#include "store/transport.hpp"
#include "trace/traffic.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace nearstep::bench {

// Says what a row measures, and names the rows it is compared with.
struct CsdRowSettings {
    std::string name = {};
    std::string what = {};     // description for people
    std::string ceiling = {};  // row; empty: this row is a ceiling itself
    std::string beside = {};   // row that differs in one setting; may be empty
    int devices = 1;
    int slots = 3;
    csd::StateFormat state = csd::StateFormat::fp32;
    bool is_raw = false;  // only moves data
    bool is_durable = false;
    bool has_gpu = false;  // GPU 0 helps
    store::PayloadDigest digest = store::PayloadDigest::present;
    store::IoKind io = store::IoKind::automatic;
};

// The settings that all rows share.
struct CsdScene {
    std::string folder;          // of the state files
    std::size_t parameters = 0;  // whole tiles
    std::size_t subgroup_tiles = 16;
    const codec::Codec* codec = nullptr;
    memory::Buffer vector = {};  // 16-bit parameters of the last row that stepped
    std::optional<memory::PinnedRange> pinned = {};  // the vector, if there is a GPU
};

// All rows have the same start state, gradient and scalars. Removes its state files at the end.
class CsdRow {
public:
    // Throws like csd::make_cpu_device. `scene` must outlive the row.
    CsdRow(CsdRowSettings settings, CsdScene& scene);
    CsdRow(const CsdRow&) = delete;
    CsdRow& operator=(const CsdRow&) = delete;
    ~CsdRow();

    // Bytes of storage that the row needs.
    static std::size_t storage_bytes(const CsdRowSettings& settings, const CsdScene& scene);

    // Runs `steps` steps of all parameters, each flushed in a durable row. Returns seconds.
    double run(int steps);

    // Call right after run(). Compares the first, middle and last subgroup of every device, bit for
    // bit, with as many steps of the scalar engine in memory (for a raw row, with the start state),
    // and the scene's vector with their masters. Returns the number of compared subgroups; throws
    // Error that names the first mismatch.
    std::size_t verify();

    const CsdRowSettings& settings() const { return settings_; }
    std::string describe_io() const { return devices_.front()->describe_io(); }

private:
    std::string file_of(int device) const;
    void add_device(int device, const shard::Partition& partition);
    void remove_files();
    void write_start_state(csd::Device& device);
    void verify_subgroup(csd::Device& device, std::size_t subgroup);

    CsdRowSettings settings_;
    CsdScene& scene_;
    trace::Traffic traffic_;
    Executor executor_{pool_threads()};
    std::vector<std::string> files_;
    std::vector<std::unique_ptr<csd::Device>> devices_;
    std::vector<std::unique_ptr<csd::TransferHandler>> handlers_;  // destroyed before their devices
    std::int64_t generation_ = 0;
};

}  // namespace nearstep::bench
