"""nearstep plan on the modelled site: its output is labelled, and its numbers are consistent."""

import json
import re

import program

SITE = ("--site", "cluster/csd-pod")


class Plan(program.Scenario):
    def plan(self, *arguments, config="configs/gpt-7b.toml", site="cluster/csd-pod"):
        """(text, rows) of a plan that must succeed."""
        out = self.folder / "plan.json"
        done = program.succeed(0, "plan", config, "--site", site, *arguments, "--json", out)
        return done.stdout, json.loads(out.read_text())

    def test_everything_is_labelled(self):
        text, rows = self.plan("--nodes", "1,4")
        paragraphs = text.strip().split("\n\n")
        self.assertEqual(len(paragraphs), 4, "a summary, one paragraph per plan, and the legend")
        for paragraph in paragraphs:
            self.assertTrue(paragraph.startswith("modelled"), paragraph)
        for row in rows:
            self.assertEqual(row["origin"], "modelled")
            (verdict,) = (line for line in paragraphs[0].splitlines() if re.search(rf"\b{row['nodes']} nodes?\b", line))
            self.assert_states(verdict, row["binds"])
        for row, paragraph in zip(rows, paragraphs[1:]):
            self.assert_states(paragraph, f"{row['step_s']:.3g} s", f"T_csd {row['terms_s']['T_csd']:.3g} s")
        for symbol in (*rows[0]["terms_s"], "T_opt,n", "T_total,n", "T_param_swap", "B_PCIe", "B_SSD"):
            self.assertIn(f"{symbol} ", paragraphs[-1])

    def test_terms_add_up_and_memories_hold(self):
        _, rows = self.plan("--nodes", "1,8,64", "--csds", "2,10")
        self.assertEqual(
            [(row["nodes"], row["devices"]) for row in rows], [(n, n * c) for n in (1, 8, 64) for c in (2, 10)]
        )
        for row in rows:
            terms = row["terms_s"]
            phases = terms["T_fwd"] + terms["T_bwd"] + terms["T_norm"] + terms["T_opt"] - terms["T_overlap"]
            self.assertAlmostEqual(row["step_s"], phases, delta=1e-9 * phases)
            self.assertAlmostEqual(row["tokens_per_s"] * row["step_s"], 1024 * 2048, delta=1)
            for memory in row["memory_bytes"].values():
                self.assertLessEqual(memory["needed"], memory["available"])
            formula = row["replication"]
            self.assertAlmostEqual(formula["T_total_n"], terms["T_fwd"] + terms["T_bwd"] + formula["T_opt_n"])
            self.assertEqual(row["binds"], max(row["gain_if_twice_as_fast"], key=row["gain_if_twice_as_fast"].get))

    def test_sends_least_of_equals(self):
        """Sums of each micro-batch over two nodes, all hidden behind backward, would send 256 times as much."""
        site = self.folder / "lab"
        site.mkdir()
        (site / "site.toml").write_text(
            "[site]\nname = 'lab'\n[hosts]\nranks = 2\ndevices = 4\n"
            "[link]\ndevice_read_gb_s = 6.8\ndevice_write_gb_s = 4.0\nhost_gb_s = 25\nnetwork_gb_s = 3.0\n"
            "[plan]\ngpu_tflops = 165\ngpu_memory_gb = 24\ngpu_link_gb_s = 25\nhost_memory_gb = 256\n"
            "device_memory_gb = 8\ndevice_capacity_gb = 1920\n"
        )
        text, [row] = self.plan("--nodes", "2", config="configs/llama-7b.toml", site=site)
        sent = float(re.search(r"network gradients ([\d.e+]+) ", text)[1])
        self.assertLess(sent, 10, text)
        for other in row["alternatives"]:
            self.assertGreater(other.get("slower", 0), -0.01, "within 1 % of the fastest")

    def test_parameters_in_storage_are_those_computed_by_hand(self):
        """70e9 parameters, one GPU of 80 GB, 128 GB of host memory, 4 drives of 6.8 and 2.8 GB/s, 131,072 tokens a
        step.
        """
        text, [row] = self.plan(config="configs/llama-70b.toml", site="cluster/one-gpu")
        self.assertEqual(row["choice"]["home"], "storage")
        self.assertEqual(row["binds"], "GPU")
        parameters, tokens, layers, width, context = row["parameters"], 131072, 80, 8192, 4096
        self.assertAlmostEqual(parameters / 1e9, 70.6, delta=0.1)
        gpu = 989e12 * 0.54
        # Forward, the same again in backward, and backward itself; an embedding is looked up.
        seconds = tokens * 8 * (parameters - 128256 * width + 2 * layers * context * width) / gpu
        self.assertAlmostEqual(row["step_s"] / seconds, 1, delta=0.01)
        self.assertAlmostEqual(row["tokens_per_s"] / (gpu / 8 / 70e9), 1, delta=0.07, msg="about 950 without attention")
        # Compact state, and the inputs of 80 layers and the head that half of the host's 88 GB does not hold.
        inputs = tokens * width * 2 * (layers + 1) - 44e9
        written = (4.03125 * parameters + inputs) / 4
        self.assertAlmostEqual(row["written_bytes_per_step_and_drive"] / written, 1, delta=0.01)
        self.assertAlmostEqual(row["days_to_rated_tbw"] / (7008e12 / written * seconds / 86400), 1, delta=0.02)
        self.assert_states(text, "7.0 PB")
        read = {"T_fwd_load": 2 * parameters, "T_bwd_load": 2 * parameters + inputs}
        for term, read_bytes in read.items():
            others = {"T_fwd_load": inputs / (4 * 2.8e9), "T_bwd_load": (2 * parameters + inputs + 44e9) / 50e9}
            self.assertAlmostEqual(row["terms_s"][term] / max(read_bytes / (4 * 6.8e9), others[term]), 1, delta=0.01)
        self.assertLess(max(row["terms_s"]["T_csd"], row["terms_s"]["T_fwd_load"]), row["terms_s"]["T_fwd_gpu"])

    def test_scaling(self):
        text, rows = self.plan("--nodes", "1,256")
        self.assert_states(rows[1]["refused"], "1024 sequences", "2048 GPUs")
        self.assert_states(text, rows[1]["refused"])
        _, rows = self.plan("--nodes", "1,256", "--scaling", "weak")
        self.assertEqual([row["sequences"] for row in rows], [1024, 256 * 1024])

    def test_only_what_trains_is_searched_if_asked(self):
        _, rows = self.plan("--nodes", "8", "--trained", "--set", "placement.parameters=node")
        choice = rows[0]["choice"]
        self.assertEqual(
            [choice[field] for field in ("parameters", "home", "order")],
            ["node", "host", "by block"],
        )
        self.assertIn(choice["optimizer"], ("node", "global"))
        self.assertIn(choice["owner"], ("raw", "dense"))

    def test_the_settings_are_the_whole_plan(self):
        _, config, *rest = self.arguments(train__steps=2, train__global_batch=8, train__micro_batch=2)
        nodes = ("--set", "hosts.ranks=2", "--set", "hosts.devices=2")
        text, [row] = self.plan(*rest, *nodes, "--trained", "--codecs", "q8", config=config)
        (line,) = re.findall(r"^    settings: (--set .*)$", text, re.MULTILINE)
        self.assertEqual(row["settings"], line)
        self.assertNotIn("csd.slots", line, "with a number, devices keep nothing and read nothing ahead")
        pasted = line.split()
        _, [again] = self.plan(*rest, *nodes, "--trained", "--codecs", "q8", *pasted, config=config)
        self.assertEqual((again["choice"], again["settings"]), (row["choice"], line))
        program.succeed(2, "train", config, *SITE, *rest, *pasted)
        # A run that leaves placements to the planner takes the same plan.
        free = [word for word in pasted if word != "--set" and not word.startswith("placement.")]
        settings = [word for setting in free for word in ("--set", setting)]
        done = program.succeed(2, "train", config, *SITE, *rest, *settings, "--set", f"csd.path={self.folder / 'auto'}")
        (why,) = re.findall(r"^    why: (.*)", text, re.MULTILINE)
        self.assertIn("placement auto, modelled: " + why.partition(" The best other")[0], done.stdout)

    def test_what_the_run_says_of_sums_at_owners_is_kept(self):
        for codec in ("dense", "q8"):
            for said in ("always", "never"):
                sums = ("--codecs", codec, "--set", f"exchange.densify={said}")
                _, rows = self.plan("--nodes", "1,2", "--trained", *sums)
                for row in rows:
                    self.assertIn(f"exchange.densify={said}", row["settings"])

    def test_plain_plans_are_those_of_the_best_client(self):
        _, [plain, _] = self.plan("--nodes", "8,1", config="configs/llama-7b.toml")
        self.assertEqual((plain["client"], plain["choice"]["kept"]), ("Python", "all"))
        choice = self.folder / "devices.toml"
        choice.write_text('name = "devices"\nstate = "devices"\n')
        _, [named] = self.plan("--nodes", "8", "--choice", choice, config="configs/llama-7b.toml")
        self.assertEqual(named["choice"], plain["choice"])
        _, [trained] = self.plan("--nodes", "8", "--trained", config="configs/llama-7b.toml")
        self.assertEqual(round(plain["tokens_per_s"]), 193461)
        self.assertEqual((trained["client"], trained["choice"]["kept"]), ("nearstep train", "as many as fit"))
        # The Python plan is a call that compiles, for what the table of clients says.
        call, _, others = plain["settings"].partition(", on 64 ranks")
        compile(call, "pasted", "eval")
        self.assertIn("accumulation=16", call)
        self.assertIn("= 1", others)

    def test_a_measured_device_takes_the_place_of_the_sites(self):
        rates = self.folder / "rates.json"
        line = {"bench": "csd", "row": "durable.fp32", "state": "fp32", "mparam_s": {"median": 15.0}}
        rates.write_text(json.dumps(line) + "\n")
        text, rows = self.plan("--nodes", "1", "--calibrate", rates)
        self.assert_states(text, "durable.fp32", "15 Mparam/s")
        self.assertAlmostEqual(
            rows[0]["terms_s"]["T_csd"] * 15e6, rows[0]["parameters"] / 10, delta=2e-3 * rows[0]["parameters"]
        )
        _, again = self.plan("--nodes", "1", "--set", f"plan.calibration={rates}")
        self.assertEqual(again[0]["terms_s"], rows[0]["terms_s"])
        other = json.dumps({**line, "row": "durable.q8", "state": "q8"})
        for content, sentence in (("", rates), ("x", rates), (other, "csd.state")):
            rates.write_text(content)
            done = program.run(0, "plan", "configs/gpt-7b.toml", *SITE, "--calibrate", rates)
            self.assert_refusal(done, sentence)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)

    def bench_network(self, ranks, *options):
        """(file, rows) of a benchmark that must succeed."""
        out = self.folder / "network.json"
        program.succeed(ranks, "bench", "network", "--rounds", 2, "--most-bytes", 1 << 16, *options, "--json", out)
        return out, [json.loads(line) for line in out.read_text().splitlines()]

    def test_a_measured_network_takes_the_place_of_the_sites(self):
        rates, rows = self.bench_network(4, "--ranks-per-node", 2)
        sizes = [row for row in rows if "message_bytes" in row and "from" not in row]
        fits = {row["nodes"]: row for row in rows if "latency_us" in row}
        self.assertEqual(
            [(row["nodes"], row["message_bytes"]) for row in sizes],
            [(nodes, size) for nodes in (1, 2) for size in (1 << 12, 1 << 14, 1 << 16)],
        )
        self.assertEqual(sorted(fits), [1, 2])
        for row in sizes:
            self.assertTrue(row["verified"])
            self.assertEqual(row["sent_bytes"], row["message_bytes"] * row["nodes"])  # 1 message a rank, 2 ranks a node
            self.assertAlmostEqual(
                row["gb_s"] * row["us"]["median"] * 1e3, row["sent_bytes"], delta=1e-6 * row["sent_bytes"]
            )
        text, rows = self.plan(
            "--nodes",
            "1,16",
            "--trained",
            "--set",
            "placement.parameters=node",
            "--set",
            "placement.optimizer=global",
            "--calibrate",
            rates,
        )
        self.assertIn(f"2 nodes, fit, {fits[2]['gb_s']:.3g}"[:-1], text)
        self.assertIn(f"inside, fit, {fits[1]['gb_s']:.3g}"[:-1], text)
        bytes_sent = {"delta": 0.35, "dense": 2}[rows[1]["choice"]["gather"]] * rows[1]["parameters"] * 15 / 16
        self.assertGreaterEqual(rows[1]["terms_s"]["T_gather"], 0.999 * bytes_sent / min(fits[2]["gb_s"] * 1e9, 25e9))
        # A file with both kinds of rows calibrates both.
        line = {"bench": "csd", "row": "durable.fp32", "state": "fp32", "mparam_s": {"median": 15.0}}
        rates.write_text(rates.read_text() + json.dumps(line) + "\n")
        text, _ = self.plan("--nodes", "16", "--calibrate", rates)
        self.assert_states(text, "row durable.fp32", "row 2 nodes, fit", "row inside, fit")

    def test_what_the_network_bench_cannot_do_is_refused(self):
        for ranks, options, sentence in (
            (0, (), "One rank"),
            (2, ("--least-bytes", 8192, "--most-bytes", 4096), "--most-bytes"),
            (2, ("--json", "/nowhere/x"), "/nowhere/x"),
        ):
            self.assert_refusal(program.run(ranks, "bench", "network", *options), sentence)

    def test_a_run_prints_what_the_measured_network_let_expect(self):
        rates, rows = self.bench_network(2, "--ranks-per-node", 1)
        arguments = self.arguments(train__steps=2, exchange__ranks_per_node=1, plan__calibration=f'"{rates}"')
        done = program.succeed(2, *arguments, "--traffic", "--json", self.folder / "run.json")
        fit = rows[-1]
        self.assertIn(f"2 nodes, fit, {fit['gb_s']:.4g}"[:-1], done.stdout)
        summary = json.loads((self.folder / "run.json").read_text())
        self.assertEqual(len(summary["modelled_s"]["calibration"]), 1)
        # A node sends half of the new parameters, 2 bytes each, in one message per subgroup of a device.
        tiles = -(-summary["parameters"] // 65536)
        expected = tiles * 65536 / (fit["gb_s"] * 1e9) + tiles / 2 * fit["latency_us"] * 1e-6
        self.assertAlmostEqual(summary["modelled_s"]["update"], expected, delta=1e-3 * expected)

    def test_a_run_takes_the_planners_placement_and_prints_what_it_let_expect(self):
        arguments = self.arguments(train__steps=3, placement__parameters="auto", placement__optimizer="auto")
        done = program.succeed(2, *arguments, *SITE, "--traffic", "--json", self.folder / "auto.json")
        automatic = json.loads((self.folder / "auto.json").read_text())
        self.assert_states(done.stdout, "placement auto", f"{automatic['modelled_s']['update']:.4g} s")
        self.assertGreater(automatic["modelled_s"]["update"], 0)
        self.assertGreaterEqual(automatic["phases_s"]["update"], 0.99 * automatic["modelled_s"]["update"])
        plain = self.train(train__steps=3, state="other")
        self.assert_same_bits(automatic, plain)
        self.assertNotIn("modelled_s", plain)

    def test_tiers_are_proposed_where_they_shorten_the_step(self):
        small = ("--nodes", "1", "--trained", "--set", "train.global_batch=8", "--set", "csd.durability=checkpoint")
        text, [row] = self.plan(*small)
        held = row["tiers_bytes_of_rank"]
        self.assertGreater(min(held.values()), 0, "each tier takes a part")
        # Links of emulated rates keep two generations outside of the GPU.
        once = (held["gpu"] + (held["memory"] + held["drives"]) / 2) * 8
        self.assertAlmostEqual(once / (12 * row["parameters"]), 1, delta=1e-3)
        self.assertRegex(text, r" \S+ .B [^;]*\(T_gpu \S+ s\) [^;]* \S+ .B [^;]*\(T_memory \S+ s\) [^;]* \S+ .B ")
        # The settings of the tiers give the same plan.
        settings = [word for word in text.split() if word.startswith("csd.tiers.")]
        self.assertEqual(len(settings), 2)
        _, [again] = self.plan(*small, *(word for setting in settings for word in ("--set", setting)))
        self.assertAlmostEqual(again["step_s"] / row["step_s"], 1, delta=1e-3)
        # Every step is durable on drives alone; the plan says what that costs.
        text, [drives] = self.plan(*small[:-2])
        self.assertEqual(drives["choice"]["tiers"], "drives")
        self.assertRegex(text, r" tiers = [^:]+: -\S+ %.* csd.durability .*csd.tiers ")
        self.assertLess(row["step_s"], drives["step_s"])
        # A step that hides the update keeps its state on drives.
        _, [large] = self.plan("--nodes", "1", "--trained", "--set", "csd.durability=checkpoint")
        self.assertEqual(large["choice"]["tiers"], "drives")

    def test_a_run_takes_of_automatic_tiers_what_the_planner_takes(self):
        keys = {
            "train__steps": 2,
            "train__global_batch": 2,
            "csd__tiers__memory": '"auto"',
            "csd__tiers__gpu": '"auto"',
        }
        done = program.succeed(2, *self.arguments(state="tiers", **keys), *SITE, "--json", self.folder / "tiers.json")
        (planned,) = re.findall(r"(\S+ .B)[^;,+]* \(T_memory \S+ s\)", done.stdout)
        (taken,) = re.findall(r"state in memory: (\S+ .B) of a rank", done.stdout)
        self.assertAlmostEqual(
            float(taken.split()[0]) / float(planned.split()[0]), 1, delta=0.3, msg=f"whole tiles: {taken}, {planned}"
        )
        self.assertNotIn("state in GPU memory", done.stdout)
        plain = self.train(train__steps=2, train__global_batch=2, state="plain")
        self.assert_same_bits(json.loads((self.folder / "tiers.json").read_text()), plain)

    def test_a_run_with_drives_on_both_kinds_of_nodes_takes_the_planners_tiers(self):
        keys = {
            "train__steps": 3,
            "train__global_batch": 2,
            "exchange__ranks_per_node": 1,
            "csd__tiers__memory": '"auto"',
            "csd__storage_ranks": 1,
            "csd__per_rank": "[1,1,2]",
            "csd__durability": '"checkpoint"',
        }
        done = program.succeed(3, *self.arguments(state="both", **keys), *SITE, "--json", self.folder / "both.json")
        self.assertRegex(done.stdout, r"\(T_memory \S+ s\)")
        self.assertIn("/dev/shm/", done.stdout)
        plain = self.train(train__steps=3, train__global_batch=2, exchange__ranks_per_node=1, state="plain")
        self.assert_same_bits(json.loads((self.folder / "both.json").read_text()), plain)

    def test_start_check_and_plan_say_the_same_of_logs_on_a_drive(self):
        keys = {"csd__log": f'["{self.folder}/logs"]', "csd__state": '"compact"', "compress__codec": '"q4"'}
        words = self.arguments(state="logged", mode='"su+o+c"', **keys)
        said = (
            r"a device keeps \S+ MB of state in memory and has 16 logs of \S+ kB; "
            r"a step writes one of them and \S+ kB of the state, so that a restart repeats at most 16"
        )
        started = program.succeed(1, *words, "--set", "train.steps=1").stdout
        (line,) = re.findall(rf"drive: .*each step writes .*{said} steps", started)
        for command in (["preflight", *words[1:], "--ranks", 1], ["doctor", *words[1:]]):
            checked = program.succeed(0, *command).stdout
            self.assertIn(re.sub(r" of \S+ \S+ free", "", line), re.sub(r" of \S+ \S+ free", "", checked))
        asked = ("--set", f"csd.log={keys['csd__log']}", "--set", "csd.state=compact", "--csds", 1)
        one = ("--set", "csd.subgroup_tiles=1", "--set", "hosts.ranks=1", "--codecs", "q4", "--trained")
        text, [row] = self.plan(*asked, *one, config="configs/tiny.toml", site="cluster/one-gpu")
        logs = r"has 16 logs of \S+ kB;"
        self.assertEqual(re.search(logs, text)[0], re.search(logs, line)[0], "subgroups and their pages may differ")
        self.assertEqual(row["logs"]["count"], 16)
        self.assertGreater(row["days_to_rated_tbw"], 0)
        _, [other] = self.plan(*asked[2:], *one, config="configs/tiny.toml", site="cluster/one-gpu")
        self.assertLess(row["written_bytes_per_step_and_drive"], other["written_bytes_per_step_and_drive"] / 3)

    def test_what_does_not_fit_is_named(self):
        out = self.folder / "plan.json"
        asked = ("--set", "plan.device_capacity_gb=10", "--json", out)
        done = program.run(0, "plan", "configs/gpt-7b.toml", *SITE, *asked)
        self.assertEqual(done.returncode, 2)
        refused = json.loads(out.read_text())[0]["refused"]
        self.assertRegex(refused, r"\b1[67] GB\b.*\b10 GB\b")
        self.assertIn(refused, done.stdout)
        self.assert_states(done.stderr, "no plan", refused)


class Suggest(program.Scenario):
    HAND = ("--gpu-tflops", 165, "--gpu-memory-gb", 24, "--host-memory-gb", 128, "--host-memory-gb-s", 60)
    DRIVE = ("--drive-gb-s", 4, "--drive-gb", 1000, "--rated-tbw", 600)

    def suggest(self, *arguments):
        """(text, ways)"""
        out = self.folder / "ways.json"
        done = program.succeed(0, "suggest", *arguments, "--json", out)
        return done.stdout, json.loads(out.read_text())

    def test_a_machine_by_hand_gets_three_ways_with_their_lines(self):
        text, ways = self.suggest("7B", *self.HAND, *self.DRIVE)
        self.assertEqual(len(ways), 3)
        speeds = [way["tokens_per_s"] for way in ways]
        self.assertEqual(speeds, sorted(speeds, reverse=True))
        self.assertEqual([way["python"].count("stream=nearstep.Stream(") for way in ways], [1, 1, 1])
        self.assertEqual([way["python"].count("peft") for way in ways[1:]], [0, 0])
        self.assertIn("host_memory_gb=102", ways[2]["python"])
        for number, way in enumerate(ways, 1):
            compile(way["python"], "pasted", "exec")
            self.assert_states(text, f"{number}. {way['way']}: {round(way['tokens_per_s'])} tokens/s")
            self.assertLessEqual(way["gpu_bytes"], 24e9)
        self.assertRegex(text, r"600 TB that the drive still bears last \S+ days")

    def test_logs_on_a_drive_are_a_way_where_memory_suffices(self):
        drive = ("--drive-gb-s", 1, "--drive-gb", 1000, "--rated-tbw", 600)
        text, ways = self.suggest("1.5e9", *self.HAND, *drive)
        (logged,) = (way for way in ways if way["logs"] and "LoRA" not in way["way"] and "streamed" not in way["way"])
        self.assert_states(text, f"{logged['way']}: {round(logged['tokens_per_s'])} tokens/s")
        self.assertEqual(logged["logs"]["count"], 16)
        self.assertRegex(logged["python"], r'path="(\S+)", log="\1"')
        self.assertLess(logged["written_bytes_per_step"], 3 * 1.5e9)
        self.assertGreater(logged["host_bytes"], logged["logs"]["memory_bytes"])

    def test_this_machine_is_measured_and_a_model_is_read_from_its_config(self):
        (self.folder / "config.json").write_text(
            json.dumps(
                {
                    "model_type": "mistral",
                    "num_hidden_layers": 2,
                    "hidden_size": 64,
                    "intermediate_size": 128,
                    "num_attention_heads": 4,
                    "num_key_value_heads": 2,
                    "vocab_size": 256,
                    "max_position_embeddings": 64,
                }
            )
        )
        text, ways = self.suggest(self.folder, "--path", self.folder / "state", "--tokens", 512)
        self.assertIn("in 2 layers of width 64; a step of 8 rows of 64 tokens", text)
        self.assertIn(json.dumps(str(self.folder)), ways[0]["python"])
        self.assertEqual(
            [one.name for one in self.folder.iterdir() if one.is_dir()], [], "what was measured is removed"
        )

    def test_what_is_no_model_or_fits_nowhere_is_a_sentence(self):
        (self.folder / "config.json").write_text('{"num_hidden_layers": 2}')
        (self.folder / "experts.json").write_text('{"num_local_experts": 8}')
        sizes = {"hidden_size": 64, "num_attention_heads": 4, "vocab_size": 256, "num_hidden_layers": 1 << 24}
        (self.folder / "vast.json").write_text(json.dumps(sizes))
        for words, said in (
            (["there/is/none"], "cannot be opened"),
            ([self.folder], "has no hidden_size"),
            ([self.folder / "experts.json"], "has experts"),
            ([self.folder / "vast.json"], "more layers"),
            (["7e9", "--gpu-tflops", 165], "--gpu-memory-gb"),
            (["7e9", "--gpu-tflops", "nan"], "nan is no number from"),
            (["7e9", "--path", ""], "--path: name something"),
            (["7e10", *self.HAND, "--drive-gb-s", 4, "--drive-gb", 10], "No way to train this model fits"),
        ):
            done = program.run(0, "suggest", *words)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(said, done.stderr)
            self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)


if __name__ == "__main__":
    program.main()
