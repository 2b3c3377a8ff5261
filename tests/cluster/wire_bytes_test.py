"""The network bytes that the program counts are those that the hosts' links carry.

Each case runs with few and with more steps. The difference is the traffic of the steps alone, without start-up,
evaluation and checkpoint. A link's counter also includes packet headers, whose size is known, and the control messages
of a step (norm, losses, commit), which are not counted:
    wire = counted + 66 x packets + control
66 bytes: Ethernet 14, IPv4 20, TCP 32 with time stamps. Acknowledgements are packets of headers only. Links between
namespaces carry packets of up to 64 KiB, so headers are a small share here; with 1500-byte packets they are 66 / 1448 =
4.6 %.
"""

import cluster

FEW, MORE = 2, 12
HEADER_BYTES = 66


def counters():
    """Per host: tx_bytes, tx_packets, rx_bytes, rx_packets."""
    return {
        host: {name: int(value) for name, value in (word.split("=") for word in words)}
        for host, *words in map(str.split, cluster.vhosts("bytes").splitlines())
    }


class WireBytes(cluster.Cluster):
    def run_counted(self, steps, keys):
        """Bytes and packets of each host, and the bytes that its ranks counted, of one run."""
        before = counters()
        summary = self.train(train__stop_at=steps, csd__per_rank=1, **cluster.program.SHORT_ROWS, **keys)
        after = counters()
        of_host = {host: {name: after[host][name] - before[host][name] for name in after[host]} for host in after}
        for i, host in enumerate(cluster.HOSTS):
            of_host[host]["counted"] = sum(summary["network_sent_bytes"][2 * i : 2 * i + 2])
        return of_host

    def check(self, **keys):
        few, more = self.run_counted(FEW, keys), self.run_counted(MORE, keys)
        links = {host: {name: more[host][name] - few[host][name] for name in more[host]} for host in more}
        print(f"\n{keys}: bytes per step", flush=True)
        for host, link in links.items():
            counted, headers = link["counted"], HEADER_BYTES * link["tx_packets"]
            print(
                f"  {host}: counted {counted / 10:.0f}, sent {link['tx_bytes'] / 10:.0f} "
                f"({link['tx_bytes'] / counted - 1:+.2%}), of which headers {headers / 10:.0f}, "
                f"control {(link['tx_bytes'] - counted - headers) / 10:.0f}",
                flush=True,
            )
            self.assertGreater(counted, 2_000_000, "too little to compare")
            self.assertLessEqual(abs(link["tx_bytes"] / counted - 1), 0.03, f"{host} {link}")
            self.assertLessEqual(abs((link["tx_bytes"] - headers) / counted - 1), 0.015, f"{host} {link}")
        sent = sum(link["tx_bytes"] for link in links.values())
        received = sum(link["rx_bytes"] for link in links.values())
        self.assertLessEqual(abs(received / sent - 1), 0.01)
        return sum(link["counted"] for link in links.values()) / (MORE - FEW)

    def test_hierarchical_dense(self):
        # 8 tiles of 65,536 values, 2 bytes each: one dense payload per node and tile, and the new parameters to
        # each other node.
        self.assertEqual(self.check(), 8 * 65536 * (2 * 3 + 2 * 3))

    def test_flat_dense(self):
        # Six of the eight ranks are on other nodes than the owner.
        self.assertEqual(self.check(placement__gradients="replicated"), 8 * 65536 * (2 * 6 + 2 * 3))

    def test_hierarchical_topk(self):
        # A tenth of the values, 4 bytes each: index and value.
        counted = self.check(mode="su+o+c", compress__codec="topk", compress__keep=0.1)
        self.assertAlmostEqual(counted / (8 * 65536), 0.4 * 3 + 2 * 3, delta=0.01)

    def test_flat_topk(self):
        counted = self.check(
            mode="su+o+c", compress__codec="topk", compress__keep=0.1, placement__gradients="replicated"
        )
        self.assertAlmostEqual(counted / (8 * 65536), 0.4 * 6 + 2 * 3, delta=0.01)

    def test_state_in_every_node(self):
        # A dense payload from each of 4 nodes to the 3 others. Parameters stay in their node.
        self.assertEqual(self.check(placement__optimizer="node"), 8 * 65536 * 2 * 4 * 3)

    def test_parameters_shared_by_a_node(self):
        self.assertEqual(self.check(placement__parameters="node"), 8 * 65536 * (2 * 3 + 2 * 3))

    def test_everything_over_all_nodes(self):
        # Dense gradients to the owners, and parameters for forward and for backward.
        self.assertEqual(self.check(placement__parameters="global"), 8 * 65536 * (2 * 3 + 2 * 2 * 3))

    def test_a_limited_link_is_slower_and_gives_the_same_bits(self):
        free = self.train(train__stop_at=6, **cluster.program.SHORT_ROWS)
        for host in cluster.HOSTS:
            cluster.vhosts("rate", host, "40mbit")
        try:
            limited = self.train(train__stop_at=6, **cluster.program.SHORT_ROWS)
        finally:
            for host in cluster.HOSTS:
                cluster.vhosts("unrate", host)
        print(f"\nseconds of 6 steps: {free['seconds']:.2f}, at 40 Mbit/s {limited['seconds']:.2f}", flush=True)
        self.assertEqual(limited["masters_xxh3"], free["masters_xxh3"])
        self.assertEqual(limited["losses"], free["losses"])


if __name__ == "__main__":
    cluster.main()
