"""Who replaced rules, as far as it can still be seen."""

from __future__ import annotations

from pathlib import Path

from tracer.timelines.changes import Changes, program
from tracer.timelines.model import Step


def process(proc: Path, pid: int, name: str, parent: int) -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "status").write_text(f"Name:\t{name}\nUmask:\t0022\nPPid:\t{parent}\n")


def test_iptables_is_named_after_who_called_it(tmp_path: Path) -> None:
    process(tmp_path, 10, "iptables-restor", 9)
    process(tmp_path, 9, "kube-proxy", 1)
    process(tmp_path, 20, "iptables", 1)
    process(tmp_path, 30, "calico-node", 9)
    assert program(10, tmp_path) == "kube-proxy"
    assert program(20, tmp_path) == "iptables", "its parent is init"
    assert program(30, tmp_path) == "calico-node"
    assert program(99, tmp_path) == "somebody", "it has ended"


def test_changes_are_taken_once() -> None:
    changes = Changes(lambda: 77)
    changes.rules(5, "nat", 0)
    changes.objects()
    assert changes.take() == [
        Step(5, "change", "somebody replaced nat"), Step(77, "change", "Kubernetes' objects changed"),
    ]  # fmt: skip
    assert changes.take() == []
