// Whether all ranks have the same settings, and a sentence about those that differ.
#pragma once

#include "base/named_value.hpp"
#include "mpi/communicator.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nearstep::mpi {

using NamedValues = std::vector<NamedValue>;

// Throws ConfigError, on all ranks alike, if they have different values. Collective; equal ranks
// compare a digest with that of rank 0.
void require_equal(const Communicator& world, const NamedValues& mine);

// The ConfigError for ranks that know that their values differ: it names these, and the ranks that
// have them. `what`: "The ranks have different settings"; `advice`: a request.
[[noreturn]] void refuse_unequal(const Communicator& world, const NamedValues& mine,
                                 std::string_view what, std::string_view advice);

// "train.seed is 1 on rank 0 and 2 on ranks 1-3"; empty if it is equal on all ranks. At most eight
// values are named, each with at most eight ranks.
std::string difference(const std::string& name, const std::vector<NamedValues>& of_ranks);

// A digest that rides on a sum over all ranks which takes place anyway: one count for each of its
// bits. The ranks have the same digest if each sum is none or all of them.
constexpr std::size_t kDigestBits = 64;
std::array<std::uint64_t, kDigestBits> counts_of(std::uint64_t digest);
bool are_equal(std::span<const std::uint64_t> sums, int ranks);

}  // namespace nearstep::mpi
