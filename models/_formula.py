"""Generalised linear models of released answers, from a formula and a data frame."""

import inspect
import json
import re
import warnings
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints

from ldpbayes import Release, observe
from ldpbayes._core.checks import guess, refuse, require
from ldpbayes._core.pytrees import host, pytree_dataclass, static
from ldpbayes._core.tabular import column, columns_of, levels_in_order
from ldpbayes.models._pooled import Located, pooled

GROUP = re.compile(r"(^|\+)\s*\(\s*1\s*\|\s*(\w+)\s*\)(?=\s*(\+|$))")  # an intercept a group, as lme4 writes it
WIDE = 2.5  # standard deviations of the answer for one of a column: bambi's scale of slopes and intercepts
FAMILIES: dict[str, tuple[tuple[str, ...], Any]] = {  # names of parameters, and the law given a linear predictor
    "normal": (("sigma",), dist.Normal),
    "student_t": (("sigma", "nu"), lambda eta, sigma, nu: dist.StudentT(nu, eta, sigma)),
    "poisson": ((), lambda eta: dist.Poisson(jnp.exp(eta))),
    "bernoulli": ((), lambda eta: dist.Bernoulli(logits=eta)),
}
POSITIVE = ("sigma", "nu", "tau")


@pytree_dataclass(eq=False)
class Design:
    """What a model of a formula reads of a data frame, and what the data of the fit decided."""

    columns: Any  # (N, p), standardised
    codes: dict[str, Any]  # of groups, (N,) each
    centre: Any  # (p,)
    unit: Any  # (p,)
    offset: Any  # (N,), of terms with coefficient 1, less the mean in the fit
    shift: Any  # this mean
    answer: Any  # rough mean and standard deviation of the answers
    names: tuple[str, ...] = static(default=())
    groups: tuple[tuple[str, tuple], ...] = static(default=())  # names and levels
    intercept: bool = static(default=True)
    learned: str = host(default="")  # all that new data need, as JSON

    @property
    def coords(self) -> dict[str, Any]:
        """Labels of the axes of a fit."""
        return {"coefficient": list(self.names)} | {name: list(levels) for name, levels in self.groups}

    def __len__(self) -> int:
        return int(np.shape(self.columns)[0])


class _Each(dist.Distribution):
    """A law of its own for each entry of a vector."""

    support, pytree_data_fields = constraints.real, ("laws",)

    def __init__(self, laws: list[dist.Distribution]) -> None:
        self.laws = laws
        super().__init__((len(laws),), validate_args=False)

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        keys = jax.random.split(key, len(self.laws))
        return jnp.stack([law.sample(own, sample_shape) for law, own in zip(self.laws, keys, strict=True)], -1)

    def log_prob(self, value: Any, intermediates: Any = None) -> jax.Array:
        return jnp.stack([law.log_prob(value[..., place]) for place, law in enumerate(self.laws)], -1)


