// A plan's choice, and the space that the search covers.
//
// The space is AMSP's (arXiv 2403, section 4): parameters P, gradients G and optimizer state OS
// each have a mesh of GPUs in a node and of nodes. One copy is sharded over a mesh, and there are
// as many copies as such meshes fit. Choices for computational storage devices are added.
#pragma once

#include "config/engine_settings.hpp"
#include "config/enumerations.hpp"
#include "plan/problem.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace nearstep::plan {

// One copy is sharded over `gpus` GPUs in each of `nodes` nodes. A mesh of several nodes uses all
// GPUs of each.
struct Mesh {
    int gpus = 1;
    int nodes = 1;

    int size() const { return gpus * nodes; }
    friend bool operator==(const Mesh&, const Mesh&) = default;
};

// Whether the mesh `inner` is a part of the mesh `outer`.
bool is_within(const Mesh& inner, const Mesh& outer);

using Codec = config::PayloadCodec;  // never automatic
using Gather = config::ParameterCodec;
// Where the parameters are between their uses: storage means the masters in the state, for a GPU
// that has a node for itself. Inputs of blocks then wait in half of the host's memory, and those
// that do not fit there on the drives.
enum class Home { gpu, host, storage };
// The order of a step's micro-batches: either all of them pass one block before the next, or each
// passes all blocks before the next micro-batch starts.
enum class Order { by_block, by_micro_batch };
// Each node sends one sum of its gradients; or each group of the gradients' mesh sends its own, of
// which a node has several.
enum class Scatter { hierarchical, flat };
// An owner hands its devices the payloads that it received, or their dense sum.
enum class Handover { raw, dense };
// Where the optimizer state lies and is updated.
enum class StateHome { devices, gpu };
// The vectors of a layer that are kept for backward: all of them; all of as many layers as fit GPU
// memory; or a layer's input alone, from which backward computes the others again.
enum class Kept { inputs, most, all };
// Where the inputs of layers that compute again wait for backward.
enum class Inputs { gpu, host };
// Where a rank's sums of gradients over several micro-batches wait: on the GPU, or on the host
// those of the layers for which the GPU has no room, of streamed layers all.
enum class Sums { gpu, host };
// The client that trains a choice: the program `nearstep train` with its own networks, or the
// Python package with a network of PyTorch's, whole on each rank or divided among ranks by FSDP2.
enum class Client { program, python, fsdp2 };
inline constexpr std::array kClients = {Client::program, Client::python, Client::fsdp2};
// Whether backward gathers parameters over their mesh again, or from a copy that each node keeps.
enum class Again { whole_mesh, in_node };
// How GPUs of several nodes gather and reduce: over one ring through all of them, or over rings of
// GPUs with the same position and then inside each node.
enum class Collective { hierarchical, ring };
// Which transfers a step hides behind work. `all`: all of them. `but_backward`: all but the
// transfers of backward that go layer by layer, as AMSP's engine does. `but_update`: the new
// parameters are not hidden either. `none`: no transfer is hidden.
enum class Hidden { all, but_backward, but_update, none };

// Which of the plans that count as equal is taken: the one that sends least over the network, or
// the first one, for systems that choose otherwise.
enum class Ties { least_traffic, first };

// Shares of the state on devices. The drives have the rest.
struct Shares {
    double gpu = 0;     // in the memory of GPUs
    double memory = 0;  // in that of hosts with drives

    double of_drives() const { return std::max(0.0, 1 - gpu - memory); }
    friend bool operator==(const Shares&, const Shares&) = default;
};

struct Choice {
    StateHome state = StateHome::devices;
    Codec codec = Codec::dense;
    Gather gather = Gather::dense;
    Mesh parameters;
    Home home = Home::gpu;
    Order order = Order::by_block;
    Kept kept = Kept::inputs;
    Inputs inputs = Inputs::gpu;
    Sums sums = Sums::gpu;
    Mesh gradients;  // dense gradients are summed over it before encoding
    Scatter scatter = Scatter::hierarchical;
    Mesh optimizer;
    Handover handover = Handover::raw;
    Shares shares = {};
    std::size_t subgroup_tiles = 16;
    Again again = Again::whole_mesh;
    Collective collective = Collective::hierarchical;
    Hidden hidden = Hidden::all;

