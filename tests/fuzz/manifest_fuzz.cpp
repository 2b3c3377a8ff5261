// A rank's manifest, with its checksum unchanged or corrected.
#include "base/digest.hpp"
#include "base/error.hpp"
#include "fuzz.hpp"
#include "store/manifest.hpp"

#include <algorithm>
#include <cmath>

namespace nearstep::fuzz {

namespace {

constexpr std::string_view kDigestKey = "xxh3 = ";

std::string sealed(std::string content) {
    content.resize(std::min(content.rfind(kDigestKey), content.size()));
    return content + std::string(kDigestKey) +
           to_hex(xxh3(std::as_bytes(std::span<const char>(content)))) + "\n";
}

bool is_allowed(const store::Commit& commit) {
    return commit.step >= 0 && commit.generation >= 0 && std::isfinite(commit.loss_scale) &&
           commit.good_steps >= 0 && std::isfinite(commit.norm) &&
           std::ranges::all_of(commit.missed, [&](std::int64_t count) {
               return count >= 0 && count <= commit.generation;
           });
}

}  // namespace

std::vector<std::string> seeds() {
    constexpr const char* kManifest =
        "nearstep manifest 1\nrun = 0123456789abcdef\nmodel = gpt layers=2\nlayout = ranks=1\n"
        "seed = 7\nsteps = 40\ncommit = step 9 generation 8 loss_scale 1024 good_steps 3\n"
        "commit = step 8 generation 7 loss_scale 0.5 good_steps 2 norm 1.25 missed 0-3:2,7-7:5\n";
    const std::string whole = sealed(kManifest);
    return {Output().number(std::uint8_t{0}).rest(whole),
            Output().number(std::uint8_t{1}).rest(whole)};
}

void read(Bytes bytes) {
    Input input(bytes);
    const bool is_mended = input.flag();
    const Bytes rest = input.rest();
    const std::string content(rest.begin(), rest.end());
    const std::string path = scratch_folder() + "/rank-0.manifest";
    write_file(path, is_mended ? sealed(content) : content);
    store::ManifestFile file(path);
    const std::optional<store::Manifest> manifest = file.read();
    require(manifest.has_value(), "a manifest that is there is read or refused");
    for (const store::Commit& commit : manifest->commits) {
        require(is_allowed(commit), "commits are of steps that there can be");
    }
    for (const std::string& line : {manifest->model, manifest->layout, manifest->line.run}) {
        require(std::ranges::none_of(
                    line, [](char letter) { return static_cast<unsigned char>(letter) < ' '; }),
                "texts have no control characters");
    }
    file.replace(*manifest);
    require(file.read() == manifest, "a manifest reads back as it was written");
}

}  // namespace nearstep::fuzz
