"""A running program of restart_round in a session of its own, which can be killed with all of its ranks."""

import os
import pathlib
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "scenarios"))
import program  # noqa: E402

LIFE_SECONDS = program.HANG_S  # of a life; it takes 1 or 2 on an idle machine


def sessions_processes(session):
    """The ids of the session's ranks with their states, as a letter of proc(5), and the ids of all its processes. Ranks
    may be forks, which are in another session (tests/support/forked.py)."""
    ranks, all_of_it = {}, []
    forks = program.forked.name_of_forks(session)
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        name, rest = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
        if (int(rest[3]) == session or name == forks) and rest[0] != "Z":
            all_of_it.append(int(stat.parent.name))
            if name in (program.PROGRAM.name, forks):
                ranks[int(stat.parent.name)] = rest[0]
    return ranks, all_of_it


def send(processes, what):
    for process in processes:
        try:
            os.kill(process, what)
        except ProcessLookupError:
            pass


class Running:
    """A running program in its own session."""

    under_way = set()  # sessions, which would outlive an ended campaign

    @classmethod
    def end_all(cls):
        for session in list(cls.under_way):
            send(sessions_processes(session)[1], signal.SIGKILL)

    def __init__(self, ranks, arguments, fault, folder, name, most_file_bytes=None):
        command = [str(program.PROGRAM_FORKED), *arguments]
        if most_file_bytes:  # a fork would not have the limit
            command = ["prlimit", f"--fsize={most_file_bytes}", str(program.PROGRAM), *arguments]
        if ranks > 1:
            command = [str(program.ROOT / "launch/ranks"), str(ranks), *command]
        self.files = [open(folder / f"{name}.{stream}", "w+", errors="replace") for stream in ("out", "err")]
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=program.environment(fault),
            stdin=subprocess.DEVNULL,
            stdout=self.files[0],
            stderr=self.files[1],
            start_new_session=True,
            restore_signals=False,
        )  # too large a file is an error
        self.under_way.add(self.process.pid)

    def kill(self, how, place):
        """place: which of the ranks that are there, from 0 to less than 1."""
        ranks, everything = sessions_processes(self.process.pid)
        if how == "all":
            send(everything, signal.SIGKILL)
        elif ranks:
            send([sorted(ranks)[int(place * len(ranks))]], signal.SIGKILL)

    def send_ranks(self, what):
        send(sessions_processes(self.process.pid)[0], what)

    def is_held(self):
        """Whether a rank was stopped by SIGSTOP."""
        return "T" in sessions_processes(self.process.pid)[0].values()

    def is_over(self):
        return self.process.poll() is not None

    def finish(self):
        """Exit code and output. A life that hangs is ended; its code is none of nearstep's."""
        try:
            self.process.wait(LIFE_SECONDS + 15)
        except subprocess.TimeoutExpired:
            pass
        code = self.process.poll()
        # A rank may outlive its killed mpirun for a moment.
        deadline = time.monotonic() + 10
        while sessions_processes(self.process.pid)[1] and time.monotonic() < deadline and code is not None:
            time.sleep(0.01)
        send(sessions_processes(self.process.pid)[1], signal.SIGKILL)
        self.process.wait()
        self.under_way.discard(self.process.pid)
        texts = []
        for file in self.files:
            file.seek(0)
            texts.append(file.read())
            file.close()
        return (code if code is not None else "hangs"), *texts
