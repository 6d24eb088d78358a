"""Generalised linear models of released answers, from a formula and a data frame."""

import inspect
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints

from ldpbayes import Release, observe
from ldpbayes.data import DesignMatrix, Formula
from ldpbayes.inference import Model
from ldpbayes.models._coordinates import Located, located, pooled

PRIOR_DEVIATIONS = 2.5  # of the answer for one of a column: bambi's scale of slopes and intercepts
RESPONSE_LAWS: dict[str, tuple[tuple[str, ...], Any]] = {  # names of parameters, and the law given a linear predictor
    "normal": (("sigma",), dist.Normal),
    "student_t": (("sigma", "nu"), lambda eta, sigma, nu: dist.StudentT(nu, eta, sigma)),
    "poisson": ((), lambda eta: dist.Poisson(jnp.exp(eta))),
    "bernoulli": ((), lambda eta: dist.Bernoulli(logits=eta)),
}
POSITIVE_PARAMETERS = ("sigma", "nu", "tau")
POSITIVE_SPREAD = 0.5  # of the logarithms of positive parameters, for the coordinates in which they are sampled


class _Stacked(dist.Distribution):
    """A law of its own for each entry of a vector."""

    support, pytree_data_fields = constraints.real, ("laws",)

    def __init__(self, laws: list[dist.Distribution]) -> None:
        self.laws = laws
        super().__init__((len(laws),), validate_args=False)

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        keys = jax.random.split(key, len(self.laws))
        return jnp.stack([law.sample(of_law, sample_shape) for law, of_law in zip(self.laws, keys, strict=True)], -1)

    def log_prob(self, value: Any, intermediates: Any = None) -> jax.Array:
        return jnp.stack([law.log_prob(value[..., place]) for place, law in enumerate(self.laws)], -1)


