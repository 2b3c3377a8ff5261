// Numbers that follow from a problem and a choice. Used by the other files of plan.
#include "plan/numbers.hpp"

#include "plan/formulas.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace nearstep::plan {

namespace {

double waiting_inputs(const Problem& problem, const Choice& choice) {
    return choice.home == Home::storage
               ? waiting_rows(problem, choice) * problem.work.checkpoint_bytes
               : 0;
}

// Half of the host's memory, without the state there. Where the drives are memory, all.
double room_of_inputs(const Problem& problem) {
    return problem.work.is_in_memory && problem.work.keeping == csd::Keeping::once
               ? std::numeric_limits<double>::infinity()
               : std::max(0.0, problem.site.host_memory - problem.work.bytes_in_memory()) / 2;
}

// The share of the state that lies on nodes with GPUs, rather than on storage nodes.
double share_beside(const Problem& problem, const Shares& shares) {
    if (problem.storage_nodes == 0) {
        return 1;
    }
    const auto part = [&](int of_computing, int of_all) {
        return static_cast<double>(of_computing) / of_all;
    };
    return shares.gpu +
           shares.memory * part(problem.holders() - problem.storage_nodes, problem.holders()) +
           shares.of_drives() * part(problem.nodes * problem.site.csds_beside, problem.devices());
}

double tiles_of_each(const Problem& problem, double copies, int devices) {
    return std::ceil(static_cast<double>(shard::tiles_of(problem.work.model.parameters)) * copies /
                     devices);
}

}  // namespace

double rows_of_rank(const Problem& problem) {
    return std::ceil(problem.work.sequences / problem.ranks());
}

double micro_batches(const Problem& problem) {
    return std::ceil(rows_of_rank(problem) / problem.work.micro_sequences);
}

double waiting_rows(const Problem& problem, const Choice& choice) {
    const double rows = rows_of_rank(problem);
    return choice.order == Order::by_block ? rows : std::min(rows, problem.work.micro_sequences);
}

Numbers::Numbers(const Problem& problem, const Choice& choice)
    : parameters(static_cast<double>(problem.work.model.parameters)),
      element(problem.work.element_bytes),
      gpus(problem.site.gpus),
      nodes(problem.nodes),
      storage(problem.storage_nodes),
      homes(problem.homes()),
      rounds(choice.order == Order::by_micro_batch ? micro_batches(problem) : 1),
      net_copies(nodes / choice.optimizer.nodes),
      copies(net_copies * gpus / choice.optimizer.gpus),
      lists(lists_of(problem, choice)),
      payload(problem.work.trained * payload_bytes(choice.codec, problem.work.keep, element)),
      handover(problem.work.trained *
               handover_bytes(choice.handover, choice.codec, lists, problem.work.keep, element)),
      new_bytes(problem.work.trained * (choice.home == Home::storage ? 0
                                        : choice.gather == Gather::delta
                                            ? std::min(problem.site.delta_bytes, element)
                                            : element)),
      on_drives(choice.shares.of_drives()),
      beside(share_beside(problem, choice.shares)),
      owned(net_copies * std::max(beside / nodes, storage > 0 ? (1 - beside) / storage : 0)),
      all_tiles(tiles_of_each(problem, copies, problem.devices())),
      tiles(on_drives < 1 ? tiles_of_each(problem, copies * on_drives, problem.devices())
                          : all_tiles),
      most_tiles(
          std::max({tiles, tiles_of_each(problem, copies * choice.shares.gpu, problem.ranks()),
                    tiles_of_each(problem, copies * choice.shares.memory, problem.holders())})),
      inputs_on_host(std::min(waiting_inputs(problem, choice), room_of_inputs(problem))),
      inputs_on_drives(waiting_inputs(problem, choice) - inputs_on_host),
      subgroup_tiles(std::min(static_cast<double>(choice.subgroup_tiles),
                              std::max(1.0, std::floor(all_tiles / 4)))),
      block_subgroups(std::max(1.0, parameters / problem.work.model.blocks / subgroup_tiles /
                                        static_cast<double>(shard::kTileElems))) {}

}  // namespace nearstep::plan
