// Invalid configs, and that their refusals are helpful.
#include "config/load.hpp"
#include "support/places.hpp"
#include "support/test.hpp"

#include <ostream>

namespace nearstep::config {
namespace {

// Invalid texts, and what the message must contain. Without a config, data.train is set. With
// ranks, the texts are valid, and refused for this number of ranks.
struct Refused {
    std::string config = {};
    std::string site = {};
    std::vector<std::string> overrides = {};
    std::vector<std::string> fragments = {};
    int ranks = 0;
};

Refused in_config(const std::string& config, std::vector<std::string> fragments) {
    fragments.emplace_back("configs/some.toml, line ");
    return {.config = config, .fragments = std::move(fragments)};
}

Refused in_site(const std::string& site, std::vector<std::string> fragments) {
    fragments.emplace_back("cluster/there/site.toml, line ");
    return {.site = site, .fragments = std::move(fragments)};
}

Refused in_override(const std::string& assignment, std::vector<std::string> fragments) {
    fragments.push_back("--set " + assignment);
    return {.overrides = {assignment}, .fragments = std::move(fragments)};
}

Refused for_ranks(int ranks, const std::vector<std::string>& overrides,
                  const std::vector<std::string>& fragments) {
    return {.overrides = overrides, .fragments = fragments, .ranks = ranks};
}

void PrintTo(const Refused& refused, std::ostream* out) {  // NOLINT: GoogleTest's name
    *out << refused.config << refused.site << testing::PrintToString(refused.overrides);
}

std::string sentence_for(const Refused& refused) {
    const auto read = [&] {
        return parse({.config_path = "configs/some.toml",
                      .config_text = "data.train = \"text\"\n" + refused.config,
                      .site_path = refused.site.empty() ? "" : "cluster/there/site.toml",
                      .site_text = refused.site,
                      .overrides = refused.overrides});
    };
    if (refused.ranks == 0) {
        return message_of(read);
    }
    const RunSettings run = read();
    return message_of([&] { validate_for_ranks(run, refused.ranks); });
}

void expect_one_sentence(const std::string& message) {
    ASSERT_FALSE(message.empty());
    EXPECT_TRUE(message.back() == '.' || message.back() == '?') << message;
    EXPECT_TRUE(std::none_of(message.begin(), message.end(), [](char c) {
        return c >= 0 && c < ' ';
    })) << message;
    EXPECT_THAT(message.substr(0, message.size() - 1), testing::Not(HasSubstr(". ")))
        << "one sentence";
    EXPECT_THAT(message, testing::Not(HasSubstr(".."))) << "one full stop";
}

class Refusal : public testing::TestWithParam<Refused> {};

TEST_P(Refusal, IsOneSentenceThatNamesKeyAndPlace) {
    const std::string message = sentence_for(GetParam());
    expect_one_sentence(message);
    for (const std::string& fragment : GetParam().fragments) {
        EXPECT_THAT(message, HasSubstr(fragment));
    }
}

// Reading so many nested parts would overflow the stack.
TEST(DeepKeys, AreRefusedInOneSentence) {
    std::string key = "a";
    for (int part = 1; part < 200'000; ++part) {
        key += ".a";
    }
    for (const std::string& config : {key + " = 1\n", "[" + key + "]\n"}) {
        const std::string message = sentence_for(in_config(config, {}));
        expect_one_sentence(message);
        EXPECT_THAT(message, HasSubstr("configs/some.toml has more dots outside of strings"));
    }
}

INSTANTIATE_TEST_SUITE_P(
    UnknownKeys, Refusal,
    testing::Values(
        in_config("[train]\nsetps = 3\n", {"train.setps", "line 3", "did you mean train.steps?"}),
        in_config("steps = 3\n", {"no key steps", "did you mean train.steps?"}),
        in_config("[model]\nhiden = 3\n", {"model.hiden", "did you mean model."}),
        in_config("[trian]\nsteps = 3\n", {"[trian]", "did you mean [train]?"}),
        in_config("[trian]\n", {"[trian]", "did you mean [train]?"}),
        in_config("[csd.path]\na = 1\n", {"csd.path is a key, not a section"}),
        in_config("[csd.links]\nread = 1\n", {"csd.links"}),
        in_config("\"train.steps\" = 3\n", {"\"train.steps\"", "did you mean train.steps?"}),
        in_config("\"a\\nb\" = 3\n", {"\"a\\u000Ab\""}),
        in_config("Mode = \"su\"\n", {"no key Mode", "did you mean mode?"}),
        in_config("data.tokenizer = \"gpt2\"\n", {"data.tokenizer"}),
        in_override("csd.solts=4", {"csd.solts", "did you mean csd.slots?"}),
        in_override("compress.keeep=0.5", {"did you mean compress.keep?"})));

INSTANTIATE_TEST_SUITE_P(
    WrongTypes, Refusal,
    testing::Values(
        in_config("[train]\nsteps = \"many\"\n", {"train.steps wants an integer, not \"many\""}),
        in_config("[train]\nsteps = 1.5\n", {"train.steps wants an integer, not 1.5"}),
        in_config("[train]\nsteps = true\n", {"train.steps wants an integer, not true"}),
        in_config("[train]\nsteps = [3]\n", {"train.steps wants an integer, not [3]"}),
        in_config("[train]\nsteps = 2024-01-01\n", {"train.steps"}),
        in_config("[train]\nlearning_rate = \"1e-3\"\n", {"train.learning_rate wants a number"}),
        in_config("mode = 3\n", {"mode wants a text, not 3"}),
        in_config("[model]\ndtype = 16\n", {"model.dtype wants a text, not 16"}),
        in_config("[compress]\nerror_feedback = \"no\"\n", {"wants true or false, not \"no\""}),
        in_config("[csd]\nper_rank = [1, \"2\"]\n",
                  {"csd.per_rank wants an integer or a list of integers, not [1, \"2\"]"}),
        in_config("[csd]\nper_rank = [[1]]\n", {"csd.per_rank"}),
        in_config("[csd]\npath = 7\n", {"csd.path wants a text or a list of texts, not 7"}),
        in_config("[csd]\nspeed = [\"fast\"]\n", {"csd.speed wants a number or a list of numbers"}),
        in_override("csd.speed=fast", {"csd.speed = \"fast\"", "\"auto\" or numbers above 0"}),
        in_override("csd.speed=[]", {"csd.speed is an empty list"}),
        in_override("train.steps=many", {"train.steps wants an integer, not \"many\""}),
        in_override("train.steps=", {"train.steps wants an integer, not \"\""}),
        in_override("compress.error_feedback=yes", {"wants true or false"})));

INSTANTIATE_TEST_SUITE_P(
    OutOfRange, Refusal,
    testing::Values(
        in_config("[model]\nlayers = 0\n", {"model.layers = 0", "at least 1"}),
        in_config("[model]\nwidth = -256\n", {"model.width = -256", "at least 1"}),
        in_config("[model]\nvocabulary = 100\n", {"model.vocabulary = 100", "at least 256"}),
        in_config("[train]\nsteps = 0\n", {"train.steps = 0", "at least 1"}),
        in_config("[train]\nstop_at = -1\n", {"train.stop_at = -1", "at least 0"}),
        in_config("[train]\nseed = -1\n", {"train.seed = -1", "at least 0"}),
        in_config("[train]\nglobal_batch = 0\n", {"train.global_batch = 0"}),
        in_config("[train]\nglobal_batch = 5000000000\n",
                  {"train.global_batch = 5000000000", "at most"}),
        in_config("[train]\nmicro_batch = 0\n", {"train.micro_batch = 0"}),
        in_config("[train]\nlearning_rate = 0.0\n", {"train.learning_rate = 0", "above 0"}),
        in_config("[train]\nlearning_rate = nan\n", {"train.learning_rate = nan"}),
        in_config("[train]\nlearning_rate = inf\n", {"train.learning_rate = inf"}),
        in_config("[train]\nbeta1 = 1.0\n", {"train.beta1 = 1", "below 1"}),
        in_config("[train]\nepsilon = 0\n", {"train.epsilon = 0", "above 0"}),
        in_config("[train]\ndecay = \"vectors\"\n", {"train.decay", "\"all\"", "\"matrices\""}),
        in_config("[train]\nclip_norm = -1\n", {"train.clip_norm = -1"}),
        in_config("[train]\nloss_scale = 0\n", {"train.loss_scale = 0"}),
        in_config("data.valid_share = 1\n", {"data.valid_share = 1", "below 1"}),
        in_config("[csd]\nslots = 2\n", {"csd.slots = 2", "at least 3"}),
        in_config("[csd]\nsubgroup_tiles = 0\n", {"csd.subgroup_tiles = 0"}),
        in_config("[csd]\nper_rank = [1, -1]\n", {"csd.per_rank = -1", "at least 0"}),
        in_config("[csd]\nspeed = [1, 0]\n", {"csd.speed = 0", "above 0"}),
        in_config("[compress]\nkeep = 0\n", {"compress.keep = 0", "above 0 and at most 1"}),
        in_config("[compress]\nkeep = 1.01\n", {"compress.keep = 1.01"}),
        in_config("[checkpoint]\nevery = -5\n", {"checkpoint.every = -5"}),
        in_config("[exchange]\ntimeout_s = 0\n", {"exchange.timeout_s = 0"}),
        in_override("link.host_gb_s=-1", {"link.host_gb_s = -1", "at least 0"}),
        in_site("[link]\nhost_gb_s = 1\nscale = -1\n", {"link.scale = -1", "at least 0"}),
        in_override("link.host_gb_s=1e-9", {"link.host_gb_s", "link.scale"}),
        in_override("link.scale=0.5", {"link.scale", "link.host_gb_s"}),
        in_override("csd.rated_tbw=-1", {"csd.rated_tbw"}),
        in_site("[hosts]\nnames = [\"a\", \"b; touch c\"]\n",
                {"hosts.names", "b; touch c", "host"}),
        in_site("[hosts]\nnames = [\"-oProxyCommand=x\"]\n", {"hosts.names", "-oProxyCommand=x"}),
        in_site("[hosts]\nnames = [\"a\"]\nstorage = [\"x[$(id)]\"]\n", {"hosts.storage"}),
        in_site("[hosts]\nhead = \"a b\"\n", {"hosts.head", "a b"}),
        in_site("[hosts]\nnames = [\"fe80::1\"]\n", {"hosts.names", "fe80::1", "colon"}),
        in_site("[hosts]\nmpirun_options = \"--mca pml ucx\"\n",
                {"hosts.mpirun_options", "--mca pml ucx", "each word"}),
        in_site("[hosts]\nsbatch_options = [\"-p gpu\"]\n",
                {"hosts.sbatch_options", "-p gpu", "each word"}),
        in_site("[hosts]\nnames = [\"a\", \"b\", \"a\"]\n", {"hosts.names", "\"a\"", "twice"}),
        in_site("[hosts]\nnames = [\"a\"]\nstorage = [\"s\", \"s\"]\n", {"hosts.storage", "twice"}),
        in_site("[plan]\ngpus_per_node = 4\n", {"plan.gpus_per_node was removed", "hosts.ranks"}),
        in_site("[plan]\ngpu_efficiency = 1.5\n", {"plan.gpu_efficiency = 1.5", "at most 1"}),
        in_site("[plan]\ngpu_memory_gb = 1e308\n", {"plan.gpu_memory_gb", "at most 1e+12"}),
        in_site("[plan]\ngpu_tflops = -1\n", {"plan.gpu_tflops = -1", "at least 0"}),
        in_config("[csd]\nper_rank = []\n", {"csd.per_rank is an empty list"}),
        in_config("[csd]\npath = \"\"\n", {"csd.path holds an empty text"}),
        in_config("data.valid = [\"\"]\n", {"data.valid holds an empty text"}),
        in_config("[csd]\npath = [\"a\", \"b\\nc\"]\n",
                  {"csd.path = \"b\\u000Ac\" has a line break"}),
        in_config("[checkpoint]\npath = \"a\\u001Bb\"\n", {"checkpoint.path", "control character"}),
        in_config("[model]\nfrom = \"a\\tb\"\n", {"model.from", "control character"})));

INSTANTIATE_TEST_SUITE_P(
    UnknownWords, Refusal,
    testing::Values(
        in_config("mode = \"fast\"\n",
                  {"mode = \"fast\" is not known", "\"base\", \"su\", \"su+o\" or \"su+o+c\""}),
        in_config("[model]\narchitecture = \"mamba\"\n",
                  {"model.architecture = \"mamba\"", "\"gpt\" or \"llama\""}),
        in_config("[model]\ndtype = \"int8\"\n", {"model.dtype", "\"fp32\", \"bf16\" or \"fp16\""}),
        in_config("[model]\ncompute = \"tf32\"\n",
                  {"model.compute", "\"auto\", \"bf16\" or \"fp32\""}),
        in_config("[model]\nactivations = \"disk\"\n",
                  {"model.activations", "\"auto\", \"all\", \"gpu\" or \"host\""}),
        in_config("[model]\ngpu_memory_gb = -1\n", {"model.gpu_memory_gb = -1", "at least 0"}),
        in_site("[csd]\ndevice = \"disk\"\n", {"csd.device = \"disk\"", "\"emulated\""}),
        in_config("[csd]\nrun_timeout_s = 20\n",
                  {"csd.run_timeout_s was removed", "exchange.timeout_s"}),
        in_site("[csd]\nhost_engine = [-1]\n", {"csd.host_engine", "at least 0"}),
        in_config("[exchange]\nscatter = \"flat\"\n",
                  {"exchange.scatter was removed", "placement.gradients = \"replicated\"",
                   "line 3"}),
        in_config("[compress]\ncodec = \"zip\"\n", {"compress.codec", "\"topk\" or \"auto\""}),
        in_config("[compress]\ncodec = \"sign\"\n",
                  {"compress.codec = \"sign\" was removed: use \"q4\""}),
        in_config("[compress]\nrounding = \"up\"\n",
                  {"compress.rounding", "\"nearest\" or \"stochastic\""}),
        in_config("[gather]\ncodec = \"zip\"\n", {"gather.codec", "\"delta\""}),
        in_config("[csd]\nio = \"uring\"\n", {"csd.io", "\"io_uring\" or \"threads\""}),
        in_config("[csd]\ndurability = \"some\"\n",
                  {"csd.durability", "\"step\", \"checkpoint\" or \"none\""}),
        in_config("[csd]\nstate = \"q4\"\n",
                  {"csd.state = \"q4\"", "\"bf16\", \"q8\" or \"compact\""}),
        in_config("[train]\noptimizer = \"adamax\"\n",
                  {"train.optimizer = \"adamax\"", "\"adagrad\" or \"lion\""}),
        in_override("mode=su+o+d", {"mode = \"su+o+d\" is not known"})));

INSTANTIATE_TEST_SUITE_P(
    Placements, Refusal,
    testing::Values(in_config("[placement]\noptimizer = \"everywhere\"\n",
                              {"placement.optimizer",
                               "\"global\" or \"auto\", or a number of ranks"}),
                    in_config("[placement]\noptimizer = 0\n",
                              {"placement.optimizer = 0", "or a number of ranks"}),
                    in_config("[placement]\noptimizer = [2]\n", {"placement.optimizer", "[2]"}),
                    in_config("[exchange]\nranks_per_node = -1\n", {"exchange.ranks_per_node"})));

INSTANTIATE_TEST_SUITE_P(
    Combinations, Refusal,
    testing::Values(
        in_site("[csd]\ndevice = \"xrt\"\npath = [\"a\", \"b\"]\ncards = [\"0\"]\n",
                {"csd.cards = [\"0\"]", "2 folders"}),
        in_site("[csd]\ndevice = \"xrt\"\ntiers = { memory = 1 }\n",
                {"csd.tiers.memory = 1", "csd.device = \"xrt\""}),
        in_config("[csd]\ndurability = \"none\"\ntiers = { gpu = \"much\" }\n",
                  {"csd.tiers.gpu = \"much\"", "\"auto\" or numbers at least 0"}),
        in_config("[csd]\ntiers = { gpus = 1 }\n",
                  {"There is no key csd.tiers.gpus", "did you mean csd.tiers.gpu?"}),
        in_config("[csd]\ntiers.gpu = 1.5\n",
                  {"csd.tiers.gpu = 1.5", "csd.durability = \"step\"", "survives nothing"}),
        in_config("[csd]\nmemory_gb = 1\n", {"csd.memory_gb was removed", "csd.tiers.memory"}),
        in_config("mode = \"base\"\n[csd]\ntiers.memory = \"auto\"\n",
                  {"csd.tiers.memory = \"auto\"", "mode = \"base\""}),
        in_site("[csd]\ndevice = \"xrt\"\n[link]\nhost_gb_s = 1\n",
                {"csd.device = \"xrt\"", "[link]", "\"emulated\""}),
        in_site("[csd]\ndevice = \"xrt\"\nupdate_mparam_s = 5\n", {"csd.update_mparam_s = 5"}),
        in_config("[model]\nwidth = 10\nheads = 3\n",
                  {"model.width = 10", "model.heads = 3", "divide"}),
        in_config("[model]\narchitecture = \"llama\"\nheads = 4\nkv_heads = 3\n",
                  {"model.heads = 4 (", "model.kv_heads = 3 (", "divide the heads"}),
        in_config("[model]\narchitecture = \"llama\"\nwidth = 6\nheads = 2\n",
                  {"model.width = 6", "model.heads = 2", "an even number"}),
        in_config("[model]\nqkv_bias = true\n", {"model.qkv_bias = true (", "\"llama\""}),
        in_config("[model]\nrope_scaling = \"{}\"\n", {"model.rope_scaling = \"{}\""}),
        in_config("[model]\ncontext = 9\npositions = 8\n",
                  {"model.context = 9 (", "model.positions = 8 ("}),
        in_config("[train]\nsteps = 5\nstop_at = 6\n", {"train.stop_at = 6", "train.steps = 5"}),
        in_config("[train]\nclip_norm = 0\nclipping = \"delayed\"\n",
                  {"train.clipping = \"delayed\"", "train.clip_norm = 0"}),
        in_config("[model]\ndtype = \"fp16\"\n[train]\nclipping = \"delayed\"\n",
                  {"train.clipping = \"delayed\"", "model.dtype = \"fp16\""}),
        in_override("train.stop_at=101", {"train.steps = 100 (the default)"}),
        in_override("train.final_rate_share=1.5", {"train.final_rate_share = 1.5"}),
        in_config("mode = \"su+o\"\n[compress]\ncodec = \"topk\"\n",
                  {"compress.codec = \"topk\"", "su+o+c", "mode = \"su+o\""}),
        in_config("mode = \"base\"\n[compress]\ncodec = \"topk\"\n", {"mode = \"base\""}),
        in_config("mode = \"su\"\n[compress]\ncodec = \"topk\"\n", {"mode = \"su\""}),
        in_config("mode = \"su+o+c\"\n[compress]\ncodec = \"topk\"\nrounding = \"stochastic\"\n",
                  {"compress.rounding = \"stochastic\"", "compress.codec = \"topk\"", "q4"}),
        in_config("mode = \"su+o+c\"\n[compress]\nerror_feedback = true\n[csd]\ndurability = "
                  "\"none\"\n[exchange]\ntransport = \"nccl\"\n",
                  {"exchange.transport = \"nccl\"", "compress.error_feedback = true", "\"mpi\""}),
        in_config("mode = \"su+o+c\"\n[compress]\ncodec = \"dense\"\nerror_feedback = true\n",
                  {"compress.error_feedback = true", "compress.codec = \"dense\""}),
        in_config("mode = \"su+o+c\"\n[compress]\ncodec = \"q4\"\nerror_feedback = true\n",
                  {"compress.error_feedback = true", "csd.durability = \"step\"",
                   "csd.durability = \"checkpoint\""}),
        in_config("[compress]\nwarmup_steps = 5\n",
                  {"compress.warmup_steps = 5", "compress.codec = \"dense\""}),
        in_config("[checkpoint]\nevery = 5\n[csd]\ndurability = \"none\"\n",
                  {"checkpoint.every = 5", "csd.durability = \"none\""}),
        in_config("mode = \"base\"\n[gather]\ncodec = \"delta\"\n",
                  {"gather.codec = \"delta\"", "mode = \"base\"", "ZeRO-Infinity"}),
        in_config("[model]\ndtype = \"fp32\"\n[gather]\ncodec = \"delta\"\n",
                  {"gather.codec = \"delta\"", "model.dtype = \"fp32\"", "\"bf16\""}),
        in_override("data.valid_share=0", {"data.valid_share = 0", "data.valid"}),
        Refused{.overrides = {"data.train=[]"},
                .fragments = {"data.train", "--set data.train=FILE"}}));

INSTANTIATE_TEST_SUITE_P(
    Sites, Refusal,
    testing::Values(in_site("[train]\nsteps = 3\n", {"train.steps", "belongs in a config"}),
                    in_config("[link]\nscale = 1\n", {"link.scale", "--site"}),
                    in_config("[csd]\ncards = [\"0\"]\n", {"csd.cards", "--site"}),
                    in_site("mode = \"su\"\n", {"mode", "belongs in a config"}),
                    in_site("[csd]\nstate = \"fp32\"\n", {"csd.state", "belongs in a config"}),
                    in_site("[csd]\nslots = 1\n", {"csd.slots = 1"}),
                    in_site("[site]\nhosts = 3\n", {"site.hosts"}),
                    in_site("[csd\n", {"not TOML"})));

INSTANTIATE_TEST_SUITE_P(
    NotToml, Refusal,
    testing::Values(in_config("[train\nsteps = 3\n", {"line 2", "not TOML"}),
                    in_config("[train]\nsteps = \n", {"line 3", "not TOML"}),
                    in_config("[train]\nsteps = 3\nsteps = 4\n", {"line 4", "not TOML", "steps"}),
                    in_config("data.train = \"again\"\n", {"line 2", "not TOML"}),
                    in_config("name = \"\x01\"\n", {"line 2", "not TOML"}),
                    in_config("name = \"\xFF\"\n", {"line 2", "not TOML"}),
                    Refused{.overrides = {"train.steps"},
                            .fragments = {"--set train.steps sets no key", "KEY=VALUE"}},
                    Refused{.overrides = {"=3"}, .fragments = {"--set =3 sets no key"}},
                    Refused{.overrides = {""}, .fragments = {"sets no key"}},
                    Refused{.overrides = {"train.steps=3\nmode=su"},
                            .fragments = {"train.steps wants an integer"}}));

INSTANTIATE_TEST_SUITE_P(
    Ranks, Refusal,
    testing::Values(for_ranks(4, {"train.global_batch=3"}, {"train.global_batch = 3", "4 ranks"}),
                    for_ranks(3, {"csd.per_rank=[1,2]"}, {"csd.per_rank has 2 entries", "3 ranks"}),
                    for_ranks(1, {"csd.per_rank=[1,2]"}, {"csd.per_rank has 2 entries", "1 ranks"}),
                    for_ranks(2, {"csd.per_rank=0"}, {"csd.per_rank", "2 ranks", "a device"}),
                    for_ranks(2, {"csd.per_rank=1", "csd.host_engine=[0,2]"},
                              {"csd.host_engine names device 2", "devices 0 to 1"}),
                    for_ranks(2, {"csd.per_rank=[0,0]"}, {"csd.per_rank", "a device"}),
                    for_ranks(2, {"csd.storage_ranks=2"}, {"csd.storage_ranks = 2", "the 2 ranks"}),
                    for_ranks(3, {"csd.storage_ranks=1", "csd.per_rank=[1,1,0]"},
                              {"Rank 2", "csd.storage_ranks", "no device"}),
                    for_ranks(3, {"csd.storage_ranks=1", "train.global_batch=1"},
                              {"global_batch = 1", "2 ranks"}),
                    for_ranks(2, {"csd.per_rank=2", "csd.speed=[1,2]"},
                              {"csd.speed has 2 entries", "4 devices"})));

TEST(ReadSources, NamesTheFileThatIsMissing) {
    const auto expect_said = [](const std::string& config, const std::string& site,
                                const auto& facts) {
        const std::string said = message_of([&] { read_sources(config, site, {}); });
        expect_one_sentence(said);
        EXPECT_THAT(said, facts);
    };
    const std::string configs = test::source_file("configs");
    expect_said(configs + "/absent.toml", "", states("configs/absent.toml", std::strerror(ENOENT)));
    expect_said(configs, "", states(configs, "TOML"));
    expect_said(configs + "/tiny.toml", configs, HasSubstr("configs/site.toml"));
}

}  // namespace
}  // namespace nearstep::config
