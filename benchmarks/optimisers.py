"""Minimising corrected criteria: our damped Newton steps against quasi-Newton methods of libraries.

    pip install optimistix && python -m benchmarks.optimisers     # some two minutes on two cores

The criteria are those of Table 2 of Lu, Chen & Qiu at the larger scale (n = 5,000, λ = 1), in the box [−3, 3]⁶, from
the origin; DR's need not be convex. L-BFGS-B knows the box, the other two work behind a smooth map onto it. A fit
counts as settled where the method says that it converged, as lowest where no other method found a value below it.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optimistix
from jax.scipy.optimize import minimize as jax_minimize
from scipy import optimize

from ldpbayes.numerics.minimise import minimise
from reproductions.lu_chen_qiu import logistic_setting

LOWEST = 1e-7  # how much above the least value found a criterion may be


def fits(estimator, criterion, start):
    """Parameters, whether the method says that it converged, and its steps: for every method."""
    size = estimator.space.upper

    def value(theta, _=None):
        return jnp.mean(criterion.values(estimator.loss, theta, estimator.mechanism.index))

    def inside(u, _=None):
        return value(size * jnp.tanh(u / size))

    newton = minimise(lambda at: derivatives(estimator, criterion, at), start, estimator.space)
    jaxs = jax_minimize(inside, start, method="BFGS", options={"maxiter": 100})
    solver = optimistix.BFGS(rtol=1e-8, atol=1e-8)
    theirs = optimistix.minimise(inside, solver, start, max_steps=256, throw=False)
    found = {
        "damped Newton": (newton.theta, newton.converged, newton.iterations),
        "BFGS of JAX": (size * jnp.tanh(jaxs.x / size), jaxs.success, jaxs.nit),
        "BFGS of optimistix": (
            size * jnp.tanh(theirs.value / size),
            theirs.result == optimistix.RESULTS.successful,
            theirs.stats["num_steps"],
        ),
    }
    return found, {name: value(theta) for name, (theta, *_) in found.items()}


def scipys(estimator, criterion, start):
    """The same of SciPy's L-BFGS-B, with the criterion's gradient."""
    bounds = [(-estimator.space.upper, estimator.space.upper)] * len(start)

    def slope(theta):
        value, gradient, _ = derivatives(estimator, criterion, theta)
        return float(value), np.asarray(gradient)

    options = {"ftol": 1e-14, "gtol": 1e-8}
    found = optimize.minimize(slope, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return (found.x, found.success, found.nit), found.fun


@jax.jit
def derivatives(estimator, criterion, theta):
    """Criterion, gradient and Hessian."""
    return criterion.derivatives(estimator.loss, theta, estimator.mechanism.index)


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicates", type=int, default=40)
    replicates = parser.parse_args().replicates
    jax.config.update("jax_enable_x64", True)
    setting = logistic_setting(5000, 1.0)
    start = jnp.asarray(setting.start)

    def evidence(key, estimator):
        keys = jax.random.split(key, 3)
        z = setting.mechanism.randomize(keys[1], setting.simulate(keys[0]))
        return estimator.evidence(keys[2], z).criteria[0]

    for method in ("dr", "sdr", "sl", "naive"):
        estimator, table = setting.estimators[method], {}
        compiled, criterion_of = jax.jit(fits), jax.jit(evidence)
        for key in jax.random.split(jax.random.key(0), replicates):
            criterion = criterion_of(key, estimator)
            found, values = compiled(estimator, criterion, start)
            found["L-BFGS-B of SciPy"], values["L-BFGS-B of SciPy"] = scipys(estimator, criterion, start)
            least = min(values.values())
            for name, (_, converged, steps) in found.items():
                table.setdefault(name, []).append((converged, values[name] <= least + LOWEST, steps))
        for name, rows in table.items():
            settled, lowest, steps = np.mean(np.array(rows, float), axis=0)
            counts = f"settled {settled * replicates:3.0f}, lowest {lowest * replicates:3.0f} of {replicates}"
            print(f"{method:6s} {name:20s} {counts}, {steps:6.1f} steps", flush=True)


if __name__ == "__main__":
    main()
