# SPDX-License-Identifier: Apache-2.0
"""Chains that no rule leads to, duplicate jumps, hostPorts of pods that are gone."""

from __future__ import annotations

from tests.support import audits
from tracer.audit.leftover_chains import check
from tracer.kube.catalog import ClusterView
from tracer.kube.store import ObjectStore
from tracer.model.finding import Finding

SERVICE, OTHER = "KUBE-SVC-5DZI2HW7VHZLUOJ5", "KUBE-SVC-NPX46M4PTMTKRN6Y"
POD = "CNI-DN-1b2d78b7fd62596952a9c"
ANOTHER = "CNI-DN-d056ff941790668665b1b"


def table(*rules: str, chains: str = "") -> str:
    heads = "".join(f":{c} - [0:0]\n" for c in (SERVICE, OTHER, POD, ANOTHER, "KUBE-SERVICES", "CNI-HOSTPORT-DNAT", *chains))
    return f"*nat\n:PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n{heads}" + "".join(f"-A {r}\n" for r in rules) + "COMMIT\n"


def found(*rules: str, cluster: ClusterView | None = None) -> list[Finding]:
    return list(check(audits.of_text(table(*dict.fromkeys(rules)), cluster)))


def host_port(chain: str, port: int, address: str) -> list[str]:
    return [
        "PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT",
        "OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT",
        f"CNI-HOSTPORT-DNAT -p tcp -m multiport --dports {port} -j {chain}",
        f"{chain} -p tcp -m tcp --dport {port} -j DNAT --to-destination {address}:80",
    ]


def cluster() -> ClusterView:
    """A cluster with one pod, at 10.224.0.222."""
    store = ObjectStore("node-1")
    store.load([
        {"kind": "Node", "metadata": {"name": "node-1"}, "status": {"addresses": []}},
        {"kind": "Pod", "metadata": {"namespace": "default", "name": "web"}, "spec": {"nodeName": "node-1"},
         "status": {"podIPs": [{"ip": "10.224.0.222"}]}},
    ])  # fmt: skip
    return ClusterView(store)


def test_a_chain_that_no_rule_leads_to_is_a_likely_finding() -> None:
    (finding,) = found(f"{SERVICE} -j ACCEPT", "KUBE-SERVICES -j ACCEPT")
    assert not finding.certain and finding.cause.startswith("1 chain of Services or pods is left that cannot be reached")
    assert finding.proofs[-1].text == f"no rule that a packet meets jumps to {SERVICE}"
    assert found("PREROUTING -j KUBE-SERVICES", f"KUBE-SERVICES -j {SERVICE}", f"{SERVICE} -j ACCEPT") == []


def test_a_chain_that_only_leftover_chains_lead_to() -> None:
    (finding,) = found(f"{OTHER} -j {SERVICE}", f"{SERVICE} -j ACCEPT", "PREROUTING -j KUBE-SERVICES")
    assert finding.cause.startswith("2 chains of Services or pods are left")
    jumps = ("PREROUTING -j KUBE-SERVICES", "KUBE-SERVICES -j RETURN", f"KUBE-SERVICES -j {SERVICE}")
    (finding,) = found(*jumps, f"{SERVICE} -j ACCEPT")
    assert finding.cause.startswith("1 chain"), "no rule behind an unconditional RETURN is reached"


def test_the_commands_that_remove_leftover_chains() -> None:
    """kube-proxy removes only its own chains: those of an older version or of another mode stay. A chain
    that leads to a removed chain is removed with it."""
    (finding,) = found(f"KUBE-SERVICES -j {OTHER}", f"{OTHER} -j {SERVICE}", f"{SERVICE} -j ACCEPT", "PREROUTING -j ACCEPT")
    names = f"{SERVICE} {OTHER} KUBE-SERVICES"
    for what in "FX":
        assert f"for c in {names}; do iptables-legacy -t nat -{what} $c; done" in finding.cure
    assert "what another version or another mode has written stays" in finding.cure
    chains = [f"KUBE-SVC-{n:016d}".replace("0", "A").replace("1", "B").replace("8", "C").replace("9", "D") for n in range(100)]
    heads = "".join(f":{c} - [0:0]\n-A {c} -j ACCEPT\n" for c in chains)
    (many,) = check(audits.of_text(f"*nat\n:PREROUTING ACCEPT [0:0]\n{heads}COMMIT\n"))
    assert "100 chains" in many.cause and "`" not in many.cure and "drain and reboot the node" in many.cure


def test_the_same_jump_twice() -> None:
    jump = 'PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES'
    (finding,) = check(audits.of_text(table(jump, jump)))
    assert finding.certain and "Rule 2 of PREROUTING (ip nat) is the same as rule 1" in finding.cause
    assert found(jump, "PREROUTING -j ACCEPT", "PREROUTING -j ACCEPT") == [], "the administrator may repeat a rule"


def test_a_hostport_of_a_pod_that_is_gone() -> None:
    rules = host_port(POD, 3306, "10.224.0.9")
    (finding,) = found(*rules, cluster=cluster())
    assert finding.certain and "leads to 10.224.0.9, and no pod has that address" in finding.cause
    assert found(*host_port(POD, 3306, "10.224.0.222"), cluster=cluster()) == []
    assert found(*rules) == [], "without the API it is unknown whether the pod is gone"


def test_two_containers_for_one_hostport() -> None:
    (finding,) = found(*host_port(POD, 3306, "10.224.0.8"), *host_port(ANOTHER, 3306, "10.224.0.9"))
    assert finding.certain
    assert (
        "has rules for 2 containers: that of one takes every request, to 10.224.0.8, and the others get none" in finding.cause
    )
    assert found(*host_port(POD, 3306, "10.224.0.8"), *host_port(ANOTHER, 3307, "10.224.0.9")) == []
