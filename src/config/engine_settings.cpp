#include "config/engine_settings.hpp"

#include "base/digest.hpp"
#include "base/error.hpp"

#include <filesystem>
#include <span>

namespace nearstep::config {

const char* name_of(Mode mode) {
    switch (mode) {
        case Mode::base:
            return "base";
        case Mode::su:
            return "su";
        case Mode::su_o:
            return "su+o";
        case Mode::su_o_c:
            return "su+o+c";
    }
    throw ContractError("A mode has a value that no mode has.");
}

Mode parse_mode(const std::string& name) {
    for (const Mode mode : {Mode::base, Mode::su, Mode::su_o, Mode::su_o_c}) {
        if (name == name_of(mode)) {
            return mode;
        }
    }
    throw ConfigError(
        text("mode = \"", name, R"(" is not known: use "base", "su", "su+o" or "su+o+c".)"));
}

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
