# SPDX-License-Identifier: Apache-2.0
"""Reads which eBPF programs and filters of tc are attached to the interfaces of one network namespace.

Only requests that read: dumps of links, queueing disciplines and filters by rtnetlink, and bpf(BPF_PROG_QUERY) for tcx and
netkit. A program is described once, by its id: the kernel gives an id again only after two billion others.
"""

from __future__ import annotations

import errno
import logging
import os
import struct
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tracer.errors import NoBtf
from tracer.kernel import bpf_syscall, netkit_programs, program_loaders
from tracer.kernel.btf import FUNC, Btf
from tracer.model.bpf_program import AttachedProgram, AttachPoint, ProgramKind
from tracer.node.nfnetlink import attributes, text
from tracer.node.rtnetlink import GETFILTER, GETLINK, GETQDISC, Rtnetlink, link_request, tc_request
from tracer.util.lru_dict import LruDict
from tracer.util.octets import decoded

_log = logging.getLogger(__name__)

PROGRAMS_KEPT = 4096
"""Most programs that are kept with their description."""
BTF_BYTES = 1 << 20
"""Longest BTF of a program that is read for its name, bytes."""
TEXT_CHARACTERS = 128
"""Longest name and path that is kept, characters."""
MOST_FILTERS = 256
"""Most filters of one place of an interface."""

_IFLA_XDP, _TCA_KIND, _TCA_OPTIONS = 43, 1, 2
_XDP_ATTACHED, _XDP_ID = 2, 4
_XDP_IDS = {5: ProgramKind.XDP_NATIVE, 6: ProgramKind.XDP_GENERIC, 7: ProgramKind.XDP_HARDWARE}
"""IFLA_XDP_DRV_PROG_ID and the others."""
_XDP_MODES = {1: ProgramKind.XDP_NATIVE, 2: ProgramKind.XDP_GENERIC, 3: ProgramKind.XDP_HARDWARE}
"""enum XDP_ATTACHED_*."""
_BPF_NAME, _BPF_FLAGS, _BPF_ID = 7, 8, 11
_DIRECT_ACTION = 1
_PARENTS = {AttachPoint.TC_INGRESS: 0xFFFFFFF2, AttachPoint.TC_EGRESS: 0xFFFFFFF3}
"""Parents of the filters of clsact."""
_TCX = {AttachPoint.TC_INGRESS: bpf_syscall.TCX_INGRESS, AttachPoint.TC_EGRESS: bpf_syscall.TCX_EGRESS}

Place = tuple[int, AttachPoint]
"""An interface by number, and a place of it."""


@dataclass(frozen=True)
class Attached:
    """What is attached at one place.

    Attributes:
        programs: In the order in which they run.
        revision: The kernel's count of changes of tcx or netkit there; 0 = it does not count.
    """

    programs: tuple[AttachedProgram, ...] = ()
    revision: int = 0


class ProgramCatalog:
    """Descriptions of programs by id. proc, pins: where processes and pinned programs are found."""

    def __init__(self, proc: Path = Path("/proc"), pins: Path = program_loaders.BPFFS) -> None:
        self._proc, self._pins = proc, pins
        self._known: LruDict[int, AttachedProgram] = LruDict(PROGRAMS_KEPT, "descriptions of eBPF programs")

    def describe(self, found: Iterable[AttachedProgram]) -> dict[int, AttachedProgram]:
        """Descriptions, with loaders, of the programs with these ids."""
        numbers = {each.number: each for each in found if each.number}
        new = {number: self._named(each) for number, each in numbers.items() if number not in self._known}
        if new:
            self._find_loaders(new)
            self._known.update(new)
        return {number: self._known.get(number, each) for number, each in numbers.items()}

    def _named(self, program: AttachedProgram) -> AttachedProgram:
        with suppress(OSError):
            fd = bpf_syscall.program_by_id(program.number)
            try:
                info = bpf_syscall.program_info(fd)
            finally:
                os.close(fd)
            name = decoded(info.name) or program.name
            if len(info.name) >= bpf_syscall.NAME_BYTES:
                name = _whole_name(info) or name
            return replace(program, name=name[:TEXT_CHARACTERS], tag=info.tag)
        return program

    def _find_loaders(self, new: dict[int, AttachedProgram]) -> None:
        pins = program_loaders.pins(self._pins)
        for number, each in new.items():
            pin = pins.get(number, "")[:TEXT_CHARACTERS]
            loader = program_loaders.by_pin(pin) if pin else ""
            new[number] = replace(each, pin=pin, loader=loader, loader_evidence="pin" if loader else "")
        without = [number for number, each in new.items() if not each.loader]
        for number, (pid, command) in program_loaders.holders(without, self._proc, os.getpid()).items():
            loader = program_loaders.by_command(command)
            holder = f"{command[:16]} (pid {pid})"
            new[number] = replace(new[number], holder=holder, loader=loader, loader_evidence="process" if loader else "")
        for number in without:
            each = new[number]
            if not each.loader and (loader := program_loaders.by_name(each.name)):
                new[number] = replace(each, loader=loader, loader_evidence="name")


