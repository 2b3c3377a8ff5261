// Sums of squares on a GPU have the bits of the host's; skipped where there is no GPU.
#include "codec/gpu_squares.hpp"

#include "codec/sample_tiles.hpp"

#include <gtest/gtest.h>

namespace nearstep::codec {
namespace {

using shard::kTileElems;

// The definition, element by element.
double sum_in_halves(std::vector<double> terms) {
    while (terms.size() > 1) {
        const std::size_t half = terms.size() / 2;
        for (std::size_t i = 0; i < half; ++i) {
            terms[i] += terms[i + half];
        }
        terms.resize(half);
    }
    return terms.front();
}

double by_definition(std::vector<float> values) {
    values.resize(kTileElems);
    std::vector<double> pieces;
    for (std::size_t piece = 0; piece < kSquarePieces; ++piece) {
        std::vector<double> blocks;
        for (std::size_t block = 0; block < fpga::kPieceBlocks; ++block) {
            std::vector<double> squares;
            for (std::size_t i = 0; i < fpga::kScaleElems; ++i) {
                const double value =
                    values[piece * fpga::kPieceElems + block * fpga::kScaleElems + i];
                squares.push_back(value * value);
            }
            blocks.push_back(sum_in_halves(squares));
        }
        pieces.push_back(sum_in_halves(blocks));
    }
    return sum_in_halves(pieces);
}

bool is_same(double one, double other) {
    return one == other || (std::isnan(one) && std::isnan(other));
}

TEST(Squares, FollowTheirDefinition) {
    for (const std::vector<float>& tile : nasty_tiles()) {
        EXPECT_TRUE(is_same(sum_of_squares_of_tile(tile), by_definition(tile)));
    }
    for (const std::size_t elems :
         {std::size_t{0}, std::size_t{1}, std::size_t{4096}, std::size_t{5001}, kTileElems - 1}) {
        const std::vector<float> all = random_tile(5);
        const std::vector<float> some(all.begin(),
                                      all.begin() + static_cast<std::ptrdiff_t>(elems));
        EXPECT_EQ(sum_of_squares_of_tile(some), by_definition(some)) << elems;
    }
}

TEST(GpuSquares, HaveTheBitsOfTheHosts) {
    if (memory::gpus() == 0) {
        GTEST_SKIP() << "there is no GPU here";
    }
    memory::use_gpu(0);
    const memory::Stream stream;
    std::vector<std::vector<float>> tiles = nasty_tiles();
    tiles.push_back(random_tile(20));
    std::vector<CodecSettings> all;
    for (const Dtype dtype : {Dtype::fp32, Dtype::bf16, Dtype::fp16}) {
        all.push_back({.name = "dense", .dtype = dtype});
    }
    for (const double keep : {1.0 / 65536, 0.01, 0.5, 1.0}) {
        all.push_back({.name = "topk", .keep = keep});
    }
    all.push_back({.name = "topk", .dtype = Dtype::fp16});
    for (const char* name : {"q8", "q4", "ternary", "sign"}) {
        all.push_back({.name = name});
    }
    for (const CodecSettings& settings : all) {
        const auto cpu = make_codec(settings);
        const std::size_t bytes = cpu->payload_bytes();
        std::vector<std::byte> payloads(tiles.size() * bytes);
        std::vector<double> wanted;
        for (std::size_t tile = 0; tile < tiles.size(); ++tile) {
            const auto payload = std::span(payloads).subspan(tile * bytes, bytes);
            cpu->encode(tiles[tile], payload);
            std::vector<float> decoded(kTileElems);
            cpu->decode_add(payload, 0, decoded);
            wanted.push_back(sum_of_squares_of_tile(decoded));
        }
        memory::GpuBuffer there(payloads.size());
        memory::GpuBuffer sums(tiles.size() * kSquarePieces * sizeof(double));
        copy_to_gpu(there.span(), payloads, stream);
        sum_squares(settings, there.span().data(), tiles.size(), sums.as<double>(), stream);
        std::vector<double> found(tiles.size() * kSquarePieces);
        copy_to_host(std::as_writable_bytes(std::span(found)), sums.span(), stream);
        stream.wait();
        for (std::size_t tile = 0; tile < tiles.size(); ++tile) {
            const auto pieces =
                std::span(found).subspan(tile * kSquarePieces).first<kSquarePieces>();
            EXPECT_TRUE(is_same(sum_of_pieces(pieces), wanted[tile]))
                << settings.name << ", " << name_of(settings.dtype) << ", " << settings.keep
                << ", tile " << tile;
        }
    }
}

}  // namespace
}  // namespace nearstep::codec
