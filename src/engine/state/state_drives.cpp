// Words what new state takes on each drive, and refuses much of it on the root filesystem. Called
// by State when a run starts.
#include "engine/state/state_drives.hpp"

#include "base/error.hpp"
#include "base/formatted.hpp"
#include "base/units.hpp"
#include "base/wording.hpp"
#include "csd/state_format.hpp"

#include <algorithm>
#include <cmath>

namespace nearstep::engine {

namespace {

constexpr double kTerabyte = 1e12;
constexpr double kMinutesPerDay = 1440;
constexpr std::size_t kMostNamed = 2;
constexpr const char* kRating = "csd.rated_tbw";

// "7140", "1.4e+07".
std::string rounded(double count) {
    constexpr double kMostWritten = 1e6;
    if (count < 1 || count >= kMostWritten) {
        return three_digits(count);
    }
    const double unit = std::pow(10, std::max(0.0, std::floor(std::log10(count)) - 2));
    return formatted("%.0f", std::round(count / unit) * unit);
}

std::string describe_life(const DriveUse& use, double rated_tbw) {
    const std::optional<double> rated =
        rated_tbw > 0 ? std::optional(rated_tbw * kTerabyte) : use.drive.life.rated_bytes;
    const std::optional<double>& written = use.drive.life.written_bytes;
    if (!rated) {
        return text("it ",
                    written ? text("has taken ", human_bytes(*written), " so far, and ") : "",
                    written ? "does not tell" : "tells at most root",
                    " what it is rated for: say it with ", assignment(kRating, "TB"));
    }
    std::string rating =
        text("it is rated for ", human_bytes(*rated),
             written ? text(", of which ", human_bytes(*written), " are written") : "");
    if (use.step_bytes <= 0) {  // there is a manifest alone
        return rating;
    }
    const double steps = std::max(0.0, *rated - written.value_or(0)) / use.step_bytes;
    return text(rating, ": enough for ", rounded(steps), " steps, or ",
                rounded(steps / kMinutesPerDay), " days at one a minute");
}

// "; state="compact" takes 56 GB and writes 28 GB a step".
std::string describe_smaller(double bytes, const config::CsdSettings& csd) {
    if (csd.state == arith::StateFormat::compact || !csd.log.empty()) {
        return "";
    }
    constexpr std::size_t kManyTiles = 4096;
    const double share =
        static_cast<double>(csd::state_bytes(arith::StateFormat::compact, kManyTiles)) /
        static_cast<double>(csd::state_bytes(csd.state, kManyTiles));
    return text("; ", assignment("csd.state", "\"compact\""), " takes ", human_bytes(bytes * share),
                " and writes ", human_bytes(bytes * share / 2));
}

}  // namespace

std::vector<DriveUse> drive_uses(const std::vector<store::PlannedFile>& files) {
    std::vector<DriveUse> uses;
    for (const store::PlannedFile& file : files) {
        const std::string folder = store::folder_of(file.path);
        const auto beside = std::ranges::find(uses, folder, &DriveUse::folder);
        if (beside != uses.end()) {
            beside->bytes += static_cast<double>(file.bytes);
            beside->step_bytes += static_cast<double>(file.step_bytes);
        } else if (!store::lies_in_memory(folder)) {
            uses.push_back({.drive = store::drive_of(folder),
                            .folder = folder,
                            .bytes = static_cast<double>(file.bytes),
                            .step_bytes = static_cast<double>(file.step_bytes),
                            .free_bytes = store::free_bytes_of(store::nearest_present(folder))});
        }
    }
    std::vector<DriveUse> of_drives;
    for (DriveUse& use : uses) {
        const auto same = std::ranges::find_if(of_drives, [&](const DriveUse& one) {
            return !use.drive.name.empty() && one.drive.name == use.drive.name;
        });
        if (same == of_drives.end()) {
            of_drives.push_back(std::move(use));
        } else {
            same->bytes += use.bytes;
            same->step_bytes += use.step_bytes;
            same->drive.has_root = same->drive.has_root || use.drive.has_root;
        }
    }
    return of_drives;
}

void expect_choice_of_root(const std::vector<DriveUse>& uses, const config::CsdSettings& csd) {
    for (const DriveUse& use : uses) {
        if (use.drive.has_root && use.bytes >= kMuchOfRoot && csd.rated_tbw <= 0) {
            throw ConfigError(text(
                Term::path, " \"", use.folder, "\" lies on the root filesystem (", use.drive.name,
                "), which the state would take ", human_bytes(use.bytes),
                " of, and each step would write ", human_bytes(use.step_bytes), " there",
                describe_smaller(use.bytes, csd),
                ". Is that what you want? Give another drive's folder, as in ",
                assignment("csd.path", "\"/nvme0/run\""),
                ", or say how many TB this one may take, as in ", assignment(kRating, "600"), "."));
        }
    }
}

std::string describe_drives(const std::vector<DriveUse>& uses, const config::CsdSettings& csd) {
    std::string line;
    double bytes = 0;
    for (std::size_t i = 0; i < uses.size(); ++i) {
        const DriveUse& use = uses[i];
        bytes += use.bytes;
        if (i < kMostNamed) {
            line += text(
                i == 0 ? "drive: " : "; ", use.drive.name.empty() ? use.folder : use.drive.name,
                use.drive.has_root ? " (the root filesystem)" : "", " takes ",
                human_bytes(use.bytes), csd.log.empty() ? " of state" : " of state and logs",
                use.free_bytes
                    ? text(" of ", human_bytes(static_cast<double>(*use.free_bytes)), " free")
                    : "",
                ", and each step writes ", human_bytes(use.step_bytes), "; ",
                describe_life(use, csd.rated_tbw));
        }
    }
    if (uses.size() > kMostNamed) {
        line += text("; ", counted(static_cast<int>(uses.size() - kMostNamed), "more drive"),
                     " likewise");
    }
    return line.empty() ? "" : line + describe_smaller(bytes, csd);
}

}  // namespace nearstep::engine
