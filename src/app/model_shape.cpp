// Finds the shape of the model that suggest was given. Used by suggest_command.cpp.
#include "app/model_shape.hpp"

#include "app/placement.hpp"
#include "base/error.hpp"
#include "base/input_file.hpp"
#include "model/published_shape.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>

namespace nearstep::app {

namespace {

namespace fs = std::filesystem;

constexpr int kMostContext = 2048;

// A llama of usual proportions: of its width, a layer for every 128.
config::ModelSettings shape_of_count(double parameters) {
    constexpr double kWidthOfLayer = 128;
    constexpr double kOfLayer = 12;  // times the width's square
    config::ModelSettings shape;
    shape.architecture = config::ModelFamily::llama;
    shape.tied = false;
    shape.vocabulary = 32000;
    shape.positions = kMostContext;
    const double ideal = std::cbrt(parameters * kWidthOfLayer / kOfLayer);
    shape.width =
        static_cast<int>(std::max(1.0, std::round(ideal / kWidthOfLayer)) * kWidthOfLayer);
    shape.heads = shape.width / static_cast<int>(kWidthOfLayer);
    const double of_layer = kOfLayer * shape.width * shape.width;
    const double around = 2.0 * shape.width * shape.vocabulary;
    shape.layers =
        static_cast<int>(std::clamp(std::round((parameters - around) / of_layer), 1.0, 1024.0));
    return shape;
}

// 0 if the word is no count.
double count_of(const std::string& word) {
    constexpr double kLeast = 1e4;
    constexpr double kMost = 1e13;
    char* end = nullptr;
    double count = std::strtod(word.c_str(), &end);
    const std::string unit(end);
    count *= unit == "B" || unit == "b"   ? 1e9
             : unit == "M" || unit == "m" ? 1e6
             : unit.empty()               ? 1
                                          : 0;
    return count >= kLeast && count <= kMost ? count : 0;
}

}  // namespace

plan::Task task_of(const std::string& given, int context) {
    std::error_code ignored;
    const double count = fs::exists(given, ignored) ? 0 : count_of(given);
    plan::Task task;
    if (count > 0) {
        task.model = shape_of_count(count);
    } else {
        const bool is_folder = fs::is_directory(given, ignored);
        const std::string path = is_folder ? given + "/config.json" : given;
        task.model = model::read_shape(
            path,
            InputFile(path, "The model's", "give the folder of a model, or a count of parameters.")
                .read_all());
    }
    const int most = task.model.positions > 0 ? task.model.positions : kMostContext;
    task.model.context = context > 0 ? context : std::min(most, kMostContext);
    task.model.positions = std::max(task.model.positions, task.model.context);
    task.size = size_of(task.model);
    if (count > 0) {
        task.size.parameters = static_cast<std::size_t>(count);
    }
    return task;
}

}  // namespace nearstep::app
