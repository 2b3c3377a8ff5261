#include "csd/engine.hpp"
#include "csd/engine_blocks_avx512.hpp"
#include "csd/engine_groups_body.hpp"

namespace nearstep::csd {

extern const Engine avx512_engine = {"avx512", update_run<WideBlocks>,
                                     update_groups_run<WideBlocks>, round_run, increment_run};

}  // namespace nearstep::csd
