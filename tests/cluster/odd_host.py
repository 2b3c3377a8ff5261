"""Four virtual hosts of one rank each, of which one differs."""

import shlex

import cluster

ODD = "nst3"


class OddHost(cluster.Cluster):
    def keys(self, **more):
        return {"hosts__ranks": 1, "csd__per_rank": 1, "train__stop_at": 4, **cluster.program.SHORT_ROWS, **more}

    def where_odd(self, prefix):
        """A remote program that runs all commands of the odd host behind these words of a shell."""
        return self.keys(
            **self.with_remote(
                f'host=$1\nshift\n[[ $host != {ODD} ]] || set -- {shlex.quote(prefix)} "$@"\nexec {cluster.SITE}/rsh '
                '"$host" "$@"'
            )
        )

    def usual(self, **more):
        return self.train(ranks=4, **self.keys(**more))

    def odd(self, prefix, **more):
        return self.train(ranks=4, **{**self.where_odd(prefix), **more})
