"""Whether the values that forward reads are those of the last step."""

from __future__ import annotations


class Reads:
    """Which blocks come before which forwards. ``modules``: pairs of a module and the blocks that its own forward reads;
    the hook before its forward has the number of its place. With a whole ``module``, number 0 is its own."""

    def __init__(self, module, reads: list, block_of: list):
        """``reads``: modules, the blocks and the parameters that their own forwards read."""
        self._root_blocks: list = []  # of parameters that no module reads in its own forward, as far as known
        self._block_of = block_of
        self._has_module = module is not None
        if self._has_module:
            reads = [(module, self._root_blocks, []), *reads]  # begins before frozen layers compute
        self.modules = [(one, blocks) for one, blocks, _ in reads]
        self._readers = [set() for _ in block_of]  # which hooks bring each parameter
        for number, (_, _, params) in enumerate(reads):
            for i in params:
                self._readers[i].add(number)
        self.loose_blocks = sorted({block_of[i] for i, readers in enumerate(self._readers) if not readers})  # no hook brings them
        self._have_read: set = set()  # hooks that ran since the last step
        self._trained: set = set()  # parameters that were updated in this process
        self.is_first_step = True  # of this process
        self.is_all_here = False  # all blocks came since the last step

    def begin(self, number: int) -> None:
        """The hook with this number brings its blocks."""
        self._have_read.add(number)

    def check(self, i: int, name: str, ranks: int) -> None:
        """Raises RuntimeError if forward may have read the parameter before the values of the last step were here. A
        parameter without steps has its start values; if no module's own forward read it, it comes from then on with the
        whole module's."""
        block = self._block_of[i]
        if not self._has_module or self.is_all_here or not self._readers[i] or self._readers[i] & self._have_read:
            return
        if 0 in self._have_read and block in self._root_blocks:
            return
        if not self.is_first_step and (i in self._trained or ranks > 1):
            raise RuntimeError(
                f"{name} was read outside of the forward of its module, perhaps with the values before the last step: call "
                "opt.synchronize() before each forward."
            )
        if block not in self._root_blocks:
            self._root_blocks.append(block)

    def end_step(self, trained: set) -> None:
        """``trained``: the parameters that the step updates."""
        self._trained |= trained
        self._have_read = set()
        self.is_first_step = self.is_all_here = False
