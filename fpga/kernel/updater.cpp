// The entry of the updater: its ports and registers, and their values as a job. Launched by csd.
#include "fpga/kernel/updater.hpp"

#include "fpga/kernel/update_subgroup.hpp"

using nearstep::fpga::Word;

// Each parameter is a register, so the interface is long.
// NOLINTNEXTLINE(readability-function-size)
extern "C" void nearstep_updater(
    const Word* master_in, Word* master_out, const Word* moment1_in, Word* moment1_out,
    const Word* moment2_in, Word* moment2_out, const Word* scales_in, Word* scales_out,
    const Word* payload_heads, const Word* payload_tails, const Word* groups, Word* parameters,
    Word* report, std::uint64_t state_offset, std::uint64_t payload_offset,
    std::uint64_t first_tile, std::uint64_t random_key, std::uint32_t tiles,
    std::uint32_t state_format, std::uint32_t optimizer, std::uint32_t codec, std::uint32_t sources,
    std::uint32_t payload_stride, std::uint32_t kept, std::uint32_t delivery,
    std::uint32_t parameter_dtype, float gradient_scale, float beta1, float one_minus_beta1,
    float beta2, float one_minus_beta2, float epsilon, float decay_factor, float gradient_decay,
    float step_size, float root_scale, std::uint32_t group_runs) {
// clang-format off
// Ports as in arguments.hpp and bursts as in card_resources.hpp; a test compares them.
#pragma HLS interface m_axi port = master_in bundle = gmem_master offset = slave max_read_burst_length = 64 num_read_outstanding = 8
#pragma HLS interface m_axi port = master_out bundle = gmem_master offset = slave max_write_burst_length = 64 num_write_outstanding = 8
#pragma HLS interface m_axi port = moment1_in bundle = gmem_moment1 offset = slave max_read_burst_length = 64 num_read_outstanding = 8
#pragma HLS interface m_axi port = moment1_out bundle = gmem_moment1 offset = slave max_write_burst_length = 64 num_write_outstanding = 8
#pragma HLS interface m_axi port = moment2_in bundle = gmem_moment2 offset = slave max_read_burst_length = 64 num_read_outstanding = 8
#pragma HLS interface m_axi port = moment2_out bundle = gmem_moment2 offset = slave max_write_burst_length = 64 num_write_outstanding = 8
#pragma HLS interface m_axi port = scales_in bundle = gmem_scales offset = slave max_read_burst_length = 64 num_read_outstanding = 8
#pragma HLS interface m_axi port = scales_out bundle = gmem_scales offset = slave max_write_burst_length = 64 num_write_outstanding = 8
#pragma HLS interface m_axi port = payload_heads bundle = gmem_heads offset = slave max_read_burst_length = 64 num_read_outstanding = 8
#pragma HLS interface m_axi port = payload_tails bundle = gmem_tails offset = slave max_read_burst_length = 64 num_read_outstanding = 8
#pragma HLS interface m_axi port = groups bundle = gmem_groups offset = slave max_read_burst_length = 64 num_read_outstanding = 8
#pragma HLS interface m_axi port = parameters bundle = gmem_heads offset = slave max_write_burst_length = 64 num_write_outstanding = 8
#pragma HLS interface m_axi port = report bundle = gmem_tails offset = slave max_write_burst_length = 64 num_write_outstanding = 8
#pragma HLS interface s_axilite port = master_in bundle = control
#pragma HLS interface s_axilite port = master_out bundle = control
#pragma HLS interface s_axilite port = moment1_in bundle = control
#pragma HLS interface s_axilite port = moment1_out bundle = control
#pragma HLS interface s_axilite port = moment2_in bundle = control
#pragma HLS interface s_axilite port = moment2_out bundle = control
#pragma HLS interface s_axilite port = scales_in bundle = control
#pragma HLS interface s_axilite port = scales_out bundle = control
#pragma HLS interface s_axilite port = payload_heads bundle = control
#pragma HLS interface s_axilite port = payload_tails bundle = control
#pragma HLS interface s_axilite port = groups bundle = control
#pragma HLS interface s_axilite port = parameters bundle = control
#pragma HLS interface s_axilite port = report bundle = control
#pragma HLS interface s_axilite port = state_offset bundle = control
#pragma HLS interface s_axilite port = payload_offset bundle = control
#pragma HLS interface s_axilite port = first_tile bundle = control
#pragma HLS interface s_axilite port = random_key bundle = control
#pragma HLS interface s_axilite port = tiles bundle = control
#pragma HLS interface s_axilite port = state_format bundle = control
#pragma HLS interface s_axilite port = optimizer bundle = control
#pragma HLS interface s_axilite port = codec bundle = control
#pragma HLS interface s_axilite port = sources bundle = control
#pragma HLS interface s_axilite port = payload_stride bundle = control
#pragma HLS interface s_axilite port = kept bundle = control
#pragma HLS interface s_axilite port = delivery bundle = control
#pragma HLS interface s_axilite port = parameter_dtype bundle = control
#pragma HLS interface s_axilite port = gradient_scale bundle = control
#pragma HLS interface s_axilite port = beta1 bundle = control
#pragma HLS interface s_axilite port = one_minus_beta1 bundle = control
#pragma HLS interface s_axilite port = beta2 bundle = control
#pragma HLS interface s_axilite port = one_minus_beta2 bundle = control
#pragma HLS interface s_axilite port = epsilon bundle = control
#pragma HLS interface s_axilite port = decay_factor bundle = control
#pragma HLS interface s_axilite port = gradient_decay bundle = control
#pragma HLS interface s_axilite port = step_size bundle = control
#pragma HLS interface s_axilite port = root_scale bundle = control
#pragma HLS interface s_axilite port = group_runs bundle = control
#pragma HLS interface s_axilite port = return bundle = control
    // clang-format on
    using namespace nearstep;
    using namespace nearstep::fpga;
    Job job;
    job.scalars.gradient_scale = gradient_scale;
    job.scalars.beta1 = beta1;
    job.scalars.one_minus_beta1 = one_minus_beta1;
    job.scalars.beta2 = beta2;
    job.scalars.one_minus_beta2 = one_minus_beta2;
    job.scalars.epsilon = epsilon;
    job.scalars.decay_factor = decay_factor;
    job.scalars.gradient_decay = gradient_decay;
    job.scalars.step_size = step_size;
    job.scalars.root_scale = root_scale;
    job.scalars.optimizer = static_cast<Optimizer>(optimizer);
    job.scalars.random_key = random_key;
    const bool are_groups_known = load_groups(groups, group_runs, job);
    job.format = static_cast<StateFormat>(state_format);
    job.codec = static_cast<GradientCodec>(codec);
    job.delivery = static_cast<ParameterDelivery>(delivery);
    job.parameter_dtype = static_cast<Dtype>(parameter_dtype);
    job.state = state_offset / kWordBytes;
    job.payloads = payload_offset / kWordBytes;
    job.first_tile = first_tile;
    // An invalid number must not become a valid enumerator by losing its upper bits.
    const bool is_known = are_groups_known &&
                          state_format <= static_cast<std::uint32_t>(StateFormat::compact) &&
                          optimizer <= static_cast<std::uint32_t>(kLastOptimizer) &&
                          parameter_dtype <= static_cast<std::uint32_t>(Dtype::fp16);
    const bool is_aligned = state_offset % kWordBytes == 0 && payload_offset % kWordBytes == 0 &&
                            payload_stride % kWordBytes == 0;
    job.tiles = is_known && is_aligned ? tiles : 0;
    job.sources = sources;
    job.payload_stride = payload_stride / kWordBytes;
    job.kept = kept;
    update_subgroup<kUpdateLanes>(job, master_in, master_out, moment1_in, moment1_out, moment2_in,
                                  moment2_out, scales_in, scales_out, payload_heads, payload_tails,
                                  groups, parameters, report);
}
