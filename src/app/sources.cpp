#include "app/commands.hpp"
#include "base/error.hpp"
#include "base/mapped_file.hpp"
#include "model/hugging_face.hpp"

#include <filesystem>
#include <string>
#include <string_view>

namespace nearstep::app {

namespace {

namespace fs = std::filesystem;

// The config.json of a published model; its path is empty if model.from is no folder.
struct ModelFile {
    std::string path;
    std::string content;
};

ModelFile read_model_file(const config::Sources& sources) {
    const std::string from = config::model_from(sources);
    std::error_code ignored;
    if (!fs::is_directory(from, ignored)) {
        return {};
    }
    ModelFile file{.path = (fs::path(from) / "config.json").string(), .content = ""};
    const MappedFile mapped(file.path, "The model's",
                            "download it too, or name the file of safetensors in model.from and "
                            "set the keys of [model].");
    file.content.assign(reinterpret_cast<const char*>(mapped.bytes().data()),
                        mapped.bytes().size());
    return file;
}

void add_model(config::Sources& sources, const ModelFile& file) {
    if (!file.path.empty()) {
        sources.model = model::read_hugging_face_config(file.path, file.content);
    }
}

}  // namespace

config::Sources read_sources(const RunArguments& arguments) {
    config::Sources sources =
        config::read_sources(arguments.config, arguments.site, arguments.overrides);
    add_model(sources, read_model_file(sources));
    return sources;
}

config::Sources read_sources(const mpi::Communicator& world, const RunArguments& arguments) {
    config::Sources sources;
    ModelFile file;
    world.together([&] {
        if (world.rank() == 0) {
            sources = config::read_sources(arguments.config, arguments.site, arguments.overrides);
            file = read_model_file(sources);
        }
    });
    sources.config_path = world.broadcast(sources.config_path, 0);
    sources.config_text = world.broadcast(sources.config_text, 0);
    sources.site_path = world.broadcast(sources.site_path, 0);
    sources.site_text = world.broadcast(sources.site_text, 0);
    sources.overrides = arguments.overrides;
    file.path = world.broadcast(file.path, 0);
    file.content = world.broadcast(file.content, 0);
    add_model(sources, file);
    return sources;
}

config::Run read_run(const mpi::Communicator& world, const RunArguments& arguments) {
    return config::parse(read_sources(world, arguments));
}

}  // namespace nearstep::app
