"""The figures of the machine and of the process. Linux has all of them; elsewhere those that Python knows."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

_TICKS: Final = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_PAGE_SIZE: Final = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
#: Bytes of a sector in /proc/diskstats, for every disk.
_SECTOR_SIZE: Final = 512
#: Parts of disks and disks without a device are left out.
_NO_DISKS: Final = ("loop", "ram", "zram", "dm-")

Object = dict[str, Any]
Collection = dict[str, Object]


class Host:
    """Reads the figures of the machine and of this process. Its methods are for one thread at a time."""

    def __init__(self) -> None:
        self._cpu_times: dict[str, tuple[int, ...]] = {}
        self._cpus_used: Collection = {}
        #: By the ids of threads: the processor time, and when it has grown last.
        self._active: dict[str, tuple[float, float]] = {}

    def read(self, directories: Mapping[str, Path], *, is_sample: bool = True) -> dict[str, Any]:
        """Returns the figures by the paths of their nodes.

        - `directories`: of file systems, by their kind
        - `is_sample`: the use of processors is that since the sample before. Without it, it is that of the
          last sample
        """
        if is_sample or not self._cpus_used:
            self._cpus_used = dict(self._cpus())
        return {
            "host": {"name": socket.gethostname()},
            "host/cpus": self._cpus_used,
            "host/memory": _memory(),
            "host/filesystems": dict(_filesystems(directories)),
            "host/disks": dict(_disks()),
            "host/network": dict(_network()),
        }

    def _cpus(self) -> Iterator[tuple[str, Object]]:
        for line in _lines("/proc/stat"):
            if not line.startswith("cpu"):
                continue
            name, *values = line.split()
            times = tuple(map(int, values[:8]))
            before = self._cpu_times.get(name, (0,) * len(times))
            self._cpu_times[name] = times
            user, nice, system, idle, waiting, irq, soft_irq, stolen = (
                max(now - then, 0) for now, then in zip(times, before, strict=True)
            )
            total = max(user + nice + system + idle + waiting + irq + soft_irq + stolen, 1)
            yield (
                name.removeprefix("cpu") or "all",
                {
                    "user_ratio": round((user + nice) / total, 4),
                    "system_ratio": round((system + irq + soft_irq + stolen) / total, 4),
                    "idle_ratio": round((idle + waiting) / total, 4),
                },
            )

    def process(self) -> dict[str, Any]:
        """The figures of this process, by the paths of their nodes."""
        times = os.times()
        return {
            "instance/cpu": {"user_s": times.user, "system_s": times.system},
            "instance/memory": {"resident_bytes": _resident_size()},
            "instance/threads": self._with_activity(dict(_threads())),
        }

    def _with_activity(self, threads: Collection) -> Collection:
        """Adds the time since a thread was last active, as far as two calls can tell."""
        now, before, self._active = time.monotonic(), self._active, {}
        for id, thread in threads.items():
            known = before.get(id)
            since = now if known is None or known[0] != thread["cpu_s"] else known[1]
            self._active[id] = thread["cpu_s"], since
            thread["last_active_s"] = round(now - since, 3)
        return threads


def user_name() -> str:
    """The user of the system that runs this process."""
    try:
        import pwd

        return pwd.getpwuid(os.geteuid()).pw_name
    except (ImportError, KeyError, AttributeError):
        return str(os.geteuid()) if hasattr(os, "geteuid") else ""


def timestamp(at: float | None = None) -> str:
    """A time as answers have it, in UTC, to the millisecond. `at`: seconds since 1970; `None`: now."""
    seconds, milliseconds = divmod(round((time.time() if at is None else at) * 1000), 1000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{milliseconds:03}Z"


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _memory() -> Object:
    sizes = {}
    for line in _lines("/proc/meminfo"):
        key, _, value = line.partition(":")
        if value.endswith(" kB"):
            sizes[key] = int(value.split()[0]) * 1024
    if not sizes:
        return {}
    return {
        "total_bytes": sizes.get("MemTotal"),
        "available_bytes": sizes.get("MemAvailable"),
        "swap_used_bytes": sizes.get("SwapTotal", 0) - sizes.get("SwapFree", 0),
    }


def _filesystems(directories: Mapping[str, Path]) -> Iterator[tuple[str, Object]]:
    for kind, directory in directories.items():
        # A directory that is not made yet is on the file system of the one above it.
        place = directory.absolute()
        while not place.exists() and place != place.parent:
            place = place.parent
        with contextlib.suppress(OSError, AttributeError):
            found = os.statvfs(place)
            yield (
                kind,
                {
                    "path": str(directory.absolute()),
                    "total_bytes": found.f_blocks * found.f_frsize,
                    "available_bytes": found.f_bavail * found.f_frsize,
                },
            )


def _disks() -> Iterator[tuple[str, Object]]:
    for line in _lines("/proc/diskstats"):
        fields = line.split()
        name = fields[2]
        if name.startswith(_NO_DISKS) or not _is_disk(name):
            continue
        yield (
            name,
            {
                "read_bytes": int(fields[5]) * _SECTOR_SIZE,
                "written_bytes": int(fields[9]) * _SECTOR_SIZE,
            },
        )


def _is_disk(name: str) -> bool:
    """Whether it is a disk, and not a part of one."""
    return Path("/sys/block", name).exists()


def _network() -> Iterator[tuple[str, Object]]:
    for line in _lines("/proc/net/dev")[2:]:
        name, _, values = line.partition(":")
        fields = values.split()
        yield name.strip(), {"received_bytes": int(fields[0]), "sent_bytes": int(fields[8])}


def _resident_size() -> int:
    fields = " ".join(_lines("/proc/self/statm")).split()
    return int(fields[1]) * _PAGE_SIZE if len(fields) > 1 else 0


def _threads() -> Iterator[tuple[str, Object]]:
    try:
        ids = os.listdir("/proc/self/task")
    except OSError:
        return
    for thread in ids:
        for line in _lines(f"/proc/self/task/{thread}/stat"):
            # The name is in parentheses, and may have any character.
            name, _, rest = line.partition("(")[2].rpartition(")")
            fields = rest.split()
            yield thread, {"name": name, "cpu_s": (int(fields[11]) + int(fields[12])) / _TICKS}
