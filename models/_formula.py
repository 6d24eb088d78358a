"""Generalised linear models of released answers, from a formula and a data frame."""

import inspect
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints

from ldpbayes import Release, observe
from ldpbayes._core.checks import guess, require
from ldpbayes._core.pytrees import host, pytree_dataclass, static
from ldpbayes.data.frames import columns_of, is_missing
from ldpbayes.models._pooled import Located, pooled

GROUP = re.compile(r"(^|\+)\s*\(\s*1\s*\|\s*(\w+)\s*\)")  # an intercept a group, as lme4 writes it
WIDE = 2.5  # standard deviations of the answer for one of a column: bambi's scale of slopes and intercepts
LAWS: dict[str, Any] = {
    "normal": dist.Normal,
    "student_t": lambda eta, sigma, nu: dist.StudentT(nu, eta, sigma),
    "poisson": lambda eta: dist.Poisson(jnp.exp(eta)),
    "bernoulli": lambda eta: dist.Bernoulli(logits=eta),
}
FAMILIES = {"normal": ("sigma",), "student_t": ("sigma", "nu"), "poisson": (), "bernoulli": ()}  # their parameters


@pytree_dataclass(eq=False)
class Design:
    """What a model of a formula reads of a data frame, and what the data of the fit decided."""

    columns: Any  # (N, p), standardised
    codes: dict[str, Any]  # of groups, (N,) each
    centre: Any  # (p,)
    unit: Any  # (p,)
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


class _Own(dist.Distribution):
    """A normal law (p,), but for coefficients, by place, that have laws of their own."""

    support = constraints.real
    pytree_data_fields = ("law", "own")

    def __init__(self, law: dist.Normal, own: dict[int, dist.Distribution]) -> None:
        self.law, self.own = law, own
        super().__init__(law.batch_shape, validate_args=False)

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        value = self.law.sample(key, sample_shape)
        for i, law in self.own.items():
            value = value.at[..., i].set(law.sample(jax.random.fold_in(key, i), sample_shape))
        return value

    def log_prob(self, value: Any, intermediates: Any = None) -> jax.Array:
        log_prob = self.law.log_prob(value)
        for i, law in self.own.items():
            log_prob = log_prob.at[..., i].set(law.log_prob(value[..., i]))
        return log_prob


