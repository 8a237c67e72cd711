# SPDX-License-Identifier: Apache-2.0
"""Which kubeconfig is used, and what it may have done.

A kubeconfig can name a program to run and files to read and send: the tracer would do both as root. So it matters who says so:

- A file that was named (--kubeconfig, $KUBECONFIG) is used as it is, by whoever named it.
- A file that is looked for must belong to root or to the user who runs this, and nobody else may be able to write to it.
- The file of the user who called sudo is used only when it is that user's or root's, its program is not run, and the files
  that it names must belong to whoever it belongs to: else a token of root's could be sent to a server of that user.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tracer.util import untrusted_file

MOST = 1_000_000
MOST_NAMED = 16_000_000
"""Bytes of a kubeconfig, and of one that was named."""
SYSTEM = ("/etc/kubernetes/admin.conf", "/etc/rancher/k3s/k3s.yaml")


@dataclass(frozen=True)
class Trust:
    """What a kubeconfig may be. owners: user ids it may belong to, None for a file that was named. runs: whether the program
    that it names is run. strict: whether the files that it names must belong to whoever it belongs to.
    """

    owners: frozenset[int] | None = None
    runs: bool = True
    strict: bool = False

    def read(self, path: str) -> tuple[bytes, frozenset[int] | None]:
        """What is in the kubeconfig, and whose the files must be that it names (None: anybody's). Raises OSError."""
        if self.owners is None:
            return untrusted_file.read_named(path, MOST_NAMED), None
        text, owner = untrusted_file.read_with_owner(path, MOST, self.owners)
        return text, frozenset({owner}) if self.strict else None


NAMED = Trust()


def usual(environment: Mapping[str, str]) -> Iterator[tuple[str, Trust]]:
    """Where a kubeconfig is looked for when none was named, in this order."""
    own = Trust(untrusted_file.ours())
    yield f"{environment.get('HOME') or '/root'}/.kube/config", own
    user = caller(environment)
    if user:
        yield str(Path(user.pw_dir) / ".kube/config"), Trust(frozenset({0, user.pw_uid}), runs=False, strict=True)
    yield from ((path, own) for path in SYSTEM)


def caller(environment: Mapping[str, str]) -> pwd.struct_passwd | None:
    """The user who called sudo; None when there is none, or when it is root."""
    if os.geteuid() != 0 or not environment.get("SUDO_USER"):
        return None
    try:
        user = pwd.getpwnam(environment["SUDO_USER"])
    except (KeyError, ValueError):
        return None
    said = environment.get("SUDO_UID", str(user.pw_uid))
    return user if user.pw_uid and said == str(user.pw_uid) and user.pw_dir.startswith("/") else None
