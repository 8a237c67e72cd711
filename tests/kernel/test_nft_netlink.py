# SPDX-License-Identifier: Apache-2.0
"""nftables through netlink alone on this kernel: the same rules as nft lists, without nft, and while the rules change.

Each test has a network namespace of its own and attaches no probe.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench import nft_services
from tests.support.nft_recordings import DATA
from tracer.node import netns, tools
from tracer.rules import inventory
from tracer.rules.inventory import RuleInventory
from tracer.rules.nftables.expressions.registers import has_unknown
from tracer.rules.nftables.nft_tool import NftTool

NO_NFT = "The rules of nftables are read through netlink alone, without nft: nft is not installed."
Read = Callable[[], RuleInventory]


@pytest.fixture
def without_nft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Read:
    """Reads the rules of this thread's namespace as on a node without tools."""

    def read() -> RuleInventory:
        with monkeypatch.context() as patched:
            patched.setattr(tools, "DIRECTORIES", str(tmp_path))
            patched.setattr(inventory, "nft_tool", NftTool())
            found = inventory.read(True)
            if found.nft:
                list(found.nft.maps.values())
                list(found.nft.sets.values())
            return found

    return read


def nft(text: str) -> None:
    subprocess.run(["nft", "-f", "-"], input=text, text=True, check=True)


def plain(body: Any) -> Any:
    """Expressions without counts, in one of the forms that versions of nft write.

    nft 1.0.6 writes flags as a list or as one word, and the ICMP code 0 as a word; 1.1 writes {"|": [flags]} and the number.
    """
    if isinstance(body, list | tuple):
        return [plain(each) for each in body]
    if body == "net-unreachable":
        return 0
    if isinstance(body, dict):
        if isinstance(body.get("|"), list) and all(isinstance(each, str) for each in body["|"]):
            return body["|"]
        return {
            key: None if key in ("counter", "last") else [value] if key == "flags" and isinstance(value, str) else plain(value)
            for key, value in body.items()
        }
    return body


@pytest.mark.parametrize("name", ["expressions", "kube-proxy"])
def test_the_same_rules_as_nft_lists(name: str, without_nft: Read) -> None:
    text = (DATA / "expressions.nft").read_text() if name == "expressions" else nft_services.text(300)

    def both() -> tuple[RuleInventory, RuleInventory]:
        nft(text)
        return inventory.read(True), without_nft()

    of_nft, found = netns.inside_new(both)
    assert of_nft.nft and found.nft and not of_nft.notes and found.notes == (NO_NFT,)
    differ = [
        (plain(body), plain(found.nft.expressions[handle]))
        for handle, body in of_nft.nft.expressions.items()
        if plain(body) != plain(found.nft.expressions[handle])
    ]
    print(*(f"nft     {json.dumps(a)}\nnetlink {json.dumps(b)}" for a, b in differ), sep="\n")
    assert not differ and len(of_nft.nft.expressions) > 100
    assert dict(found.nft.maps) == dict(of_nft.nft.maps)
    assert {key: set(map(json.dumps, e)) for key, e in found.nft.sets.items()} == {
        key: set(map(json.dumps, e)) for key, e in of_nft.nft.sets.items()
    }
    assert sorted(found.nft.bases, key=str) == sorted(of_nft.nft.bases, key=str)
    assert not any(has_unknown(body) for body in found.nft.expressions.values())


def test_rules_that_change_meanwhile_are_never_of_two_generations(without_nft: Read) -> None:
    """A writer replaces all rules by another number of them, again and again; a reading has all of one number, or says why."""
    ended = threading.Event()

    def table(count: int) -> str:
        rules = "\n".join(f"tcp dport {n + 1} counter drop" for n in range(count))
        return f"table ip t\ndelete table ip t\ntable ip t {{\nchain a {{\n{rules}\n}}\nchain b {{\n{rules}\n}}\n}}\n"

    def work() -> tuple[list[int], list[str]]:
        sizes, unread = list[int](), list[str]()
        nft(table(400))
        path = Path(f"/proc/self/task/{threading.get_native_id()}/ns/net")

        def write() -> None:
            with netns.entered(path):
                for count in itertools.cycle((300, 500, 400)):
                    if ended.is_set():
                        return
                    nft(table(count))

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for _ in range(20):
                found = without_nft()
                unread += found.unread
                if found.nft:
                    chains = [len(found.nft.ruleset.chains["ip", "t", name]) for name in "ab"]
                    assert chains[0] == chains[1], "rules of two generations"
                    sizes.append(chains[0])
        finally:
            ended.set()
            writer.join()
        last = without_nft()
        assert last.nft and len(last.nft.ruleset.chains["ip", "t", "a"]) in (300, 400, 500)
        return sizes, unread

    sizes, unread = netns.inside_new(work)
    assert set(sizes) <= {300, 400, 500} and len(sizes) + len(unread) == 20
    assert set(unread) <= {"the rules of nftables changed each time they were being read"}
    print(f"{len(sizes)} readings of one generation each, {len(unread)} that were given up")
