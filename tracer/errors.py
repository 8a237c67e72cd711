# SPDX-License-Identifier: Apache-2.0
"""Everything that can end a run early: one clear sentence each, and an exit status of its own.

The statuses are part of the command's contract (docs/exit-status.md). click itself uses 2 for a wrong command line.
"""

from __future__ import annotations

import errno

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Numbers of OSErrors that say that a file cannot grow."""


class TraceError(Exception):
    """A run that cannot go on. `str()` is the sentence for the user, `status` the exit status."""

    status = 1


class BadOption(TraceError):
    """An option's value makes no sense: a port above 65535, an unknown interface or namespace."""

    status = 2


class NotRoot(TraceError):
    """Tracing needs root, with CAP_SYS_ADMIN."""

    status = 3


class NoBtf(TraceError):
    """The kernel does not describe its types: /sys/kernel/btf/vmlinux is missing or unreadable."""

    status = 4


class NoBcc(TraceError):
    """The bcc library is missing, too old, or another project of that name."""

    status = 5


class NoProbe(TraceError):
    """A probe that the run cannot do without could not be planned or attached."""

    status = 6


class CompileFailed(TraceError):
    """The BPF text did not compile or did not pass the kernel's verifier."""

    status = 7


class NoObjects(TraceError):
    """Kubernetes' objects cannot be read where an option needs them: a kubeconfig, --objects FILE, or the API itself."""

    status = 8


class NoSuchObject(TraceError):
    """An option names a Service, a pod or a port that Kubernetes does not have."""

    status = 9


class CommandNotFound(TraceError):
    """The command after `--` could not be started."""

    status = 127


class OutputNotWritten(TraceError):
    """A capture, or what is printed, cannot be written where it should be."""

    status = 20


class CaptureUnreadable(TraceError):
    """A file is no capture, or nothing of it can be read."""

    status = 21


class NewerCapture(TraceError):
    """A capture of a newer program than this one."""

    status = 22


class DamagedCapture(TraceError):
    """A part of a capture cannot be read. What could be was used."""

    status = 23


class Interrupted(TraceError):
    """A capture was not read to its end, because the user did not want to wait."""

    status = 130


class NoLibrary(TraceError):
    """A library that only reading captures needs (duckdb, pyarrow, scapy) is not there."""

    status = 24
