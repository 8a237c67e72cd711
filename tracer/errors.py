# SPDX-License-Identifier: Apache-2.0
"""The errors that end a run early. Each one has a clear sentence for the user and its own exit status.

The statuses are part of the command's contract (docs/exit-status.md). click itself uses 2 for a wrong command line.
"""

from __future__ import annotations

import errno

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""The errno values of an OSError which mean that a file cannot grow."""

UNEXPECTED = 70
"""Exit status after an error that no part of the program expects: a defect."""


class TraceError(Exception):
    """A run that cannot continue.

    `str()` gives the sentence for the user.

    Attributes:
        status: The exit status.
    """

    status = 1


class BadOption(TraceError):
    """An option has an invalid value: a port above 65535, an unknown interface or namespace."""

    status = 2


class NotRoot(TraceError):
    """Tracing needs root, with CAP_SYS_ADMIN."""

    status = 3


class NoBtf(TraceError):
    """The kernel has no usable BTF: /sys/kernel/btf/vmlinux is missing or unreadable."""

    status = 4


class NoBcc(TraceError):
    """The bcc library is missing, too old, or a different project with the same name."""

    status = 5


class NoProbe(TraceError):
    """A required probe could not be planned or attached."""

    status = 6


class CompileFailed(TraceError):
    """The BPF source did not compile, or the kernel's verifier refused it."""

    status = 7


class NoObjects(TraceError):
    """An option needs Kubernetes objects, and they cannot be read from the kubeconfig, --objects FILE or the API."""

    status = 8


class NoSuchObject(TraceError):
    """An option names a Service, a pod or a port that does not exist in Kubernetes."""

    status = 9


class CommandNotFound(TraceError):
    """The command after `--` could not be started."""

    status = 127


class OutputNotWritten(TraceError):
    """A capture or the printed output cannot be written to its destination."""

    status = 20


class CaptureUnreadable(TraceError):
    """A file is not a capture, or no part of it can be read."""

    status = 21


class NewerCapture(TraceError):
    """A capture was written by a newer version of this program."""

    status = 22


class DamagedCapture(TraceError):
    """A part of a capture cannot be read. The readable part was used."""

    status = 23


class BadQuery(TraceError):
    """DuckDB refuses the SQL of a query."""

    status = 25


class UnknownTable(TraceError):
    """A query names a table or a column that does not exist."""

    status = 26


class Interrupted(TraceError):
    """The user stopped the reading of a capture before its end."""

    status = 130


class NoLibrary(TraceError):
    """A library that only some commands (duckdb, pyarrow, scapy, Textual) or --filter (libpcap) need is not installed."""

    status = 24


class NoTerminal(TraceError):
    """A full-screen view needs a terminal."""

    status = 27


class ClientGone(TraceError):
    """The client of an agent is gone, or was silent for too long: the agent has removed its probes."""

    status = 28


class NoAgent(TraceError):
    """No node of the cluster could be traced."""

    status = 29


class MetricsNotServed(TraceError):
    """The agent cannot listen at the address at which it should serve its metrics."""

    status = 30


class StoreUnreachable(TraceError):
    """The object storage of a store does not answer, refuses, or has no such store."""

    status = 32
