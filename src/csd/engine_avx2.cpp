// The AVX2 engine: engine_body.hpp compiled for 256-bit vectors. Chosen by engine.cpp.
#include "csd/engine.hpp"
#include "csd/engine_groups_body.hpp"

namespace nearstep::csd {

extern const UpdateEngine avx2_engine = {"avx2", update_run<PlainBlocks>,
                                         update_groups_run<PlainBlocks>, round_run, increment_run};

}  // namespace nearstep::csd
