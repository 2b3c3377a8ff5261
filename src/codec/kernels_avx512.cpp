#include "codec/kernels_body.hpp"
#include "codec/kernels_table.hpp"

namespace nearstep::codec {

extern const Kernels avx512_kernels = {
    "avx512", narrow, widen, add_widened, add, add_squares, encode_piece, decode_add_piece, mark};

}  // namespace nearstep::codec
