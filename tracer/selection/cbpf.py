# SPDX-License-Identifier: Apache-2.0
"""Runs a classic BPF program, as libpcap compiles it, on the header of a packet of which a part was recorded.

The rules are those of bpf_filter(3PCAP): a load behind the packet's end and a division by zero reject the packet. A decision
that depends on bits that were not recorded is not guessed: it raises Unrecorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from tracer.selection.ternary import MASK, Ternary, Unrecorded

MOST_STEPS = 20_000
"""Maximum number of instructions that are run for one header, on all paths together."""

LD, LDX, ST, STX, ALU, JMP, RET, MISC = range(8)
_SIZES = {0x00: 4, 0x08: 2, 0x10: 1}
_IMM, _ABS, _IND, _MEM, _LEN, _MSH = 0x00, 0x20, 0x40, 0x60, 0x80, 0xA0
_ADD, _SUB, _MUL, _DIV, _OR, _AND, _LSH, _RSH, _NEG, _MOD, _XOR = range(0x00, 0xB0, 0x10)
_JA, _JEQ, _JGT, _JGE, _JSET = range(0x00, 0x50, 0x10)
_TXA = 0x80
_ZERO = Ternary(0)


class Instruction(NamedTuple):
    """`struct bpf_insn`: the operation, the jumps if true and if false, the operand."""

    code: int
    jump_true: int
    jump_false: int
    operand: int


MOST_INSTRUCTIONS = 4096
"""Length of the longest program, as in the kernel (BPF_MAXINSNS)."""
MEMORY_WORDS = 16


def checked(rows: Sequence[object]) -> tuple[Instruction, ...]:
    """A program from a capture. Jumps only go forward, so every run of it ends.

    Raises:
        ValueError: It is no program: too long, with a jump behind its end, or with another form.
    """
    program = tuple(Instruction(*_numbers(row)) for row in rows)
    if not 0 < len(program) <= MOST_INSTRUCTIONS or program[-1].code & 7 != RET:
        raise ValueError("no program")
    for at, one in enumerate(program):
        is_jump, mode = one.code & 7 == JMP, one.code & 0xE0
        far = one.operand if is_jump and one.code & 0xF0 == _JA else max(one.jump_true, one.jump_false)
        uses_memory = one.code & 7 in (ST, STX) or (one.code & 7 in (LD, LDX) and mode == _MEM)
        is_load = one.code & 7 in (LD, LDX) and mode in (_ABS, _IND)
        if (
            (is_jump and at + 1 + far >= len(program))
            or (uses_memory and one.operand >= MEMORY_WORDS)
            or (is_load and one.code & 0x18 not in _SIZES)
            or (one.code & 7 in (LD, LDX) and mode > _MSH)
        ):
            raise ValueError("no program")
    return program


def _numbers(row: object) -> tuple[int, int, int, int]:
    if not isinstance(row, tuple) or len(row) != 4 or not all(type(each) is int and 0 <= each <= MASK for each in row):
        raise ValueError("no instruction")
    code, jump_true, jump_false, operand = row
    if code > 0xFFFF or max(jump_true, jump_false) > 0xFF:
        raise ValueError("no instruction")
    return code, jump_true, jump_false, operand


class Header(Protocol):
    """The bytes of a packet from its IP header on."""

    @property
    def length(self) -> Ternary:
        """Length of the packet, bytes."""

    def load(self, offset: int, size: int) -> Ternary | None:
        """The number at an offset, big-endian; None = it is behind the packet's end."""

    def header_length(self, offset: int) -> Ternary | None:
        """Length of the IPv4 header that begins there, bytes."""


class _State(NamedTuple):
    at: int
    a: Ternary = _ZERO
    x: Ternary = _ZERO
    memory: tuple[Ternary, ...] = (_ZERO,) * MEMORY_WORDS


def results(program: Sequence[Instruction], header: Header) -> frozenset[bool]:
    """The possible results of a program: one for a packet; for a header with open bits, those of all paths.

    Raises:
        Unrecorded: The result depends on bits that were not recorded. Its argument is the number of a byte, if one is known.
    """
    found: set[bool] = set()
    states, steps = [_State(0)], 0
    while states and steps < MOST_STEPS:
        steps += 1
        state = states.pop()
        one = program[state.at]
        kind = one.code & 7
        if kind == RET:
            result = state.a if one.code & 0x18 == 0x10 else Ternary(one.operand)
            found |= {not each for each in result.equals(_ZERO)}
        elif kind == JMP:
            states += [state._replace(at=target) for target in _targets(one, state)]
        else:
            after = _step(one, state, header)
            if after is None:
                found.add(False)
            else:
                states.append(after._replace(at=state.at + 1))
    return frozenset(found)


def _targets(one: Instruction, state: _State) -> set[int]:
    """The instructions that may be next after a jump."""
    operation, after = one.code & 0xF0, state.at + 1
    if operation == _JA:
        return {after + one.operand}
    other = state.x if one.code & 8 else Ternary(one.operand)
    if operation == _JSET:
        answers = state.a.has_bits(other)
    elif operation == _JEQ:
        answers = state.a.equals(other)
    elif operation == _JGE:
        answers = state.a.is_at_least(other)
    else:
        answers = frozenset(not answer for answer in other.is_at_least(state.a))
    return {after + (one.jump_true if answer else one.jump_false) for answer in answers}


def _step(one: Instruction, state: _State, header: Header) -> _State | None:
    """The state after an instruction that is no jump; None = it rejects the packet."""
    kind = one.code & 7
    if kind in (LD, LDX):
        loaded = _loaded(one, state, header)
        return None if loaded is None else state._replace(a=loaded) if kind == LD else state._replace(x=loaded)
    if kind in (ST, STX):
        value = state.a if kind == ST else state.x
        return state._replace(memory=(*state.memory[: one.operand], value, *state.memory[one.operand + 1 :]))
    if kind == MISC:
        return state._replace(a=state.x) if one.code & _TXA else state._replace(x=state.a)
    result = _calculated(one, state)
    return None if result is None else state._replace(a=result)


def _loaded(one: Instruction, state: _State, header: Header) -> Ternary | None:
    mode, k = one.code & 0xE0, one.operand
    if mode == _IMM:
        return Ternary(k)
    if mode == _MEM:
        return state.memory[k]
    if mode == _LEN:
        return header.length
    if mode == _MSH:
        return header.header_length(k)
    if mode == _IND:
        if state.x.open:
            raise Unrecorded
        k = k + state.x.value & MASK
    return header.load(k, _SIZES[one.code & 0x18])


def _calculated(one: Instruction, state: _State) -> Ternary | None:
    operation, a, other = one.code & 0xF0, state.a, state.x if one.code & 8 else Ternary(one.operand)
    if operation == _AND:
        return a.bitwise_and(other)
    if operation == _OR:
        return a.bitwise_or(other)
    if operation in (_LSH, _RSH) and not other.open:
        bits = min(other.value, 32)
        return a.shifted(bits if operation == _LSH else -bits)
    if operation in (_DIV, _MOD):
        if True in other.equals(_ZERO):
            return None
        return a.calculated(other, int.__floordiv__ if operation == _DIV else int.__mod__)
    if operation == _NEG:
        return Ternary(0).calculated(a, int.__sub__)
    functions = {_ADD: int.__add__, _SUB: int.__sub__, _MUL: int.__mul__, _XOR: int.__xor__}
    return a.calculated(other, functions.get(operation, _shift_by_open))


def _shift_by_open(value: int, bits: int) -> int:
    """A shift by a number with open bits: `calculated` leaves all bits of its result open."""
    raise AssertionError
