# SPDX-License-Identifier: Apache-2.0
"""The NetworkPolicy behind a rule of Calico, for iptables and nftables, in each form of the names."""

from __future__ import annotations

import hashlib
import json

import pytest

from tests.support.policies import cluster, pod, policy
from tracer.kube.catalog import ClusterView
from tracer.kube.owners import calico, denial_of, owner_of
from tracer.kube.policies.calico_names import limited
from tracer.model.kube import Owner
from tracer.model.rule import Ruleset
from tracer.rules import save_parser
from tracer.rules.nftables import json_parser

POD = "cali" + hashlib.sha1(b"shop.web").hexdigest()[:11]
FORMS = {
    "3.28": (
        "shop/knp.default.{}",
        "Policy shop/knp.default.{} ingress",
        "Start of policies",
        "Drop if no policies passed packet",
    ),
    "3.29": (
        "default/shop/knp.default.{}",
        "Policy shop/knp.default.{} ingress",
        "Start of tier default",
        "End of tier default. Drop if no policies passed packet",
    ),
    "3.32": (
        "knp/shop/{}",
        "KubernetesNetworkPolicy shop/{} ingress",
        "Start of tier default",
        "End of tier default. Drop if no policies passed packet",
    ),
}
WEB = pod("shop/web", "10.0.0.1", app="web")
DENY, ALLOW = (
    policy("shop/deny-all"),
    policy(
        "shop/allow-web-to-something",
        {"app": "web"},
        ingress=[
            {"from": [{"podSelector": {}}, {"ipBlock": {"cidr": "fd00::/64"}}], "ports": [{"port": 80}]},
            {"ports": [{"port": 81}, {"port": 53, "protocol": "UDP"}]},
        ],
    ),
)


def rules(form: str, names: tuple[str, ...] = ("deny-all", "allow-web-to-something"), comments: bool = True) -> Ruleset:
    """The rules of one pod with these policies. The last one allows: its chain has three parts."""
    identifier, comment, start, end = FORMS[form]
    accept = "-j MARK --set-xmark 0x10000/0x10000"
    chains = [f"cali-pi-{limited(identifier.format(name), 28)}" for name in names]
    lines = [
        f'-A cali-tw-{POD} -m comment --comment "cali:0" -j MARK --set-xmark 0x0/0x30000',
        f'-A cali-tw-{POD} -m comment --comment "cali:1" -m comment --comment "{start}" -j MARK --set-xmark 0x0/0x20000',
    ]
    for chain in chains:
        lines += [
            f'-A cali-tw-{POD} -m comment --comment "cali:2" -m mark --mark 0x0/0x20000 -j {chain}',
            f'-A cali-tw-{POD} -m comment --comment "cali:3" -m comment --comment "Return if policy accepted"'
            " -m mark --mark 0x10000/0x10000 -j RETURN",
        ]
    lines += [
        f'-A cali-tw-{POD} -m comment --comment "cali:4" -m comment --comment "{end}" -m mark --mark 0x0/0x20000 -j DROP',
        f'-A cali-tw-{POD} -m comment --comment "cali:5" -m comment --comment "Drop if no profiles matched" -j DROP',
    ]
    for chain, name in zip(chains, names, strict=True):
        said = f' -m comment --comment "{comment.format(name)}"' if comments else ""
        lines.append(f'-A {chain} -m comment --comment "cali:6"{said} -p tcp -m multiport --dports 80 {accept}')
        if name == names[-1]:
            mark = "-m mark --mark 0x10000/0x10000 -j RETURN"
            lines += [
                f"-A {chain} {mark}",
                f"-A {chain} -p tcp -m multiport --dports 81 -j MARK --set-xmark 0x10000/0x10000",
                f"-A {chain} {mark}",
                f"-A {chain} -p udp -m multiport --dports 53 -j MARK --set-xmark 0x10000/0x10000",
            ]
    return save_parser.parse("*filter\n" + "\n".join(lines))


