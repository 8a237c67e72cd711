# SPDX-License-Identifier: Apache-2.0
"""The installed bcc: found without importing it, because a start with programs from the cache does not need it.

Importing it loads LLVM, which takes a fifth of the CPU time of such a start.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType

from tracer.errors import NoBcc

LIBRARY = "libbcc.so.0"
_COMPILER = re.compile(rb"lib(?:LLVM|clang)[\w.+-]*\.so[.\d]*")


@dataclass(frozen=True)
class BccLibrary:
    """The files of the installed bcc and of its compiler.

    Attributes:
        version: Its version, "" = not known.
        directory: Directory of the Python package.
        identity: Version, and name, size and time of each file: it changes whenever another compiler is installed.
        module_fentry: Whether it knows functions of modules (bcc 0.28): its C macros contain MODULE_KFUNC_PROBE.
    """

    version: str
    directory: Path
    identity: tuple[str, ...]
    module_fentry: bool


def load_bcc() -> ModuleType:
    """Imports bcc. PyPI has another project of that name, without a BPF class.

    Raises:
        NoBcc: bcc is not installed, or is the other project.
    """
    try:
        bcc = import_module("bcc")
    except ImportError as e:
        raise NoBcc(
            "The bcc library is missing: install your distribution's package (Debian, Ubuntu: python3-bpfcc; Fedora: "
            f"python3-bcc). ({e})"
        ) from e
    if not hasattr(bcc, "BPF"):
        raise NoBcc(
            f"The bcc in {getattr(bcc, '__file__', None) or 'this Python'} is another project of that name from PyPI: "
            "`pip uninstall bcc`, then install your distribution's package (python3-bpfcc)."
        )
    return bcc


def installed() -> BccLibrary:
    """The installed bcc; it is imported only where its files are not found without.

    Raises:
        NoBcc: bcc is not installed, or is another project.
    """
    spec = importlib.util.find_spec("bcc")
    package = Path(spec.origin).parent if spec and spec.origin else None
    library = next(_found(LIBRARY), None)
    if package is None or library is None or not (package / "libbcc.py").is_file():
        bcc = load_bcc()
        package, library = Path(bcc.__file__ or "").parent, library or _mapped()
    version = re.search(r"['\"](.*)['\"]", _text(package / "version.py"))
    text = library.read_bytes() if library else b""
    files = [library, *(path for name in sorted(set(_COMPILER.findall(text))) for path in _found(name.decode()))]
    identity = (version[1] if version else "", *(_identity(path) for path in files if path))
    return BccLibrary(identity[0], package, identity, b"MODULE_KFUNC_PROBE" in text)


def _found(name: str) -> Iterator[Path]:
    """The files of that name in the directories of libraries."""
    own = [Path(d) for d in os.environ.get("LD_LIBRARY_PATH", "").split(":") if d.startswith("/")]
    for directory in (*own, Path("/usr/lib"), Path("/usr/lib64"), *sorted(Path("/usr/lib").glob("*-linux-gnu"))):
        if (directory / name).is_file():
            yield directory / name
            return


def _mapped() -> Path | None:
    """The library that this process has loaded."""
    lines = _text(Path("/proc/self/maps")).splitlines()
    return next(
        (Path(path) for line in lines if (path := line.rpartition(" ")[2]).rpartition("/")[2].startswith("libbcc.so")), None
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _identity(path: Path) -> str:
    found = path.stat()
    return f"{path.resolve().name} {found.st_size} {found.st_mtime_ns}"
