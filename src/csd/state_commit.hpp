// Makes a step of one rank's devices durable: first their state, then the manifest that names it.
#pragma once

#include "csd/device.hpp"
#include "store/manifest.hpp"
#include "store/program_state.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace nearstep::csd {

// A step is committed in two halves: every rank prepares; when all have, every rank publishes.
// After a crash some manifests may list the step and others the previous one. All ranks still hold
// both, because a step overwrites the older of two places and no rank writes the next step before
// all have published this one. The caller ensures both orders.
class StateCommit {
public:
    // `programs`: the files for what a program keeps. `storage` as for store::File.
    explicit StateCommit(std::string manifest_path, store::Storage* storage = nullptr,
                         std::array<std::string, 2> programs = {})
        : file_(std::move(manifest_path), storage), programs_(std::move(programs), storage) {}

    // The rank's manifest; nullopt if there is none. Throws as store::ManifestFile.
    std::optional<store::Manifest> read() const { return file_.read(); }

    // Sets the manifest that later commits extend. It lists the step the run continues from, or
    // none.
    void begin(store::Manifest manifest) { manifest_ = std::move(manifest); }

    // Throws ConfigError if what a program keeps would overwrite a file of somebody else.
    void expect_own_programs() const { programs_.expect_replaceable(); }

    // For a program that keeps something: what it has at `step`, which the run continues from. On
    // return this survives a power cut.
    void begin_program(std::int64_t step, const store::ProgramState& state) {
        programs_.begin(manifest_.line.run, step, state);
    }

    // Keeps what the program has at a step that is not published yet. Only when all ranks have
    // returned, one publishes it.
    void keep_program(std::int64_t step, std::span<const std::byte> bytes) {
        programs_.write(manifest_.line.run, step, bytes);
    }

    // Writes the manifest with the owner of the state files and no step, so that their state is
    // invalid.
    void claim();

    // Removes a manifest that claim() made where there was none.
    void withdraw() { file_.withdraw(); }

    // Returns when all state written to the devices survives a power cut.
    void prepare(std::span<const std::unique_ptr<Device>> devices);

    // True between prepare() and publish().
    bool is_prepared() const { return is_prepared_; }

    // Lists the step in the manifest. Only after prepare() has returned on all ranks.
    void publish(const store::Commit& commit);

private:
    store::ManifestFile file_;
    store::Manifest manifest_;
    store::ProgramStatePair programs_;
    bool is_prepared_ = false;
};

}  // namespace nearstep::csd
