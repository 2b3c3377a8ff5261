// Computes which client trains which point of the space, and compares docs/planner.md with it.
#include "plan/sample_problem.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace nearstep::plan {
namespace {

using Change = void (*)(Choice&);

struct Point {
    const char* name;
    Change change;
};

const std::vector<Point> kPoints = {
    {"P on each GPU",
     [](Choice& c) {
         c.home = Home::gpu;
         c.parameters = {};
     }},
    {"P in host memory, streamed", [](Choice& c) { c.home = Home::host; }},
    {"P in storage (one rank)", [](Choice& c) { c.home = Home::storage; }},
    {"P shared by ranks, streamed from hosts",
     [](Choice& c) {
         c.home = Home::host;
         c.parameters = {.gpus = 2, .nodes = 1};
     }},
    {"P shared by ranks, on GPUs",
     [](Choice& c) {
         c.home = Home::gpu;
         c.parameters = {.gpus = 2, .nodes = 1};
     }},
    {"G summed over nodes before the codec",
     [](Choice& c) { c.gradients = {.gpus = 2, .nodes = 2}; }},
    {"OS with several copies", [](Choice& c) { c.optimizer = {.gpus = 2, .nodes = 1}; }},
    {"order by block", [](Choice& c) { c.order = Order::by_block; }},
    {"order by micro-batch", [](Choice& c) { c.order = Order::by_micro_batch; }},
    {"all layers kept", [](Choice& c) { c.kept = Kept::all; }},
    {"as many layers kept as fit", [](Choice& c) { c.kept = Kept::most; }},
    {"only inputs kept, on the GPU",
     [](Choice& c) {
         c.kept = Kept::inputs;
         c.inputs = Inputs::gpu;
     }},
    {"only inputs kept, on the host",
     [](Choice& c) {
         c.kept = Kept::inputs;
         c.inputs = Inputs::host;
     }},
    {"sums of gradients on the host", [](Choice& c) { c.sums = Sums::host; }},
    {"gradients between ranks by q8, q4, topk", [](Choice& c) { c.codec = Codec::q8; }},
    {"new parameters as deltas", [](Choice& c) { c.gather = Gather::delta; }},
};

// All choices with the formats of `like`.
std::vector<Choice> choices_of(const Problem& problem, const Choice& like) {
    std::vector<Choice> choices = {like};
    const auto spread = [&](auto field, const auto& values) {
        std::vector<Choice> more;
        for (const auto& value : values) {
            for (Choice choice : choices) {
                choice.*field = value;
                more.push_back(choice);
            }
        }
        choices = more;
    };
    const Space space = space_of(problem, {like.codec});
    spread(&Choice::parameters, space.parameters);
    spread(&Choice::gradients, space.gradients);
    spread(&Choice::optimizer, space.optimizers);
    spread(&Choice::home, std::vector{Home::gpu, Home::host, Home::storage});
    spread(&Choice::order, space.orders);
    spread(&Choice::kept, space.kept);
    spread(&Choice::inputs, space.inputs);
    spread(&Choice::sums, space.sums);
    spread(&Choice::scatter, std::vector{Scatter::hierarchical, Scatter::flat});
    return choices;
}

// Whether the client trains any choice with the values of the point.
bool trains(Client client, const Point& point) {
    Problem alone = seven_billion(1);
    alone.site.gpus = 1;
    Problem several = seven_billion(2);
    several.site.gpus = 2;
    for (const Problem& problem : {several, alone}) {
        Choice like;
        point.change(like);
        for (const Choice& choice : choices_of(problem, like)) {
            Choice changed = choice;
            point.change(changed);
            if (changed == choice && is_allowed(problem, choice) &&
                client_of(problem, choice, std::vector{client})) {
                return true;
            }
        }
    }
    return false;
}

std::string table() {
    std::string lines = "| point |";
    std::string rule = "|---|";
    for (const Client client : kClients) {
        lines += " " + std::string(name_of(client)) + " |";
        rule += "---|";
    }
    lines += "\n" + rule + "\n";
    for (const Point& point : kPoints) {
        lines += std::string("| ") + point.name + " |";
        for (const Client client : kClients) {
            lines += trains(client, point) ? " yes |" : " - |";
        }
        lines += "\n";
    }
    return lines;
}

TEST(Clients, TrainWhatThePlannersPageSays) {
    std::ifstream file(NEARSTEP_PLANNER_PAGE);
    std::stringstream page;
    page << file.rdbuf();
    const std::string expected = table();
    EXPECT_NE(page.str().find(expected), std::string::npos)
        << "docs/planner.md, \"Who trains what\", needs this table:\n"
        << expected;
}

}  // namespace
}  // namespace nearstep::plan
