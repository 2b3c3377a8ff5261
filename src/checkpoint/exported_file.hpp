// Reads an HDF5 export.
#pragma once

#include "checkpoint/h5_reader.hpp"
#include "checkpoint/seal.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace nearstep::checkpoint {

// The paths of all datasets, in the order in which they were made.
std::vector<std::string> datasets_of(h5::StoredFile& file);

// Returns where the elements of all datasets lie, which the seal leaves out.
FileRanges elements_of(h5::StoredFile& file);

// The digest of a dataset's elements as they are stored. Any thread may call.
std::uint64_t digest_of(const h5::StoredFile& file, const h5::Array& dataset);

}  // namespace nearstep::checkpoint