def _whole_name(info: bpf_syscall.ProgramInfo) -> str:
    """The name of the program's function in its BTF: the kernel cuts a program's own name. "" = not known."""
    if not info.function:
        return ""
    with suppress(OSError, NoBtf, ValueError, IndexError, struct.error, UnicodeDecodeError):
        btf = Btf(bpf_syscall.program_btf(info.btf_id, BTF_BYTES))
        function = btf.type(info.function)
        if function.kind == FUNC and function.name.encode().startswith(info.name):
            return function.name
    return ""


def read(catalog: ProgramCatalog, elsewhere: netkit_programs.Elsewhere | None = None) -> dict[Place, Attached]:
    """What is attached in this thread's namespace; a place without programs is left out.

    Args:
        catalog: Describes programs.
        elsewhere: See netkit_programs.Elsewhere.

    Raises:
        OSError: It cannot be read, or it changed meanwhile.
    """
    found = read_numbers(elsewhere)
    described = catalog.describe(each for attached in found.values() for each in attached.programs)
    return {place: replace(each, programs=_described(each.programs, described)) for place, each in found.items()}


def read_numbers(elsewhere: netkit_programs.Elsewhere | None = None) -> dict[Place, Attached]:
    """As `read`, but programs have their ids only.

    Raises:
        OSError: It cannot be read, or it changed meanwhile.
    """
    found: dict[Place, Attached] = {}
    with Rtnetlink() as route:
        links = route.dump(GETLINK, link_request())
        disciplines = route.dump(GETQDISC, tc_request())
        for link in links:
            ifindex = struct.unpack_from("=i", link, 4)[0]
            xdp = _xdp(attributes(link[16:]).get(_IFLA_XDP, b""))
            if xdp:
                found[ifindex, AttachPoint.XDP] = Attached(xdp)
            netkit = _netkit(link, elsewhere)
            if netkit.programs:
                found[ifindex, AttachPoint.NETKIT] = netkit
            for point, kind in _TCX.items():
                tcx = _tcx(ifindex, kind)
                if tcx.numbers:
                    programs = tuple(AttachedProgram(ProgramKind.TCX, number) for number in tcx.numbers)
                    found[ifindex, point] = Attached(programs, tcx.revision)
        for ifindex, points in _with_filters(disciplines).items():
            for point in points:
                filters = _filters(route.dump(GETFILTER, tc_request(ifindex, _PARENTS[point])))
                if filters:
                    before = found.get((ifindex, point), Attached())
                    # tcx runs first, and its programs may leave the packet to the filters.
                    found[ifindex, point] = replace(before, programs=before.programs + filters)
    return found


def is_unchanged(place: Place, before: Attached, elsewhere: netkit_programs.Elsewhere | None = None) -> bool:
    """Whether what the kernel does not announce is the same as before: programs of tcx and netkit, XDP attached by a link.

    Args:
        place: The place.
        before: What was attached there.
        elsewhere: See netkit_programs.Elsewhere.

    Raises:
        OSError: It cannot be read.
    """
    ifindex, point = place
    if point in (AttachPoint.XDP, AttachPoint.NETKIT):
        with Rtnetlink() as route:
            link = route.get(GETLINK, link_request(ifindex))
        if point is AttachPoint.NETKIT:
            netkit = _netkit(link, elsewhere)
            return _ids(netkit) == _ids(before) and (not before.programs or netkit.revision == before.revision)
        found = _xdp(attributes(link[16:]).get(_IFLA_XDP, b""))
        return _ids(Attached(found)) == _ids(before)
    numbers = tuple(each.number for each in before.programs if each.kind == ProgramKind.TCX)
    tcx = _tcx(ifindex, _TCX[point])
    return tcx.numbers == numbers and (not numbers or tcx.revision == before.revision)


