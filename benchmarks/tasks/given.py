"""What the users of the ten tasks start from: real data and simulated ones, privatized by NumPy alone."""

import os
import pathlib

import numpy as np
import pandas as pd

REGIONS = (0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 4.0)
SHARES = tuple((k + 1) / 210 for k in range(20))


def simulate(folder):
    """Write what the tasks' users were given, each in a file; a task loads what it needs."""
    rng = np.random.default_rng(21)
    data = pathlib.Path(os.environ["LDPBAYES_DATA"])
    adult = pd.read_csv(data / "adult.data", header=None, skipinitialspace=True).sample(3000, random_state=21)
    x = np.column_stack([(adult[0] - 40) / 15, (adult[4] - 10) / 3, (adult[12] - 40) / 15])
    truth = (adult[14] == ">50K").to_numpy().astype(int)
    answers = np.where(rng.uniform(size=3000) < 1 / (1 + np.exp(-1.5)), truth, 1 - truth)
    np.savez(folder / "share.npz", x=x, answers=answers)
    incomes = np.clip(rng.lognormal(3.5, 0.6, 50_000), 0, 150) + rng.laplace(0, 150 / 2.0, 50_000)
    np.save(folder / "incomes.npy", incomes)
    regions = [
        np.clip(rng.normal(rng.normal(1, 0.8), 1.5, 3000), -5, 5) + rng.laplace(0, 10 / epsilon, 3000)
        for epsilon in REGIONS
    ]
    np.save(folder / "regions.npy", np.stack(regions))
    categories = rng.choice(20, 100_000, p=SHARES)
    bits = rng.uniform(size=(100_000, 20)) < np.where(np.arange(20) == categories[:, None], 0.5, 1 / (np.e + 1))
    np.save(folder / "bits.npy", bits.astype(np.uint8))
    visits = np.clip(rng.negative_binomial(1.2, 1.2 / 5.2, 5000), 0, 20) + rng.laplace(0, 20 / 1.5, 5000)
    pd.DataFrame({"person": np.arange(5000), "visits": visits}).to_csv(folder / "visits.csv", index=False)
    houses = pd.read_csv(data / "cal_housing_full.data").dropna()
    columns = {"income": houses["medianIncome"] / 15.1, "age": houses["housingMedianAge"] / 52}
    rows = pd.DataFrame(columns | {"value": houses["medianHouseValue"] / 500_100}).clip(0, 1)
    noise = 0.5 * np.sqrt(rng.exponential(size=(len(rows), 1))) * rng.normal(size=(len(rows), 2))
    rows[["income", "age"]] += np.where(rng.uniform(size=(len(rows), 1)) < 0.25, 0.0, noise)
    rows.to_csv(folder / "houses.csv", index=False)
    ends = rng.geometric(1 - np.exp(-0.1), (2, 4000))
    np.save(folder / "counts.npy", np.clip(rng.poisson(4.5, 4000), 0, 10) + ends[0] - ends[1])
    group = rng.integers(0, 6, 800)
    effect = rng.normal(0, 0.7, 6)
    scores = np.clip(rng.normal(2 + effect[group], 1.0), -2, 6) + rng.laplace(0, 8 / 4.0, 800)
    np.savez(folder / "plates.npz", group=group, scores=scores)
