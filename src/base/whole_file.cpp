#include "base/whole_file.hpp"

#include "base/error.hpp"

#include <cstdio>
#include <filesystem>
#include <fstream>

namespace nearstep {

namespace {

std::string temporary_name(const std::string& path) { return path + ".part"; }

[[noreturn]] void refuse(const std::string& path) {
    throw ConfigError(
        text("The file ", path,
             " cannot be written: name a file in a folder that exists and is writable."));
}

}  // namespace

void check_writable(const std::string& path) {
    if (!std::ofstream(temporary_name(path), std::ios::trunc) ||
        std::filesystem::is_directory(path)) {
        refuse(path);
    }
    std::filesystem::remove(temporary_name(path));
}

void write_whole_file(const std::string& path, const std::string& text_to_write) {
    std::ofstream file(temporary_name(path), std::ios::trunc);
    file << text_to_write;
    file.close();
    if (!file || std::rename(temporary_name(path).c_str(), path.c_str()) != 0) {
        refuse(path);
    }
}

}  // namespace nearstep
