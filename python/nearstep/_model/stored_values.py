"""Values of parameters that stay in storage: the engine's vector has memory only for those that were read since the
last step. Used by parameters.py, by _streaming/window.py and before a start.
"""

from __future__ import annotations

from .._pinned import padded, views
from .._storage import memory_of_file, pages_of, read


class StoredValues:
    def __init__(self, conductor, vector, values: list, offsets: list, streamed):
        """``values``, ``offsets``: of all parameters, in the vector. ``streamed``: numbers of those that pass through
        slots, or None if no parameter stays in storage."""
        self._conductor, self._vector, self._vector_parts, self._offsets = conductor, vector, values, offsets
        self._streamed = streamed
        self._loaded: set[int] = set()  # numbers of those that the vector has
        self._in_file: dict = {}  # start values on their way to storage, by number

    def range_of(self, i: int) -> tuple:
        """Returns the range of the parameter's elements in the vector."""
        return self._offsets[i], self._offsets[i] + self._vector_parts[i].numel()

    def is_loaded(self, i: int) -> bool:
        return i in self._loaded

    def value(self, i: int):
        """Returns the parameter's values, of a block that was awaited: in the vector, or read for this call."""
        if self._streamed is None or i in self._loaded:
            return self._vector_parts[i]
        begin, end = self.range_of(i)
        pages, values = pages_of(begin, end, self._vector.dtype)
        read(self._conductor, begin, end, pages)
        return values.view(self._vector_parts[i].shape)

    def load(self, numbers) -> None:
        """Reads parameters of blocks that were awaited into the vector."""
        for i in numbers if self._streamed is not None else ():
            if i not in self._loaded:
                self._vector_parts[i].copy_(self.value(i))
                self._loaded.add(i)

    def unload(self) -> None:
        """Gives back the vector's memory for what is in storage."""
        if self._streamed is not None:
            self._loaded.clear()
            self._conductor.drop_parameters(0, len(self._vector))

    def start_value(self, i: int):
        """Returns host memory for the parameter's start value, until the state has it."""
        return self._in_file.get(i, self._vector_parts[i])

    def wait_in_file(self, numbers: list) -> None:
        """Puts into a file the start values that these parameters of nearstep.empty() are about to get, if they are to
        be in storage: they may take more memory than the host has."""
        numbers = [i for i in numbers if self._streamed is not None and i in self._streamed]
        if not numbers:
            return
        size, folder = sum(padded(self._vector_parts[i].nbytes) for i in numbers), self._conductor.paths[0]
        try:
            self._in_file = dict(
                zip(numbers, views(memory_of_file(folder, size), [self._vector_parts[i] for i in numbers]))
            )
        except OSError as error:
            raise OSError(
                error.errno,
                f"{size / 1e9:.3g} GB of start values wait beside the state until they are in it ({error.strerror}): "
                "free space there",
                folder,
            ) from error

    def forget_files(self) -> None:
        """The state has the start values."""
        self._in_file.clear()

    def close(self) -> None:
        """Lets go of the vector."""
        self._vector_parts, self._vector = [], None
