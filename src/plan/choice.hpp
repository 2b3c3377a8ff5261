// One point of the space that a plan is searched in, and the space.
//
// AMSP's space (arXiv 2403, section 4): parameters P, gradients G and optimizer state OS each have
// a mesh of GPUs in a node and of nodes, over which one copy is sharded; there are as many copies
// as such meshes fit. It is extended by what computational storage devices add.
#pragma once

#include "plan/problem.hpp"

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace nearstep::plan {

// One copy is sharded over `gpus` GPUs in each of `nodes` nodes. A node is filled first: with more
// than one node, all its GPUs have a part.
struct Mesh {
    int gpus = 1;
    int nodes = 1;

    int size() const { return gpus * nodes; }
    friend bool operator==(const Mesh&, const Mesh&) = default;
};

// Whether a copy over `inner` is a part of a copy over `outer`.
bool is_within(const Mesh& inner, const Mesh& outer);

enum class Codec { dense, q8, q4, ternary, sign, topk };
enum class Gather { dense, delta };
// Where the parameters are between their uses.
enum class Home { gpu, host };
// What the micro-batches of a step do: all pass a block before any passes the next one, or one
// after another passes all blocks.
enum class Order { by_block, by_micro_batch };
enum class Scatter { hierarchical, flat };
// What an owner hands to its devices: the payloads as they came, one list that merges those of
// topk, or their sum in the format of dense gradients.
enum class Owner { raw, merged, dense };
// Where gradients wait for the update: in device memory, in host memory, or on the drives.
enum class Landing { device, host, flash };

struct Choice {
    Codec codec = Codec::dense;
    Gather gather = Gather::dense;
    Mesh parameters;
    Home home = Home::gpu;
    Order order = Order::by_block;
    Mesh gradients;  // over which dense gradients are summed before they are encoded
    Scatter scatter = Scatter::hierarchical;
    Mesh optimizer;
    Owner owner = Owner::raw;
    Landing landing = Landing::device;
    std::size_t subgroup_tiles = 16;
    int slots = 3;

    friend bool operator==(const Choice&, const Choice&) = default;
};

// The values of each field, those to prefer among equals first.
struct Space {
    std::vector<Codec> codecs;
    std::vector<Gather> gathers;
    std::vector<Mesh> parameters;
    std::vector<Home> homes;
    std::vector<Order> orders;
    std::vector<Mesh> gradients;
    std::vector<Scatter> scatters;
    std::vector<Mesh> optimizers;
    std::vector<Owner> owners;
    std::vector<Landing> landings;
    std::vector<std::size_t> subgroups;
    std::vector<int> slots;
};

// Payloads that reach the owner of a tile.
int lists_of(const Problem& problem, const Choice& choice);

// Whether the fields fit each other, as far as the space alone can tell: OS is sharded at least as
// finely as G and G as P; flat scatters encode on every GPU, so G is not sharded; only lists merge,
// and one dense payload is its sum.
bool is_allowed(const Problem& problem, const Choice& choice);

// All meshes of the problem, the smallest first.
std::vector<Mesh> meshes_of(const Problem& problem);

Space space_of(const Problem& problem, const std::vector<Codec>& codecs);

// What `nearstep train` can be set to, a part of space_of().
Space trainable_space_of(const Problem& problem, const std::vector<Codec>& codecs);

// "dense", "q8", ... Throws ConfigError naming all.
Codec parse_codec(const std::string& name);
std::string_view name_of(Codec codec);
std::string_view name_of(Gather gather);
std::string_view name_of(Home home);
std::string_view name_of(Order order);
std::string_view name_of(Scatter scatter);
std::string_view name_of(Owner owner);
std::string_view name_of(Landing landing);
// "replicated", "node", "global" or, between these, "4 GPUs" and "8x16".
std::string name_of(const Mesh& mesh, const Problem& problem);

}  // namespace nearstep::plan
