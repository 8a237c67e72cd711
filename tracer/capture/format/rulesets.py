# SPDX-License-Identifier: Apache-2.0
"""Encodes readings of rules as plain JSON and decodes them.

Legacy iptables: the blob from the kernel and the text from iptables-save; a replay decodes the table again. nftables: the
snapshot, each rule once.
"""

from __future__ import annotations

import base64
from typing import Any

from tracer.capture.format.codec import MalformedRecord, from_json, to_json
from tracer.model.rule import ChainKey, Rule, Ruleset
from tracer.rules.iptables.blob import BlobTable
from tracer.rules.iptables.entry import MalformedTable
from tracer.rules.iptables.table_reader import TableRequest, TableSnapshot, join_text
from tracer.rules.nftables.snapshot import Snapshot
from tracer.rules.nftables.watcher import RulesetUpdate


def encode_reading(reading: TableSnapshot) -> Any:
    """A reading of a legacy table as plain JSON."""
    table = None
    if reading.table:
        both = reading.table.hooks, reading.table.underflows
        hooks, under = ([[k, v] for k, v in sorted(places.items())] for places in both)
        table = {"blob": base64.b64encode(reading.blob).decode(), "hooks": hooks, "underflows": under, "text": reading.text}
    request = [reading.request.netns, reading.request.family, reading.request.table]
    times = {"began": reading.began, "ended": reading.ended}
    return {"wanted": request, "thread": reading.thread, **times, "why": reading.why, "table": table}


def decode_reading(body: Any) -> TableSnapshot:
    """The reading of a legacy table. Raises MalformedRecord."""
    try:
        request, stored = TableRequest(*body["wanted"]), body["table"]
        snapshot = TableSnapshot(request, body["thread"], body["began"], body["ended"], why=body["why"])
        if stored is None:
            return snapshot
        blob = base64.b64decode(stored["blob"])
        places = {k: v for k, v in stored["hooks"]}, {k: v for k, v in stored["underflows"]}
        table = BlobTable(request.family, request.table, blob, *places)
        text = join_text(table, stored["text"])
        return TableSnapshot(request, snapshot.thread, snapshot.began, snapshot.ended, table, text, snapshot.why)
    except (KeyError, TypeError, ValueError, AttributeError, MalformedTable, RecursionError) as e:
        raise MalformedRecord(f"a reading of legacy rules ({e})") from e


def encode_update(update: RulesetUpdate) -> Any:
    """A reading of nftables rules as plain JSON."""
    return [update.inode, update.seen, update.gone, _encode_snapshot(update.snapshot) if update.snapshot else None]


def decode_update(body: Any) -> RulesetUpdate:
    """The reading of nftables rules. Raises MalformedRecord."""
    try:
        inode, seen, gone, stored = body
        return RulesetUpdate(inode, seen, gone, _decode_snapshot(stored) if stored else None)
    except (KeyError, TypeError, ValueError, IndexError) as e:
        raise MalformedRecord(f"a reading of nftables rules ({e})") from e


def _encode_snapshot(snapshot: Snapshot) -> Any:
    ruleset = snapshot.ruleset
    places = {(rule.chain, rule.handle, rule.table, rule.family): handles[0] for handles, rule in snapshot.rules.items()}
    chains = []
    for key, rules in ruleset.chains.items():
        rows = [[r.number, r.text, r.comment, r.target, r.handle] for r in rules]
        handles = {places.get((r.chain, r.handle, r.table, r.family), 0) for r in rules}
        chains.append([list(key), max(handles, default=0), rows])
    maps = list({id(found): found for found, _ in snapshot.lookups.values()}.values())
    number = {id(found): at for at, found in enumerate(maps)}
    return {
        "netns": ruleset.netns,
        "number": snapshot.number,
        "chains": chains,
        "policies": [[list(key), policy] for key, policy in ruleset.policies.items()],
        "names": [[*key, name] for key, name in snapshot.chains.items()],
        "taken": snapshot.taken,
        "tables": [[handle, name] for handle, name in snapshot.tables.items()],
        "maps": [to_json(found) for found in maps],
        "lookups": [[*key, number[id(found)], at] for key, (found, at) in snapshot.lookups.items()],
        "throwing": [[*key, list(matches)] for key, matches in snapshot.hotdrop_matches.items() if matches],
    }


def _decode_snapshot(body: Any) -> Snapshot:
    chains: dict[ChainKey, tuple[Rule, ...]] = {}
    rules: dict[tuple[int, int], Rule] = {}
    for (family, table, chain), handle, rows in body["chains"]:
        made = tuple(Rule(family, table, chain, *row) for row in rows)
        chains[family, table, chain] = made
        rules.update({(handle, rule.handle): rule for rule in made})
    policies: dict[ChainKey, str] = {(f, t, c): policy for (f, t, c), policy in body["policies"]}
    maps = [from_json(found) for found in body["maps"]]
    ruleset = Ruleset("nft", body["netns"], str(body["number"]), chains, policies)
    return Snapshot(
        ruleset,
        body["number"],
        rules,
        {(table, chain): name for table, chain, name in body["names"]},
        {(table, rule): (maps[which], at) for table, rule, which, at in body["lookups"]},
        {handle: name for handle, name in body.get("tables", [])},
        body.get("taken", 0),
        {(int(table), int(rule)): tuple(map(str, names)) for table, rule, names in body.get("throwing", [])},
    )
