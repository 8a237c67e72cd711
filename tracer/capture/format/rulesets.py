# SPDX-License-Identifier: Apache-2.0
"""Readings of rules as a capture holds them.

Legacy: the blob and the text, as the kernel and iptables-save gave them; the table is decoded again. nftables: the snapshot,
each rule once.
"""

from __future__ import annotations

import base64
from typing import Any

from tracer.capture.format.codec import MalformedRecord, plain, rich
from tracer.model.rule import ChainKey, Rule, Ruleset
from tracer.rules.iptables.blob import BlobTable
from tracer.rules.iptables.entry import MalformedTable
from tracer.rules.iptables.table_reader import TableRequest, TableSnapshot, joined
from tracer.rules.nftables.snapshot import Snapshot
from tracer.rules.nftables.watcher import RulesetUpdate


def of_reading(r: TableSnapshot) -> Any:
    """A reading as plain JSON."""
    table = None
    if r.table:
        hooks, under = ([[k, v] for k, v in sorted(places.items())] for places in (r.table.hooks, r.table.underflows))
        table = {"blob": base64.b64encode(r.blob).decode(), "hooks": hooks, "underflows": under, "text": r.text}
    wanted = [r.request.netns, r.request.family, r.request.table]
    return {"wanted": wanted, "thread": r.thread, "began": r.began, "ended": r.ended, "why": r.why, "table": table}


def reading(told: Any) -> TableSnapshot:
    """The reading. Raises MalformedRecord."""
    try:
        wanted, stored = TableRequest(*told["wanted"]), told["table"]
        made = TableSnapshot(wanted, told["thread"], told["began"], told["ended"], why=told["why"])
        if stored is None:
            return made
        blob = base64.b64decode(stored["blob"])
        places = {k: v for k, v in stored["hooks"]}, {k: v for k, v in stored["underflows"]}
        table = BlobTable(wanted.family, wanted.table, blob, *places)
        return TableSnapshot(wanted, made.thread, made.began, made.ended, table, joined(table, stored["text"]), made.why)
    except (KeyError, TypeError, ValueError, AttributeError, MalformedTable, RecursionError) as e:
        raise MalformedRecord(f"a reading of legacy rules ({e})") from e


def of_change(change: RulesetUpdate) -> Any:
    """A look at nftables' rules as plain JSON."""
    return [change.inode, change.seen, change.gone, _of_snapshot(change.snapshot) if change.snapshot else None]


def change(told: Any) -> RulesetUpdate:
    """The look. Raises MalformedRecord."""
    try:
        inode, seen, gone, stored = told
        return RulesetUpdate(inode, seen, gone, _snapshot(stored) if stored else None)
    except (KeyError, TypeError, ValueError, IndexError) as e:
        raise MalformedRecord(f"a reading of nftables rules ({e})") from e


def _of_snapshot(s: Snapshot) -> Any:
    ruleset = s.ruleset
    places = {(rule.chain, rule.handle, rule.table, rule.family): handles[0] for handles, rule in s.rules.items()}
    chains = []
    for key, rules in ruleset.chains.items():
        rows = [[r.number, r.text, r.comment, r.target, r.handle] for r in rules]
        handles = {places.get((r.chain, r.handle, r.table, r.family), 0) for r in rules}
        chains.append([list(key), max(handles, default=0), rows])
    maps = list({id(found): found for found, _ in s.lookups.values()}.values())
    number = {id(found): at for at, found in enumerate(maps)}
    return {
        "netns": ruleset.netns,
        "number": s.number,
        "chains": chains,
        "policies": [[list(key), policy] for key, policy in ruleset.policies.items()],
        "names": [[*key, name] for key, name in s.chains.items()],
        "taken": s.taken,
        "tables": [[handle, name] for handle, name in s.tables.items()],
        "maps": [plain(found) for found in maps],
        "lookups": [[*key, number[id(found)], at] for key, (found, at) in s.lookups.items()],
        "throwing": [[*key, list(matches)] for key, matches in s.throwing.items() if matches],
    }


def _snapshot(told: Any) -> Snapshot:
    chains: dict[ChainKey, tuple[Rule, ...]] = {}
    rules: dict[tuple[int, int], Rule] = {}
    for (family, table, chain), handle, rows in told["chains"]:
        made = tuple(Rule(family, table, chain, *row) for row in rows)
        chains[family, table, chain] = made
        rules.update({(handle, rule.handle): rule for rule in made})
    policies: dict[ChainKey, str] = {(f, t, c): policy for (f, t, c), policy in told["policies"]}
    maps = [rich(found) for found in told["maps"]]
    ruleset = Ruleset("nft", told["netns"], str(told["number"]), chains, policies)
    return Snapshot(
        ruleset,
        told["number"],
        rules,
        {(table, chain): name for table, chain, name in told["names"]},
        {(table, rule): (maps[which], at) for table, rule, which, at in told["lookups"]},
        {handle: name for handle, name in told.get("tables", [])},
        told.get("taken", 0),
        {(int(table), int(rule)): tuple(map(str, names)) for table, rule, names in told.get("throwing", [])},
    )
