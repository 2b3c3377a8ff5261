// The engines as constants rather than functions, so that naming one runs none of its instructions.
#pragma once

#include "csd/engine.hpp"

namespace nearstep::csd {

extern const Engine scalar_engine;
extern const Engine avx2_engine;    // x86 only
extern const Engine avx512_engine;  // x86 only

}  // namespace nearstep::csd
