# SPDX-License-Identifier: Apache-2.0
"""Reading BTF: offsets, prototypes, tracepoints, enums, a module on top of vmlinux, and data that is not BTF."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.builders import BtfBuilder
from tracer.errors import NoBtf
from tracer.kernel.btf import ARRAY, INT, PTR, UNION, Btf, KernelTypes
from tracer.kernel.module_layouts_5_10 import Field


def vmlinux() -> BtfBuilder:
    """A kernel of two structures: `sock` with a common part, `sk_buff` with a nameless union."""
    b = BtfBuilder()
    u16, u32, char = b.integer("short unsigned int", 2), b.integer("unsigned int", 4), b.integer("char", 1)
    be16 = b.typedef("__be16", b.typedef("__u16", u16))
    net = b.struct("net", 64, {"ifindex": (u32, 16)})
    possible_net = b.typedef("possible_net_t", b.struct("", 8, {"net": (b.pointer(net), 0)}))
    common = b.struct("sock_common", 24, {"skc_state": (b.const(char), 18), "skc_net": (possible_net, 8)})
    sock = b.struct("sock", 100, {"__sk_common": (common, 4), "sk_flags": (u32, 40)})
    inner = b.struct("", 16, {"next": (b.pointer(sock), 0), "dev": (b.pointer(char), 8)})
    either = b.union("", 16, {" struct": inner, "list": b.array(u32, 4)})
    to_sock = b.pointer(b.const(sock))
    skb = b.struct("sk_buff", 232, {"sk": (to_sock, 0), " union": (either, 24), "protocol": (be16, 180)})
    reason = b.enum("skb_drop_reason", {"SKB_NOT_DROPPED_YET": 0, "SKB_DROP_REASON_NO_SOCKET": 2, "BELOW": -1})
    b.enum64("huge", {"HUGE": 1 << 40})
    b.function("kfree_skb_reason", {"skb": b.pointer(skb), "reason": reason})
    b.function("with_callback", {"f": b.pointer(b.prototype({})), "protocol": be16, "place": b.pointer(0)})
    traced = b.prototype({" data": b.pointer(0), " skb": b.pointer(skb), " location": b.pointer(0), " reason": reason})
    b.typedef("btf_trace_kfree_skb", b.pointer(traced))
    b.forward("only_named")
    return b


@pytest.fixture
def kernel() -> Btf:
    return Btf(vmlinux().blob())


@pytest.mark.parametrize("count", range(1, 20))
def test_each_type_is_found(count: int) -> None:
    """For numbers of types around those that are skipped at once, and names around the length by which they are sorted."""
    b = BtfBuilder()
    names = [("x" * (n % 12)) + f"{n:x}" for n in range(count)]
    for n, name in enumerate(names):
        b.struct(name, n, {"a": (b.integer(f"i{n}", 4), 0)} if n % 3 else {})
    kernel = Btf(b.blob())
    assert [kernel.structure_size(name) for name in names] == list(range(count))
    assert kernel.structure_size("x") is None and kernel.structure_size("x" * 8) is None
    assert kernel._end == 1 + count + sum(n % 3 > 0 for n in range(count))


@pytest.mark.parametrize(
    ("struct", "path", "expected"),
    [
        ("sk_buff", "sk", Field(0, 8, PTR, "sock")),
        ("sk_buff", "protocol", Field(180, 2, INT, "")),
        ("sk_buff", "dev", Field(32, 8, PTR, "")),
        ("sk_buff", "next", Field(24, 8, PTR, "sock")),
        ("sk_buff", "list", Field(24, 16, ARRAY, "", element=4)),
        ("sock", "__sk_common.skc_net.net", Field(12, 8, PTR, "net")),
        ("sock", "__sk_common.skc_state", Field(22, 1, INT, "")),
    ],
)
def test_fields_by_dotted_path(kernel: Btf, struct: str, path: str, expected: Field) -> None:
    assert kernel.field(struct, path) == expected


@pytest.mark.parametrize("path", ["nothing", "__sk_common.nothing", "sk_flags.deeper", "skc_state"])
def test_a_field_that_does_not_exist(kernel: Btf, path: str) -> None:
    assert kernel.field("sock", path) is None


def test_structures(kernel: Btf) -> None:
    assert kernel.structure_size("sk_buff") == 232
    assert kernel.structure_size("only_named") is None, "declared, but not described"
    assert kernel.structure_size("no_such") is None
    assert kernel.field("no_such", "x") is None
    named = kernel.find("sk_buff", UNION)
    assert named is None, "a structure is no union"


def test_parameters_are_spelled_by_type(kernel: Btf) -> None:
    assert kernel.parameters("kfree_skb_reason") == [("skb", "sk_buff *"), ("reason", "enum skb_drop_reason")]
    assert kernel.parameters("with_callback") == [
        ("f", " *"), ("protocol", "short unsigned int"), ("place", "void *")
    ]  # fmt: skip
    assert kernel.parameters("sk_buff") is None, "a structure is no function"
    assert kernel.parameters("no_such") is None


def test_a_tracepoint_is_listed_without_its_data_argument(kernel: Btf) -> None:
    found = kernel.tracepoint_parameters("kfree_skb")
    assert found == [("", "sk_buff *"), ("", "void *"), ("", "enum skb_drop_reason")]
    assert kernel.tracepoint_parameters("consume_skb") is None


def test_enumerators(kernel: Btf) -> None:
    assert kernel.enumerators("skb_drop_reason") == {
        "SKB_NOT_DROPPED_YET": 0, "SKB_DROP_REASON_NO_SOCKET": 2, "BELOW": -1
    }  # fmt: skip
    assert kernel.enumerators("huge") == {"HUGE": 1 << 40}
    assert kernel.enumerators("no_such") == {}


def test_name_that_only_ends_like_another(kernel: Btf) -> None:
    assert kernel.find("kb_buff", 4) is None
    assert kernel.find("sk_buf", 4) is None


def module() -> tuple[bytes, bytes]:
    """vmlinux and a module: its own structure, one with a member of vmlinux's type, and a function named in vmlinux."""
    base = vmlinux()
    number_of_sock = next(n for n in range(1, base.next) if Btf(base.blob()).type(n).name == "sock")
    b = BtfBuilder(base)
    sock = b.pointer(number_of_sock)
    table = b.struct("xt_table", 96, {"sk": (sock, 8), "own": (b.integer("u9", 2), 40)})
    b.function("do_table", {"table": b.pointer(table), "sk": sock})
    b.function("next", {"sk": sock})  # its name is in vmlinux's strings already
    return base.blob(), b.blob()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    base, own = module()
    (tmp_path / "vmlinux").write_bytes(base)
    (tmp_path / "ip_tables").write_bytes(own)
    return tmp_path


