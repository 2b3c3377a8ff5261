// A job of several ranks in one process, which updates its state step by step and commits it. Used
// by power_loss_test.cpp, which cuts its power.
#pragma once

#include "base/digest.hpp"
#include "csd/cpu_device.hpp"
#include "csd/state_commit.hpp"
#include "csd/transfer_handler.hpp"
#include "store/names.hpp"
#include "store/storage.hpp"
#include "support/test.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace nearstep::csd {

using shard::kTileElems;

struct JobSettings {
    int ranks = 1;
    int devices = 2;  // per rank, with two subgroups of one tile
    HandlerKind handler = HandlerKind::naive;
    std::string folder = {};
    store::Storage* storage = nullptr;
    std::size_t spare = 0;  // places; devices with some keep a log
    int logs = 1;           // several: state is cached, and stored in turns
};

// Returns what the program of a rank has at a step, over several sectors. It changes in two of
// three steps.
inline std::string program_of(int rank, std::int64_t step) {
    std::string content;
    while (step > 0 && content.size() < 3000) {
        content += text("rank ", rank, " step ", step - (step % 3 == 2 ? 1 : 0), "; ");
    }
    return content;
}

struct Rank {
    Rank(int number, const std::string& manifest, store::Storage* storage)
        : programs({manifest + ".program-0", manifest + ".program-1"}),
          log(manifest, storage, programs),
          number_(number) {}

    // Returns from the files the program's state that the manifest names with the step; nullopt if
    // it is not whole.
    std::optional<store::ProgramState> program_at(std::int64_t step) const {
        const auto manifest = log.read();
        const store::ProgramRecord* record =
            manifest ? store::record_at(manifest->programs, step) : nullptr;
        if (record == nullptr) {
            return std::nullopt;
        }
        return record->bytes == 0 ? store::ProgramState()
                                  : store::read_program_state(programs, *record);
    }
    bool has_program(std::int64_t step) const {
        const auto kept = program_at(step);
        return kept && std::ranges::equal(kept->bytes, bytes_of(program_of(number_, step)));
    }
    void keep(std::int64_t step) {
        const std::string content = program_of(number_, step);
        log.keep_program(step, bytes_of(content));
    }
    static std::span<const std::byte> bytes_of(const std::string& content) {
        return std::as_bytes(std::span(content));
    }

    std::array<std::string, 2> programs;  // paths

    std::vector<std::unique_ptr<Device>> devices;
    std::vector<std::unique_ptr<TransferHandler>> handlers;
    StateCommit log;

private:
    int number_;
};

// All ranks of a job in one process, stepped one after another. The state depends only on the
// generation, because gradients do and the update is always the same.
class Job {
public:
    explicit Job(const JobSettings& settings)
        : settings_(settings), codec_(codec::make_codec({.name = "dense"})) {
        std::size_t tile = 0;
        for (int rank = 0; rank < settings.ranks; ++rank) {
            ranks_.push_back(std::make_unique<Rank>(
                rank, text(settings.folder, "/rank-", rank, ".manifest"), settings.storage));
            for (int device = 0; device < settings.devices; ++device, tile += 2) {
                add_device(rank, device, tile);
            }
        }
        vector_.resize(tile * kTileElems * 2);
    }

    void start() {
        for (const auto& rank : ranks_) {
            rank->log.begin({.line = {.run = "job"}, .steps = 1000});
            rank->log.claim();
            rank->log.begin_program(0, {});
        }
        for (const auto& rank : ranks_) {
            for (const auto& device : rank->devices) {
                device->reserve();
                for (std::size_t s = 0; s < 2; ++s) {
                    std::vector<float> masters(kTileElems, 1.0F);
                    std::vector<float> zeros(2 * kTileElems, 0.0F);
                    const auto moments = std::span(zeros);
                    device->write_state(
                        s, 0, {masters, moments.first(kTileElems), moments.last(kTileElems)});
                }
            }
        }
        at_ = {};
        commit(0);
    }

    // The commits that all ranks hold, newest first.
    std::vector<store::Commit> offered() {
        std::vector<std::vector<store::Commit>> lists;
        for (const auto& rank : ranks_) {
            const auto manifest = rank->log.read();
            lists.push_back(manifest ? manifest->commits : std::vector<store::Commit>());
        }
        return store::common_commits(lists);
    }

    void go_on_from(const store::Commit& commit_to_use) {
        at_ = commit_to_use;
        if (settings_.spare > 0) {
            digest(at_.generation);  // repeats what the log has
            for (const auto& rank : ranks_) {
                for (const auto& device : rank->devices) {
                    device->store_repeated(at_.generation).wait();
                }
            }
            accept();
        }
        for (const auto& rank : ranks_) {
            const auto kept = rank->program_at(at_.step);
            rank->log.begin({.line = {.run = "job"}, .steps = 1000});
            rank->log.begin_program(at_.step, kept.value());
        }
        commit(0);
    }

    bool has_programs(std::int64_t step) const {
        return std::ranges::all_of(ranks_,
                                   [&](const auto& rank) { return rank->has_program(step); });
    }

    // Skips every fifth step. `order` permutes the ranks.
    void step(std::uint64_t order) {
        const bool is_skipped = at_.step % 5 == 4;
        if (settings_.spare > 0 && !is_skipped) {
            step_by_log(order);
            return;
        }
        for (const std::size_t rank : permuted(order)) {
            if (!is_skipped) {
                update(*ranks_[rank]);
            }
        }
        at_.generation += is_skipped ? 0 : 1;
        ++at_.step;
        commit(order / 7);
    }

