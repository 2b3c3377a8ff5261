// The engine without vector instructions, the reference for the others. Chosen by engine.cpp.
#include "csd/engine.hpp"
#include "csd/engine_groups_body.hpp"

namespace nearstep::csd {

extern const UpdateEngine scalar_engine = {
    "scalar", update_run<PlainBlocks>, update_groups_run<PlainBlocks>, round_run, increment_run};

}  // namespace nearstep::csd
