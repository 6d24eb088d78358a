"""A row of a benchmark in a process of its own, that finds no compiled code on disk."""

import json
import os
import subprocess
import sys
import tempfile


def printed(script, *arguments, python=sys.executable, limit=None, **variables):
    """What a script prints last, which is JSON; or words that say why there is none. `limit` is in seconds."""
    with tempfile.TemporaryDirectory() as empty:
        environment = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"} | variables
        environment["PYTENSOR_FLAGS"] = f"base_compiledir={empty},numba__cache=False"
        command = [python, "-W", "ignore", script, *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit, env=environment)
        except subprocess.TimeoutExpired:
            return f"cut after {limit} s"
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        return done.stderr.strip().splitlines()[-1]
    return json.loads(done.stdout.strip().splitlines()[-1])
