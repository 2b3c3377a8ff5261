// A state file of another run in the place of a run's own: of the same layout and generation.
#include "base/digest.hpp"
#include "base/error.hpp"
#include "engine/run_fixture.hpp"
#include "store/subgroup_header.hpp"
#include "support/test.hpp"

#include <cstring>
#include <fstream>

namespace nearstep::engine {
namespace {

constexpr std::size_t kOtherStateElems = 5 * 65536 + 1000;

class OtherState : public testing::Test {
protected:
    // A run in this folder, with so many devices of each rank, which takes one step more.
    void train(const std::string& name, int devices, StartRequest::Kind kind, bool saves = false) {
        const Layout layout = layout_of_blocks({kOtherStateElems}, Dtype::fp32);
        engine::Run run =
            engine::Run::open(world_, settings_in(folder_ + "/" + name, devices), layout,
                              {.kind = kind}, Identity{.model = "one block", .steps = 100}, {});
        run.begin(each_by([](std::size_t i) { return static_cast<float>(i % 7); }));
        engine::Run& engine = run;
        engine.begin_backward({.groups = {Hyper{.rate = 0.1}}});
        std::ranges::fill(engine.gradient_space(0), name == "one" ? 1.0F : -1.0F);
        engine.put_gradient(0);
        engine.end_pass();
        engine.end_gradients();
        engine.update();
        engine.finish();
        engine.commit();
        if (saves) {
            engine.save(folder_ + "/" + name + "/checkpoints");
        }
    }

    std::string file_of(const std::string& name) const {
        return text(folder_, "/", name, "/state/rank-", world_.size() - 1, ".device-1.state");
    }

    // Changes files on rank 0 alone.
    void change(const std::function<void()>& work) {
        world_.barrier();
        if (world_.rank() == 0) {
            work();
        }
        world_.barrier();
    }

    mpi::Communicator world_ = mpi::Communicator::world(std::chrono::seconds(60));
    std::string folder_ = new_folder(world_, "other-state");
};

TEST_F(OtherState, IsRefusedInPlaceAndWithAnotherLayout) {
    train("one", 2, StartRequest::Kind::none);
    train("other", 2, StartRequest::Kind::none);
    change([&] {
        fs::copy_file(file_of("other"), file_of("one"), fs::copy_options::overwrite_existing);
    });
    for (const int devices : {2, 1}) {
        EXPECT_THAT(
            message_of<ConfigError>([&] { train("one", devices, StartRequest::Kind::resume); }),
            states(file_of("one"), "another run"))
            << devices << " devices";
    }
}

// With a checkpoint that is as new the state is not read, and its files would be removed.
TEST_F(OtherState, IsNotRemovedWithTheStateInWhosePlaceItLies) {
    train("one", 2, StartRequest::Kind::none, true);
    train("other", 2, StartRequest::Kind::none);
    change([&] {
        fs::copy_file(file_of("other"), file_of("one"), fs::copy_options::overwrite_existing);
    });
    EXPECT_THAT(message_of<ConfigError>([&] { train("one", 1, StartRequest::Kind::resume); }),
                states(file_of("one"), "another run"));
    EXPECT_EQ(bytes_of(file_of("one")), bytes_of(file_of("other")));
}

// Headers of version 0.2.0 have zeros in place of the number of the state.
TEST_F(OtherState, FilesThatNameNoStateAreResumed) {
    for (const int devices : {2, 1}) {
        const std::string name = text("devices-", devices);
        train(name, 2, StartRequest::Kind::none);
        change([&] {
            for (const auto& entry : fs::directory_iterator(folder_ + "/" + name + "/state")) {
                std::string bytes = bytes_of(entry.path());
                for (std::size_t at = 0; at + store::kHeaderBytes <= bytes.size(); at += 4096) {
                    if (std::string_view(bytes).substr(at, 8) != store::kHeaderMagic) {
                        continue;
                    }
                    const auto page =
                        std::as_writable_bytes(std::span(bytes)).subspan(at, store::kHeaderBytes);
                    std::ranges::fill(page.subspan(56, 8), std::byte{});
                    const std::uint64_t digest = xxh3(page.first(store::kHeaderBytes - 8));
                    std::memcpy(page.last(8).data(), &digest, sizeof digest);
                }
                put_bytes(entry.path(), bytes);
            }
        });
        EXPECT_NO_THROW(train(name, devices, StartRequest::Kind::resume)) << devices << " devices";
    }
}

}  // namespace
}  // namespace nearstep::engine
