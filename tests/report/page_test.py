"""The page of `nearstep report`: what it shows, and what it makes of files that anybody may have edited."""

import contextlib
import io
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import unittest

import results
import verdict
from nearstep_report import _findings as findings
from nearstep_report import main
from nearstep_report._command import _inside
from nearstep_report._drawing import MOST_POINTS, Drawer, Line
from nearstep_report._files import Metrics
from nearstep_report._page import make_page
from nearstep_report._runs import pair
from nearstep_report._studies import studies_of
from nearstep_output import Mistake


def page_of(contents, metrics=None):
    ignored = []
    studies = studies_of(contents, metrics or {}, ignored)
    return make_page("some/folder", studies, ignored)


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="nearstep-report-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def call(self, *arguments):
        """(code, stdout, stderr) of the command."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([str(word) for word in arguments])
        return code, out.getvalue(), err.getvalue()


class Page(InFolder):
    def test_shows_all_results_and_where_each_number_comes_from(self):
        results.write_all(self.folder)
        code, said, _ = self.call(self.folder)
        self.assertEqual((code, said), (0, f"report of 7 studies: {self.folder}/report.html\n"))
        page = (self.folder / "report.html").read_text()
        for title in (
            "What bounds a step, and what to add next",
            "Training",
            "What was busy (--trace)",
            "Bytes on the links",
            "Wear of the drives",
            "Modes side by side (nearstep compare)",
            "Plans (nearstep plan)",
            "A &lt;title&gt;",
            "Not read",
            "<li>a note</li>",
            "<li>other.json</li>",
            "a step takes at least 0.5 s, which storage bounds; the run reached 62 % of that speed.",
        ):
            self.assertIn(title, page)
        for cell in (
            'measured">2.00',
            'modelled">1.80',
            'shaped">1.50',
            'simulated">1.20',
            'published">1.00',
            'modelled">941',
        ):
            self.assertIn(f'<td class="{cell}</td>', page)
        for mark in (
            "su+o, measured: n 2, 4",
            "su+o, modelled: n 2, 1.8",
            "ours, shaped: n 1, 4.243",
            "torus, simulated: n 8, 1.2",
            "base, 1 devices, shaped: update 8",
            "su+o compact, shaped: devices 4, 3.167",
            "su+o compact, modelled: devices 4, 3.11",
            "scale 0.025",
            "host link, modelled: gradients 2",
        ):
            self.assertIn(mark, page)
        self.assertEqual(len(re.findall('<svg viewBox|<svg [^>]*viewBox="0 0 360', page)) > 10, True)
        self.assertLess(len(page), 400_000)

    def test_a_run_on_several_hosts_has_a_row_for_each(self):
        host = {
            "ranks": 2,
            "network_sent_bytes": 3e9,
            "slow_computed": 0,
            "slow_devices": 0,
            "slow_drives": 0,
            "slow_nccl": 0,
            "slow_sender": 0,
        }
        hosts = [{**host, "host": "node1"}, {**host, "host": "node2", "slow_sender": 17}]
        page = page_of({"run.json": results.summary(hosts=hosts)})
        self.assertRegex(page, r"(?s)Hosts.*node1.*3 GB.*node2.*3 GB.*17")
        self.assertNotIn("Hosts", page_of({"run.json": results.summary(hosts=hosts[:1])}))
        self.assertNotIn("Hosts", page_of({"run.json": results.summary(hosts="node1")}))

    def test_one_number_of_devices_is_no_plot_and_no_note_names_what_is_absent(self):
        (study,) = [
            one for one in studies_of({"compare.json": results.compare()[:1]}, {}, []) if one.title.startswith("Modes")
        ]
        self.assertEqual([chart.title for chart in study.charts], ["Phases of a step"])
        one = [{**run, "predicted_s": {}} for run in results.compare()[:1]]
        self.assertNotIn("Below:", page_of({"compare.json": one}))

    def test_loads_nothing(self):
        results.write_all(self.folder)
        self.call(self.folder)
        page = (self.folder / "report.html").read_text()
        for word in ("<script", "<link", "<img", "src=", "@import", "http-equiv"):
            self.assertNotIn(word, page)
        self.assertEqual(re.findall(r"url\((?!#)", page), [])
        ids = re.findall(r'\bid="([^"]+)"', page)
        self.assertEqual(len(ids), len(set(ids)))
        for used in re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', page):
            self.assertIn("".join(used), ids)

    def test_takes_files_and_joins_a_summary_with_its_metrics(self):
        results.write_all(self.folder)
        out = self.folder / "one.html"
        code, _, err = self.call(self.folder / "run.json", self.folder / "steps.jsonl", "--out", out)
        self.assertEqual((code, err), (0, ""))
        page = out.read_text()
        self.assertIn("<dt>training loss</dt><dd>2.2500</dd>", page)
        self.assertIn("<dt>step</dt><dd>3 of 3</dd>", page)
        self.assertIn("Seconds of each step", page)
        runs = pair(
            {"a.json": results.summary(), "b.json": results.summary(losses=(9, 8, 7))},
            {"steps.jsonl": Metrics(self.folder / "steps.jsonl")},
        )
        self.assertEqual([bool(run.metrics) for run in runs], [False, False, True])
        metrics = Metrics(self.folder / "steps.jsonl")
        metrics.read()
        self.assertEqual(
            [
                bool(run.metrics)
                for run in pair(
                    {"b.json": results.summary(losses=(9, 8, 7)), "a.json": results.summary()}, {"s": metrics}
                )
            ],
            [False, True],
        )

    def test_bears_values_of_other_types(self):
        """Users may edit the files, so any value may have another type."""
        wrongs = (None, 3, "text", [1, "x", None], {"k": 1}, [{}], 1e300)
        for whole in (results.experiment(), results.compare()[:1], results.plans()[:1], results.summary()):
            for place, key in enumerate(whole[0] if isinstance(whole, list) else whole):
                for wrong in wrongs if "NEARSTEP_LONG" in os.environ else (wrongs[place % 7],):
                    broken = json.loads(json.dumps(whole))
                    (broken[0] if isinstance(broken, list) else broken)[key] = wrong
                    self.assertTrue(page_of({"x.json": broken}).endswith("</html>"), (key, wrong))

    def test_bears_any_change_of_a_byte(self):
        """Random changes of the files' text: a page or one sentence, whatever they are."""
        results.write_all(self.folder)
        names = ("run.json", "compare.json", "plan.json", "experiment.json", "steps.jsonl")
        texts = {name: (self.folder / name).read_bytes() for name in names}
        dice = random.Random(1)
        for _ in range(2000 if "NEARSTEP_LONG" in os.environ else 40):
            name = dice.choice(names)
            changed = bytearray(texts[name])
            for _ in range(dice.randint(1, 8)):
                place = dice.randrange(len(changed))
                changed[place : place + dice.randint(0, 3)] = dice.choice(
                    (b"9", b"-", b"e9", b"null", b"[]", b"{", b'"', b"\\u0001", b"\xff", b"NaN", b"1e999", b"$", b"")
                )
            (self.folder / name).write_bytes(changed)
            code, said, err = self.call(self.folder / name)
            self.assertIn((code, len(err.splitlines())), ((0, 0), (2, 1)), bytes(changed))

    def test_mistakes_are_one_sentence_and_code_2(self):
        results.write_all(self.folder)
        files = {
            "torn.json": '{"kind": "near',
            "deep.json": "[" * 200_000,
            "text.jsonl": "hello\n",
            "torn.jsonl": '{"step": 1}\nhello\n',
            "digits.json": "1" * 5000,
        }
        for name, content in files.items():
            (self.folder / name).write_text(content)
        (self.folder / "empty").mkdir()
        cases = (
            ([], "Name a folder or files"),
            ([self.folder / "nowhere"], "There is no folder or file"),
            ([self.folder / "torn.json"], "is not JSON"),
            ([self.folder / "deep.json"], "is not JSON"),
            ([self.folder / "digits.json"], "is not JSON"),
            ([self.folder / "text.jsonl"], "is not JSON"),
            ([self.folder / "torn.jsonl"], "Line 2 of"),
            ([self.folder / "empty"], "has no result of nearstep"),
            ([self.folder / "other.json"], "is not a result of nearstep"),
            ([self.folder, "--out", self.folder / "no/page.html"], "cannot be written"),
            ([self.folder, "--out", self.folder], "cannot be written"),
            (["--follow", self.folder / "nowhere"], "cannot be read"),
            (["--follow", self.folder / "empty"], "has no metrics file"),
            (["--follow", "x", "y"], "takes one run"),
            (["--follow", self.folder / "steps.jsonl", "--every", "0"], "--every is 0"),
            ([self.folder, "--nonsense"], "nonsense"),
            ([self.folder, "--every", "x"], "--every"),
        )
        for arguments, sentence in cases:
            code, _, err = self.call(*arguments)
            self.assertEqual(code, 2, (arguments, err))
            self.assertIn(sentence, err)
            self.assertEqual(len(err.splitlines()), 1, err)
        code, _, _ = self.call(self.folder)  # in a folder such files are listed
        self.assertEqual(code, 0)
        self.assertIn("<li>torn.json</li>", (self.folder / "report.html").read_text())

    def test_a_missing_package_is_named(self):
        results.write_all(self.folder)
        for absent, arguments in (
            ("jinja2", []),
            ("matplotlib", []),
            ("tensorboard", ["--tensorboard", str(self.folder / "board")]),
        ):
            done = subprocess.run(
                [
                    sys.executable,
                    "-c",
                    f"import sys; sys.modules['{absent}'] = None; import nearstep_report; "
                    "sys.exit(nearstep_report.main())",
                    self.folder,
                    *arguments,
                ],
                env=dict(os.environ, PYTHONPATH=str(results.ROOT / "python")),
                capture_output=True,
                text=True,
            )
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertRegex(
                done.stderr,
                f"^nearstep report: The package {absent}[^\n]* is not installed: type pip install "
                f"[^\n]*{absent}[^\n]*\n$",
            )


