"""Processes that run commands one after another (command_server.cpp): the start of a rank costs more than a short
run."""

import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time

import open_mpi


class CommandServer:
    """Ranks that wait for commands. They end with the process that made them, or by close()."""

    def __init__(self, launcher, words, ranks, environment, cwd):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="nearstep-commands-"))
        for rank in range(ranks):
            os.mkfifo(self.folder / f"commands-{rank}")
            os.mkfifo(self.folder / f"codes-{rank}")
        self.output = open(self.folder / "launcher.txt", "w+")
        self.process = subprocess.Popen(
            [launcher, str(ranks), *words, str(self.folder)],
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=subprocess.STDOUT,
        )
        # Opened for reading and writing, so that opening does not block if a rank is missing.
        self.commands = [os.open(self.folder / f"commands-{rank}", os.O_RDWR | os.O_CLOEXEC) for rank in range(ranks)]
        self.codes = [os.open(self.folder / f"codes-{rank}", os.O_RDWR | os.O_CLOEXEC) for rank in range(ranks)]
        self.count = 0

    def run(self, arguments, fault, timeout):
        """The finished command. The code is that of the processes if they ended, or None after a time-out."""
        self.count += 1
        files = {name: self.folder / f"{name}-{self.count}.txt" for name in ("stdout", "stderr")}
        line = json.dumps(
            {
                "arguments": [str(one) for one in arguments],
                "fault": fault,
                **{name: str(file) for name, file in files.items()},
            }
        )
        for pipe in self.commands:
            os.write(pipe, line.encode() + b"\n")
        end = time.monotonic() + timeout
        codes = [self._code(pipe, end) for pipe in self.codes]
        written = {name: file.read_text(errors="replace") if file.exists() else "" for name, file in files.items()}
        code = self.process.poll() if None in codes else max(codes)
        if None in codes:
            self.output.seek(0)
            written["stderr"] += self.output.read()
        return subprocess.CompletedProcess(arguments, code, **written)

    def _code(self, pipe, end):
        while time.monotonic() < end:
            if select.select([pipe], [], [], 0.2)[0]:
                return int(os.read(pipe, 64))
            if self.process.poll() is not None:
                return None
        return None

    def close(self):
        """Ends the ranks: closing their pipe ends the wait for a command; else they are killed."""
        for pipe in self.commands + self.codes:
            os.close(pipe)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.output.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class CommandServers:
    """Servers kept for reuse, by number of ranks and environment but for the folder of Open MPI's files."""

    def __init__(self, launcher, cwd):
        self.launcher, self.cwd = launcher, cwd
        self.idle = {}

    def run(self, words, ranks, arguments, environment, fault, timeout):
        """Like subprocess.run; words: starts command_server. A server is not reused unless its command ended with
        success or a user's mistake.
        """
        key = (ranks, tuple(sorted((name, value) for name, value in environment.items() if name != open_mpi.FOLDER)))
        waiting = self.idle.setdefault(key, [])
        server = waiting.pop() if waiting else CommandServer(self.launcher, words, ranks, environment, self.cwd)
        done = server.run(arguments, fault, timeout)
        if done.returncode in (0, 2) and server.process.poll() is None:
            waiting.append(server)
        else:
            server.close()
        return done

    def close(self):
        for servers in self.idle.values():
            while servers:
                servers.pop().close()
