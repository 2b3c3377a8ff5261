// Flushes the state of a step, then names the step in the manifest. Called by the step pipeline and
// the engine.
#include "csd/state_commit.hpp"

#include "base/error.hpp"

namespace nearstep::csd {

void StateCommit::claim() {
    manifest_.commits.clear();
    file_.replace(manifest_);
}

void StateCommit::prepare(std::span<const std::unique_ptr<Device>> devices) {
    Ticket all;
    for (const std::unique_ptr<Device>& device : devices) {
        all.add(device->flush());
    }
    all.wait();
    is_prepared_ = true;
}

void StateCommit::publish(const store::Commit& commit) {
    expects(is_prepared_, "the state is flushed before its step is named");
    is_prepared_ = false;
    store::add_commit(manifest_, commit);
    manifest_.programs = programs_.records();
    file_.replace(manifest_);
    manifest_.replaces.clear();
}

}  // namespace nearstep::csd
