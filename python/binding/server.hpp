// A rank that serves: it holds devices and computes nothing. Rank 0 tells it what all ranks do
// next.
#pragma once

#include "python/binding/conductor.hpp"
#include "python/binding/mpi_thread.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace nearstep::python {

class Server {
public:
    // `settings`: this rank's folders and devices, behind those of the ranks that compute.
    Server(std::vector<std::string> settings, std::string granted_devices)
        : settings_(std::move(settings)), granted_devices_(std::move(granted_devices)) {}

    // Takes part in all that the other ranks do until rank 0's program ends. On any thread, as this
    // process's first use of MPI. Throws as the engine, and what `poll` throws.
    void run(const Conductor::Poll& poll);

private:
    void follow_all();
    void follow(const ServeOrder& order);
    engine::StartRequest make_engine(const ServeOrder& order);
    static void begin(Conductor& engine, const ServeOrder& order);
    std::string below_path(const std::vector<std::string>& settings);

    std::vector<std::string> settings_;
    std::string granted_devices_;
    std::map<std::uint64_t, std::unique_ptr<Conductor>> engines_;  // by ServeOrder::number
    std::map<std::string, std::size_t> states_;  // of rank 0, by the setting of their path
};

}  // namespace nearstep::python