class Regression:
    """A model of a data frame and a release of answers, made by `regression`."""

    def __init__(
        self, formula: str, family: str, priors: Mapping[str, Any], answer: tuple[float, float] | None
    ) -> None:
        name, separator, right = formula.partition("~")
        self.name, self.formula, self.family, self.priors, self.answer = name.strip(), formula, family, priors, answer
        if not separator or not self.name.isidentifier():
            raise ValueError(f"formula must be 'answer ~ columns', with a name on the left, got {formula!r}")
        self.groups = [match[2] for match in GROUP.finditer(right)]
        self.right = GROUP.sub("", right).strip().removeprefix("+").strip() or "1"
        if "|" in self.right or self.name in self.groups:
            raise ValueError(f"groups are written (1 | column), and are not the answer; got {formula!r}")
        self.learned: str | None = None  # by the latest fit
        self.__name__, self.__signature__ = "model", inspect.signature(self.__call__)

    def __repr__(self) -> str:
        return f"regression({self.formula!r}, family={self.family!r})"

    shown = property(lambda self: {"family": self.family})  # beside the formula

    def prepare(self, args: tuple, kwargs: dict[str, Any], attrs: Mapping[str, Any] | None = None) -> Any:
        """Arguments with the design in the place of the data frame: that of a fit, or of new data by its attributes."""
        frame, release = (self.__signature__.bind(*args, **kwargs).arguments.get(key) for key in ("frame", "release"))
        design = self._design(frame, release, None if attrs is None else attrs["design"])
        if attrs is None:
            self.learned = design.learned
        return (design, release), {}, {"design": design.learned}

    def __call__(self, frame: Any, release: Release | None = None) -> None:
        design = frame if isinstance(frame, Design) else self._design(frame, release, self.learned)
        if release is not None and len(release) != len(design):
            raise ValueError(f"the data frame has {len(design)} rows, and the release {len(release)} answers")
        (middle, spread), names = design.answer, design.names
        eta, slopes = jnp.zeros(len(design)), jnp.zeros(len(names))
        if names:
            law, scales = dist.Normal(0.0, WIDE * spread / design.unit), WIDE * spread / design.unit
            own = {place: self.priors[name] for place, name in enumerate(names) if name in self.priors}
            with numpyro.plate("coefficient", len(names)):
                slopes = numpyro.sample("coefficients", Located(_Own(law, own) if own else law, 0 * scales, scales))
            eta = eta + design.columns @ (slopes * design.unit)
        if design.intercept:
            prior = self.priors.get("intercept", dist.Normal(middle, WIDE * spread))
            level = numpyro.sample("at_means", Located(prior, middle, WIDE * spread))
            numpyro.deterministic("intercept", level - design.centre @ slopes)
            eta = eta + level
        for name, levels in design.groups:
            tau = numpyro.sample(f"tau_{name}", self.priors.get("tau", dist.HalfNormal(WIDE * spread)))
            with numpyro.plate(name, len(levels)):
                effects = numpyro.sample(f"by_{name}", pooled(0.0, tau, np.zeros(len(levels)), 0.0))
            eta = eta + effects[design.codes[name]]
        parameters = []
        if "sigma" in FAMILIES[self.family]:
            prior = self.priors.get("sigma", dist.FoldedDistribution(dist.StudentT(4.0, 0.0, spread)))
            parameters.append(numpyro.sample("sigma", Located(prior, jnp.log(spread), 1.0, positive=True)))
        if "nu" in FAMILIES[self.family]:
            parameters.append(numpyro.sample("nu", self.priors.get("nu", dist.Gamma(2.0, 0.1))))
        observe(self.name, LAWS[self.family](eta, *parameters), release)

    def _design(self, frame: Any, release: Any, learned: str | None) -> Design:
        """The design of a data frame, by what is known from a fit; or of a fit, from whose data it learns."""
        import formulaic
        import pandas as pd
        from formulaic.parser.types import Factor

        table = frame if hasattr(frame, "iloc") else pd.DataFrame(columns_of(frame))
        known = json.loads(learned or '{"transforms": "{}", "levels": {}}')
        transforms = json.loads(known["transforms"], object_hook=_with_numbers)
        levels = {name: (Factor.Kind.CATEGORICAL, {"categories": each}) for name, each in known["levels"].items()}
        spec: Any = formulaic.ModelSpec(
            formula=formulaic.Formula(self.right),
            na_action="raise",
            output="numpy",
            transform_state=transforms,
            encoder_state=levels,
        )
        for name in sorted({*map(str, spec.required_variables), *self.groups}):
            _check_column(table, name)
        for name in [name for name in known["levels"] if name in table.columns]:
            _codes(name, table[name], known["levels"][name])
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", formulaic.errors.DataMismatchWarning)  # levels that the fit had not
                matrix = spec.get_model_matrix(table)
        except (formulaic.errors.FormulaicError, formulaic.errors.DataMismatchWarning) as error:
            raise ValueError(f"{self.formula!r}: {error}") from None
        spec, columns = matrix.model_spec, np.asarray(matrix, float)
        keep = [i for i, name in enumerate(spec.column_names) if name != "Intercept"]
        columns = columns[:, keep]
        if learned is None:
            intercept, unit = len(keep) < len(spec.column_names), columns.std(axis=0)
            categories = {name: entry.get("categories") for name, (_, entry) in spec.encoder_state.items()}
            known = {
                "names": [spec.column_names[i] for i in keep],
                "intercept": intercept,
                "centre": columns.mean(axis=0) * intercept,
                "unit": np.where(unit > 0, unit, 1.0),
                "groups": {name: np.unique(table[name]) for name in self.groups},
                "transforms": json.dumps(spec.transform_state, default=_plain),
                "levels": {name: each for name, each in categories.items() if each is not None},
                "answer": self._scale(release),
            }
            learned = json.dumps(known, default=_plain)
            known = json.loads(learned)
            parameters = ["intercept", *known["names"], *FAMILIES[self.family], *(["tau"] if self.groups else [])]
            for name in set(self.priors) - set(parameters):
                raise ValueError(
                    f"there is no {name!r} to give a prior{guess(name, parameters)}; {', '.join(parameters)}"
                )
        groups = tuple((name, tuple(each)) for name, each in known["groups"].items())
        codes = {name: _codes(name, table[name], each) for name, each in groups}
        centre, unit, answer = (np.array(known[name], float) for name in ("centre", "unit", "answer"))
        standard, names = (columns - centre) / unit, tuple(known["names"])
        return Design(standard, codes, centre, unit, answer, names, groups, known["intercept"], learned)

    def _scale(self, release: Any) -> tuple[float, float]:
        """Rough mean and standard deviation of the answers, or of the linear predictor before a link."""
        if self.answer is not None or "sigma" not in FAMILIES[self.family]:
            return self.answer or (0.0, 1.0)
        given = [getattr(getattr(release, "mechanism", None), name, None) for name in ("lower", "upper")]
        bounds = [np.inf if bound is None else float(np.mean(bound)) for bound in given]
        if not np.all(np.isfinite(bounds)):
            raise ValueError("no bounds say how large answers are: give answer=(mean, standard deviation), roughly")
        return sum(bounds) / 2, (bounds[1] - bounds[0]) / 4


