// Drives whole restarts, from the search to the first state that is loaded, with files that
// somebody else wrote: manifests with right checksums and any values, links, FIFOs, files of
// another kind.
#include "base/digest.hpp"
#include "engine/run_fixture.hpp"
#include "store/manifest.hpp"
#include "support/test.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <sstream>

namespace nearstep::engine {
namespace {

constexpr std::size_t kVectorElems = 160000;
constexpr const char* kThesisText = "a thesis\n";

void put_file(const fs::path& path, const std::string& content) {
    fs::remove_all(path);
    put_bytes(path, content);
}

std::string sealed(std::string content) {
    constexpr std::string_view kDigestKey = "xxh3 = ";
    content.resize(std::min(content.rfind(kDigestKey), content.size()));
    return content + std::string(kDigestKey) +
           to_hex(xxh3(std::as_bytes(std::span<const char>(content)))) + "\n";
}

bool is_one_sentence(const std::string& said) {
    return said.size() > 1 && said.back() == '.' && std::ranges::none_of(said, [](char letter) {
               return static_cast<unsigned char>(letter) < ' ' || letter == 0x7F;
           });
}

// Draws of one case, the same on all ranks.
class Draw {
public:
    explicit Draw(std::uint64_t number) : number_(number) {}

    std::size_t below(std::size_t count) {
        return std::min(count - 1, static_cast<std::size_t>(random_uniform(31, number_, next_++) *
                                                            static_cast<double>(count)));
    }
    template <typename Items>
    const auto& of(const Items& items) {
        return items[below(std::size(items))];
    }

private:
    std::uint64_t number_;
    std::uint64_t next_ = 0;
};

std::vector<std::string> lines_of(const std::string& content) {
    std::vector<std::string> lines;
    for (std::size_t at = 0; at < content.size();) {
        const std::size_t end = std::min(content.find('\n', at), content.size());
        lines.push_back(content.substr(at, end - at));
        at = end + 1;
    }
    return lines;
}

// Places of the values in a line: after each "=" or space.
std::vector<std::size_t> values_in(const std::string& line) {
    std::vector<std::size_t> places;
    for (std::size_t at = 0; at + 1 < line.size(); ++at) {
        if (line[at] == '=' || line[at] == ' ' || line[at] == ',') {
            places.push_back(at + 1);
        }
    }
    return places;
}

const std::vector<std::string> kValues = [] {
    std::vector<std::string> values = {"", std::string("a\0b", 3)};
    std::istringstream words(
        "0 1 2 3 -1 -5 2147483647 2147483648 30000000 9223372036854775807 99999999999999999999 x "
        "nan inf 1e400 1e-320 0.5 1,1 1, , 1,1,1,1 .. ../../thesis.tex /etc/passwd \x1b[2J zzz");
    values.insert(values.end(), std::istream_iterator<std::string>(words), {});
    return values;
}();
const std::array<std::string, 14> kLines = {
    "file = ../thesis.tex",
    "file = rank-0.device-0.state",
    "file = rank-1.device-0.state",
    "file = fifo",
    "copy = 0",
    "copy = 7",
    "copy = 1,0",
    "copy = 0,0",
    "copy = 0-2000000000",
    "place of 2000000000 = h p",
    "place = h p",
    "commit = step 0 generation 0 loss_scale 1 good_steps 0",
    "replaces = 0123456789abcdef",
    "parents = 0123456789abcdef 3"};

const std::array<std::string, 6> kEnds = {
    " missed 0-0:1", " missed 5-9:2", " missed 0-4194303:1",
    " norm 1e300",   " norm -1",      " norm 0.5 missed 0-1:1"};

// Changes one thing that a checksum would protect, and corrects the checksum.
std::string changed(const std::string& manifest, Draw& draw) {
    std::vector<std::string> lines = lines_of(manifest);
    const std::size_t at = draw.below(lines.size() - 1);
    switch (draw.below(7)) {
        case 0:
            lines.erase(lines.begin() + static_cast<std::ptrdiff_t>(at));
            break;
        case 1:
            lines.insert(lines.begin() + static_cast<std::ptrdiff_t>(at), draw.of(kLines));
            break;
        case 2:
            lines.insert(lines.begin() + static_cast<std::ptrdiff_t>(at), lines[at]);
            break;
        case 3: {
            std::string& commit = *std::ranges::find_if(
                lines, [](const std::string& line) { return line.starts_with("commit"); });
            commit += draw.of(kEnds);
            break;
        }
        default: {
            // The layout has most of the values.
            const auto layout = std::ranges::find_if(
                lines, [](const std::string& line) { return line.starts_with("layout"); });
            std::string& line = draw.below(2) == 0 ? *layout : lines[at];
            const std::vector<std::size_t> places = values_in(line);
            if (!places.empty()) {
                const std::size_t from = draw.of(places);
                const std::size_t end = std::min(line.find_first_of(" ,", from), line.size());
                line.replace(from, end - from, draw.of(kValues));
            }
        }
    }
    std::string content;
    for (const std::string& line : lines) {
        content += line + "\n";
    }
    return sealed(content);
}

class CraftedFiles : public testing::Test {
protected:
    CraftedFiles() {
        open({}, 1);
        take_steps(2);
        run_.reset();
        world_.barrier();
        for (const fs::directory_entry& entry : fs::directory_iterator(state_)) {
            if (entry.is_regular_file()) {
                files_[entry.path().filename().string()] = bytes_of(entry.path());
            }
        }
        world_.barrier();
    }