def test_a_module_continues_the_types_of_vmlinux(directory: Path) -> None:
    types = KernelTypes(directory)
    found = types.module("ip_tables")
    assert found is not None
    assert found.field("xt_table", "sk") == Field(8, 8, PTR, "sock")
    assert found.field("xt_table", "own") == Field(40, 2, INT, "")
    assert found.field("sk_buff", "protocol") == Field(180, 2, INT, ""), "the module has vmlinux's structures too"
    assert found.parameters("do_table") == [("table", "xt_table *"), ("sk", "sock *")]
    assert found.parameters("next") == [("sk", "sock *")]
    assert types.vmlinux.structure_size("xt_table") is None, "vmlinux does not have the module's structures"


def test_modules_are_read_once_and_may_be_missing(directory: Path) -> None:
    types = KernelTypes(directory)
    assert types.module("ip_tables") is types.module("ip_tables")
    assert types.module("nf_nat") is None
    assert types.module("") is types.vmlinux
    assert types.module("vmlinux") is types.vmlinux


def test_a_module_that_is_loaded_later_is_read(directory: Path) -> None:
    """Drop reasons of Open vSwitch have names as soon as its module is there."""
    types, octets = KernelTypes(directory), (directory / "ip_tables").read_bytes()
    (directory / "ip_tables").unlink()
    assert types.module("ip_tables") is None
    (directory / "ip_tables").write_bytes(octets)
    assert types.module("ip_tables")


def test_hashes_of_the_modules_that_are_asked_for(directory: Path) -> None:
    """They do not depend on what else was read: the programs are the same."""
    types, other = KernelTypes(directory), KernelTypes(directory)
    alone, both = types.digests(()), types.digests(("ip_tables", "nf_nat", "", "vmlinux"))
    assert len(alone) == 1 and len(both) == 2 and both[0] == alone[0] != both[1]
    other.module("ip_tables")
    assert other.digests(()) == alone
    (directory / "ip_tables").write_bytes((directory / "ip_tables").read_bytes() + b"\0")
    assert KernelTypes(directory).digests(("ip_tables",))[1] != both[1]


def test_whether_any_module_is_described(directory: Path) -> None:
    assert KernelTypes(directory).modules_described
    (directory / "ip_tables").unlink()
    assert not KernelTypes(directory).modules_described


def test_a_kernel_without_btf_gives_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(NoBtf) as e:
        KernelTypes(tmp_path)
    assert "CONFIG_DEBUG_INFO_BTF" in str(e.value)
    assert "No such file or directory" in str(e.value)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(vmlinux().blob()[:20], id="header cut"),
        pytest.param(b"\xeb\x9f" + vmlinux().blob()[2:], id="other byte order"),
        pytest.param(b"\x7fELF" + b"\0" * 60, id="something else"),
    ],
)
def test_data_that_is_not_btf(data: bytes) -> None:
    with pytest.raises(NoBtf, match=r"damaged or of another byte order\.$"):
        Btf(data)


def test_btf_cut_in_its_types() -> None:
    whole = vmlinux().blob()
    with pytest.raises(NoBtf):
        Btf(whole[: 24 + 30])


def test_freed_types_are_read_again(directory: Path) -> None:
    types = KernelTypes(directory)
    before = types.digests(("ip_tables",))
    types.free()
    assert "vmlinux" not in vars(types) and not types._modules
    assert types.digests(("ip_tables",)) == before