def _plain(part: Any) -> Any:
    """Numbers and arrays of NumPy for JSON."""
    return part.tolist()


def _with_numbers(entries: dict[str, Any]) -> dict[Any, Any]:
    """Keys that JSON made texts of as numbers again."""
    return {int(key) if key.isdigit() else key: value for key, value in entries.items()}


def _check_column(table: Any, name: str) -> None:
    if name not in table.columns:
        raise ValueError(f"the data have no column {name!r}{guess(name, map(str, table.columns))}")
    gaps = [row for row, value in enumerate(table[name]) if is_missing(value)]
    if gaps:
        raise ValueError(f"column {name!r} has {len(gaps)} missing values, the first in row {gaps[0]}: drop these rows")


def _codes(name: str, values: Any, levels: Sequence[Any]) -> np.ndarray:
    places = {level: code for code, level in enumerate(levels)}
    unseen = [value for value in values if value not in places]
    if unseen:
        raise ValueError(
            f"column {name!r} has the level {unseen[0]!r}; in the fit it had {', '.join(map(repr, levels))}"
        )
    return np.array([places[value] for value in values])


def regression(
    formula: str,
    family: str = "normal",
    priors: Mapping[str, dist.Distribution] | None = None,
    answer: tuple[float, float] | None = None,
) -> Regression:
    """Generalised linear model of released answers given a data frame of public columns, from a formula.

    Returns model(frame, release=None), a site ``at_means`` (the linear predictor where all columns have their means),
    ``intercept`` (where they are 0), ``coefficients`` (in the units of the data, labelled by column of the design), for
    each ``(1 | region)`` the spread ``tau_region`` and effects ``by_region``, and ``sigma`` and ``nu`` of the family;
    the answer's site has its name in the formula. `predict` and NumPyro's ``Predictive`` take new data frames: levels,
    knots and units are those of the fit. ValueError for missing values, unknown columns, and unseen levels.

    Parameters
    ----------
    formula : str
        As formulaic reads it (extra ``formula``), with intercepts of groups as ``(1 | region)``:
        ``"income ~ age + C(education) + (1 | region)"``. The data frame needs no column of the answer.
    family : {"normal", "student_t", "poisson", "bernoulli"}
        Law of an original answer: identity, identity, log and logit links.
    priors : dict, optional
        Laws by name: ``"intercept"`` (of ``at_means``), a column of the design, ``"tau"``, ``"sigma"``, ``"nu"``. By
        default, with m and s the mean and standard deviation of ``answer``: Normal(m, 2.5 s), Normal(0, 2.5 s over the
        column's standard deviation), half-normal of scale 2.5 s, half-Student's t of 4 degrees of freedom and scale s,
        and Gamma(2, 0.1), much as bambi has them. On the scale of a log or logit link m is 0 and s is 1.
    answer : pair of float, optional
        Rough mean and standard deviation of the answers, in their unit: by default the middle and a quarter of the
        range between the mechanism's bounds, since original answers are not seen.
    """
    require("formula", "formulaic", "pandas")
    if family not in FAMILIES:
        raise ValueError(f"family must be one of {', '.join(FAMILIES)}, got {family!r}")
    return Regression(formula, family, dict(priors or {}), answer)