    void open(const StartRequest& request, int devices) {
        run_ = engine::Run::open(world_, settings_in(folder_.string(), devices), layout_, request,
                                 {.model = "one", .steps = 100}, {});
        run_->begin(each_by([](std::size_t i) { return static_cast<float>(i % 7); }));
    }

    void take_steps(int steps) {
        for (int taken = 0; taken < steps; ++taken) {
            run_->begin_backward({.groups = {Hyper{}}, .skipped = {}});
            std::ranges::fill(run_->gradient_space(0), 0.5F);
            run_->put_gradient(0);
            run_->end_pass();
            run_->end_gradients();
            run_->update();
            run_->finish();
            run_->commit();
        }
    }

    void restore_files() {
        fs::remove_all(state_);
        fs::create_directories(state_);
        for (const auto& [name, content] : files_) {
            put_file(state_ / name, content);
        }
        for (const fs::path& path : thesis_) {
            put_file(path, kThesisText);
        }
    }

    // Puts in the place of our file what another user or a broken disk may leave there, of the
    // first `kinds` kinds.
    void replace_file(const fs::path& path, Draw& draw, std::size_t kinds = 6) {
        fs::remove_all(path);
        switch (draw.below(kinds)) {
            case 0:
                fs::create_symlink(thesis_[0], path);
                break;
            case 1:
                fs::create_hard_link(thesis_[0], path);
                break;
            case 2:
                ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
                break;
            case 3:
                put_file(path, "");
                fs::resize_file(path, std::uintmax_t{1} << 40U);  // sparse
                break;
            case 4:
                put_file(path, "something else");
                break;
            default:
                fs::create_directory(path);
        }
    }

    void craft(Draw& draw) {
        restore_files();
        const std::string rank =
            "rank-" + std::to_string(draw.below(static_cast<std::size_t>(world_.size())));
        const fs::path manifest = state_ / (rank + ".manifest");
        switch (draw.below(8)) {
            case 0:
                replace_file(manifest, draw);
                break;
            case 1:
                replace_file(state_ / (rank + ".device-0.state"), draw);
                break;
            case 2:
                // A folder there fails on one rank, which ends the job.
                replace_file(state_ / (rank + ".manifest.partial"), draw, 5);
                replace_file(state_ / (rank + ".set-1.manifest.partial"), draw, 5);
                break;
            case 3: {
                const std::array names = {"rank-7.manifest", "rank-0.set-1.manifest",
                                          "rank-2147483647.manifest", "rank-00.manifest",
                                          "rank-0.device-0.set-1.state"};
                fs::copy_file(manifest, state_ / draw.of(names));
                break;
            }
            default:
                put_file(manifest, changed(bytes_of(manifest), draw));
        }
    }

    void try_case(std::uint64_t number) {
        SCOPED_TRACE(number);
        Draw draw(number);
        if (world_.rank() == 0) {
            craft(draw);
        }
        world_.barrier();
        Draw choice(number + 1'000'000);
        using Kind = StartRequest::Kind;
        const StartRequest request{.kind = choice.of(std::array{Kind::none, Kind::resume,
                                                                Kind::resume_if_any, Kind::fresh})};
        std::string said;
        try {
            open(request, static_cast<int>(1 + choice.below(2)));
        } catch (const ContractError& broken) {
            FAIL() << broken.what();
        } catch (const ConfigError& refused) {
            said = refused.what();
        } catch (const IoError& failed) {
            said = failed.what();
        }
        run_.reset();
        EXPECT_TRUE(said.empty() || is_one_sentence(said)) << said;
        refused_ += said.empty() ? 0 : 1;
        world_.barrier();
        for (const fs::path& path : thesis_) {
            ASSERT_EQ(bytes_of(path), kThesisText) << path << " " << said;
        }
        world_.barrier();
    }

    mpi::Communicator world_ = mpi::Communicator::world(std::chrono::seconds(60));
    Layout layout_ = layout_of_blocks({kVectorElems}, Dtype::fp32);
    fs::path folder_ = new_folder(world_, "crafted");
    fs::path state_ = folder_ / "state";
    std::array<fs::path, 3> thesis_ = {folder_ / "thesis.tex", state_ / "thesis.tex",
                                       state_ / "rank-0.state"};
    std::map<std::string, std::string> files_;
    std::optional<engine::Run> run_;
    int refused_ = 0;
};

TEST_F(CraftedFiles, EndInASentenceOrAStateAndTouchNoOtherFile) {
    const std::uint64_t cases = std::getenv("NEARSTEP_LONG") != nullptr ? 5000 : 100;
    for (std::uint64_t number = 0; number < cases && !HasFatalFailure(); ++number) {
        try_case(number);
    }
    EXPECT_GT(refused_, 0);
    EXPECT_LT(refused_, static_cast<int>(cases));
}

}  // namespace
}  // namespace nearstep::engine
