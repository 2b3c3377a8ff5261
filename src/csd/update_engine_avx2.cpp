// The AVX2 engine: update_engine_body.hpp compiled for 256-bit vectors. Chosen by
// update_engine.cpp.
#include "csd/update_engine.hpp"
#include "csd/update_engine_groups_body.hpp"

namespace nearstep::csd {

extern const UpdateEngine avx2_engine = {"avx2", update_run<PlainBlocks>,
                                         update_groups_run<PlainBlocks>, round_run, increment_run};

}  // namespace nearstep::csd
