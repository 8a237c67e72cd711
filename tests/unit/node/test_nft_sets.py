# SPDX-License-Identifier: Apache-2.0
"""Named sets of nftables through netlink; the tests build the kernel's answers by hand."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

import pytest

from tracer.node import nfnetlink, nft_sets
from tracer.node.nfnetlink import DumpInterrupted, Message, attribute

IP, IP6 = 2, 10
NAME = attribute(1, "kube-proxy") + attribute(2, "nodeport-ips")


class Kernel:
    """Sets of this name by family: (type, flags, keys). error: raised by each request."""

    def __init__(self, sets: dict[int, tuple[int, int, list[bytes]]], error: Exception | None = None) -> None:
        self.sets, self.error = sets, error

    def get(self, kind: int, family: int, attrs: bytes) -> Message:
        assert (kind, attrs) == (nft_sets.GETSET, NAME)
        if self.error:
            raise self.error
        if family not in self.sets:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        key_type, flags, _ = self.sets[family]
        return kind, family, attribute(3, flags) + attribute(4, key_type)

    def iter_dump(self, kind: int, family: int, attrs: bytes) -> Iterator[Message]:
        assert (kind, attrs) == (nft_sets.GETSETELEM, NAME)
        for key in self.sets[family][2]:
            yield kind, family, attribute(3, [attribute(1, [attribute(1, [attribute(1, key)])])])

    def __enter__(self) -> Kernel:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def addresses(monkeypatch: pytest.MonkeyPatch, kernel: Kernel) -> tuple[str, ...] | None:
    monkeypatch.setattr(nft_sets, "Nfnetlink", lambda: kernel)
    monkeypatch.setattr(nft_sets, "nft_loaded", lambda: True)
    return nft_sets.addresses("kube-proxy", "nodeport-ips")


def keys(*texts: str) -> list[bytes]:
    return [ip_address(text).packed for text in texts]


def test_the_addresses_of_both_families(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel({IP: (7, 0, keys("192.168.56.10", "10.0.0.1")), IP6: (8, 0, keys("fd00:56::10"))})
    assert addresses(monkeypatch, kernel) == ("192.168.56.10", "10.0.0.1", "fd00:56::10")


def test_no_such_set(monkeypatch: pytest.MonkeyPatch) -> None:
    assert addresses(monkeypatch, Kernel({})) == ()


@pytest.mark.parametrize(
    "of",
    [(13, 0, [b"\0\x50"]), (7, 4, keys("10.0.0.0")), (7, 0x80, keys("10.0.0.0")), (7, 0, [b"\x01\x02"]), (7, 0, [b""])],
    ids=["ports", "ranges", "concatenation", "a short key", "no key"],
)
def test_another_kind_of_element_is_not_read(of: tuple[int, int, list[bytes]], monkeypatch: pytest.MonkeyPatch) -> None:
    assert addresses(monkeypatch, Kernel({IP: of})) is None


def test_a_large_set_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [f"10.0.{n >> 8}.{n & 255}" for n in range(nft_sets.MOST_ADDRESSES + 1)]
    assert addresses(monkeypatch, Kernel({IP: (7, 0, keys(*many))})) is None
    assert addresses(monkeypatch, Kernel({IP: (7, 0, keys(*many[1:]))})) == tuple(many[1:])


@pytest.mark.parametrize("error", [PermissionError(errno.EPERM, "Operation not permitted"), DumpInterrupted()], ids=repr)
def test_the_kernel_refuses_or_the_set_changes(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    assert addresses(monkeypatch, Kernel({IP: (7, 0, [])}, error)) is None


def test_a_kernel_without_nf_tables_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request would load the module."""
    monkeypatch.setattr(nfnetlink, "MODULE", tmp_path / "nf_tables")
    monkeypatch.setattr(nfnetlink, "SYMBOLS", tmp_path / "kallsyms")
    (tmp_path / "kallsyms").write_text("ffffffff81000000 T ip_rcv\n")
    monkeypatch.setattr(nft_sets, "Nfnetlink", lambda: pytest.fail("a request"))
    assert nft_sets.addresses("kube-proxy", "nodeport-ips") == () and not nfnetlink.nft_loaded()
    (tmp_path / "kallsyms").write_text("ffffffff81000000 T ip_rcv\nffffffff81000010 T nft_do_chain\n")
    assert nfnetlink.nft_loaded()
    (tmp_path / "kallsyms").unlink()
    (tmp_path / "nf_tables").mkdir()
    assert nfnetlink.nft_loaded()
