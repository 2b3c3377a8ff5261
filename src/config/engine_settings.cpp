// Derives the folders of checkpoints and of state in memory from the settings. Used by the engine
// and its clients.
#include "config/engine_settings.hpp"

#include "base/digest.hpp"
#include "base/error.hpp"

#include <filesystem>
#include <span>

namespace nearstep::config {

std::string checkpoint_folder(const EngineSettings& settings) {
    return settings.checkpoint.path.empty() ? settings.csd.path.front() + "/checkpoints"
                                            : settings.checkpoint.path;
}

std::string memory_folder(const EngineSettings& settings) {
    namespace fs = std::filesystem;
    fs::path path = fs::absolute(settings.csd.path.front()).lexically_normal();
    if (!path.has_filename()) {
        path = path.parent_path();  // it ended with a slash
    }
    const std::string whole = path.string();
    return text("/dev/shm/nearstep-", path.filename().string().substr(0, 100), "-",
                to_hex(xxh3(std::as_bytes(std::span(whole)))));
}

}  // namespace nearstep::config
