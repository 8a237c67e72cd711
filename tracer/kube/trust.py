# SPDX-License-Identifier: Apache-2.0
"""Decides which kubeconfig is used, and which rights it has.

A kubeconfig can name a program to run, and files to read and send. The tracer would do both as root. So its origin matters:

- A file given by --kubeconfig or $KUBECONFIG is used without restrictions.
- A file from the usual places must belong to root or to the current user, and no other user may have write access.
- The file of the user who called sudo must belong to that user or to root. Its program is not run, and the files that it names
  must have the same owner as itself: else a token of root could be sent to a server of that user.
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
"""Maximum size of a kubeconfig, and of one that was given by name, bytes."""
SYSTEM = ("/etc/kubernetes/admin.conf", "/etc/rancher/k3s/k3s.yaml")


@dataclass(frozen=True)
class Trust:
    """The rights of a kubeconfig.

    Attributes:
        owners: User ids that may own it; None = given by name, any owner.
        runs: Whether the program that it names may be run.
        strict: Whether the files that it names must have the same owner as itself.
    """

    owners: frozenset[int] | None = None
    runs: bool = True
    strict: bool = False

    def read(self, path: str) -> tuple[bytes, frozenset[int] | None]:
        """Returns the kubeconfig's text, and the allowed owners of the files that it names (None = any). Raises OSError."""
        if self.owners is None:
            return untrusted_file.read_named(path, MOST_NAMED), None
        text, owner = untrusted_file.read_with_owner(path, MOST, self.owners)
        return text, frozenset({owner}) if self.strict else None


NAMED = Trust()


def usual(environment: Mapping[str, str]) -> Iterator[tuple[str, Trust]]:
    """Yields the usual places of a kubeconfig, in order of preference."""
    own = Trust(untrusted_file.ours())
    yield f"{environment.get('HOME') or '/root'}/.kube/config", own
    user = caller(environment)
    if user:
        yield str(Path(user.pw_dir) / ".kube/config"), Trust(frozenset({0, user.pw_uid}), runs=False, strict=True)
    yield from ((path, own) for path in SYSTEM)


def caller(environment: Mapping[str, str]) -> pwd.struct_passwd | None:
    """Returns the user who called sudo; None if there is none, or if it is root."""
    if os.geteuid() != 0 or not environment.get("SUDO_USER"):
        return None
    try:
        user = pwd.getpwnam(environment["SUDO_USER"])
    except (KeyError, ValueError):
        return None
    said = environment.get("SUDO_UID", str(user.pw_uid))
    return user if user.pw_uid and said == str(user.pw_uid) and user.pw_dir.startswith("/") else None
