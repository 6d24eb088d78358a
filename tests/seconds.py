"""Has the default suite become slower? Processor seconds of every test file, against those of the reference machine.

    python tests/seconds.py           # the last whole run against seconds.json; fails if it took 10 % more
    python tests/seconds.py --record  # makes the last whole run the reference

`conftest.py` keeps what a run of the whole default suite took; the reference is one without a cache, so remove
`.pytest_cache/jax` first. Machines differ, so the sum is divided by what a fixed
loop took in the same run: the compilation of small programs, which is what most of the suite's time goes into. The loop
is repeated after every test module, under whatever else the machine did then.
"""

import argparse
import json
import pathlib
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

REFERENCE = pathlib.Path(__file__).with_suffix(".json")
ALLOWED = 1.1  # times the reference: machine and load change the ratio by a few percent


class Seconds:
    """What a process of the suite spends: by test file, and for one turn of the fixed loop."""

    def __init__(self):
        self.files, self.turns, self.loop = {}, 0, 0.0

    def add(self, file, seconds):
        self.files[file] = self.files.get(file, 0.0) + seconds

    def calibrate(self):
        """Compiles a small program that no cache has: its constant is drawn anew, in every process and run."""
        start = time.process_time()
        self.turns += 1
        constant = np.float32(np.random.default_rng().random())
        jax.jit(lambda x: jnp.sum(jnp.exp(-(x**2)) * constant)).lower(np.ones(8, np.float32)).compile()
        self.loop += time.process_time() - start

    def merge(self, other):
        for file, seconds in other["files"].items():
            self.add(file, seconds)
        self.turns, self.loop = self.turns + other["turns"], self.loop + other["loop"]

    def as_dict(self):
        files = {file: round(seconds, 2) for file, seconds in sorted(self.files.items())}
        return {"files": files, "turns": self.turns, "loop": round(self.loop, 4)}


def in_turns(record):
    """Each file's time, in turns of the fixed loop."""
    turn = record["loop"] / record["turns"]
    return {file: seconds / turn for file, seconds in record["files"].items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true")
    last = pathlib.Path(__file__).parent.parent / ".pytest_cache" / "seconds.json"
    if not last.exists():
        sys.exit("no whole run of the default suite is known here: run `python -m pytest` first")
    if parser.parse_args().record:
        REFERENCE.write_text(json.dumps(json.loads(last.read_text()), indent=1) + "\n")
        return
    now, before = in_turns(json.loads(last.read_text())), in_turns(json.loads(REFERENCE.read_text()))
    ratio = sum(now.values()) / sum(before.values())
    print(f"the default suite takes {ratio:.2f} times the processor time of the reference (at most {ALLOWED})")
    if ratio > ALLOWED:
        grown = sorted(now, key=lambda file: before.get(file, 0.0) - now[file])[:10]
        for file in grown:
            print(f"  {file}: {before.get(file, 0.0):.0f} -> {now[file]:.0f} turns of the fixed loop")
        sys.exit(1)


if __name__ == "__main__":
    main()
