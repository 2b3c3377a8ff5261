"""A small FUSE file system whose files record each write and each flush, in the order in which they come. A loop device
over such a file is a disk whose writes are known. Standard library only; needs Linux and root.

    recorded_disks.py MOUNTPOINT RECORD FILE...    # serves the files until it is unmounted
"""

import ctypes
import os
import pathlib
import stat
import struct
import subprocess
import sys
import time

# The numbers are those of linux/fuse.h.
LOOKUP, FORGET, GETATTR, SETATTR, OPEN, READ, WRITE, RELEASE, FSYNC = 1, 2, 3, 4, 14, 15, 16, 18, 20
FLUSH, INIT, OPENDIR, RELEASEDIR, INTERRUPT, BATCH_FORGET = 25, 26, 27, 29, 36, 42
BIG_WRITES, MAX_PAGES, SIZE_IS_SET = 1 << 5, 1 << 22, 1 << 3
ENOENT, ENOSYS = 2, 38
MOST_BYTES, BLOCK = 1 << 20, 512  # of st_blocks
VALID_S = 86400  # the kernel may keep attributes, for nobody else changes the files
ENTRY = struct.Struct("<BBQI")  # of a record: what, number of the file, offset and bytes; then the bytes
A_WRITE, A_FLUSH = 1, 2


class Server:
    """Answers the kernel's requests, one after the other."""

    def __init__(self, mountpoint, record, paths):
        self.names = [os.path.basename(path).encode() for path in paths]
        self.files = [os.open(path, os.O_RDWR) for path in paths]
        self.record = open(record, "wb", buffering=0)
        self.device = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={self.device},rootmode=40000,user_id=0,group_id=0,allow_other"
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"recorded", os.fsencode(mountpoint), b"fuse.recorded", 0, options.encode()) != 0:
            raise OSError(ctypes.get_errno(), "cannot mount FUSE", mountpoint)

    def attributes(self, node):
        """Node 1 is the folder, and the files are 2 and more."""
        size = 0 if node == 1 else os.fstat(self.files[node - 2]).st_size
        mode = stat.S_IFDIR | 0o755 if node == 1 else stat.S_IFREG | 0o600
        return struct.pack("<6Q10I", node, size, -(-size // BLOCK), 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)

    def answer(self, code, node, body):
        """The reply to a request, or the number of an error."""
        if code == INIT:
            limits = (BIG_WRITES | MAX_PAGES, 16, 12, MOST_BYTES, 1, MOST_BYTES // 4096)
            return struct.pack("<4I2H2I2H8I", 7, 31, 0, *limits, *[0] * 9)
        if code == LOOKUP:
            name = bytes(body).rstrip(b"\0")
            if name not in self.names:
                return ENOENT
            node = 2 + self.names.index(name)
            return struct.pack("<4Q2I", node, 0, VALID_S, VALID_S, 0, 0) + self.attributes(node)
        if code in (GETATTR, SETATTR):
            if code == SETATTR and struct.unpack_from("<I", body)[0] & SIZE_IS_SET:
                os.ftruncate(self.files[node - 2], struct.unpack_from("<Q", body, 16)[0])
            return struct.pack("<Q2I", VALID_S, 0, 0) + self.attributes(node)
        if code in (OPEN, OPENDIR):
            return struct.pack("<Q2I", 0, 0, 0)
        if code in (READ, WRITE):
            _, offset, size = struct.unpack_from("<2QI", body)
            if code == READ:
                return os.pread(self.files[node - 2], size, offset)
            data = body[40 : 40 + size]
            self.record.write(ENTRY.pack(A_WRITE, node - 2, offset, size) + bytes(data))
            os.pwrite(self.files[node - 2], data, offset)
            return struct.pack("<2I", size, 0)
        if code == FSYNC:
            self.record.write(ENTRY.pack(A_FLUSH, node - 2, 0, 0))
        return b"" if code in (FSYNC, FLUSH, RELEASE, RELEASEDIR) else ENOSYS

    def serve(self):
        while True:
            try:
                request = memoryview(os.read(self.device, MOST_BYTES + 4096))
            except OSError:  # unmounted
                return
            _, code, unique, node = struct.unpack_from("<2I2Q", request)
            if code not in (FORGET, BATCH_FORGET, INTERRUPT):
                answer = self.answer(code, node, request[40:])
                error, reply = (-answer, b"") if isinstance(answer, int) else (0, answer)
                os.write(self.device, struct.pack("<IiQ", 16 + len(reply), error, unique) + reply)


def start(mountpoint, record, paths):
    """A process that serves the files, which are there on return."""
    server = subprocess.Popen([sys.executable, __file__, *map(str, (mountpoint, record, *paths))])
    while not os.path.ismount(mountpoint):
        if server.poll() is not None:
            raise RuntimeError(f"The process that records ended with code {server.returncode}.")
        time.sleep(0.01)
    return server


class Record:
    """The record of some disks, and of files of text after them. An instant is a number of entries."""

    def __init__(self, path, images):
        self.images, self.applied = images, [0] * len(images)  # as the disks were then
        self.bytes = pathlib.Path(path).read_bytes()
        self.entries = []  # what, file, offset, begin of the data, bytes
        self.flushes = [[0] for _ in images]  # the instants after them, and the start
        self.texts = []  # instant, and what was written then
        at = 0
        while at < len(self.bytes):
            what, file, offset, size = ENTRY.unpack_from(self.bytes, at)
            at += ENTRY.size
            self.entries.append((what, file, offset, at, size))
            if file >= len(images):
                self.texts.append((len(self.entries), self.bytes[at : at + size].decode()))
            elif what == A_FLUSH:
                self.flushes[file].append(len(self.entries))
            at += size

    def writes(self, disk, begin, end):
        """The offsets and bytes of the disk's writes between two instants."""
        for what, file, offset, at, size in self.entries[begin:end]:
            if what == A_WRITE and file == disk:
                yield offset, self.bytes[at : at + size]

    def cut(self, disk, instant, draw, copy, sector):
        """Makes a copy of a disk that lost its power at an instant, later than the last one: of the writes since the
        last flush some are there, some are not, and of some a few sectors of this size are. Returns how many are
        whole, missing and torn."""
        flushed = max(flush for flush in self.flushes[disk] if flush <= instant)
        with open(self.images[disk], "rb+", buffering=0) as file:
            for offset, data in self.writes(disk, self.applied[disk], flushed):
                os.pwrite(file.fileno(), data, offset)
        self.applied[disk] = flushed
        subprocess.run(["cp", "--sparse=always", self.images[disk], copy], check=True)
        fates = [0, 0, 0]
        kept = draw.choice([0.1, 0.5, 0.9])
        with open(copy, "rb+", buffering=0) as file:
            for offset, data in self.writes(disk, flushed, instant):
                fate = draw.choices([0, 1, 2], [kept, 1 - kept, 0.3])[0]
                fates[fate] += 1
                share = [1, 0, draw.random()][fate]
                for at in range(0, len(data), sector):
                    if draw.random() < share:
                        os.pwrite(file.fileno(), data[at : at + sector], offset + at)
        return fates


if __name__ == "__main__":
    Server(sys.argv[1], sys.argv[2], sys.argv[3:]).serve()
