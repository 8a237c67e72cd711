# SPDX-License-Identifier: Apache-2.0
"""Damages a small capture in many ways, and reads it: `python -m tests.fuzz.damaged_captures [--seconds S] [--seed N]`.

First it cuts the capture at every byte. Then it flips bits, overwrites bytes and exchanges pages, at random, until the time is
over. The reader must print packets, with one sentence if something is missing, or one sentence only. The last line is
readings=… whole=… in-part=… not-at-all=… unnoticed=… crashes=…; the exit status is 1 after a crash, or when the output differed
from the recorded packets without a message.
"""

from __future__ import annotations

import argparse
import io
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from tests.support import captures
from tracer.capture.replay import runner
from tracer.capture.replay.capture_reader import CaptureReader
from tracer.capture.replay.runner import ReplayRequest
from tracer.errors import CaptureUnreadable, DamagedCapture, NewerCapture
from tracer.pipeline.shutdown import StopRequest
from tracer.render.json import JsonOutput

WAYS = ("whole", "in-part", "not-at-all")


def read(path: Path) -> tuple[str, str]:
    """One of WAYS, and the output. An exception that the command does not handle is a crash."""
    out = JsonOutput(io.StringIO(), io.StringIO())
    try:
        with CaptureReader(str(path)) as capture:
            summary = runner.replay(capture, out, ReplayRequest(), StopRequest())
            out.begin(runner.facts(capture, True), str(runner.options(capture).get("said", "")), runner.release(capture))
            out.summary(summary)
            runner.check_complete(capture)
            if capture.ended() is None:
                return "in-part", printed(out)
    except (CaptureUnreadable, NewerCapture) as e:
        one_sentence(str(e))
        return "not-at-all", ""
    except DamagedCapture as e:
        one_sentence(str(e))
        return "in-part", printed(out)
    return "whole", printed(out)


def printed(out: JsonOutput) -> str:
    assert isinstance(out.out, io.StringIO)
    return out.out.getvalue()


def one_sentence(text: str) -> None:
    """Raises AssertionError when the text is not one sentence."""
    assert text.endswith(".") and "\n" not in text and "Traceback" not in text, text


def damaged(data: bytes, dice: random.Random) -> bytes:
    """A copy of the data with one kind of damage."""
    out = bytearray(data)
    way = dice.choice(("bits", "bits", "bytes", "cut", "zero", "move", "pages", "grow"))
    at, length = dice.randrange(len(out)), dice.choice((1, 2, 8, 64, 512, 4096))
    if way == "bits":
        for _ in range(dice.choice((1, 1, 2, 8, 64))):
            out[dice.randrange(len(out))] ^= 1 << dice.randrange(8)
    elif way == "bytes":
        out[at : at + length] = dice.randbytes(len(out[at : at + length]))
    elif way == "cut":
        del out[at : at + length]
    elif way == "zero":
        out[at : at + length] = bytes(len(out[at : at + length]))
    elif way == "move":
        other = dice.randrange(len(out))
        out[at : at + length] = out[other : other + length]
    elif way == "pages":
        pages = [out[i : i + 4096] for i in range(0, len(out), 4096)]
        one, two = dice.randrange(len(pages)), dice.randrange(len(pages))
        pages[one], pages[two] = pages[two], pages[one]
        out = bytearray(b"".join(pages))
    else:
        out += dice.randbytes(length)
    return bytes(out)


def small(directory: Path) -> bytes:
    """A capture of some packets."""
    return captures.capture(directory / "small.k8st").path.read_bytes()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60, help="time for random damage")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=int, default=1, help="cut at every N-th byte")
    given = parser.parse_args()
    found: Counter[str] = Counter()
    dice = random.Random(given.seed)
    scratch = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        directory = Path(name)
        data, path = small(directory), directory / "damaged.k8st"

        path.write_bytes(data)
        _, sound = read(path)

        def attempt(what: str, content: bytes) -> None:
            path.write_bytes(content)
            try:
                way, text = read(path)
                if way == "whole" and text != sound:
                    way = "unnoticed"
                    print(f"{what}: other packets, and no message")
                found[way] += 1
            except Exception:
                found["crash"] += 1
                kept = Path(tempfile.gettempdir()) / f"crash-{found['crash']}.k8st"
                kept.write_bytes(content)
                print(f"{what}: kept as {kept}", traceback.format_exc(), sep="\n", flush=True)

        for length in range(0, len(data) + 1, given.every):
            attempt(f"cut at {length} of {len(data)}", data[:length])
        print(f"cut at every {given.every} of {len(data)} bytes: {dict(found)}", flush=True)
        until, round_ = time.monotonic() + given.seconds, 0
        while time.monotonic() < until:
            round_ += 1
            attempt(f"round {round_} of seed {given.seed}", damaged(data, dice))
    print(
        f"readings={found.total()}",
        *(f"{way}={found[way]}" for way in WAYS),
        f"unnoticed={found['unnoticed']} crashes={found['crash']}",
    )
    return int(bool(found["crash"] or found["unnoticed"]))


if __name__ == "__main__":
    sys.exit(main())
