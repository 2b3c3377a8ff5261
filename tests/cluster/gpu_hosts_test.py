"""NCCL between two hosts with a GPU each, and a storage host without one: the bits of one host, a cut link. Skipped
without two GPUs or virtual hosts."""

import json
import re
import unittest

import cluster


def gpus():
    done = cluster.call(cluster.program.PROGRAM, "doctor", "--json", "/dev/stdout")
    found = re.search(r'"gpus": *(\d+)', done.stdout)
    return int(found[1]) if found else 0


class GpuHosts(cluster.Cluster):
    hosts = cluster.HOSTS[:3]  # the third has no GPU, if the machine has two

    @classmethod
    def setUpClass(cls):
        if gpus() < 2:
            raise unittest.SkipTest("there are fewer than 2 GPUs here")
        super().setUpClass()

    def setUp(self):
        super().setUp()
        self.start_no_forks()

    def keys(self, **more):
        return {
            "train__steps": 6,
            "model__device": '"cuda"',
            "csd__per_rank": 1,
            "hosts__ranks": 1,
            "hosts__devices": 1,
            **cluster.program.SHORT_ROWS,
            **more,
        }

    def on_one_host(self, ranks=2, **keys):
        """The summary of a run with all GPUs and devices on this machine."""
        there = {key: value for key, value in self.keys(**keys).items() if not key.startswith("hosts__")}
        summary = self.folder / "one.json"
        cluster.must(
            "launch/ranks",
            ranks,
            cluster.program.PROGRAM,
            *self.arguments(flags=["--fresh"], **there),
            "--json",
            summary,
        )
        return json.loads(summary.read_text())

    def assert_same_bits_as_on_one_host(self, **more):
        """Compares with one host, whose ranks are told that each is a node, so that they send what hosts send."""
        hosts = self.train("--traffic", ranks=2, **self.keys(**more))
        self.assertEqual((hosts["payload_transport"], hosts["nodes"]), ("nccl", 2))
        self.assert_same_bits(hosts, self.on_one_host(exchange__ranks_per_node=1, **more))
        return hosts

    def test_a_storage_host_without_a_gpu_holds_the_state_of_two_that_compute(self):
        where = {"hosts__names": '["nst1","nst2"]', "hosts__storage": '["nst3"]'}
        for more in ({}, {"mode": '"su+o+c"', "compress__codec": '"q4"'}):
            with self.subTest(more):
                usual = self.on_one_host(exchange__ranks_per_node=1, **more)
                hosts = self.train("--traffic", ranks=3, **self.keys(**where, **more))
                self.assertEqual((hosts["payload_transport"], hosts["nodes"], hosts["storage_nodes"]), ("mpi", 2, 1))
                self.assert_same_bits(hosts, usual)
                stored = [path for path in (cluster.scratch() / "disks").glob("*/csd*/state/*.state")]
                self.assertEqual({path.relative_to(cluster.scratch() / "disks").parts[0] for path in stored}, {"nst3"})

    def test_gpus_of_one_node_sum_and_share_beside_a_storage_rank(self):
        usual = self.on_one_host()
        stored = self.on_one_host(ranks=3, csd__storage_ranks=1)
        self.assertEqual((usual["transport"], usual["parameter_transport"]), ("nccl", "nccl"))
        self.assertEqual(
            (stored["transport"], stored["parameter_transport"], stored["payload_transport"]), ("nccl", "nccl", "mpi")
        )
        self.assert_same_bits(stored, usual)

    def test_payloads_and_parameters_of_two_hosts(self):
        before = cluster.vhosts("bytes")
        hosts = self.assert_same_bits_as_on_one_host(
            mode='"su+o+c"', compress__codec='"q4"', compress__rounding='"stochastic"'
        )
        sent = [int(re.search(r"nst1 tx_bytes=(\d+)", text)[1]) for text in (before, cluster.vhosts("bytes"))]
        self.assertGreater(sent[1] - sent[0], hosts["network_sent_bytes"][0])

    def test_dense_gradients_of_two_hosts(self):
        self.assert_same_bits_as_on_one_host()

    def test_gradients_by_mpi_have_the_same_bits(self):
        keys = self.keys(mode='"su+o+c"', compress__codec='"q4"')
        there = self.train(ranks=2, **keys)
        here = self.train(ranks=2, exchange__transport='"mpi"', **keys)
        self.assertEqual((there["payload_transport"], here["payload_transport"]), ("nccl", "mpi"))
        self.assert_same_bits(there, here)

    def test_a_cut_link_ends_all_ranks_and_names_it(self):
        words = r"in .* between GPUs for \d+ s \(seen on host nst1, interface =eth0; no answer from host nst2\)"
        self.check_cut_link(words, ranks=2, **self.keys())


if __name__ == "__main__":
    cluster.main()