    friend bool operator==(const Choice&, const Choice&) = default;
};

// The values of each field. Among equal plans, earlier values are preferred.
struct Space {
    std::vector<StateHome> states = {StateHome::devices};
    std::vector<Codec> codecs;
    std::vector<Gather> gathers;
    std::vector<Mesh> parameters;
    std::vector<Home> homes;
    std::vector<Order> orders;
    std::vector<Kept> kept = {Kept::inputs};
    std::vector<Inputs> inputs = {Inputs::gpu};
    std::vector<Sums> sums = {Sums::gpu};
    std::vector<Mesh> gradients;
    std::vector<Scatter> scatters;
    std::vector<Mesh> optimizers;
    std::vector<Handover> handovers;
    // GB of each rank, or as much as is best.
    std::vector<config::Tiers> tiers = {{}};
    std::vector<std::size_t> subgroups;
    // Only choices that one of these clients trains are searched; all choices if there is none.
    std::vector<Client> clients = {};
    Ties ties = Ties::least_traffic;
    Again again = Again::whole_mesh;
    Collective collective = Collective::hierarchical;
    Hidden hidden = Hidden::all;
};

// Number of payloads that reach the owner of a tile.
int lists_of(const Problem& problem, const Choice& choice);

// Whether the fields fit each other, without looking at memory sizes. OS must be sharded at least
// as finely as G, and G as P; storage nodes hold one copy of it, and neither of the others. Flat
// scatter is for several sums of a node. State in GPU memory wants parameters there and has no
// payloads.
bool is_allowed(const Problem& problem, const Choice& choice);

// The mesh of a group of `ranks` ranks, on nodes of `gpus` ranks. The group lies in one node, or in
// whole nodes.
Mesh mesh_of(int ranks, int gpus);

// All meshes of the problem, smallest first.
std::vector<Mesh> meshes_of(const Problem& problem);

// All that the clients train.
Space space_of(const Problem& problem, const std::vector<Codec>& codecs);

// The first of the clients that trains the choice; nullopt if none does. docs/planner.md has the
// table. The choice is allowed.
std::optional<Client> client_of(const Problem& problem, const Choice& choice,
                                std::span<const Client> clients = kClients);

// The tiers that the planner may try for `asked`. A given number is the only choice. With "auto"
// the planner may also use no tier, and tries that first because drives survive most.
std::vector<config::Tiers> tiers_of(const config::Tiers& asked);

// The space of systems that keep the state in GPU memory: AMSP's, with its choice of what backward
// finds.
Space resident_space_of(const Problem& problem);

using nearstep::name_of;
// "0.25 in GPU memory, 0.75 on drives".
std::string name_of(const Shares& shares);
// "replicated", "node", "global" or, for sizes between, "4 GPUs" and "8x16".
std::string name_of(const Mesh& mesh, const Problem& problem);

}  // namespace nearstep::plan

namespace nearstep {

template <>
inline constexpr std::array kWords<plan::Home> = {"gpu", "host", "storage"};
template <>
inline constexpr std::array kWords<plan::StateHome> = {"devices", "gpu"};
template <>
inline constexpr std::array kWords<plan::Kept> = {"inputs", "as many as fit", "all"};
template <>
inline constexpr std::array kWords<plan::Inputs> = {"gpu", "host"};
template <>
inline constexpr std::array kWords<plan::Sums> = {"gpu", "host"};
template <>
inline constexpr std::array kWords<plan::Client> = {"nearstep train", "Python", "FSDP2"};
template <>
inline constexpr std::array kWords<plan::Again> = {"whole mesh", "in node"};
template <>
inline constexpr std::array kWords<plan::Collective> = {"hierarchical", "ring"};
template <>
inline constexpr std::array kWords<plan::Hidden> = {"all", "but backward", "but update", "none"};
template <>
inline constexpr std::array kWords<plan::Order> = {"by block", "by micro-batch"};
template <>
inline constexpr std::array kWords<plan::Scatter> = {"hierarchical", "flat"};
template <>
inline constexpr std::array kWords<plan::Handover> = {"raw", "dense"};

}  // namespace nearstep
