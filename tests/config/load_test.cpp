// Tests how config, site and overrides become settings.
#include "config/load.hpp"

#include "config/keys.hpp"
#include "support/places.hpp"
#include "support/test.hpp"

#include <sstream>

namespace nearstep::config {
namespace {

RunSettings parse_texts(const std::string& config, const std::string& site = "",
                        const std::vector<std::string>& overrides = {}) {
    return parse({.config_path = "configs/some.toml",
                  .config_text = "data.train = \"text\"\n" + config,
                  .site_path = site.empty() ? "" : "cluster/there/site.toml",
                  .site_text = site,
                  .overrides = overrides});
}

RunSettings parse_overrides(const std::vector<std::string>& overrides) {
    return parse_texts("", "", overrides);
}

// The files of this kind in and below a folder.
std::vector<std::string> files_in(const std::string& folder, const std::string& ending) {
    std::vector<std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(test::source_file(folder))) {
        if (entry.path().string().ends_with(ending)) {
            files.push_back(entry.path().string());
        }
    }
    return files;
}

TEST(Parse, GivesTheDefaultsForAnEmptyConfig) {
    RunSettings defaults;
    defaults.name = "some";  // the file's name without .toml
    defaults.data.train = {"text"};
    defaults.compress.codec = PayloadCodec::dense;
    EXPECT_EQ(print(parse_texts("")), print(defaults));
}

// Settings of a host may differ, those of the run may not.
TEST(Parse, TellsWhichValuesAllRanksHaveAlike) {
    const auto values_with = [](const std::string& override) {
        return values_of_run(parse_overrides({override}));
    };
    const std::vector<NamedValue> values = values_of_run(parse_texts(""));
    for (const char* own : {"csd.path=/other", "csd.slots=5", "csd.io=threads", "data.train=other",
                            "model.gpu_memory_gb=5", "exchange.timeout_s=5"}) {
        EXPECT_EQ(values_with(own), values) << own;
    }
    for (const char* alike : {"train.seed=5", "train.learning_rate=0.5", "train.optimizer=lion",
                              "mode=base", "csd.state=bf16", "csd.per_rank=2", "train.steps=5",
                              "train.clip_norm=5", "csd.durability=none", "train.beta2=0.5",
                              "csd.subgroup_tiles=5", "train.global_batch=32"}) {
        EXPECT_NE(values_with(alike), values) << alike;
    }
}

TEST(Parse, ReadsEverySortOfValue) {
    const config::RunSettings run = parse_texts(R"(
        mode = "su+o+c"
        name = "renamed"
        [model]
        dtype = "fp16"
        [train]
        seed = 9223372036854775807
        steps = 5_000_000_000
        learning_rate = 1
        final_rate_share = 0.25
        [csd]
        per_rank = [2, 0, 1]
        path = ["/a", "/b"]
        speed = [1, 2.5, 3]
        subgroup_tiles = 7
        io = "threads"
        durability = "checkpoint"
        [compress]
        codec = "topk"
        keep = 0.02
        error_feedback = true
        warmup_steps = 7
    )");
    EXPECT_EQ(run.mode, Mode::su_o_c);
    EXPECT_EQ(run.name, "renamed");
    EXPECT_EQ(run.model.dtype, Dtype::fp16);
    EXPECT_EQ(run.train.seed, 9223372036854775807U);
    EXPECT_EQ(run.train.steps, 5'000'000'000);
    EXPECT_EQ(run.train.learning_rate, 1.0);
    EXPECT_EQ(run.train.final_rate_share, 0.25);
    EXPECT_THAT(run.csd.per_rank, ElementsAre(2, 0, 1));
    EXPECT_THAT(run.csd.path, ElementsAre("/a", "/b"));
    EXPECT_THAT(run.csd.speed, ElementsAre(1.0, 2.5, 3.0));
    EXPECT_EQ(run.csd.subgroup_tiles, 7U);
    EXPECT_EQ(run.csd.io, IoKind::threads);
    EXPECT_EQ(run.compress.codec, PayloadCodec::topk);
    EXPECT_EQ(run.compress.keep, 0.02);
    EXPECT_TRUE(run.compress.error_feedback);
    EXPECT_EQ(run.compress.warmup_steps, 7);
    EXPECT_EQ(run.compress.rounding, arith::Rounding::nearest);
}

TEST(Parse, TakesTheGradientCodecThatGoesWithTheMode) {
    EXPECT_EQ(parse_texts("", "").compress.codec, PayloadCodec::dense);
    EXPECT_EQ(parse_texts("mode = \"su+o+c\"\n", "").compress.codec, PayloadCodec::q4);
    EXPECT_EQ(parse_texts("mode = \"su+o+c\"\n[compress]\ncodec = \"dense\"\n", "").compress.codec,
              PayloadCodec::dense);
}

TEST(Parse, LetsTheConfigWinOverTheSiteAndAnOverrideOverBoth) {
    const std::string config = "[csd]\nslots = 4\npath = \"config\"\nsubgroup_tiles = 4\n";
    const std::string site =
        "[site]\nname = \"lab\"\n[csd]\nslots = 5\nper_rank = 5\npath = \"site\"\n";
    const config::RunSettings run = parse_texts(config, site, {"csd.slots=6", "csd.slots=7"});
    EXPECT_EQ(run.csd.slots, 7) << "the last override";
    EXPECT_THAT(run.csd.per_rank, ElementsAre(5)) << "the site";
    EXPECT_THAT(run.csd.path, ElementsAre("config")) << "the config";
    EXPECT_EQ(run.site, "lab");
}

TEST(Parse, NamesASiteWithoutANameAfterItsFolder) {
    EXPECT_EQ(parse_texts("", "[csd]\nslots = 5\n").site, "there");
}

TEST(Parse, ReplacesAListInsteadOfAppendingToIt) {
    const config::RunSettings run =
        parse_texts("csd.path = [\"/a\", \"/b\"]\n", "", {"csd.path=/c"});
    EXPECT_THAT(run.csd.path, ElementsAre("/c"));
}

TEST(Override, TakesTomlOrABareWord) {
    EXPECT_EQ(parse_overrides({"mode=su+o"}).mode, Mode::su_o);
    EXPECT_EQ(parse_overrides({"mode=\"base\""}).mode, Mode::base);
    EXPECT_EQ(parse_overrides({" train.steps = 3 "}).train.steps, 3);
    EXPECT_EQ(parse_overrides({"train.learning_rate=3e-4"}).train.learning_rate, 3e-4);
    EXPECT_THAT(parse_overrides({"csd.path=/tmp/x"}).csd.path, ElementsAre("/tmp/x"));
    EXPECT_THAT(parse_overrides({"csd.path=[/a, /b]"}).csd.path, ElementsAre("/a", "/b"));
    EXPECT_THAT(parse_overrides({"csd.path=[\"/a,b\"]"}).csd.path, ElementsAre("/a,b"));
    EXPECT_THAT(parse_overrides({"csd.per_rank=[2,1]"}).csd.per_rank, ElementsAre(2, 1));
    EXPECT_THAT(parse_overrides({"csd.per_rank=2"}).csd.per_rank, ElementsAre(2));
}

TEST(Override, TakesWhatLooksLikeANumberAsTextWhereTheKeyWantsText) {
    EXPECT_THAT(parse_overrides({"data.train=1984"}).data.train, ElementsAre("1984"));
    EXPECT_THAT(parse_overrides({"csd.path=2024-01-02"}).csd.path, ElementsAre("2024-01-02"));
    EXPECT_EQ(parse_overrides({"checkpoint.path=true"}).checkpoint.path, "true");
}

TEST(Override, KeepsAnEqualsSignAndAHashInThePath) {
    EXPECT_THAT(parse_overrides({"csd.path=/a=b#c"}).csd.path, ElementsAre("/a=b#c"));
}

TEST(CheckpointFolder, IsInTheFirstStateFolderUnlessNamed) {
    EXPECT_EQ(checkpoint_folder(parse_overrides({"csd.path=[/a,/b]"})), "/a/checkpoints");
    EXPECT_EQ(checkpoint_folder(parse_overrides({"checkpoint.path=/c"})), "/c");
}

TEST(ValidateForRanks, SpreadsOneNumberOverAllRanksAndDevices) {
    const config::RunSettings run = parse_overrides({"csd.per_rank=2", "csd.speed=1.5"});
    EXPECT_NO_THROW(validate_for_ranks(run, 3));
    EXPECT_THAT(devices_per_rank(run, 3), ElementsAre(2, 2, 2));
    EXPECT_THAT(device_speeds(run, 2), ElementsAre(1.5, 1.5, 1.5, 1.5));
}

TEST(ValidateForRanks, AllowsUnequalCountsAndARankWithoutDevices) {
    const config::RunSettings run = parse_overrides({"csd.per_rank=[2,0,1]", "csd.speed=[1,2,3]"});
    EXPECT_NO_THROW(validate_for_ranks(run, 3));
    EXPECT_THAT(devices_per_rank(run, 3), ElementsAre(2, 0, 1));
    EXPECT_THAT(device_speeds(run, 3), ElementsAre(1.0, 2.0, 3.0));
}

TEST(ValidateForRanks, GivesOneNumberToStorageRanksAloneAndAListToAnyRank) {
    const config::RunSettings run = parse_overrides({"csd.per_rank=2", "csd.storage_ranks=1"});
    EXPECT_NO_THROW(validate_for_ranks(run, 3));
    EXPECT_EQ(computing_ranks(run, 3), 2);
    EXPECT_THAT(devices_per_rank(run, 3), ElementsAre(0, 0, 2));
    const config::RunSettings mixed =
        parse_overrides({"csd.per_rank=[1,0,2]", "csd.storage_ranks=1"});
    EXPECT_THAT(devices_per_rank(mixed, 3), ElementsAre(1, 0, 2));
}

TEST(Parse, HasAStorageRankForEachStorageHost) {
    const auto storage_ranks = [](std::vector<std::string> overrides) {
        overrides.emplace_back("data.train=text");
        return parse({.site_text = "[hosts]\nnames = [\"a\"]\nstorage = [\"b\", \"c\"]\n",
                      .overrides = std::move(overrides)})
            .csd.storage_ranks;
    };
    EXPECT_EQ(storage_ranks({}), 2);
    EXPECT_EQ(storage_ranks({"csd.storage_ranks=1"}), 1);
}

TEST(ValidateForRanks, CountsSpeedsForDrivesAndNotForMemory) {
    const config::RunSettings run =
        parse_overrides({"csd.per_rank=[1,0,2]", "csd.speed=[1,2,3]", "csd.tiers.memory=0.5"});
    EXPECT_NO_THROW(validate_for_ranks(run, 3));
    EXPECT_THAT(drives_per_rank(run, 3), ElementsAre(1, 0, 2));
    EXPECT_THAT(devices_per_rank(run, 3), ElementsAre(2, 0, 3));
}

// The run whose keys are overridden by those that print() wrote.
RunSettings read_back(const RunSettings& run) {
    Sources sources{.config_path = "other.toml"};
    for (const TomlEntry& entry : read_toml("printed", print(run))) {
        if (!entry.is_section) {
            sources.overrides.push_back(entry.key + '=' + written(entry.value));
        }
    }
    return parse(sources);
}

TEST(Print, KeepsTheWordOfAListOfNumbers) {
    for (const char* word : {"csd.speed=auto", "csd.speed=\"auto\""}) {
        const config::RunSettings run = parse_overrides({word});
        EXPECT_THAT(run.csd.speed, IsEmpty());
        EXPECT_THAT(device_speeds(run, 2), ElementsAre(1.0, 1.0));
        EXPECT_THAT(print(run), HasSubstr("\nspeed = \"auto\"\n"));
        EXPECT_THAT(read_back(run).csd.speed, IsEmpty());
    }
}

TEST(Print, IsReadBackToTheSameRunWithAwkwardValues) {
    config::RunSettings run = parse_texts(R"(
        name = "a \"name\" \\ with quotes"
        mode = "su+o+c"
        data.valid = ["x", "y z"]
        [model]
        architecture = "llama"
        rope_scaling = "{\t\"rope_type\": \"linear\",\n\t\"factor\": 2.0}"
        [train]
        learning_rate = 0.1
        epsilon = 1e-300
        beta1 = 0.30000000000000004
        seed = 12345678901234567
        [csd]
        per_rank = [1, 2]
        path = ["/ä"]
        speed = [0.1, 1e20, 3]
        [compress]
        codec = "topk"
        [checkpoint]
        path = "/elsewhere"
    )",
                                          "[site]\nname = \"lab\"\n");
    const config::RunSettings again = read_back(run);
    EXPECT_EQ(print(again), print(run));
    // The text of what was read is the same, and nothing is lost in it.
    EXPECT_EQ(again.name, run.name);
    EXPECT_EQ(again.site, "lab");
    EXPECT_EQ(again.model.rope_scaling, run.model.rope_scaling);
    EXPECT_EQ(again.train.learning_rate, run.train.learning_rate);
    EXPECT_EQ(again.train.epsilon, run.train.epsilon);
    EXPECT_EQ(again.train.beta1, run.train.beta1);
    EXPECT_EQ(again.csd.path, run.csd.path);
    EXPECT_EQ(again.csd.speed, run.csd.speed);
}

TEST(StoredModel, IsReadWhateverElseAnEarlierVersionWrote) {
    const ModelSettings model =
        stored_model("c",
                     "mode = \"other\"\n[exchange]\nscatter = \"flat\"\n[model]\nlayers = 3\n"
                     "gone = 1\narchitecture = \"llama\"\n[compress]\ncodec = \"sign\"\n");
    EXPECT_EQ(model.layers, 3);
    EXPECT_TRUE(model.is_llama());
    EXPECT_THROW(stored_model("c", "[model]\nheads = 3\n"), ConfigError);
}

TEST(Print, ShowsAnOverriddenValueOfEveryNumberKey) {
    config::RunSettings defaults;
    int changed = 0;
    for (const Key& key : keys_of(defaults)) {
        const auto* integer = std::get_if<int*>(&key.target);
        if (integer == nullptr || key.name == "model.heads" || key.name == "model.width") {
            continue;
        }
        const int step = key.name == "csd.slots" ? 3 : 1;  // 1 and 2 are refused
        const std::string value = std::to_string(**integer + step);
        const std::string printed =
            print(parse_overrides({"model.architecture=llama", key.name + "=" + value}));
        const std::string leaf = key.name.substr(key.name.rfind('.') + 1);
        EXPECT_THAT(printed, HasSubstr("\n" + leaf + " = " + value + "\n"));
        ++changed;
    }
    EXPECT_GE(changed, 7);
}

TEST(EveryConfig, NamesNoPlaceAndIsPrintedAndReadBackTheSame) {
    for (const std::string& config : files_in("configs", ".toml")) {
        SCOPED_TRACE(config);
        const Sources sources = read_sources(config, "", {"data.train=text"});
        const config::RunSettings run = parse(sources);
        const config::RunSettings again = read_back(run);
        EXPECT_EQ(print(again), print(run));
        EXPECT_EQ(again.name, fs::path(config).stem().string());
        EXPECT_NO_THROW(validate_for_ranks(run, 2));
        for (const char* key :
             {"\nper_rank", "\npath", "\nspeed", "\ndevice", "\n[site]", "= \"/"}) {
            EXPECT_THAT(sources.config_text, Not(HasSubstr(key)));
        }
    }
}

TEST(EverySite, ParsesWithEveryConfig) {
    const std::vector<std::string> sites = files_in("cluster", "/site.toml");
    ASSERT_FALSE(sites.empty());
    for (const std::string& site : sites) {
        for (const std::string& config : files_in("configs", ".toml")) {
            const config::RunSettings run = parse(read_sources(config, site, {"data.train=text"}));
            EXPECT_EQ(run.site, fs::path(site).parent_path().filename().string()) << site;
        }
    }
}

TEST(ReadSources, TakesAFolderThatHoldsASite) {
    const Sources sources = read_sources(test::source_file("configs/tiny.toml"),
                                         test::source_file("cluster/localhost"), {"mode=su"});
    EXPECT_EQ(sources.site_path, test::source_file("cluster/localhost/site.toml"));
    EXPECT_THAT(sources.site_text, HasSubstr("per_rank"));
    EXPECT_THAT(sources.overrides, ElementsAre("mode=su"));
}

TEST(ReadSources, TakesAnEmptyFileForOneWithoutKeys) {
    const fs::path path = fs::path(test::kBuildFolder) / "load-test-empty.toml";
    std::ofstream(path).close();
    EXPECT_EQ(read_sources(path.string(), "", {}).config_text, "");
    fs::remove(path);
}

TEST(DescribeKeys, HasOneLinePerKeyWithItsTypeAndDefault) {
    config::RunSettings defaults;
    std::istringstream of_config(describe_keys(KeyTable::config));
    std::istringstream of_site(describe_keys(KeyTable::site));
    std::string line;
    int in_config = 0;
    for (const Key& key : keys_of(defaults)) {
        const bool is_of_site = key.place == KeyPlace::site;
        in_config += is_of_site ? 0 : 1;
        ASSERT_TRUE(std::getline(is_of_site ? of_site : of_config, line));
        EXPECT_EQ(line.rfind(key.name + " ", 0), 0U) << line;
        EXPECT_THAT(line, HasSubstr(type_of(key)));
        EXPECT_THAT(line, HasSubstr(written(key)));
        EXPECT_THAT(line, HasSubstr(key.meaning));
        EXPECT_FALSE(key.meaning.empty()) << key.name;
    }
    EXPECT_FALSE(std::getline(of_config, line)) << line;
    EXPECT_FALSE(std::getline(of_site, line)) << line;
    EXPECT_LE(in_config, 75) << "a key more is one too many";
}

}  // namespace
}  // namespace nearstep::config
