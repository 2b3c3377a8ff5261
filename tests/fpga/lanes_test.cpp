// Any number of lanes gives the same bits.
#include "fpga/kernel/card_resources.hpp"
#include "fpga/kernel/update_subgroup.hpp"
#include "fpga/sample_subgroups.hpp"
#include "fpga/subgroup.hpp"
#include "support/test.hpp"

namespace nearstep::fpga {
namespace {

// A job whose memory begins with the state.
Job job_of(StateFormat format, std::uint32_t tiles, Dtype dtype, ParameterDelivery delivery) {
    Job job;
    job.scalars = sane_scalars(Optimizer::adamw);
    job.format = format;
    job.codec = GradientCodec::dense_bf16;
    job.delivery = delivery;
    job.parameter_dtype = dtype;
    job.state = store::kHeaderBytes / kWordBytes;
    job.payloads = 0;
    job.first_tile = 2;
    job.tiles = tiles;
    job.sources = 1;
    job.payload_stride = kTileElems * 2 / kWordBytes;
    job.kept = 0;
    return job;
}

template <int kLanes>
std::vector<std::byte> outputs_of(Subgroup subgroup, const Job& job, memory::Buffer& payloads) {
    auto* extent = reinterpret_cast<Word*>(subgroup.extent().data());
    auto* gradients = reinterpret_cast<Word*>(payloads.span().data());
    auto* parameters = reinterpret_cast<Word*>(subgroup.parameters().data());
    std::vector<Word> report(1 + job.tiles);
    update_subgroup<kLanes>(job, extent, extent, extent, extent, extent, extent, extent, extent,
                            gradients, gradients, nullptr, parameters, report.data());
    std::vector<std::byte> all(subgroup.extent().begin(), subgroup.extent().end());
    all.insert(all.end(), subgroup.parameters().begin(), subgroup.parameters().end());
    const auto words = std::as_bytes(std::span(report));
    all.insert(all.end(), words.begin(), words.end());
    return all;
}

class LanesFor : public testing::TestWithParam<StateFormat> {};

TEST_P(LanesFor, GiveTheSameBitsWhateverTheirNumber) {
    constexpr std::uint32_t kTiles = 2;
    for (const auto delivery : {ParameterDelivery::parameters, ParameterDelivery::deltas}) {
        for (const Dtype dtype : {Dtype::bf16, Dtype::fp16}) {
            Subgroup subgroup({.format = GetParam(),
                               .tiles = kTiles,
                               .parameter_dtype = dtype,
                               .delivery = delivery});
            Samples samples = random_samples(1, subgroup.elems());
            subgroup.set_state(samples.state());
            memory::Buffer payloads(subgroup.elems() * 2);
            convert_from_fp32(samples.gradient.data(), Dtype::bf16, payloads.span().data(),
                              subgroup.elems());
            const Job job = job_of(GetParam(), kTiles, dtype, delivery);
            const auto expected =
                outputs_of<static_cast<int>(kUpdateLanes)>(subgroup, job, payloads);
            EXPECT_EQ(outputs_of<1>(subgroup, job, payloads), expected);
            EXPECT_EQ(outputs_of<2>(subgroup, job, payloads), expected);
            EXPECT_EQ(outputs_of<8>(subgroup, job, payloads), expected);
            EXPECT_EQ(outputs_of<16>(subgroup, job, payloads), expected);
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Formats, LanesFor, testing::ValuesIn(kStateFormats));

// An index list out of order is invalid, but the streams still end together.
TEST(Merge, EndsWhateverTheIndices) {
    KernelStream<Entry> entries;
    KernelStream<Word> out;
    for (const int index : {70, 3, 40000, 39999, 65535, 65535}) {
        entries.write({static_cast<std::uint16_t>(index), to_bf16(1.0F)});
    }
    merge_entries(GradientCodec::topk_bf16, 6, entries, out);
    std::vector<std::uint32_t> found;
    for (std::uint32_t i = 0; i < kTileGroups; ++i) {
        const Word word = out.read();
        for (std::uint32_t lane = 0; lane < kDecodeLanes; ++lane) {
            if (word.of[lane] != 0) {
                found.push_back(i * kDecodeLanes + lane);
            }
        }
    }
    EXPECT_EQ(found, (std::vector<std::uint32_t>{70, 40000, 65535}));
}

}  // namespace
}  // namespace nearstep::fpga
