// The payload of a gradient tile in every codec, decoded by each of this CPU's kernels.
#include "base/error.hpp"
#include "codec/codec.hpp"
#include "codec/sample_tiles.hpp"
#include "fuzz.hpp"
#include "shard/tile.hpp"

#include <array>

namespace nearstep::fuzz {

namespace {

using codec::Codec;
using shard::kTileElems;

constexpr std::size_t kPieces = kTileElems / arith::kPieceElems;
constexpr std::array kShares = {0.01, 1.0 / kTileElems, 0.5, 1.0};
constexpr std::array kDtypes = {Dtype::bf16, Dtype::fp16, Dtype::fp32};

std::vector<std::byte> valid_payload(const Codec& codec) {
    std::vector<float> tile(kTileElems);
    for (std::size_t i = 0; i < tile.size(); ++i) {
        tile[i] = static_cast<float>(i * 7919 % 1000) / 500 - 1;
    }
    std::vector<std::byte> payload(codec.payload_bytes());
    codec.encode(tile, payload);
    return payload;
}

// Every codec in every form, with each of the CPU's kernels.
struct Form {
    std::vector<std::unique_ptr<Codec>> codecs = {};
    std::vector<std::byte> payload = {};
};

std::vector<Form> make_forms() {
    std::vector<Form> forms;
    for (const std::string& name : codec::codec_names()) {
        for (const Dtype dtype : kDtypes) {
            for (const double share : kShares) {
                if ((name != "topk" && share != kShares[0]) ||
                    (codec::has_block_codes(name) && dtype != kDtypes[0])) {
                    continue;
                }
                Form& form = forms.emplace_back();
                for (const codec::Kernels& kernels : codec::kernels()) {
                    form.codecs.push_back(codec::make_codec(
                        {.name = name, .keep = share, .dtype = dtype, .kernels = &kernels}));
                }
                form.payload = valid_payload(*form.codecs.front());
            }
        }
    }
    return forms;
}

const std::vector<Form>& forms() {
    static const std::vector<Form> all = make_forms();
    return all;
}

}  // namespace

std::vector<std::string> seeds() {
    std::vector<std::string> all;
    for (std::uint8_t form = 0; form < forms().size(); ++form) {
        all.push_back(Output().number(form).number(std::uint8_t{3}).number(std::uint8_t{5}));
        all.push_back(Output()
                          .number(form)
                          .number(std::uint8_t{0})
                          .number(std::uint8_t{63})
                          .number(std::uint32_t{2})
                          .number(std::uint8_t{4})
                          .rest("\xFF\xFF\x01\x02"));
    }
    return all;
}

void read(Bytes bytes) {
    Input input(bytes);
    const Form& form = forms()[input.choice(forms().size())];
    const std::size_t first = input.choice(kPieces);
    const std::size_t pieces = 1 + input.choice(kPieces - first);
    std::vector<std::byte> payload = form.payload;
    edit(input, payload);
    std::vector<float> expected;
    for (const std::unique_ptr<Codec>& codec : form.codecs) {
        std::vector<float> sum(pieces * arith::kPieceElems, 0.25F);
        codec->decode_add(payload, first * arith::kPieceElems, sum);
        require(expected.empty() || codec::same_bits(sum, expected),
                "all kernels give the same bits");
        expected = std::move(sum);
    }
}

}  // namespace nearstep::fuzz
