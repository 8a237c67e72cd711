# SPDX-License-Identifier: Apache-2.0
"""Assembling the BPF source: one text without includes, with #line directives that name the files."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tracer.events import bpf_source

GENERATED = {"structs.h": "struct sk_buff;\n", "plan.h": "#define RING_PAGES 4096\n", "acts.h": "/* none */\n"}


def test_every_header_is_included_once_and_in_order() -> None:
    text = bpf_source.whole("tracer.c", GENERATED)
    names = re.findall(r'^#include "([\w./]+)"$', bpf_source.read("tracer.c"), re.M)
    assert set(names) >= {"structs.h", "plan.h", "records/event.h", "core/probe.h", "probes/netfilter_hook.h", "probes/drop.h"}
    assert "#include" not in text
    starts = [text.index(f'#line 1 "bpf/{name}"') for name in names]
    assert starts == sorted(starts)
    assert [text.count(f'#line 1 "bpf/{name}"') for name in names] == [1] * len(names)
    assert "struct sk_buff;\n" in text
    assert "#define RING_PAGES 4096\n" in text


def test_no_header_is_forgotten() -> None:
    included = set(re.findall(r'#include "([\w./]+)"', bpf_source.read("tracer.c")))
    there = {p.relative_to(bpf_source.directory()).as_posix() for p in bpf_source.directory().glob("[!s]*/*.h")}
    assert there == included - set(GENERATED)


def test_every_line_keeps_its_file_and_number() -> None:
    """Follows the #line directives of the whole text, as a compiler does, back to the files."""
    file, number = "", 0
    for line in bpf_source.whole("tracer.c", GENERATED).splitlines():
        directive = re.fullmatch(r'#line (\d+) "bpf/([\w./]+)"', line)
        if directive:
            number, file = int(directive[1]), directive[2]
            continue
        source = (GENERATED.get(file) or bpf_source.read(file)).splitlines()
        assert source[number - 1] == line, f"{file}:{number}"
        number += 1


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(bpf_source, "directory", lambda: tmp_path)
    return tmp_path


def test_includes_of_includes(own: Path) -> None:
    (own / "a.c").write_text('int a;\n#include "b.h"\nint z;\n')
    (own / "b.h").write_text('#include "made.h"\nint b;\n')
    assert bpf_source.whole("a.c", {"made.h": "int made;\n"}) == (
        '#line 1 "bpf/a.c"\nint a;\n#line 1 "bpf/b.h"\n#line 1 "bpf/made.h"\nint made;\n#line 2 "bpf/b.h"\nint b;\n'
        '#line 3 "bpf/a.c"\nint z;\n'
    )


def test_messages_of_a_compiler_name_the_file(own: Path) -> None:
    (own / "a.c").write_text('#include "b.h"\nint after;\n')
    (own / "b.h").write_text("int b;\nint broken(;\n")
    command = ["gcc", "-fsyntax-only", "-x", "c", "-"]
    ran = subprocess.run(command, input=bpf_source.whole("a.c", {}), text=True, capture_output=True)
    assert re.search(r"^bpf/b\.h:2:", ran.stderr, re.M)


def test_a_missing_file_is_an_error(own: Path) -> None:
    (own / "a.c").write_text('#include "gone.h"\n')
    with pytest.raises(FileNotFoundError, match=r"gone\.h"):
        bpf_source.whole("a.c", {})


def test_directory_of_an_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """bpf/ is inside the package if it exists there, else beside the package."""
    package = tmp_path / "tracer"
    package.mkdir()
    monkeypatch.setattr(bpf_source, "_PACKAGE", package)
    assert bpf_source.directory() == tmp_path / "bpf"
    (package / "bpf").mkdir()
    assert bpf_source.directory() == package / "bpf"