class regression:
    """Generalised linear model from a formula: the answer is released, and all other columns are public in a data
    frame.

    Returns ``model(frame, release=None)`` with these sites:

    - ``at_means``: the linear predictor if all columns of the design matrix and the offset have their mean;
    - ``intercept``: the linear predictor if all columns of the design matrix and the offset are 0;
    - ``coefficients``: the coefficients in the units of the data, labelled by the columns of the design matrix;
    - ``sigma`` and ``nu``, if the family has these parameters;
    - ``by_region`` and ``tau_region`` for a term ``(1 | region)``: the effects of the regions, and their standard
      deviation;
    - the released answers, under the name of the answer in the formula.

    Raises ValueError if the frame has missing values, or if a column is unknown. For predictions, give a new data frame
    to `predict` or to ``Predictive`` of NumPyro. Levels of categories and knots of splines are then those of the fit.

    Parameters
    ----------
    formula : str
        Formula in the syntax of the package formulaic, which must be installed (extra ``formula``). Example: ``"income
        ~ age + C(education) + (1 | region)"``, where the last term is a random intercept for each region. Terms such as
        ``offset(log(days))`` are added with the coefficient 1. The data frame need not have a column with the answer.
    family : {"normal", "student_t", "poisson", "bernoulli"}
        The law of an original answer. The linear predictor is the mean for "normal" (default), the location for
        "student_t", the log of the mean for "poisson", and the logit of the probability for "bernoulli".
    priors : dict of str to numpyro.distributions.Distribution, optional
        Priors by name. The defaults are similar to the defaults of the package bambi. In the defaults, m and s are the
        two numbers of ``answer``. For "poisson" and "bernoulli", m is 0 and s is 1.

        - ``"intercept"`` is the prior of ``at_means``. Default: Normal(m, 2.5 s).
        - The name of a column of the design matrix, such as ``"age"``, is the prior of the coefficient of this column.
          Default: Normal(0, 2.5 s / d), where d is the standard deviation of the column.
        - ``"tau"`` is the prior of the standard deviation of the effects of regions or other groups. Default:
          half-normal with scale 2.5 s.
        - ``"sigma"`` is the prior of the scale of a "normal" or "student_t" answer. Default: half-Student's t with 4
          degrees of freedom and scale s.
        - ``"nu"`` is the prior of the degrees of freedom of "student_t". Default: Gamma(2, 0.1).
    answer : pair of float, optional
        Rough guesses of the mean and the standard deviation of the original answers, in their unit. Default: the middle
        between the clipping bounds, and a quarter of the distance between the bounds.
    """

    def __init__(
        self,
        formula: str,
        family: str = "normal",
        priors: Mapping[str, dist.Distribution] | None = None,
        answer: tuple[float, float] | None = None,
    ) -> None:
        require("formula", "formulaic", "pandas")
        if family not in FAMILIES:
            raise ValueError(f"family must be one of {', '.join(FAMILIES)}, got {family!r}")
        name, separator, right = formula.partition("~")
        self.name, self.formula, self.family, self.answer = name.strip(), formula, family, answer
        self.priors = dict(priors or {})
        if not separator or not self.name.isidentifier():
            raise ValueError(f"formula must be 'answer ~ columns', with a name on the left, got {formula!r}")
        self.groups = [match[2] for match in GROUP.finditer(right)]
        self.right = GROUP.sub("", right).strip().removeprefix("+").strip() or "1"
        if "|" in self.right or self.name in self.groups:
            raise ValueError(f"write groups as (1 | column), where column is not the answer; got {formula!r}")
        for name, law in self.priors.items():
            support: Any = getattr(law, "support", None)
            lowest = np.min(getattr(support, "lower_bound", -np.inf))
            if (lowest < 0 if name in POSITIVE else support is not constraints.real) or law.shape():
                kind = "a positive" if name in POSITIVE else "any real"
                raise TypeError(f"the prior of {name!r} must be a NumPyro law of {kind} number, got {law!r}")
        self.learned: str | None = None  # by the latest fit
        self.__name__, self.__signature__ = "model", inspect.signature(self.__call__)

    def __repr__(self) -> str:
        return f"regression({self.formula!r}, family={self.family!r})"

    shown = property(lambda self: {"family": self.family})  # beside the formula

    def prepare(self, args: tuple, kwargs: dict[str, Any], attrs: Mapping[str, Any] | None = None) -> Any:
        """Replace the data frame in the arguments by a design matrix, and return the arguments.

        `attrs` are the attributes of a fit. If they are given, the design has the columns, levels and units of that
        fit.
        """
        frame, release = (self.__signature__.bind(*args, **kwargs).arguments.get(key) for key in ("frame", "release"))
        if isinstance(frame, Release) or (attrs is None and not isinstance(release, Release) and release is not None):
            raise TypeError(
                f"the model takes a data frame and a Release with one answer for each row, got {type(release).__name__}"
            )
        design = self._design(frame, release, None if attrs is None else attrs.get("design", "{}"))
        if attrs is None:
            self.learned = design.learned
        return (design, release), {}, {"design": design.learned}

    def __call__(self, frame: Any, release: Release | None = None) -> None:
        design = frame if isinstance(frame, Design) else self._design(frame, release, self.learned)
        if release is not None and len(release) != len(design):
            raise ValueError(f"the data frame has {len(design)} rows, but the release has {len(release)} answers")
        (middle, spread), names = design.answer, design.names
        defaults = {"intercept": dist.Normal(middle, WIDE * spread), "tau": dist.HalfNormal(WIDE * spread)}
        defaults |= {"sigma": dist.FoldedDistribution(dist.StudentT(4.0, 0.0, spread)), "nu": dist.Gamma(2.0, 0.1)}
        laws, rough = defaults | self.priors, spread / 2  # chains start where means are of the answers' order
        eta, slopes, level = jnp.asarray(design.offset), jnp.zeros(len(names)), middle
        if names:
            law: dist.Distribution = dist.Normal(0.0, WIDE * spread / design.unit)
            if self.priors.keys() & {*names}:
                wide = [dist.Normal(0.0, law.scale[place]) for place in range(len(names))]
                law = _Each([self.priors.get(name, each) for name, each in zip(names, wide, strict=True)])
            with numpyro.plate("coefficient", len(names)):
                slopes = numpyro.sample("coefficients", Located(law, 0 * design.unit, rough / design.unit))
            eta = eta + design.columns @ (slopes * design.unit)
        if design.intercept:
            level = numpyro.sample("at_means", Located(laws["intercept"], middle, rough))
            numpyro.deterministic("intercept", level - design.centre @ slopes - design.shift)
            eta = eta + level
        # Variance with which a record tells its predictor: of a link's, as a yes or no tells a logit of 0.
        mechanism: Any = getattr(release, "mechanism", None)
        mechanism = getattr(mechanism, "innermost", mechanism) if FAMILIES[self.family][0] else None
        variance = 4.0 if mechanism is None else jnp.square(rough) + jnp.mean(mechanism.moments(middle)[1])
        for name, levels in design.groups:
            tau = numpyro.sample(f"tau_{name}", _positive(laws["tau"], rough))
            # The first groups' coordinates are those of level + effect, which records tell, and neither of the two.
            counts = jnp.bincount(design.codes[name], length=len(levels))
            centre = jnp.full(len(levels), middle - level if name == self.groups[0] else 0.0)
            with numpyro.plate(name, len(levels)):
                effects = numpyro.sample(f"by_{name}", pooled(0.0, tau, centre, counts / variance))
            eta = eta + effects[design.codes[name]]
        starts = {"sigma": rough, "nu": 20.0}
        needed, law_of = FAMILIES[self.family]
        law = law_of(eta, *(numpyro.sample(name, _positive(laws[name], starts[name])) for name in needed))
        observe(self.name, law, release)

    def _design(self, frame: Any, release: Any, learned: str | None) -> Design:
        """The design of a data frame, by what is known from a fit; or of a fit, from whose data it learns."""
        import formulaic
        import pandas as pd

        known, given = json.loads(learned or "{}", object_hook=_with_numbers), columns_of(frame)
        formula, rows = "".join(self.formula.split()), len(next(iter(given.values()), ()))
        if learned is not None and known.get("formula") != formula:
            raise ValueError(f"the posterior has the formula {known.get('formula')}, but the model has {formula}")
        table = pd.DataFrame(index=range(rows))
        for name, values in given.items():
            if re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", self.right + str(self.groups)):
                if name == self.name:
                    raise ValueError(f"the answer is private and cannot be a column on the right; got {self.formula!r}")
                order = levels_in_order(frame[name])
                table[name] = values if order is None else pd.Categorical(values, categories=order)
                refuse(table[name].isna().to_numpy(), f"column {name!r} has {{}} missing values", place="in row {0}")
        fitted = {name: ("categorical", {"categories": each}) for name, each in known.get("levels", {}).items()}
        states = {"transform_state": known.get("transforms", {}), "encoder_state": fitted, "na_action": "ignore"}
        maker = formulaic.materializers.PandasMaterializer(table, {"offset": lambda values: values})
        by = {n: column(dict(table), n) for n in self.groups}
        try:
            with warnings.catch_warnings(action="ignore"):  # such as of unseen levels, which are refused below
                matrix = maker.get_model_matrix(formulaic.ModelSpec.from_spec(self.right, **states))
        except (formulaic.errors.FormulaicError, SyntaxError, RecursionError) as error:
            raise ValueError(f"{self.formula!r}: {error}; the columns are {', '.join(given)}") from None
        state = matrix.model_spec
        levels = {name: each["categories"] for name, (_, each) in state.encoder_state.items() if "categories" in each}
        levels = known.get("levels", levels | {n: list(pd.Categorical(by[n]).categories) for n in by})
        for name, each in levels.items():
            values = pd.Series(by[name] if name in by else maker.factor_cache[name].values)
            problem = f"column {name!r} has {{}} values that are not among the levels of the data of the fit"
            refuse(~values.isin(each).to_numpy(), problem, values.to_numpy(), "in row {0}")
        for name, values in matrix.items():
            refuse(~np.isfinite(values), f"column {name!r} has {{}} values that are not finite", place="in row {0}")
        fixed, intercept = [each for each in matrix if re.fullmatch(r"offset\([^:]*\)", each)], "Intercept" in matrix
        names, offset = [name for name in matrix if name not in ("Intercept", *fixed)], matrix[fixed].sum(axis=1)
        if mixed := [name for name in names if "offset(" in name]:
            raise ValueError(f"an offset cannot be in a term with other columns, got {mixed[0]!r}")
        columns = matrix[names].to_numpy(float)
        if learned is None:
            unit, parameters = columns.std(axis=0), ["intercept", *names, *FAMILIES[self.family][0]]
            parameters += ["tau"] if self.groups else []
            for name in self.priors.keys() - set(parameters):
                raise ValueError(
                    f"priors has {name!r}, which is no parameter{guess(name, parameters)}; it may have "
                    f"{', '.join(parameters)}"
                )
            known = {"formula": formula, "names": names, "levels": levels, "transforms": state.transform_state}
            known |= {"centre": columns.mean(axis=0) * intercept, "unit": np.where(unit > 0, unit, 1.0)}
            known |= {"answer": self._scale(release), "shift": offset.mean() * intercept}
            learned = json.dumps(known, default=lambda part: part.tolist())
        if names != known["names"]:
            raise ValueError(f"the columns of {self.formula!r} are {names}, but the fit had {known['names']}")
        codes = {name: pd.Categorical(each, levels[name]).codes.astype(int) for name, each in by.items()}
        groups = tuple((name, tuple(levels[name])) for name in by)
        centre, unit, shift, answer = (np.array(known[n], float) for n in ("centre", "unit", "shift", "answer"))
        scaled = (columns - centre) / unit, codes, centre, unit, offset.to_numpy(float) - shift, shift, answer
        return Design(*scaled, tuple(names), groups, intercept, learned)

    def _scale(self, release: Any) -> tuple[float, float]:
        """Rough mean and standard deviation of the answers, or of the linear predictor before a link."""
        if self.answer is not None or not FAMILIES[self.family][0]:
            return self.answer or (0.0, 1.0)
        given = [getattr(getattr(release, "mechanism", None), name, None) for name in ("lower", "upper")]
        bounds = [np.inf if bound is None else float(np.mean(bound)) for bound in given]
        if not np.all(np.isfinite(bounds)):
            raise ValueError(
                "without bounds, the size of the answers is unknown: give the mechanism lower and upper, or in Python "
                "answer=(rough mean, rough standard deviation)"
            )
        return sum(bounds) / 2, (bounds[1] - bounds[0]) / 4


def _positive(law: dist.Distribution, start: Any) -> dist.Distribution:
    """A prior of a positive number, in coordinates that start around a value if the prior allows any."""
    return Located(law, jnp.log(start), 0.5, positive=True) if law.support is constraints.positive else law


def _with_numbers(entries: dict[str, Any]) -> dict[Any, Any]:
    """Keys that JSON made texts of as numbers again."""
    return {int(key) if key.isdigit() else key: value for key, value in entries.items()}
