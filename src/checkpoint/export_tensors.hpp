// The tensors of an HDF5 export, and which rank writes which.
#pragma once

#include "checkpoint/export.hpp"
#include "checkpoint/h5.hpp"
#include "checkpoint/masters.hpp"

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace nearstep::checkpoint {

// A dataset of an export: a part of the checkpoint's state, or another tensor.
struct ExportTensor {
    TensorPlace place;  // without an offset for another tensor
    StateArray array = StateArray::master;
    Dtype dtype = Dtype::fp32;
    std::size_t bytes = 0;
    const OtherTensor* other = nullptr;  // null: of the checkpoint

    std::string path() const;
};

// The group that holds an array's datasets; empty: the root.
std::string group_of(StateArray array);

// Masters, other tensors, then moments. Throws ConfigError for names or types that HDF5 cannot
// hold, or a name that two tensors have.
std::vector<ExportTensor> export_tensors(const Description& about, const ExportSettings& settings,
                                         std::span<const OtherTensor> others);

std::size_t bytes_of(std::span<const ExportTensor> tensors);

// The numbers of the tensors that this rank writes: neighbours, with about the same bytes on each
// rank. Rank 0 has all other tensors.
std::vector<std::size_t> tensors_of_rank(std::span<const ExportTensor> tensors, int rank,
                                         int ranks);

h5::Datatype make_type(const ExportTensor& tensor);

}  // namespace nearstep::checkpoint
