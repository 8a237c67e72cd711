# SPDX-License-Identifier: Apache-2.0
"""Compiles BPF texts with bcc, in processes of their own.

So several texts are compiled at a time, and the memory that LLVM takes, 150 MB, is free again when tracing begins. The
processes end with the one that started them, also when it is killed. bcc creates the maps when it compiles; these close with
the process, and the programs get maps of their own when they are loaded.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, BinaryIO

from tracer.errors import CompileFailed
from tracer.kernel import bcc_stubs, bytecode
from tracer.kernel.bcc_library import load_bcc
from tracer.kernel.bpf_syscall import map_definition
from tracer.kernel.bytecode import Bytecode

FLAGS = ["-g0", "-Xclang", "-disable-llvm-passes"]
"""Compiler flags. bcc runs LLVM's passes itself after clang has optimised; without clang's passes compiling takes two fifths
less time for programs of the same size. Debugging information (types and lines, not used here) takes a tenth of the time."""

MAX_ANSWER_BYTES = 32 << 20
"""Largest result of one text, bytes."""

_START = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from tracer.kernel import bcc_compiler; bcc_compiler.main()"
_LENGTH = struct.Struct("<I")
_PR_SET_PDEATHSIG = 1


def compiled(bcc: ModuleType, text: str) -> Any:
    """Compiles a BPF text in this process, to bcc's object with nothing attached.

    Raises:
        Exception: The text does not compile; bcc raises plain Exception.
    """

    class Unattached(bcc.BPF):  # type: ignore[name-defined, misc]
        def _trace_autoload(self) -> None:
            return

    os.environ["BCC_KERNEL_SOURCE"] = str(bcc_stubs.directory())
    try:
        return Unattached(text=text, cflags=FLAGS)
    finally:
        del os.environ["BCC_KERNEL_SOURCE"]


def read_bytecode(bcc: ModuleType, compiled_text: Any) -> Bytecode:
    """The programs and maps of bcc's object."""
    library, module = bcc.libbcc.lib, ctypes.c_void_p(compiled_text.module)
    library.bpf_table_name.restype = ctypes.c_char_p
    names = [library.bpf_table_name(module, ctypes.c_ulonglong(i)).decode() for i in range(library.bpf_num_tables(module))]
    fds = [library.bpf_table_fd(module, name.encode()) for name in names]
    indices = {fd: index for index, fd in enumerate(fds)}
    programs = {}
    for i in range(library.bpf_num_functions(module)):
        name = library.bpf_function_name(module, i)
        programs[name.decode()] = bytecode.with_indices(compiled_text.dump_func(name), indices)
    return Bytecode(tuple(map_definition(name, fd) for name, fd in zip(names, fds, strict=True)), programs)


def compile_texts(texts: Sequence[str], report: Callable[[int], None] = lambda _: None) -> Bytecode:
    """Compiles the texts, each in its own process, and joins their programs.

    Args:
        texts: BPF texts with the same maps and different programs.
        report: Called with the number of texts that are compiled.

    Raises:
        CompileFailed: bcc has written the compiler's messages to stderr before.
    """
    options = ["-B"] if sys.dont_write_bytecode else []
    command = [
        sys.executable,
        *options,
        "-W",
        "ignore",
        "-c",
        _START,
        json.dumps([p or "." for p in sys.path]),
        str(os.getpid()),
    ]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin and process.stdout
    parts: list[Bytecode] = []
    try:
        with process.stdin as out:
            out.write(json.dumps(list(texts)).encode())
        while len(parts) < len(texts):
            parts.append(Bytecode.from_bytes(_read(process.stdout)))
            report(len(parts))
    except (OSError, EOFError, bytecode.BadBytecode) as e:
        process.kill()
        raise CompileFailed(f"The BPF text does not compile on this machine: {e}.") from e
    except BaseException:
        process.kill()
        raise
    finally:
        process.stdout.close()
        process.wait()
    return bytecode.joined(parts)


def _read(stream: Any) -> bytes:
    """One part of the answer.

    Raises:
        EOFError: The compiler ended before.
    """
    head = stream.read(_LENGTH.size)
    (length,) = _LENGTH.unpack(head) if len(head) == _LENGTH.size else (0,)
    data: bytes = stream.read(min(length, MAX_ANSWER_BYTES))
    if not data or len(data) != length:
        raise EOFError("Failed to compile BPF module <text>")
    return data


def main() -> None:
    """The compiling process: reads the texts from stdin, and writes the programs of each to stdout as soon as it has them.

    It compiles the first text itself; a fork of it compiles each other one, with the library that is loaded already.
    """
    _end_with(int(sys.argv[2]))
    first, *others = json.load(sys.stdin)
    bcc, own = load_bcc(), os.getpid()
    pipes: list[int] = []
    for text in others:
        reader, writer = os.pipe()
        if not os.fork():
            _end_with(own)
            with open(writer, "wb") as out:
                os._exit(not _write(bcc, text, out))
        os.close(writer)
        pipes.append(reader)
    if not _write(bcc, first, sys.stdout.buffer):
        os._exit(1)
    for reader in pipes:
        with open(reader, "rb") as answer:
            sys.stdout.buffer.write(answer.read())
        sys.stdout.buffer.flush()
        os.wait()
    os._exit(0)


def _write(bcc: ModuleType, text: str, out: BinaryIO) -> bool:
    """Compiles one text and writes its programs; False = it does not compile."""
    try:
        data = read_bytecode(bcc, compiled(bcc, text)).to_bytes()
    except Exception as e:  # bcc raises plain Exception
        print(f"{type(e).__name__}: {e}", file=sys.stderr)
        return False
    out.write(_LENGTH.pack(len(data)) + data)
    out.flush()
    return True


def _end_with(parent: int) -> None:
    """Lets this process be killed when its parent ends, and by Ctrl-C without a traceback."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if os.getppid() != parent:
        os._exit(1)
