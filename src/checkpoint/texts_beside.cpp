// Writes config.json and generation_config.json. Used by export.cpp.
#include "checkpoint/texts_beside.hpp"

#include "base/error.hpp"
#include "base/output_file.hpp"
#include "base/plain_file.hpp"
#include "base/units.hpp"

#include <nlohmann/json.hpp>

#include <filesystem>

namespace nearstep::checkpoint {

namespace {

// Returns the model's config without the type of the parameters, in which exports of one model may
// differ.
nlohmann::json model_in(const std::string& content) {
    nlohmann::json model = nlohmann::json::parse(content, nullptr, false);
    if (model.is_object()) {
        model.erase("torch_dtype");
        model.erase("dtype");
    }
    return model;
}

bool may_replace(const std::string& path, const std::string& content) {
    namespace fs = std::filesystem;
    std::error_code ignored;
    if (!fs::exists(fs::symlink_status(path, ignored))) {
        return true;
    }
    const nlohmann::json there = model_in(start_of_plain(path, MiB));
    return !there.is_discarded() && there == model_in(content);
}

}  // namespace

TextsBeside::TextsBeside(const std::string& out_path, const std::string& folder,
                         const ModelTexts& texts) {
    for (const auto& [name, content] :
         {std::pair("config.json", texts.config),
          std::pair("generation_config.json", texts.generation_config)}) {
        if (content.empty()) {
            continue;
        }
        const std::string path = text(folder, "/", name);
        if (!may_replace(path, content)) {
            throw ConfigError(text("Cannot export to ", out_path, ": ", path,
                                   " is not this model's. Name a file in another folder."));
        }
        files_.emplace_back(path, content);
    }
}

void TextsBeside::write() const {
    for (const auto& [path, content] : files_) {
        write_whole_file(path, content);
    }
}

}  // namespace nearstep::checkpoint