class regression(Model):
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
        Formula in the syntax of the package formulaic (extra ``formula``), such as ``"income ~ age + C(education) + (1
        | region)"``, where the last term is a random intercept for each region. Terms such as ``offset(log(days))``
        have the coefficient 1. The data frame need not have a column with the answer.
    family : {"normal", "student_t", "poisson", "bernoulli"}
        The law of an original answer. The linear predictor is the mean for "normal", the location for "student_t", the
        log of the mean for "poisson", and the logit of the probability for "bernoulli".
    priors : dict of str to numpyro.distributions.Distribution, optional
        Priors by name. The defaults, similar to those of the package bambi, follow from the two numbers m and s of
        ``answer``. For "poisson" and "bernoulli", m is 0 and s is 1.

        - ``"intercept"``: of ``at_means``. Default: Normal(m, 2.5 s).
        - The name of a column of the design matrix, such as ``"age"``: of its coefficient. Default: Normal(0, 2.5 s /
          d), where d is the standard deviation of the column.
        - ``"tau"``: of the standard deviation of the effects of groups. Default: half-normal with scale 2.5 s.
        - ``"sigma"`` and ``"nu"``: of the scale and the degrees of freedom of an answer. Default: half-Student's t with
          4 degrees of freedom and scale s, and Gamma(2, 0.1).
    answer : pair of float, optional
        Rough guesses of the mean and the standard deviation of the original answers, in their unit. Default: the middle
        between the clipping bounds, and a quarter of the distance between the bounds.
    missing : {"drop"}, optional
        "drop" to leave out rows with a missing covariate, and their answers, in a fit. The attribute ``left_out`` of
        the result has their number, with that of answers which the release left out. Default: a ValueError.
    """

    summary = "Generalised linear model from a formula (--formula): the answer is released, the rest is public."

    def __init__(
        self,
        formula: str,
        family: str = "normal",
        priors: Mapping[str, dist.Distribution] | None = None,
        answer: tuple[float, float] | None = None,
        missing: str | None = None,
    ) -> None:
        self.formula, self.family, self.answer, self.priors = Formula(formula), family, answer, dict(priors or {})
        if family not in RESPONSE_LAWS:
            raise ValueError(f"family must be one of {', '.join(RESPONSE_LAWS)}, got {family!r}")
        if missing not in (None, "drop"):
            raise ValueError(f'missing must be "drop" to leave out missing covariates, or None; got {missing!r}')
        self.missing = missing
        for parameter, law in self.priors.items():
            support: Any = law.support if isinstance(law, dist.Distribution) else None
            lowest = np.min(getattr(support, "lower_bound", -np.inf))
            if (lowest < 0 if parameter in POSITIVE_PARAMETERS else support is not constraints.real) or law.shape():
                kind = "a positive" if parameter in POSITIVE_PARAMETERS else "any real"
                raise TypeError(f"the prior of {parameter!r} must be a NumPyro law of {kind} number, got {law!r}")
        self.learned: str | None = None  # by the latest fit
        self.__name__, self.__signature__ = "model", inspect.signature(self.__call__)

    def __repr__(self) -> str:
        return f"regression({self.formula.text!r}, family={self.family!r})"

    shown = property(lambda self: {"family": self.family})  # beside the formula

    def prepare(self, args: tuple, kwargs: dict[str, Any], attrs: Mapping[str, Any] | None = None) -> Any:
        frame, release = (self.__signature__.bind(*args, **kwargs).arguments.get(key) for key in ("frame", "release"))
        if isinstance(frame, Release) or (attrs is None and not isinstance(release, Release) and release is not None):
            takes = "the model takes a data frame and a Release with one answer for each row"
            raise TypeError(f"{takes}, got {type(release).__name__}")
        if attrs is not None:
            return (self.formula.design(frame, attrs.get("design", "{}")), release), {}, {}
        design, release, left_out = self._design_of_fit(frame, release)
        self.learned = design.learned
        return (design, release), {}, {"design": design.learned} | ({"left_out": left_out} if left_out else {})

    def _design_of_fit(self, frame: Any, release: Release | None) -> tuple[DesignMatrix, Release | None, str]:
        """The design matrix of a frame from which the formula learns, its answers, and what was left out of both, in
        words; ValueError for priors of nothing in it.
        """
        rows: Any = slice(None)
        left_out = ""
        if release is not None:
            rows, release, left_out = self.formula.rows(frame, release, self.missing == "drop")
        design = self.formula.design(frame, None, self._scale(release), rows)
        parameters = ["intercept", *design.names, *RESPONSE_LAWS[self.family][0], *["tau"] * bool(design.groups)]
        for name in self.priors.keys() - {*parameters}:
            raise ValueError(f"priors has {name!r}, which is no parameter; it may have {', '.join(parameters)}")
        return design, release, left_out

    def __call__(self, frame: Any, release: Release | None = None) -> None:
        if isinstance(frame, DesignMatrix):
            design = frame
        elif self.learned is not None:
            design = self.formula.design(frame, self.learned)
        else:
            design, release, _ = self._design_of_fit(frame, release)
        if release is not None and len(release) != len(design):
            raise ValueError(f"the data frame has {len(design)} rows, but the release has {len(release)} answers")
        (middle, spread), names = design.answer, design.names
        wide = PRIOR_DEVIATIONS * spread
        defaults = {"intercept": dist.Normal(middle, wide), "tau": dist.HalfNormal(wide)}
        defaults |= {"sigma": dist.FoldedDistribution(dist.StudentT(4.0, 0.0, spread)), "nu": dist.Gamma(2.0, 0.1)}
        laws, rough = defaults | self.priors, spread / 2  # chains start where means are of the answers' order
        eta, slopes, level = jnp.asarray(design.offset), jnp.zeros(len(names)), middle
        if names:
            law: dist.Distribution = dist.Normal(0.0, wide / design.unit)
            if self.priors.keys() & {*names}:
                scales = zip(names, law.scale, strict=True)
                law = _Stacked([self.priors.get(name, dist.Normal(0.0, scale)) for name, scale in scales])
            with numpyro.plate("coefficient", len(names)):
                slopes = numpyro.sample("coefficients", Located(law, 0 * design.unit, rough / design.unit))
            eta = eta + design.columns @ (slopes * design.unit)
        if design.intercept:
            level = numpyro.sample("at_means", located(laws["intercept"], middle, rough))
            numpyro.deterministic("intercept", level - design.centre @ slopes - design.shift)
            eta = eta + level
        # Variance with which a record tells its predictor: of a link's, as a yes or no tells a logit of 0.
        variance: Any = 4.0
        if release is not None and RESPONSE_LAWS[self.family][0]:
            variance = jnp.square(rough) + jnp.mean(release.mechanism.innermost.moments(middle)[1])
        for name, levels in design.groups:
            tau = numpyro.sample(f"tau_{name}", located(laws["tau"], rough, POSITIVE_SPREAD))
            # The first groups' coordinates are those of level + effect, which records tell, and neither of the two.
            counts = jnp.bincount(design.codes[name], length=len(levels))
            centre = jnp.full(len(levels), middle - level if name == design.groups[0][0] else 0.0)
            with numpyro.plate(name, len(levels)):
                effects = numpyro.sample(f"by_{name}", pooled(0.0, tau, centre, counts / variance))
            eta = eta + effects[design.codes[name]]
        starts = {"sigma": rough, "nu": 20.0}
        needed, law_of = RESPONSE_LAWS[self.family]
        parameters = [numpyro.sample(name, located(laws[name], starts[name], POSITIVE_SPREAD)) for name in needed]
        observe(self.formula.answer, law_of(eta, *parameters), release)

    def _scale(self, release: Any) -> tuple[float, float]:
        """Rough mean and standard deviation of the answers, or of the linear predictor before a link."""
        if self.answer is not None or not RESPONSE_LAWS[self.family][0]:
            return self.answer or (0.0, 1.0)
        domain: Any = None if release is None else release.mechanism.innermost.domain
        low, high = (float(np.mean(getattr(domain, name, np.inf))) for name in ("lower_bound", "upper_bound"))
        if not np.isfinite([low, high]).all():
            raise ValueError(
                "without bounds, the size of the answers is unknown: give the mechanism lower and upper, or in Python "
                "answer=(rough mean, rough standard deviation)"
            )
        return (low + high) / 2, (high - low) / 4
