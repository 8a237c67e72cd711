# SPDX-License-Identifier: Apache-2.0
"""Runs `nft` to list rules, and decides when netlink alone is used: nft is missing, fails, is slow, or would be."""

from __future__ import annotations

import time

from tracer.node import tools
from tracer.rules.nftables.netlink_dump import MOST_SETS_READ

NFT_SECONDS = 10.0
"""Time limit of nft, s."""
PAUSE_SECONDS = 600.0
"""Time after which a slow nft is tried again, s. Meanwhile it would cost its time limit at each change of the rules."""
SENTENCE = "The rules of nftables are read through netlink alone, without nft: {why}."


class NftUnusable(Exception):
    """netlink alone is used; the text says why, a clause."""


class NftTool:
    """Runs nft. A slow one is not run again for a while."""

    def __init__(self) -> None:
        self._slow_until, self._slow = 0.0, ""

    def output(self, *arguments: str, sets: int = 0) -> str:
        """Output of nft.

        Args:
            arguments: Its arguments.
            sets: Number of sets and maps in the network namespace.

        Raises:
            NftUnusable: It is missing, fails, is slow, or would be slow.
        """
        if sets > MOST_SETS_READ:
            raise NftUnusable(f"there are {sets:,} sets and maps, and nft takes time by the square of their number")
        if time.monotonic() < self._slow_until:
            raise NftUnusable(self._slow)
        try:
            return tools.output("nft", *arguments, seconds=NFT_SECONDS)
        except TimeoutError as e:
            self._slow_until, self._slow = time.monotonic() + PAUSE_SECONDS, str(e)
            raise NftUnusable(self._slow) from e
        except OSError as e:
            raise NftUnusable(str(e)) from e


nft_tool = NftTool()
"""The tool of this process."""
