# SPDX-License-Identifier: Apache-2.0
"""Rules of one program in two back ends, or of two modes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.support import audits
from tests.support.nodes import node
from tracer.audit.mixed_backends import check
from tracer.audit.state import NodeState
from tracer.model.rule import ChainKey, Rule


def test_kube_proxy_in_legacy_and_in_nft_tables(tmp_path: Path) -> None:
    legacy = audits.recorded(node("1.20.2-iptables-legacy", "S2-one"))
    state = audits.state(node("1.36.2-nftables-nft", "S2-one"), tmp_path)
    assert list(check(state)) == []
    both = replace(state, installed=replace(state.installed, legacy=legacy.legacy))
    (finding,) = check(both)
    assert finding.certain and finding.cause.startswith("kube-proxy has ip rules in 2 places (")
    assert " in legacy tables" in finding.cause and " in the nftables table kube-proxy" in finding.cause
    assert {p.evidence for p in finding.proofs} == {"iptables-save", "nft"}


def test_other_programs_may_use_the_other_back_end(tmp_path: Path) -> None:
    state = audits.state(node("1.20.2-iptables-legacy", "S2-one"), tmp_path)
    portmap = audits.recorded(node("1.36.2-nftables-nft", "S5")).nft
    assert portmap
    only = {key: rules for key, rules in portmap.ruleset.chains.items() if key[1] == "cni_hostport"}
    nft = replace(portmap, ruleset=replace(portmap.ruleset, chains=only))
    assert len(only) > 3 and list(check(replace(state, installed=replace(state.installed, nft=nft)))) == []


def test_a_cleaned_back_end_is_no_finding(tmp_path: Path) -> None:
    """`kube-proxy --cleanup` leaves KUBE-MARK-MASQ, which other programs jump to; no rule of kube-proxy leads there."""
    state = audits.state(node("1.36.2-iptables-legacy", "S2-one"), tmp_path)
    nft = audits.recorded(node("1.36.2-iptables-nft", "S2-one")).nft
    assert nft

    def with_nft(chains: dict[ChainKey, tuple[Rule, ...]]) -> NodeState:
        ruleset = replace(nft.ruleset, chains=chains)
        return replace(state, installed=replace(state.installed, nft=replace(nft, ruleset=ruleset)))

    both = dict(nft.ruleset.chains)
    assert [f.key for f in check(with_nft(both)) if f.key[0] == "kube-proxy"] == [("kube-proxy", "ip"), ("kube-proxy", "ip6")]
    left = {key: rules if key[2] == "KUBE-MARK-MASQ" else () for key, rules in both.items()
            if key in nft.ruleset.policies or key[2] == "KUBE-MARK-MASQ"}  # fmt: skip
    assert any(left.values()) and list(check(with_nft(left))) == []


def test_the_chain_that_a_cleanup_leaves_in_force_is_no_finding(tmp_path: Path) -> None:
    """kube-proxy 1.36 writes KUBE-FIREWALL as kubelet does, and `--cleanup` leaves it and the jumps to it: the rules are the
    same in both back ends, so none of them is out of date."""
    state = audits.state(node("1.36.2-iptables-legacy", "S2-one"), tmp_path)
    nft = audits.recorded(node("1.36.2-iptables-nft", "S2-one")).nft
    assert nft
    left = {key: tuple(r for r in rules if "KUBE-FIREWALL" in (r.chain, r.target)) for key, rules in nft.ruleset.chains.items()}
    assert {r.target for rules in left.values() for r in rules} == {"KUBE-FIREWALL", "DROP"}
    cleaned = replace(nft, ruleset=replace(nft.ruleset, chains=left))
    assert list(check(replace(state, installed=replace(state.installed, nft=cleaned)))) == []


def test_rules_that_portmap_leaves_for_no_pod_are_no_finding(tmp_path: Path) -> None:
    """portmap removes a pod's rules and leaves those that mark and masquerade. These are the same in both back ends."""
    state = audits.state(node("1.36.2-iptables-legacy", "S5"), tmp_path)
    nft = audits.recorded(node("1.36.2-iptables-nft", "S5")).nft
    assert nft

    def with_nft(keep: str) -> NodeState:
        """portmap's rules in nft; with `keep` also those for its pods."""
        chains = {
            key: tuple(r for r in rules if "CNI-" in r.chain + r.target and (keep or "CNI-DN-" not in r.chain + r.target))
            for key, rules in nft.ruleset.chains.items()
        }
        ruleset = replace(nft.ruleset, chains=chains)
        return replace(state, installed=replace(state.installed, nft=replace(nft, ruleset=ruleset)))

    (finding,) = check(with_nft("pods"))
    assert finding.key == ("portmap", "ip") and "kube-proxy --cleanup" not in finding.cure
    assert list(check(with_nft(""))) == []
