# SPDX-License-Identifier: Apache-2.0
"""The record of one nftables rule that acted on a packet, or of the end of a chain (bpf/records/nft_trace.h)."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracer.events import cstruct


@cstruct.enumeration("records/nft_trace.h", "nft_trace_kind")
class Trace(IntEnum):
    """Kinds of these records, in `trace`."""

    TRACE_POLICY = 1
    TRACE_RETURN = 2
    TRACE_RULE = 3


@cstruct.structure("records/nft_trace.h", "nft_rule_trace")
class NftHit(NamedTuple):
    """One row of kind EVENT_NFT_RULE. Names are bytes up to the last one that is not zero."""

    time: int  # ns, CLOCK_MONOTONIC
    packet: int  # identity of the packet
    object: int  # address of the base chain
    netns: int  # inode of the network namespace
    generation: int  # generation of the ruleset in that namespace, 0 = not known
    code: int  # verdict: NF_*, or negative in two's complement: NFT_*
    mark: int  # packet mark after the rule
    cookie: int  # lower half of the namespace's cookie, 0 = not known
    hop: int  # number of this record in its packet, from 0
    kind: int  # EVENT_NFT_RULE
    flags: int  # enum event_flag, or-ed
    hook: int  # index in IP_HOOKS
    pf: int  # protocol family of the hook
    trace: int  # Trace
    family: int  # family of the table: 1 inet, 2 ip, 10 ip6
    policy: int  # policy of the base chain: NF_DROP or NF_ACCEPT
    spare_2: npt.NDArray[np.uint8]  # 0
    handle: int  # handle of the rule, unique in its table; 0 = no rule
    table_handle: int  # handle of the table, unique in the namespace
    to_handle: int  # JUMP, GOTO: handle of the target chain
    run: int  # number of this run of nft_do_chain, 0 = not known
    chain_handle: int  # handle of the base chain, unique in its table; 0 = not known
    joint1: int  # 0
    registers: bytes  # nftables' 16 data registers after the rule
    table: bytes  # name of the table
    joint2: int  # 0
    to: bytes  # JUMP, GOTO: name of the target chain


HIT_DTYPE = cstruct.dtype("records/nft_trace.h", "nft_rule_trace")
