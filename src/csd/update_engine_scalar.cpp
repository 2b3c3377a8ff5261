// The engine without vector instructions, the reference for the others. Chosen by
// update_engine.cpp.
#include "csd/update_engine.hpp"
#include "csd/update_engine_groups_body.hpp"

namespace nearstep::csd {

extern const UpdateEngine scalar_engine = {
    "scalar", update_run<PlainBlocks>, update_groups_run<PlainBlocks>, round_run, increment_run};

}  // namespace nearstep::csd
