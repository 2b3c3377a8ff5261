// Names of files and what they say. Used by restarts, which look for state.
#include "store/names.hpp"

#include "base/error.hpp"
#include "store/scanner.hpp"
#include "store/storage_folder.hpp"

#include <algorithm>
#include <filesystem>
#include <system_error>

namespace nearstep::store {

namespace {

std::string infix_of(int set) { return set == 0 ? "" : text(".set-", set); }

// The set for which `name_of` makes the name again, if what was parsed is good.
template <typename NameOf>
std::optional<RankFileName> find_set(const std::string& name, const Scanner& scanner,
                                     RankFileName parsed, const NameOf& name_of) {
    const bool is_good = scanner.is_good() && parsed.rank >= 0 && parsed.device >= 0;
    for (parsed.set = 0; is_good && parsed.set < kSets; ++parsed.set) {
        if (name == name_of(parsed)) {
            return parsed;
        }
    }
    return std::nullopt;
}

}  // namespace

std::string state_file_name(int rank, int device, int set) {
    return text("rank-", rank, ".device-", device, infix_of(set), ".state");
}

std::string manifest_name(int rank, int set) {
    return text("rank-", rank, infix_of(set), ".manifest");
}

std::string program_state_name(int rank, int set, int place) {
    return text("rank-", rank, infix_of(set), ".program-", place);
}

std::vector<std::string> program_state_files(const std::vector<std::string>& folders, int rank) {
    std::vector<std::string> paths;
    for (const std::string& folder : folders) {
        for (int set = 0; set < kSets; ++set) {
            for (int place = 0; place < 2; ++place) {
                paths.push_back(text(folder, "/", program_state_name(rank, set, place)));
            }
        }
    }
    return paths;
}

std::optional<RankFileName> parse_state_file_name(const std::string& name) {
    RankFileName parsed;
    Scanner scanner(name);
    scanner.number_after("rank-", parsed.rank);
    scanner.number_after(".device-", parsed.device);
    return find_set(name, scanner, parsed, [](const RankFileName& file) {
        return state_file_name(file.rank, file.device, file.set);
    });
}

std::optional<RankFileName> parse_manifest_name(const std::string& name) {
    RankFileName parsed;
    Scanner scanner(name);
    scanner.number_after("rank-", parsed.rank);
    return find_set(name, scanner, parsed,
                    [](const RankFileName& file) { return manifest_name(file.rank, file.set); });
}

namespace {

constexpr std::string_view kLogInfix = ".log-";

}  // namespace

std::string log_of_state(const std::string& state_file, std::size_t number) {
    return text(state_file, kLogInfix, number);
}

std::vector<std::string> logs_of_state(const std::string& state_file,
                                       const std::vector<std::string>& log_folders) {
    const std::string state_file_name = state_file.substr(state_file.rfind('/') + 1);
    std::vector<std::string> folders = log_folders;
    folders.push_back(folder_of(state_file));
    std::vector<std::string> logs;
    for (const std::string& folder : folders) {
        std::error_code ignored;
        for (std::filesystem::directory_iterator file(folder, ignored), end;
             !ignored && file != end; file.increment(ignored)) {
            const std::string name = file->path().filename();
            if (name.starts_with(text(state_file_name, kLogInfix)) && is_state_name(name)) {
                logs.push_back(text(folder, "/", name));
            }
        }
    }
    return logs;
}

bool is_state_name(const std::string& name) {
    const std::string of_log = name.substr(0, std::min(name.rfind(kLogInfix), name.size()));
    if (of_log.size() < name.size() && parse_state_file_name(of_log)) {
        int number = -1;
        Scanner scanner(std::string_view(name).substr(of_log.size()));
        scanner.number_after(kLogInfix, number);
        return number >= 0 && name == log_of_state(of_log, static_cast<std::size_t>(number));
    }
    int rank = -1;
    Scanner scanner(name);
    scanner.number_after("rank-", rank);
    bool is_of_program = false;
    for (int set = 0; set < kSets; ++set) {
        for (const int place : {0, 1}) {
            is_of_program |= rank >= 0 && name == program_state_name(rank, set, place);
        }
    }
    return is_of_program || parse_state_file_name(name) || parse_manifest_name(name);
}

}  // namespace nearstep::store