class Charts(unittest.TestCase):
    def test_are_left_out_without_points(self):
        for points in ([], [(0, 1), (1, -1)], [(1, float("nan")), (None, 1), ("x", 2), (True, 2), (1e300, 1)]):
            self.assertIsNone(Drawer().lines("t", "x", "y", [Line("l", "measured", points)], is_log=True))

    def test_put_greater_values_further_right_and_higher(self):
        for is_log in (False, True):
            svg = Drawer().lines("t", "x", "y", [Line("l", "measured", [(1, 1), (3, 5)])], is_log).svg
            places = [
                tuple(map(float, pair)) for pair in re.findall(r'<use [^>]*x="([\d.]+)" y="([\d.]+)"[^>]*><title>', svg)
            ]
            self.assertEqual(len(places), 2)
            self.assertLess(places[0][0], places[1][0])
            self.assertGreater(places[0][1], places[1][1])

    def test_count_steps_and_devices_in_whole_numbers(self):
        for points in ([(1, 5.2)], [(1, 5.2), (3, 5.1)], [(4, 4.5), (4, 4.8)]):
            svg = Drawer().lines("t", "step", "y", [Line("l", "measured", points)]).svg
            ticks = re.search(r'id="[^"]*matplotlib.axis_1".*?id="[^"]*matplotlib.axis_2"', svg, re.DOTALL)[0]
            numbers = re.findall(r">\s*([\d.]+)\s*<", ticks)
            self.assertIn(str(points[0][0]), numbers)
            self.assertEqual([number for number in numbers if "." in number], [])

    def test_stay_small_for_any_values(self):
        for points in (
            [(1e16, 1), (1e16 + 2, 2)],
            [(4, 4)],
            [(-1e29, 1e-300), (1e29, 1e29)],
            [(i, i % 7) for i in range(100_000)],
        ):
            chart = Drawer().lines("$x^$", "{", "y", [Line("a_{$\u6f22", "measured", points)])
            self.assertLess(len(chart.svg), 20 * MOST_POINTS + 20_000)
            self.assertNotIn("nan", chart.svg)
        self.assertEqual(chart.note, "Each point is the mean of 250 steps.")


