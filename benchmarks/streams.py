"""Sketches of files larger than memory: records a second, memory, and the posterior from the result.

python -m benchmarks.streams [FOLDER] [--records 100000000]
"""

import argparse
import multiprocessing
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor

FILES = 20
TASK = "from benchmarks.streams import measure; measure({!r}, {!r})"


def write(folder, kind, records):
    """Files of normal numbers, clipped to 0 and 20, with Laplace noise; those that are there stay."""
    import numpy as np
    import pyarrow as pa
    from pyarrow import csv, parquet

    for i in range(FILES):
        path = folder / f"{records}-{i:02d}.{kind}"
        if not path.exists():
            rng = np.random.default_rng(i)
            z = rng.normal(7, 3, records // FILES).clip(0, 20) + rng.laplace(0, 20, records // FILES)
            table = pa.table({"value": z})
            parquet.write_table(table, path) if kind == "parquet" else csv.write_csv(table, path)


def measure(pattern, workers):
    """Sketch in this process, or with workers, then fit, and print seconds and the largest memory of a process."""
    import ldpbayes as ldp

    mechanism = ldp.LaplaceMechanism(1.0, 0, 20)
    start = time.perf_counter()
    if workers:
        with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as executor:
            sketch = ldp.data.sketch_from(pattern, mechanism, executor=executor)
    else:
        sketch = ldp.data.sketch_from(pattern, mechanism)
    seconds = time.perf_counter() - start
    own, others = (resource.getrusage(who).ru_maxrss / 1e6 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    rate = float(sketch.size) / seconds / 1e6
    print(
        f"{sketch.size:,.0f} records, {workers or 'no'} workers: {seconds:.1f} s, {rate:.1f} million a second,", end=" "
    )
    print(f"{own:.2f} GB here, {others:.2f} GB in a worker")
    start = time.perf_counter()
    posterior = ldp.fit(ldp.models.clipped_gaussian(), sketch, progress_bar=False)["posterior"]
    found = ", ".join(
        f"{name} {float(posterior[name].mean()):.4f} ± {float(posterior[name].std()):.4f}" for name in ("mu", "sigma")
    )
    print(f"    posterior in {time.perf_counter() - start:.1f} s: {found}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=pathlib.Path)
    parser.add_argument("--records", type=int, default=100_000_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or pathlib.Path(temporary)
        for kind, records in (("parquet", given.records), ("csv", given.records // 5)):
            write(folder, kind, records)
            for workers in (0, 2):
                subprocess.run([sys.executable, "-c", TASK.format(f"{folder}/{records}-*.{kind}", workers)], check=True)


if __name__ == "__main__":
    main()
