// The files beside an HDF5 export, such as config.json.
#pragma once

#include "checkpoint/export.hpp"

#include <string>
#include <utility>
#include <vector>

namespace nearstep::checkpoint {

class TextsBeside {
public:
    // Throws ConfigError, which names the export `out_path`, if the folder has a file that says
    // something else of the model than its parameters' type.
    TextsBeside(const std::string& out_path, const std::string& folder, const ModelTexts& texts);

    // Throws PathError or IoError.
    void write() const;

private:
    std::vector<std::pair<std::string, std::string>> files_;  // paths and contents
};

}  // namespace nearstep::checkpoint