    // Writes all masters between two steps, as a program may. Only with spare places.
    void change_masters() {
        std::vector<float> state(3 * kTileElems);
        const std::span<float> all = state;
        for (const auto& rank : ranks_) {
            for (const auto& device : rank->devices) {
                for (std::size_t s = 0; s < 2; ++s) {
                    const StateArrays arrays{all.first(kTileElems),
                                             all.subspan(kTileElems, kTileElems),
                                             all.last(kTileElems)};
                    device->read_state(s, at_.generation, arrays);
                    std::ranges::transform(arrays.master, arrays.master.begin(),
                                           [](float master) { return master + 1; });
                    device->write_state(s, at_.generation + 1, arrays);
                }
            }
        }
        ++at_.generation;
        commit(0);
        accept();
    }

    // Digest of all state; throws IoError if some of it is damaged.
    std::uint64_t digest(std::int64_t generation) {
        std::vector<float> state(3 * kTileElems);
        const std::span<float> all = state;
        Xxh3Stream digest;
        for (const auto& rank : ranks_) {
            for (const auto& device : rank->devices) {
                for (std::size_t s = 0; s < 2; ++s) {
                    device->read_state(s, generation,
                                       {all.first(kTileElems), all.subspan(kTileElems, kTileElems),
                                        all.last(kTileElems)});
                    digest.add(std::as_bytes(all));
                }
            }
        }
        return digest.digest();
    }

    const store::Commit& at() const { return at_; }

private:
    static constexpr UpdateScalars kScalars{.step_size = 1e-3F};

    void add_device(int rank, int device, std::size_t tile) {
        DeviceSettings settings;
        settings.name = text("rank ", rank, " device ", device);
        settings.files = {text(settings_.folder, "/rank-", rank, ".device-", device, ".state")};
        settings.subgroups = {{0, 0, {tile, tile + 1}}, {0, 1, {tile + 1, tile + 2}}};
        settings.codec = codec_.get();
        settings.storage = settings_.storage;
        settings.executor = &executor_;
        settings.spare = settings_.spare;
        settings.keeps_log = settings_.spare > 0;
        for (int log = 0; settings.keeps_log && log < settings_.logs; ++log) {
            settings.logs.push_back(
                store::log_of_state(settings.files.front(), static_cast<std::size_t>(log)));
        }
        Rank& owner = *ranks_[static_cast<std::size_t>(rank)];
        owner.devices.push_back(make_cpu_device(settings, traffic_));
        owner.handlers.push_back(
            std::make_unique<TransferHandler>(settings_.handler, *owner.devices.back()));
    }

    // The step is durable before its state is written. With several logs, both are written at once,
    // and the step is durable after that.
    void step_by_log(std::uint64_t order) {
        if (settings_.logs > 1) {
            for (const std::size_t rank : permuted(order)) {
                for (const auto& device : ranks_[rank]->devices) {
                    put_gradients(*device);
                    device->keep_update(at_.generation + 1, kScalars);
                    device->accept(at_.generation + 1);
                }
                start_and_finish(*ranks_[rank]);
            }
            ++at_.generation;
            ++at_.step;
            commit(order / 7);
            return;
        }
        for (const std::size_t rank : permuted(order)) {
            for (const auto& device : ranks_[rank]->devices) {
                put_gradients(*device);
                device->keep_update(at_.generation + 1, kScalars);
            }
        }
        ++at_.generation;
        ++at_.step;
        commit(order / 7);
        accept();
        --at_.generation;
        for (const std::size_t rank : permuted(order)) {
            start_and_finish(*ranks_[rank]);
        }
        ++at_.generation;
    }

    void start_and_finish(Rank& rank) {
        for (const auto& handler : rank.handlers) {
            handler->start(kScalars, at_.generation, vector_);
            handler->finish();
        }
    }

    void accept() {
        for (const auto& rank : ranks_) {
            for (const auto& device : rank->devices) {
                device->accept(at_.generation);
            }
        }
    }

    void update(Rank& rank) {
        for (std::size_t d = 0; d < rank.devices.size(); ++d) {
            put_gradients(*rank.devices[d]);
            rank.handlers[d]->start(kScalars, at_.generation, vector_);
            rank.handlers[d]->finish();
        }
    }

    void put_gradients(Device& device) {
        std::vector<std::byte> payload(codec_->payload_bytes());
        const std::vector<std::span<const std::byte>> payloads = {payload};
        for (const shard::Subgroup& subgroup : device.subgroups()) {
            const std::vector<float> gradient(kTileElems,
                                              static_cast<float>(at_.generation % 7 + 1) *
                                                  static_cast<float>(subgroup.tiles.begin + 1));
            codec_->encode(gradient, payload);
            device.put_gradient(subgroup.tiles.begin, payloads, gradient);
        }
        device.finish_gradients();
    }

    void commit(std::uint64_t order) {
        for (const std::size_t rank : permuted(order)) {
            ranks_[rank]->log.prepare(ranks_[rank]->devices);
            ranks_[rank]->keep(at_.step);
        }
        for (const std::size_t rank : permuted(order / 7)) {
            ranks_[rank]->log.publish(at_);
        }
    }

    std::vector<std::size_t> permuted(std::uint64_t order) const {
        std::vector<std::size_t> ranks(ranks_.size());
        std::iota(ranks.begin(), ranks.end(), 0);
        for (std::size_t i = ranks.size(); i > 1; --i) {
            std::swap(ranks[i - 1], ranks[order % i]);
            order /= i;
        }
        return ranks;
    }

    JobSettings settings_;
    std::unique_ptr<codec::Codec> codec_;
    Executor executor_{2};
    trace::Traffic traffic_;
    std::vector<std::unique_ptr<Rank>> ranks_;
    std::vector<std::byte> vector_;
    store::Commit at_;
};

}  // namespace nearstep::csd