def step(column, devices, forward, backward, update, **more):
    return {
        "origin": "measured",
        "column": column,
        "devices": devices,
        "forward_s": forward,
        "backward_s": backward,
        "update_s": update,
        "step_s": forward + backward + update,
        **more,
    }


class Findings(unittest.TestCase):
    def sentences(self, found):
        return [sentence for _, sentence in found]

    def test_say_what_takes_most_and_whether_another_device_pays(self):
        rows = [
            step("su+o", 4, 1, 1, 4),
            step("su+o", 2, 1, 1, 8),
            step("base", 2, 1, 1, 9),
            step("base", 4, 1, 1, 8.9),
            step("ours", 4, 1, 3, 0.5),
            step("ours", 2, 1, 3, 1),
            step("shaped", 1, 1, 1, 4, origin="shaped", modelled_update_s=3, ranks=2),
        ]
        found = findings.of_steps(rows)
        self.assertEqual(
            found[0],
            (
                "measured",
                "su+o with 4 devices: the update takes 67 % of a step of 6 s; the last 2 devices shortened it by 40 "
                "%. The next device still pays.",
            ),
        )
        self.assertIn("More devices bring no more here.", found[1][1])
        self.assertIn("Compute and gradients now take most", found[2][1])
        self.assertEqual(
            found[3],
            (
                "shaped",
                "shaped with 1 device and 2 ranks: the update takes 67 % of a step of 6 s; the rates of its links "
                "explain 75 % of the update (modelled).",
            ),
        )

    def test_leave_out_what_was_not_measured(self):
        self.assertEqual(findings.of_steps([step("su+o", 1, 1, 1, 1, origin="modelled"), {"column": "su"}]), [])

    def test_tell_topologies_and_nodes_apart(self):
        rows = [
            step("ours", 12, 1, 1, 2, gpu_traffic="apart"),
            step("ours", 12, 1, 1, 2, gpu_traffic="whole", ranks=3),
            step("", 8, 1, 1, 2, series="ours: 2 nodes, more CSDs"),
        ]
        starts = (
            "ours, GPU traffic apart, with 12 devices: the update takes 50 %",
            "ours, GPU traffic whole, with 12 devices and 3 ranks: the update",
            "ours: 2 nodes, more CSDs with 8 devices: the update takes",
        )
        for sentence, start in zip(self.sentences(findings.of_steps(rows)), starts, strict=True):
            self.assertTrue(sentence.startswith(start), sentence)

    def test_say_which_number_of_devices_is_cheapest(self):
        rows = [
            step("ours", 4, 1, 1, 2, relative_cost=0.2),
            step("ours", 8, 1, 1, 1, relative_cost=0.1),
            step("ours", 10, 1, 1, 0.9, relative_cost=0.125),
        ]
        self.assertEqual(
            self.sentences(findings.of_steps(rows)),
            [
                "ours: of 3 numbers of devices 8 give the cheapest step, relative cost 0.1. Devices beyond cost more "
                "than they save."
            ],
        )

    def test_name_what_binds_once_for_a_series_and_what_to_add(self):
        weak = [
            {"series": "weak", "nodes": nodes, "devices": 10 * nodes, "binds": binds}
            for nodes, binds in ((1, "device"), (2, "device"), (4, "GPU"))
        ]
        self.assertEqual(
            [sentence.split(":")[0] for sentence in self.sentences(findings.of_plans(weak))],
            ["weak, 1 node and more with 10 devices", "weak, 4 nodes and more with 40 devices"],
        )
        rows = [
            {"nodes": 2, "devices": 8, "binds": "device", "gain_if_twice_as_fast": {"device": 0.4}},
            {"nodes": 4, "refused": "too small"},
        ]
        self.assertEqual(
            findings.of_plans(rows),
            [
                (
                    "modelled",
                    "2 nodes with 8 devices: device binds, twice as fast it shortens the step by 40 %. What to add "
                    "next: more CSDs in each node "
                    "(or a narrower csd.state).",
                )
            ],
        )