def _ids(attached: Attached) -> list[tuple[str, int]]:
    return [(each.kind, each.number) for each in attached.programs]


def _netkit(link: bytes, elsewhere: netkit_programs.Elsewhere | None) -> Attached:
    """What decides about the packets that this end of a netkit pair gets."""
    end = netkit_programs.receiving_end(link)
    if end is None:
        return Attached()
    with suppress(LookupError):
        return Attached(*netkit_programs.read(end, elsewhere))
    return Attached()


def _described(programs: tuple[AttachedProgram, ...], described: dict[int, AttachedProgram]) -> tuple[AttachedProgram, ...]:
    return tuple(
        replace(described[each.number], kind=each.kind, cgroup=each.cgroup) if each.number else each for each in programs
    )


def _xdp(raw: bytes) -> tuple[AttachedProgram, ...]:
    """The XDP programs of an interface: generic XDP may run beside that of the driver."""
    attrs = attributes(raw)
    found = [AttachedProgram(kind, _u32(attrs[attr])) for attr, kind in _XDP_IDS.items() if attr in attrs]
    if not found and (number := _u32(attrs.get(_XDP_ID, b""))):
        mode = attrs.get(_XDP_ATTACHED, b"\0")[0]
        found = [AttachedProgram(_XDP_MODES.get(mode, ProgramKind.XDP_GENERIC), number)]
    return tuple(each for each in found if each.number)


def _tcx(ifindex: int, attach_type: int) -> bpf_syscall.AttachedIds:
    try:
        return bpf_syscall.attached_ids(ifindex, attach_type)
    except OSError as e:
        # EINVAL: a kernel without tcx. ENODEV: the interface has gone.
        if e.errno in (errno.EINVAL, errno.ENODEV):
            return bpf_syscall.AttachedIds()
        raise


def _with_filters(disciplines: Iterable[bytes]) -> dict[int, tuple[AttachPoint, ...]]:
    """The places of interfaces with filters of tc."""
    found: dict[int, tuple[AttachPoint, ...]] = {}
    for body in disciplines:
        kind = text(attributes(body[20:]).get(_TCA_KIND))
        if kind == "clsact":
            found[struct.unpack_from("=i", body, 4)[0]] = (AttachPoint.TC_INGRESS, AttachPoint.TC_EGRESS)
        elif kind == "ingress":
            found[struct.unpack_from("=i", body, 4)[0]] = (AttachPoint.TC_INGRESS,)
    return found


def _filters(dump: Iterable[bytes]) -> tuple[AttachedProgram, ...]:
    """The filters of a place, by preference as the kernel gives them; a filter without content is only a heading."""
    found: list[AttachedProgram] = []
    for body in dump:
        handle, info = struct.unpack_from("=I", body, 8)[0], struct.unpack_from("=I", body, 16)[0]
        attrs = attributes(body[20:])
        kind, preference = text(attrs.get(_TCA_KIND))[:TEXT_CHARACTERS], info >> 16
        if not handle and _TCA_OPTIONS not in attrs:
            continue
        options = attributes(attrs.get(_TCA_OPTIONS, b"")) if kind == "bpf" else {}
        number = _u32(options.get(_BPF_ID, b""))
        if not number:
            each = AttachedProgram(ProgramKind.TC_FILTER, 0, f"{kind} pref {preference}")
        else:
            is_direct = bool(_u32(options.get(_BPF_FLAGS, b"")) & _DIRECT_ACTION)
            name = text(options.get(_BPF_NAME))[:TEXT_CHARACTERS]
            each = AttachedProgram(ProgramKind.TC if is_direct else ProgramKind.TC_CLASSIFIER, number, name)
        if each not in found:
            found.append(each)
        if len(found) > MOST_FILTERS:
            raise OSError(errno.E2BIG, "too many filters of tc at one interface")
    return tuple(found)


def _u32(raw: bytes) -> int:
    return int(struct.unpack("=I", raw)[0]) if len(raw) == 4 else 0
