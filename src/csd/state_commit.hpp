// Makes a step of one rank's devices durable: first their state, then the manifest that names it.
#pragma once

#include "csd/device.hpp"
#include "store/manifest.hpp"

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
    // `storage` as for store::File.
    explicit StateCommit(std::string manifest_path, store::Storage* storage = nullptr)
        : file_(std::move(manifest_path), storage) {}

    // The rank's manifest; nullopt if there is none. Throws as store::ManifestFile.
    std::optional<store::Manifest> read() const { return file_.read(); }

    // Sets the manifest that later commits extend. It lists the step the run continues from, or
    // none.
    void begin(store::Manifest manifest) { manifest_ = std::move(manifest); }

    // Writes the manifest with the owner of the state files and no step, so that their state is
    // invalid.
    void claim();

    // Returns when all state written to the devices survives a power cut.
    void prepare(std::span<const std::unique_ptr<Device>> devices);

    // True between prepare() and publish().
    bool is_prepared() const { return is_prepared_; }

    // Lists the step in the manifest. Only after prepare() has returned on all ranks.
    void publish(const store::Commit& commit);

private:
    store::ManifestFile file_;
    store::Manifest manifest_;
    bool is_prepared_ = false;
};

}  // namespace nearstep::csd
