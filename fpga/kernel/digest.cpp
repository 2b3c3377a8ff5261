// The kernel that digests a stored payload on the card, so that only the digest crosses the link.
// Called by fpga/host and, in tests, by the emulated card.
#include "fpga/kernel/updater.hpp"
#include "fpga/kernel/xxh3.hpp"

using nearstep::fpga::Word;

extern "C" void nearstep_digest(const Word* memory, Word* digest, std::uint64_t offset,
                                std::uint64_t bytes) {
// clang-format off
// Ports as in arguments.hpp and bursts as in card_resources.hpp; a test compares them.
#pragma HLS interface m_axi port = memory bundle = gmem_memory offset = slave max_read_burst_length = 64 num_read_outstanding = 8
#pragma HLS interface m_axi port = digest bundle = gmem_memory offset = slave max_write_burst_length = 64 num_write_outstanding = 8
#pragma HLS interface s_axilite port = memory bundle = control
#pragma HLS interface s_axilite port = digest bundle = control
#pragma HLS interface s_axilite port = offset bundle = control
#pragma HLS interface s_axilite port = bytes bundle = control
#pragma HLS interface s_axilite port = return bundle = control
    // clang-format on
    const std::uint64_t first = offset / nearstep::fpga::kWordBytes;
    const std::uint64_t words = bytes / nearstep::fpga::kWordBytes;
    nearstep::fpga::Xxh3 hash(words);
    for (std::uint64_t block = 0; block < hash.blocks(); ++block) {
        for (std::uint32_t i = 0; i < nearstep::fpga::kXxhBlockStripes; ++i) {
#pragma HLS pipeline II = 1
            hash.add(memory[first + block * nearstep::fpga::kXxhBlockStripes + i], block, i);
        }
        hash.end(block);
    }
    Word word = nearstep::fpga::zero_word();
    nearstep::fpga::set_quad(word, 0, hash.digest());
    digest[0] = word;
}
