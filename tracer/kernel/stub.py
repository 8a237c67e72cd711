"""The "kernel source" that bcc insists on: a directory of empty headers, so that no kernel header is needed.

bcc's loader looks for include/linux/kconfig.h under $BCC_KERNEL_SOURCE, and its own helpers include a few headers by name.
Nodes have no kernel headers, and compiling against them breaks on new kernels (bcc issues 5231, 5451, 5525). The few
headers asked for are in bpf/stub/; each is copied to where bcc expects it.
"""

from __future__ import annotations

from pathlib import Path

from tracer import bpf_text

_EMPTY = ("include/linux/bpf_common.h", "include/uapi/linux/bpf.h", "include/uapi/linux/if_packet.h", "include/linux/log2.h")
_ARCHITECTURES = ("x86", "arm64")
"""bcc looks in the directory of the one it compiles for: this machine's, or what $ARCH says."""


def write(directory: Path) -> None:
    """Fills `directory`, which then serves as $BCC_KERNEL_SOURCE."""
    files = dict.fromkeys(_EMPTY, "")
    files["include/linux/kconfig.h"] = bpf_text.read("stub/kconfig.h")
    files["include/linux/types.h"] = bpf_text.read("stub/types.h")
    files["include/linux/version.h"] = bpf_text.read("stub/version.h")
    files |= {f"arch/{name}/include/asm/page.h": bpf_text.read("stub/page.h") for name in _ARCHITECTURES}
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