def owner(found: Ruleset, chain: str, number: int, view: ClusterView) -> Owner:
    return owner_of(found.chain("ip", "filter", chain)[number - 1], found, view)


def policy_chain(found: Ruleset, at: int = -1) -> str:
    return [chain for _, _, chain in found.chains if chain.startswith("cali-pi-")][at]


@pytest.mark.parametrize("comments", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_a_rule_of_a_policy(form: str, comments: bool) -> None:
    found, view = rules(form, comments=comments), cluster(WEB, DENY, ALLOW)
    texts = [owner(found, policy_chain(found), n, view).text for n in (1, 3, 5)]
    name = "NetworkPolicy shop/allow-web-to-something"
    assert texts == [f"{name}, ingress rule {n} (Calico)" for n in (1, 2, 2)], "the peer of IPv6 has no part"
    assert owner(found, policy_chain(found), 1, view).evidence == (
        "API: chain hash, comment" if comments else "API: chain hash"
    )


@pytest.mark.parametrize("form", FORMS)
def test_without_the_api_a_comment_that_fits_the_hash_names_the_policy(form: str) -> None:
    found = rules(form)
    assert (
        owner(found, policy_chain(found), 1, ClusterView()).text
        == "NetworkPolicy shop/allow-web-to-something, ingress (Calico)"
    )
    bare = owner(rules(form, comments=False), policy_chain(found), 1, ClusterView())
    assert bare.kind == "unknown" and f"policy of chain {policy_chain(found)}" in bare.text


def test_a_comment_that_does_not_fit_the_hash_is_not_used() -> None:
    found = rules("3.32", ("allow-web-to-something",))
    name = policy_chain(found)
    other = save_parser.parse(
        f'*filter\n-A {name[:-1]}x -m comment --comment "KubernetesNetworkPolicy shop/web ingress" -j DROP'
    )
    assert owner(other, f"{name[:-1]}x", 1, cluster(WEB, DENY, ALLOW)).kind == "unknown"


def test_two_objects_with_one_hash_are_both_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    from tracer.kube.policies import calico_names

    monkeypatch.setattr(calico_names, "chains_of", lambda namespace, name: ("_AAAAAAAAAAAAAAAAAAA",))
    found = save_parser.parse("*filter\n-A cali-pi-_AAAAAAAAAAAAAAAAAAA -p tcp -j MARK --set-xmark 0x10000/0x10000")
    one = owner(found, "cali-pi-_AAAAAAAAAAAAAAAAAAA", 1, cluster(policy("shop/a"), policy("shop/b")))
    assert not one.known and "candidates NetworkPolicy shop/a or NetworkPolicy shop/b, ingress" in one.text


@pytest.mark.parametrize("form", FORMS)
def test_the_end_of_a_pods_chain_names_all_its_policies(form: str) -> None:
    found, view = rules(form), cluster(WEB, DENY, ALLOW)
    one = owner(found, f"cali-tw-{POD}", 7, view)
    both = "NetworkPolicies shop/deny-all and shop/allow-web-to-something"
    assert one.text == f"{both}, ingress of pod shop/web, nothing in them allows it (Calico)"
    alone = rules(form, ("deny-all",))
    assert owner(alone, f"cali-tw-{POD}", 5, view).text == (
        "NetworkPolicy shop/deny-all, ingress of pod shop/web, nothing in it allows it (Calico)"
    )
    denial = denial_of(found.chain("ip", "filter", f"cali-tw-{POD}")[6], found, view)
    assert denial and (denial.direction, denial.pod, denial.is_rule) == ("ingress", ("shop", "web"), False)
    assert [p.text for p in denial.policies] == ["NetworkPolicy shop/deny-all", "NetworkPolicy shop/allow-web-to-something"]


def test_a_profile_is_no_policy() -> None:
    found = rules("3.32")
    assert denial_of(found.chain("ip", "filter", f"cali-tw-{POD}")[7], found, cluster(WEB)) is None
    assert owner(found, f"cali-tw-{POD}", 8, cluster(WEB)).kind == "program"


def test_an_unknown_policy_in_a_pods_chain_is_unknown() -> None:
    one = owner(rules("3.32", comments=False), f"cali-tw-{POD}", 7, cluster(WEB, DENY))
    assert not one.known and "NetworkPolicy shop/deny-all, an unknown policy (chain cali-pi-_" in one.text


def test_a_deny_rule_of_a_global_policy() -> None:
    text = '-A cali-po-gnp/block -m comment --comment "cali:a" -m comment --comment "GlobalNetworkPolicy block egress" -j DROP'
    found = save_parser.parse(f"*filter\n{text}")
    assert owner(found, "cali-po-gnp/block", 1, ClusterView()).text == "GlobalNetworkPolicy block, egress (Calico)"
    denial = denial_of(found.chain("ip", "filter", "cali-po-gnp/block")[0], found, ClusterView())
    assert denial and denial.is_rule and denial.direction == "egress"


def test_a_group_of_policies_is_followed() -> None:
    lines = [
        f'-A cali-tw-{POD} -m comment --comment "Start of tier default" -j MARK --set-xmark 0x0/0x20000',
        f"-A cali-tw-{POD} -j cali-gi-abc",
        "-A cali-gi-abc -j cali-pi-knp/shop/deny-all",
        "-A cali-gi-abc -j cali-pi-knp/shop/b",
        f'-A cali-tw-{POD} -m comment --comment "End of tier default. Drop if no policies passed packet" -j DROP',
    ]
    found = save_parser.parse("*filter\n" + "\n".join(lines))
    one = owner(found, f"cali-tw-{POD}", 3, cluster(WEB, DENY, policy("shop/b")))
    assert one.label == "shop/deny-all,b"


def nft(chain: str, comment: str, *expressions: object) -> dict[str, object]:
    body = {"family": "ip", "table": "calico", "chain": chain, "handle": 7, "comment": comment, "expr": list(expressions)}
    return {"rule": body}


def test_nftables() -> None:
    """Calico's own table: chains begin with the table that they would be in, and the comment follows the hash."""
    name = "filter-cali-pi-knp/shop/allow-web-to-something"
    mark = {"mangle": {"key": {"meta": {"key": "mark"}}, "value": {"|": [{"meta": {"key": "mark"}}, 0x10000]}}}
    items = [
        nft(f"filter-cali-tw-{POD}", "cali:a; Start of tier default", {"counter": {}}),
        nft(f"filter-cali-tw-{POD}", "cali:b;", {"jump": {"target": name}}),
        nft(f"filter-cali-tw-{POD}", "cali:c; End of tier default. Drop if no policies passed packet", {"drop": None}),
        nft(name, "cali:d; KubernetesNetworkPolicy shop/allow-web-to-something ingress", mark),
    ]
    found = json_parser.parse(json.dumps({"nftables": items})).ruleset
    view = cluster(WEB, ALLOW)
    of = [
        owner_of(found.chain("ip", "calico", chain)[n], found, view).text
        for chain, n in ((name, 0), (f"filter-cali-tw-{POD}", 2))
    ]
    assert of == [
        "NetworkPolicy shop/allow-web-to-something, ingress (Calico)",
        "NetworkPolicy shop/allow-web-to-something, ingress of pod shop/web, nothing in it allows it (Calico)",
    ]


def test_marks_of_conditions_accept_nothing() -> None:
    lines = [
        "-A cali-pi-x -s 10.0.0.0/8 -j MARK --set-xmark 0x40000/0x40000",
        "-A cali-pi-x -m mark --mark 0x40000/0x40000 -j MARK --set-xmark 0x10000/0x10000",
        "-A cali-pi-x -m mark --mark 0x10000/0x10000 -j RETURN",
        "-A cali-pi-x -p udp -j MARK --set-xmark 0x10000/0x10000",
    ]
    found = save_parser.parse("*filter\n" + "\n".join(lines))
    assert [calico.accepts(one, found) for one in found.chain("ip", "filter", "cali-pi-x")] == [False, True, False, True]
