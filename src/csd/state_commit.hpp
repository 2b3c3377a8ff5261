// Makes a step of one rank's devices durable: their state first, then the manifest that names it.
#pragma once

#include "csd/device.hpp"
#include "store/manifest.hpp"

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace nearstep::csd {

// A step is committed in two halves: every rank prepares; when all have, every rank publishes. A
// crash between or within them leaves some manifests at the step and some at the one before, both
// of which all ranks hold: a step overwrites the older of two places, and no rank begins to write
// the next step before all have published this one. The caller sees to both orders.
class StateCommit {
public:
    // `storage`: as for a store::File.
    explicit StateCommit(std::string manifest_path, store::Storage* storage = nullptr)
        : file_(std::move(manifest_path), storage) {}

    // What the rank's manifest says; nullopt if there is none. Throws as store::ManifestFile.
    std::optional<store::Manifest> read() const { return file_.read(); }

    // Whose steps the following commits are. `manifest` lists the one that the run goes on from, or
    // none.
    void begin(store::Manifest manifest) { manifest_ = std::move(manifest); }

    // The manifest says whose the state files are, and lists no step: nothing in them counts.
    void claim();

    // Returns when the state that was written to the devices outlives a power cut.
    void prepare(std::span<const std::unique_ptr<Device>> devices);

    // From prepare() to publish().
    bool is_prepared() const { return is_prepared_; }

    // Lists the step in the manifest. Only after prepare() has returned on all ranks.
    void publish(const store::Commit& commit);

private:
    store::ManifestFile file_;
    store::Manifest manifest_;
    bool is_prepared_ = false;
};

}  // namespace nearstep::csd
