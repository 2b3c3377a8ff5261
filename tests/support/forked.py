"""Starts programs as forks of a process that has loaded them already: loading libtorch takes 0.2 s of a processor,
PyTorch and Transformers in Python 4 s. Standard library only.

Tests start a fork by the program start_fork, with the environment that Loaded gives. Serves a socket (its number):
    forked.py library SOCKET FILE ARGV0    a fork calls nearstep_forked() of the shared library
    forked.py python SOCKET MODULE...      a fork runs the Python script that its words begin with
"""

import ctypes
import gc
import importlib
import importlib.util
import os
import pathlib
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15


class Loaded:
    """A process that has loaded a program, and ends with this one or by close(). start_fork finds it by
    `environment`.
    """

    def __init__(self, kind, program, *words, environment):
        self.folder = tempfile.TemporaryDirectory(prefix="nearstep-forked-")
        path = f"{self.folder.name}/socket"
        self.environment = {"NEARSTEP_FORKS": f"{environment.get('OMP_NUM_THREADS', '')}:{path}:{program}"}
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen(64)
            self.process = subprocess.Popen(
                [sys.executable, __file__, kind, str(listener.fileno()), *map(str, words)],
                env=environment,
                stdin=subprocess.PIPE,
                pass_fds=[listener.fileno()],
                start_new_session=True,
            )

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.folder.cleanup()


def received(connection):
    """The request of start_fork, None if it is not whole, and its files."""
    length, files, _, _ = socket.recv_fds(connection, 4, 3)
    with connection.makefile("rb") as stream:
        text = stream.read(int.from_bytes(length, "little"))
    if len(text) != int.from_bytes(length, "little") or not files:
        return None, files  # start_fork was killed
    folder, ignored, count, *words = text.split(b"\0")[:-1]
    words, environment = words[: int(count)], words[int(count) :]
    return (
        folder,
        set(map(int, ignored.split())),
        list(map(os.fsdecode, words)),
        dict(one.split(b"=", 1) for one in environment),
    ), files


def name_of_forks(session):
    """The name in /proc of the forks that a session's processes started: they are in the server's session."""
    return f"fork-{session}"


def process_of(connection):
    """Returns the process of start_fork at the other end of the connection."""
    return struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]


def join(process):
    """Enters the virtual host of start_fork, if it is on one."""
    kinds = {"mnt": 0x00020000, "uts": 0x04000000, "ipc": 0x08000000, "net": 0x40000000}
    flags = sum(
        flag
        for kind, flag in kinds.items()
        if os.readlink(f"/proc/{process}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}")
    )
    if flags and ctypes.CDLL(None, use_errno=True).setns(os.pidfd_open(process), flags) != 0:
        raise OSError(ctypes.get_errno(), "a fork cannot enter a virtual host")


def become(request, files, process):
    """Turns this fork into the process that start_fork stands for; returns its words."""
    folder, ignored, words, environment = request
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:  # the server was killed before
        os._exit(1)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    try:
        session = os.getsid(process)
        join(process)
    except (FileNotFoundError, ProcessLookupError):
        os._exit(1)  # start_fork was killed
    os.chdir(folder)
    os.environb.clear()
    os.environb.update(environment)
    for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
    libc.prctl(PR_SET_NAME, name_of_forks(session).encode())
    return words


class Fork:
    """A running fork in the server: its process and its connection."""

    def __init__(self, connection, child):
        self.connection, self.child, self.descriptor = connection, child, os.pidfd_open(child)

    def pass_on(self):
        """Signals that start_fork got; if it was killed, its fork is."""
        try:
            numbers = self.connection.recv(64)
        except ConnectionResetError:
            numbers = b""
        for number in numbers or [signal.SIGKILL]:
            os.kill(self.child, number)

    def end(self):
        code = os.waitstatus_to_exitcode(os.waitpid(self.child, 0)[1])
        try:
            self.connection.sendall(str(code).encode())
        except (BrokenPipeError, ConnectionResetError):
            pass  # start_fork was killed

    def close(self):
        self.connection.close()
        os.close(self.descriptor)


def serve(listener):
    """Forks for every request. Returns only in a fork, with its words."""
    forks = []
    while True:
        ready, _, _ = select.select(
            [0, listener, *(one.descriptor for one in forks), *(one.connection for one in forks)], [], []
        )
        if 0 in ready:  # the test has ended; the forks end with this process
            sys.exit()
        for fork in list(forks):
            if fork.descriptor in ready:
                fork.end()
                fork.close()
                forks.remove(fork)
            elif fork.connection in ready:
                fork.pass_on()
        if listener in ready:
            connection, _ = listener.accept()
            request, files = received(connection)
            child = os.fork() if request else None
            if child == 0:
                process = process_of(connection)
                for one in (listener, connection, *forks):
                    one.close()
                return become(request, files, process)
            if request:
                forks.append(Fork(connection, child))
            for file in files:
                os.close(file)


def load_library(path, argv0):
    call = ctypes.CDLL(path, mode=os.RTLD_GLOBAL).nearstep_forked
    libc = ctypes.CDLL(None)

    def main(words):
        words = [os.fsencode(word) for word in (argv0, *words)]
        code = call(len(words), (ctypes.c_char_p * (len(words) + 1))(*words))
        if "NEARSTEP_CARD_REPORT" in os.environ:  # emulated cards write it at the end
            libc.exit(code)
        libc.fflush(None)
        os._exit(code)  # libtorch's destructors would copy all its memory

    return main


def load_modules(*names):
    for name in names:
        if importlib.util.find_spec(name.partition(".")[0]):
            importlib.import_module(name)
    gc.freeze()  # so that forks share it

    def main(words):
        # The server's streams have noted whether its own files can seek.
        sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", buffering=1, closefd=False)
        sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.argv = words
        sys.path[0] = str(pathlib.Path(words[0]).resolve().parent)
        runpy.run_path(words[0], run_name="__main__")

    return main


if __name__ == "__main__":
    main_of_forks = {"library": load_library, "python": load_modules}[sys.argv[1]](*sys.argv[3:])
    main_of_forks(serve(socket.socket(fileno=int(sys.argv[2]))))
