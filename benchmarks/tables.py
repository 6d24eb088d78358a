"""Time of true tables, least squares and small areas: seconds and, in brackets, processor time, three calls a process,
or one, cold, of what takes long.

python -m benchmarks.tables                # all rows, about two minutes on two cores
python -m benchmarks.tables --only ratios  # rows whose name starts so
"""

import argparse
import os
import platform
import time

import arviz as az
import numpy as np
from scipy import sparse

import ldpbayes as ldp
from ldpbayes.tables import NoisyTable, estimate_table, true_table

RNG = np.random.default_rng(0)


def noisy(x, scale, **keys):
    noise = np.rint(RNG.normal(0, scale, len(x))).astype(int)
    return NoisyTable(x + noise, ldp.DiscreteGaussianMechanism(scale=scale, sensitivity=1), keys=keys)


def ratios(cells=50_000, scale=10.0):
    """1,000 draws of the ratio of two noisy counts in each of 50,000 cells."""
    x = RNG.poisson(1000, cells)
    scale = scale if np.ndim(scale) else float(scale)
    tables = {name: noisy(k * x, scale, county=np.arange(cells)) for name, k in (("sum", 3), ("n", 1))}

    def run():
        post = true_table(tables, num_samples=1000)["posterior"]
        return post["sum"] / post["n"]

    return run


def ratios_with_personal_scales():
    """The same with a scale a cell, between 5 and 15."""
    return ratios(scale=RNG.uniform(5, 15, 50_000))


def total():
    """1,000 draws of 3,000 cells given their sum."""
    x = RNG.poisson(20, 3000)
    table = noisy(x, 10.0, county=np.arange(3000))
    return lambda: true_table(table, total=int(x.sum()))


def workload(queries=10_000, cells=1_000):
    matrix = sparse.random(queries, cells, density=0.01, random_state=1, format="csr")
    matrix.data[:] = 1
    return matrix, noisy(
        (matrix @ RNG.poisson(50, cells)).astype(int), RNG.uniform(3, 9, queries), query=np.arange(queries)
    )


def least_squares_of_queries():
    """10,000 sums of about ten of 1,000 cells, with the covariance."""
    matrix, table = workload()
    return lambda: estimate_table(table, matrix)


def statsmodels_of_queries():
    """The same by statsmodels' GLS, once."""
    import statsmodels.api as sm

    matrix, table = workload()
    variances = table.mechanism.noise.variance
    return lambda: sm.GLS(table.values.astype(float), matrix.toarray(), sigma=variances).fit()


def chains():
    """Four chains of 1,000 + 1,000 for 200 counties, not negative, with releases of 10 states and of all."""
    state, county = np.repeat(np.arange(10), 20), np.tile(np.arange(20), 10)
    x = RNG.poisson(8, 200)
    tables = {
        "county": noisy(x, 6.0, state=state, county=county),
        "state": noisy(x.reshape(10, 20).sum(axis=1), 6.0, state=np.arange(10)),
        "all": noisy(x[None].sum(axis=1), 6.0),
    }
    return lambda: true_table(tables, queries="keys", progress_bar=False)


def areas(count=3_000):
    """Poisson rates of 3,000 counties in 50 states, log-rates with standard deviations 0.3 and 0.4, populations of
    median 1,100: 4 chains of 500 + 500. Prints the error of the rates over that of noisy count over population.
    """
    state = np.sort(RNG.integers(0, 50, count))
    people = np.rint(np.exp(RNG.normal(np.log(1100), 1.2, count))).clip(20)
    rate = np.exp(RNG.normal(np.log(0.02), 0.3, 50)[state] + RNG.normal(0, 0.4, count))
    table = noisy(RNG.poisson(people * rate), 10.0, state=state, county=np.arange(count))

    def run():
        options = {"num_warmup": 500, "num_samples": 500, "target_accept_prob": 0.7, "progress_bar": False}
        posterior = ldp.fit(ldp.models.small_areas(exposure=people), table, **options)["posterior"]
        estimate = posterior["rate"].mean(("chain", "draw")).values
        errors = [np.sqrt(np.mean((each - rate) ** 2)) for each in (estimate, table.values / people)]
        common = posterior[["intercept", "spread_state", "spread_county"]]
        rhat = [float(each) for each in az.rhat(common).data_vars.values()]
        print(f"error {errors[0] / errors[1]:.2f} of the naive one, R-hat of what is common {max(rhat):.3f}")

    return run


def many_areas():
    """The same for 30,000 counties."""
    return areas(30_000)


ONCE = [statsmodels_of_queries, areas, many_areas]
ROWS = [
    ratios,
    ratios_with_personal_scales,
    total,
    least_squares_of_queries,
    statsmodels_of_queries,
    chains,
    areas,
    many_areas,
]


def main():
    """Print a line a row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose name starts so")
    arguments = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    for row in (row for row in ROWS if row.__name__.startswith(arguments.only)):
        run, seconds = row(), []
        for _ in range(1 if row in ONCE else 3):
            wall, processor = time.perf_counter(), time.process_time()
            with np.errstate(divide="ignore", invalid="ignore"):
                run()
            seconds.append((time.perf_counter() - wall, time.process_time() - processor))
        text = ", ".join(f"{wall:.2f} s ({processor:.2f})" for wall, processor in seconds)
        print(f"{row.__name__:30} {text}", flush=True)


if __name__ == "__main__":
    main()
