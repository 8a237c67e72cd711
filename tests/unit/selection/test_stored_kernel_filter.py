# SPDX-License-Identifier: Apache-2.0
"""The kernel's filter in a capture: it comes back as it was, and a hostile one is refused."""

from __future__ import annotations

import pytest

from tracer.capture.format.codec import from_json, to_json
from tracer.model.filter import Filter, parse_host
from tracer.selection import stored_kernel_filter

NET, ADDRESS = parse_host("10.0.0.0/8"), parse_host("2001:db8::1")


@pytest.mark.parametrize(
    "chosen",
    [
        Filter(),
        Filter((80, 443), (NET,), 6, 4, 7, 8, 9, True),
        Filter(source_ports=(1,), destination_ports=(2,), excluded_ports=(3,), tcp_flags=frozenset({2, 18})),
        Filter(sources=(NET,), destinations=(ADDRESS,), excluded_hosts=(NET, ADDRESS)),
    ],
)
def test_each_filter_comes_back(chosen: Filter) -> None:
    assert stored_kernel_filter.decoded(from_json(to_json(stored_kernel_filter.encoded(chosen)))) == chosen


@pytest.mark.parametrize(
    "stored",
    [
        {"ports": 5}, {"ports": ("80",)}, {"ports": (-1,)}, {"ports": (70000,)}, {"hosts": "10.0.0.0/8"}, {"hosts": (5,)},
        {"hosts": ("no address",)}, {"protocol": "tcp"}, {"netns": True}, {"tcp_flags": {"a"}},
        {"sources": ("10.0.0.0/8",) * 999},
    ],
)  # fmt: skip
def test_another_form_is_refused(stored: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"."):
        stored_kernel_filter.decoded(stored)


def test_what_only_the_node_knows_is_no_condition_on_the_wire() -> None:
    assert stored_kernel_filter.on_the_wire(Filter(protocol=17)) is not None
    for chosen in (
        Filter(netns=5),
        Filter(ifindex=5),
        Filter(drops_only=True),
        Filter(excluded_hosts=(NET,)),
        Filter(protocol=89),
    ):
        assert stored_kernel_filter.on_the_wire(chosen) is None
