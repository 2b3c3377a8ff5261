#include "app/commands.hpp"
#include "base/error.hpp"
#include "report/page.hpp"
#include "train/summary.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>

namespace nearstep::app {

namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kMostBytes = std::uintmax_t{64} << 20U;

struct ReportArguments {
    std::string folder;
    std::string out;
};

// All JSON files below the folder, by name. Files that are not valid JSON go to `ignored`.
std::vector<report::File> read_files(const fs::path& folder, std::vector<std::string>& ignored) {
    std::vector<fs::path> paths;
    for (const auto& entry :
         fs::recursive_directory_iterator(folder, fs::directory_options::skip_permission_denied)) {
        std::error_code unused;
        if (entry.path().extension() == ".json" && entry.is_regular_file(unused)) {
            paths.push_back(entry.path());
        }
    }
    std::sort(paths.begin(), paths.end());
    std::vector<report::File> files;
    for (const fs::path& path : paths) {
        const std::string name = path.lexically_relative(folder).string();
        std::ifstream file(path);
        nlohmann::json content;
        if (std::error_code unused; fs::file_size(path, unused) <= kMostBytes) {
            content = report::read_json(file);
        }
        if (content.is_object() || content.is_array()) {
            files.push_back({name, std::move(content)});
        } else {
            ignored.push_back(name);
        }
    }
    return files;
}

void write_report(const ReportArguments& arguments) {
    const fs::path folder = arguments.folder;
    std::error_code unused;
    if (!fs::is_directory(folder, unused)) {
        throw ConfigError(text("There is no folder ", arguments.folder,
                               ": name the one with the results of runs and experiments."));
    }
    const std::string out =
        arguments.out.empty() ? (folder / "report.html").string() : arguments.out;
    train::check_writable(out);
    std::vector<std::string> ignored;
    const std::vector<report::Study> studies =
        report::studies_of(read_files(folder, ignored), ignored);
    if (studies.empty()) {
        throw ConfigError(text("The folder ", arguments.folder,
                               " has no result of nearstep: name one with files of --json, or of "
                               "cluster/experiments."));
    }
    train::write_whole_file(out, report::make_page(arguments.folder, studies, ignored));
    std::cout << "report of " << studies.size() << " studies: " << out << "\n";
}

}  // namespace

void add_report(CLI::App& program, Action& action) {
    auto arguments = std::make_shared<ReportArguments>();
    CLI::App& command = *program.add_subcommand(
        "report",
        "Gather the JSON results below a folder into one HTML page: runs, comparisons, plans, "
        "experiments, and what bounds the cluster. Example:\n  nearstep report runs");
    command.add_option("folder", arguments->folder, "where the results lie")->required();
    command.add_option("--out", arguments->out, "the page; default: report.html in that folder");
    command.callback(
        [arguments, &action] { action = on_rank_0([arguments] { write_report(*arguments); }); });
}

}  // namespace nearstep::app