class MetricsFile(InFolder):
    def test_is_read_as_it_grows_and_anew_if_a_resumed_run_rewrites_it(self):
        path = self.folder / "steps.jsonl"
        lines = results.text_of(results.metrics_lines()).splitlines(keepends=True)
        path.write_text(lines[0] + lines[1] + lines[2][:20])
        metrics = Metrics(path)
        self.assertTrue(metrics.read())
        self.assertFalse(metrics.read())
        self.assertEqual(metrics.points("loss"), [(1, 3.0)])
        with path.open("a") as file:
            file.write(lines[2][20:] + lines[3] + lines[4])
        self.assertTrue(metrics.read())
        self.assertEqual(metrics.points("loss"), [(1, 3.0), (2, 2.5), (3, 2.25)])
        self.assertEqual(metrics.points("phases_s/update")[0], (1, 0.3))
        self.assertEqual((metrics.points("heldout_loss"), metrics.ended), ([(3, 2.4)], None))
        other = self.folder / "other"
        other.write_text("".join(lines[:3]))
        other.rename(path)
        self.assertTrue(metrics.read())
        self.assertEqual(metrics.points("loss"), [(1, 3.0), (2, 2.5)])
        path.unlink()
        self.assertRaises(Mistake, metrics.read)

    def test_becomes_event_files_of_tensorboard(self):
        try:
            from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        except ImportError:
            self.skipTest("tensorboard is not installed")
        results.write_all(self.folder)
        (self.folder / "other").mkdir()
        (self.folder / "other/steps.jsonl").write_text(results.text_of(results.metrics_lines(losses=(9, 8))))
        code, said, err = self.call(self.folder, "--tensorboard", self.folder / "board")
        self.assertEqual((code, err), (0, ""))
        self.assertIn("points for TensorBoard", said)
        self.assertEqual([str(_inside(name)) for name in ("../../a/b.jsonl", "/a/b.jsonl", "b")], ["a/b", "a/b", "b"])
        for run, losses in (("steps", [(1, 3.0), (2, 2.5), (3, 2.25)]), ("other/steps", [(1, 9.0), (2, 8.0)])):
            events = EventAccumulator(str(self.folder / "board" / run))
            events.Reload()
            tags = events.Tags()["tensors"]
            self.assertEqual(
                {"loss", "heldout_loss", "phases_s/update", "bytes_per_parameter/host_link/gradients"} - set(tags),
                set(),
            )
            self.assertEqual(
                [(event.step, event.tensor_proto.float_val[0]) for event in events.Tensors("loss")], losses
            )


if __name__ == "__main__":
    verdict.main()
