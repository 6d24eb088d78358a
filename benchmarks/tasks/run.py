"""Seconds from the start of a process to the answer, for ten tasks of a new user, as the documentation has them do it.

    LDPBAYES_DATA=... python benchmarks/tasks/run.py               # this version
    python benchmarks/tasks/run.py --against ../other/bin/python   # beside another environment's, and ratios
    python benchmarks/tasks/run.py --only regions --repeats 1      # tasks whose name starts so
    python benchmarks/tasks/run.py --profile medians               # one task under cProfile

The tasks are in done.py, what their users start from in given.py. A run is a process of its own that finds no compiled
code on disk: importing the package counts, simulating the data does not. The environments take turns. The table has the
shortest wall time of the repeats and, less sensitive to whatever else the machine does, the least processor time; then
where the last run spent its seconds (import; tracing, lowering and compiling as JAX counts them, summed over threads),
and how far the two posterior means are apart, in posterior standard deviations.

Where a version lacks what a task needs, its user is given the shortest way round that it leaves:

- `command_line`: a short script turns the CSV into a release file, in the same process as the command that reads it;
- `office`: a published count and sum are records under Laplace noise, with bounds too wide to matter;
- `histogram`: the error of a sum of estimated shares is that of a mean over people, by hand;
- `own_mechanism`: the class derives from `Mechanism`, and states bounds that its noise does not exceed.

Real data: Adult in `share`, California Housing in `medians`; the others are simulated.
"""

import argparse
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import time

START = time.perf_counter()
NAMES = ("share", "incomes", "regions", "histogram", "command_line", "office", "medians", "own_mechanism", "plates")
NAMES += ("coverage",)


def run(name, folder):
    """Do a task in this process; what it found, and where its seconds went."""
    import warnings

    warnings.simplefilter("ignore")
    spent = dict.fromkeys(("trace", "lower", "compile", "compilations"), 0.0)
    events = {
        "/jax/core/compile/jaxpr_trace_duration": "trace",
        "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
        "/jax/core/compile/backend_compile_duration": "compile",
    }
    import jax

    def listen(event, seconds, **_):
        if event in events:
            spent[events[event]] += seconds
            spent["compilations"] += events[event] == "compile"

    jax.monitoring.register_event_duration_secs_listener(listen)
    import ldpbayes  # noqa: F401

    imported = time.perf_counter() - START
    answer = {}
    if name:
        import done

        answer = getattr(done, name)(folder)
    return {"import": imported, "all": time.perf_counter() - START, "answer": answer} | spent


def measure(python, name, folder):
    """Wall and processor seconds of a task in a process of its own, and what it printed last."""
    environment = os.environ | {"LDPBAYES_NO_CACHE": "1"}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    with tempfile.TemporaryFile("w+") as output:
        start, before = time.perf_counter(), os.times()
        command = [python, "-W", "ignore", __file__, "--row", name, "--folder", str(folder)]
        done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True, env=environment)
        wall, after = time.perf_counter() - start, os.times()
        output.seek(0)
        lines = output.read().strip().splitlines()
    times = {"wall": wall, "processor": sum(after[2:4]) - sum(before[2:4])}
    if done.returncode:
        return times | {"failed": (done.stderr.strip().splitlines() or ["?"])[-1], "answer": {}}
    return times | json.loads(lines[-1])


def report(name, runs):
    """Print a task's row: shortest times, their ratios, where the seconds went, and whether the answers agree."""
    for measured in ("wall", "processor"):
        values = [min(each[measured] for each in one) for one in runs]
        ratio = f"   ratio {values[0] / values[1]:.2f}" if len(values) > 1 else ""
        print(f"{name:14} {measured:10}" + "".join(f"{value:9.1f} s" for value in values) + ratio, flush=True)
    for one in runs:
        last = one[-1]
        if "failed" in last:
            print(f"{'':14} FAILED {last['failed']}", flush=True)
            continue
        parts = ", ".join(f"{part} {last[part]:.1f}" for part in ("import", "trace", "lower", "compile"))
        print(f"{'':14} {parts} ({last['compilations']:.0f} programs), all {last['all']:.1f}", flush=True)
    answers = [one[-1]["answer"] for one in runs]
    shown = list(answers[0].items())[:4]
    print(f"{'':14} " + ", ".join(f"{key} {mean:.4g} ± {sd:.2g}" for key, (mean, sd) in shown), flush=True)
    if len(answers) > 1 and all(answers):
        apart = {key: abs(mean - answers[1][key][0]) / sd for key, (mean, sd) in answers[0].items()}
        widest = max(apart, key=apart.get)
        print(f"{'':14} means apart by {apart[widest]:.3f} standard deviations at most ({widest})", flush=True)


def main():
    """Run the tasks in turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="tasks whose name starts so")
    parser.add_argument("--against", help="the Python of another environment, with another version of the package")
    parser.add_argument("--repeats", type=int, default=2, help="runs of each task and version")
    parser.add_argument("--profile", choices=NAMES, help="run one task of this version under cProfile")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=pathlib.Path, help="keep the data here (and use them, if they are there)")
    arguments = parser.parse_args()
    if arguments.row is not None:
        print(json.dumps(run(arguments.row, arguments.folder)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.folder or pathlib.Path(scratch)
        if not (folder / "plates.npz").exists():
            if "LDPBAYES_DATA" not in os.environ:
                parser.error("LDPBAYES_DATA must name the folder with adult.data and cal_housing_full.data")
            folder.mkdir(exist_ok=True)
            from given import simulate

            simulate(folder)
        if arguments.profile:
            import cProfile

            names = {"name": arguments.profile, "folder": folder}
            cProfile.runctx("run(name, folder)", globals(), names, sort="cumulative")
            return
        print(
            f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
        )
        pythons = [sys.executable] + ([arguments.against] if arguments.against else [])
        for name in ["", *NAMES]:
            if not (name or "import").startswith(arguments.only):
                continue
            turns = [[measure(python, name, folder) for python in pythons] for _ in range(arguments.repeats)]
            report(name or "import", list(zip(*turns, strict=True)))


if __name__ == "__main__":
    main()
