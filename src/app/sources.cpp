// Reads what a run's settings come from and gives it to all ranks. Used by the commands.
#include "app/commands.hpp"
#include "base/input_file.hpp"
#include "base/packed.hpp"
#include "checkpoint/checkpoint_files.hpp"
#include "model/hugging_face.hpp"
#include "store/names.hpp"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <string>

namespace nearstep::app {

namespace {

namespace fs = std::filesystem;

// A file of a published model; its path is empty if there is none.
struct ModelFile {
    std::string path;
    std::string content;
};

// The texts of the published model's files. Both are empty if `model.from` names no folder.
struct ModelFiles {
    ModelFile config;      // config.json
    ModelFile generation;  // generation_config.json
};

ModelFile read_model_file(const fs::path& path, const char* advice) {
    return {.path = path.string(),
            .content = InputFile(path.string(), "The model's", advice).read_all()};
}

ModelFiles read_model_files(const config::Sources& sources) {
    const fs::path from = config::model_from(sources);
    std::error_code ignored;
    if (!fs::is_directory(from, ignored)) {
        return {};
    }
    ModelFiles files;
    files.config = read_model_file(from / "config.json",
                                   "download it too, or name the file of safetensors in model.from "
                                   "and set the keys of [model].");
    if (const fs::path path = from / "generation_config.json"; fs::exists(path, ignored)) {
        files.generation = read_model_file(path, "download it again, or remove it.");
    }
    return files;
}

void add_model(config::Sources& sources, const ModelFiles& files) {
    if (!files.config.path.empty()) {
        sources.model = model::read_hugging_face_config(files.config.path, files.config.content);
    }
    if (!files.generation.path.empty()) {
        const auto more =
            model::read_generation_config(files.generation.path, files.generation.content);
        sources.model.insert(sources.model.end(), more.begin(), more.end());
    }
}

}  // namespace

config::Sources read_sources(const RunArguments& arguments) {
    config::Sources sources =
        config::read_sources(arguments.config, arguments.site, arguments.overrides);
    add_model(sources, read_model_files(sources));
    return sources;
}

// The settings of all ranks come from one text, except for those that each rank's command line has.
config::Sources read_sources(const mpi::Communicator& world, const RunArguments& arguments,
                             mpi::NamedValues options) {
    config::Sources sources{.overrides = arguments.overrides};
    ModelFiles files;
    const auto each = [&](auto&& archive) {
        archive(sources.config_path, sources.config_text, sources.site_path, sources.site_text,
                files.config.path, files.config.content, files.generation.path,
                files.generation.content);
    };
    Packer read;
    world.on_rank_0([&] {
        sources = config::read_sources(arguments.config, arguments.site, arguments.overrides);
        files = read_model_files(sources);
        each(read);
    });
    const std::string told = world.broadcast(read.bytes, 0);
    each(Unpacker(told));
    add_model(sources, files);
    world.together([&] {
        config::Sources checked = sources;
        checked.needs_data = false;
        std::ranges::move(config::values_of_run(config::parse(checked)),
                          std::back_inserter(options));
    });
    mpi::require_equal(world, options);
    return sources;
}

std::vector<NamedPath> files_of_runs() {
    return {{"the state of a run", "", store::is_state_name},
            {"a checkpoint", "",
             [](const std::string& name) { return checkpoint::parse_name(name).has_value(); }}};
}

std::vector<NamedPath> inputs_of(const config::Sources& sources, const config::RunSettings& run) {
    std::vector<NamedPath> inputs = files_of_runs();
    inputs.insert(inputs.end(), {{"the config", sources.config_path},
                                 {"the site", sources.site_path},
                                 {"model.from", run.model.from},
                                 {"plan.calibration", run.plan.calibration}});
    for (const std::string& path : run.data.train) {
        inputs.push_back({"data.train", path});
    }
    for (const std::string& path : run.data.valid) {
        inputs.push_back({"data.valid", path});
    }
    return inputs;
}

config::RunSettings read_run(const mpi::Communicator& world, const RunArguments& arguments) {
    return config::parse(read_sources(world, arguments));
}

}  // namespace nearstep::app
