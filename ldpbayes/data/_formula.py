"""Design matrices of data frames, from formulas."""

import json
import re
import warnings
from typing import Any

import numpy as np

from ldpbayes._core.checks import refuse, require
from ldpbayes._core.pytrees import host, pytree_dataclass, static
from ldpbayes._core.tabular import column, columns_of, levels_in_order
from ldpbayes.data.release import Release, part_of

# an intercept a group, as lme4 writes it
GROUP_TERM = re.compile(r"(^|\+)\s*\(\s*1\s*\|\s*(\w+|`[^`]+`)\s*\)(?=\s*(\+|$))")
DOTTED = r"[^\W\d]\w*(?:\.\w+)+"  # a name with dots, as R writes it


@pytree_dataclass(eq=False)
class DesignMatrix:
    """The columns of a formula in a data frame, made by `Formula.design`. NumPyro models can take it as an argument.

    Parameters
    ----------
    columns : array (N, p)
        The standardised columns.
    codes : dict of str to array (N,)
        For each group, the number of the level of each row.
    centre, unit, names : (p,)
        Means of the columns (0 without an intercept), their standard deviations (1 for a constant one), and names.
    offset, shift : array (N,), float
        Sums of the terms ``offset(...)``, less their mean ``shift`` in the fit (0 without an intercept).
    groups, intercept
        For each group, its name and its levels; and whether the formula has an intercept.
    answer, learned : array (2,), str
        Rough mean and standard deviation of the answers; and a JSON text, by which `Formula.design` reads new data.
    """

    columns: Any
    codes: dict[str, Any]
    centre: Any
    unit: Any
    offset: Any
    shift: Any
    answer: Any
    names: tuple[str, ...] = static(default=())
    groups: tuple[tuple[str, tuple], ...] = static(default=())
    intercept: bool = static(default=True)
    learned: str = host(default="")

    @property
    def coords(self) -> dict[str, Any]:
        """Labels of the axes of a fit."""
        return {"coefficient": list(self.names)} | {name: list(levels) for name, levels in self.groups}

    def __len__(self) -> int:
        return int(np.shape(self.columns)[0])


class Formula:
    """A formula such as ``"income ~ age + C(education) + (1 | region)"``, which makes design matrices of data frames.

    Attributes: ``answer``, the name on the left, and ``groups``, the columns of random intercepts ``(1 | region)``.

    Parameters
    ----------
    text : str
        The formula, in the syntax of the package formulaic (extra ``formula``): names with dots or spaces stand between
        backticks, as in ``"`rr.q1` ~ `my age`"``. Raises ValueError if the left side is not a single name, or if a
        group is not written as ``(1 | column)``.
    """

    def __init__(self, text: str) -> None:
        require("formula", "formulaic", "pandas")
        name, separator, right = text.partition("~")
        self.text, answer = text, name.strip()
        if not separator or not (answer.isidentifier() or re.fullmatch("`[^`]+`", answer)):
            hint = _quoted(text, re.findall(DOTTED + r"(?![\w.(])", text)) if re.fullmatch(DOTTED, answer) else ""
            hint = hint and f"; names with dots need backticks, as in {hint}"
            raise ValueError(f"formula must be 'answer ~ columns', with a name on the left, got {text!r}{hint}")
        self.answer = answer.strip("`")
        self.groups = [match[2].strip("`") for match in GROUP_TERM.finditer(right)]
        quoted = re.findall("`([^`]+)`", right)
        self._names = {*quoted, *self.groups, *re.findall(r"(?<![\w.])[^\W\d]\w*", re.sub("`[^`]+`", "", right))}
        self._right = GROUP_TERM.sub("", right).strip().removeprefix("+").strip() or "1"
        if "|" in self._right or self.answer in self.groups:
            raise ValueError(f"write groups as (1 | column), where column is not the answer; got {text!r}")

    def rows(self, frame: Any, release: Release, drop: bool = False) -> tuple[np.ndarray, Release, str]:
        """Return for each answer the row of a data frame, the answers, and what has been left out, in words.

        Parameters
        ----------
        frame : data frame or dict of columns
            A row for each answer, or for each row of the data that the release was made of (`Release.rows`). Raises
            ValueError for other numbers of rows.
        release : Release
            The answers.
        drop : bool
            True to leave out rows in which a column of the right side is missing, with their answers.
        """
        gaps, texts = self._table(frame).isna().to_numpy().any(axis=1), [(release.about or {}).get("missing")]
        whole = release.row_counts is not None and len(gaps) == len(release.row_counts)
        if not whole and len(gaps) != len(release):
            raise ValueError(f"the data frame has {len(gaps)} rows, but the release has {len(release)} answers")
        rows = release.rows if whole else np.arange(len(gaps))
        if drop and (missing := gaps[rows]).any():
            texts.append(f"{missing.sum():,} of {len(rows):,} answers without a covariate, left out")
            rows, release = rows[~missing], part_of(release, np.flatnonzero(~missing))
        return rows, release, "; ".join(filter(None, texts))

    def _table(self, frame: Any) -> Any:
        """The columns of the right side, as a data frame of pandas."""
        import pandas as pd

        columns = columns_of(frame)
        table = pd.DataFrame(index=range(len(next(iter(columns.values()), ()))))
        for name in [name for name in columns if name in self._names]:
            if name == self.answer:
                raise ValueError(f"the answer is private and cannot be a column on the right; got {self.text!r}")
            order = levels_in_order(frame[name])
            table[name] = columns[name] if order is None else pd.Categorical(columns[name], categories=order)
        return table

    def design(
        self,
        frame: Any,
        learned: str | None = None,
        answer: tuple[float, float] = (0.0, 1.0),
        rows: Any = slice(None),
    ) -> DesignMatrix:
        """Return the design matrix of a data frame.

        Parameters
        ----------
        frame : data frame or dict of columns
            The columns of the right side. Raises ValueError if one is unknown or has missing values.
        learned : str, optional
            The text ``learned`` of a fit, whose levels, knots, means and standard deviations replace those of the
            frame. Raises ValueError if it is of another formula, or if a level is new.
        answer : pair of float
            Rough mean and standard deviation of the answers, for priors. Default: 0 and 1.
        rows : array of int, optional
            The row of each answer, as of `rows`. Default: all rows, in order.
        """
        import formulaic
        import pandas as pd

        state, formula = json.loads(learned or "{}", object_hook=_with_numbers), "".join(self.text.split())
        if learned is not None and state.get("formula") != formula:
            raise ValueError(f"the posterior has the formula {state.get('formula')}, but the model has {formula}")
        table = self._table(frame)
        used = np.isin(np.arange(len(table)), np.arange(len(table))[rows])
        for name in table:
            refuse(table[name].isna().to_numpy() & used, f"column {name!r} has {{}} missing values", place="in row {0}")
        table = table.iloc[rows].reset_index(drop=True)
        encoders = {name: ("categorical", {"categories": of_fit}) for name, of_fit in state.get("levels", {}).items()}
        states = {"transform_state": state.get("transforms", {}), "encoder_state": encoders, "na_action": "ignore"}
        maker = formulaic.materializers.PandasMaterializer(table, {"offset": lambda values: values})
        by = {name: column(dict(table), name) for name in self.groups}
        try:
            with warnings.catch_warnings(action="ignore"):  # such as of unseen levels, which are refused below
                matrix = maker.get_model_matrix(formulaic.ModelSpec.from_spec(self._right, **states))
        except (formulaic.errors.FormulaicError, SyntaxError, RecursionError) as error:
            present = columns_of(frame)
            odd = [name for name in present if not name.isidentifier() and name in self._right]
            hint = f"; names with dots or spaces need backticks, as in {_quoted(self.text, odd)}" if odd else ""
            raise ValueError(f"{self.text!r}: {error}; the columns are {', '.join(present)}{hint}") from None
        spec = matrix.model_spec
        encoded = ((name, encoder) for name, (_, encoder) in spec.encoder_state.items() if "categories" in encoder)
        levels = {name: encoder["categories"] for name, encoder in encoded}
        levels = state.get("levels", levels | {name: list(pd.Categorical(by[name]).categories) for name in by})
        for name, of_fit in levels.items():
            values = pd.Series(by[name] if name in by else maker.factor_cache[name].values)
            problem = f"column {name!r} has {{}} values that are not among the levels of the data of the fit"
            refuse(~values.isin(of_fit).to_numpy(), problem, values.to_numpy(), "in row {0}")
        for name, values in matrix.items():
            refuse(~np.isfinite(values), f"column {name!r} has {{}} values that are not finite", place="in row {0}")
        fixed, intercept = [name for name in matrix if re.fullmatch(r"offset\([^:]*\)", name)], "Intercept" in matrix
        names, offset = [name for name in matrix if name not in ("Intercept", *fixed)], matrix[fixed].sum(axis=1)
        if mixed := [name for name in names if "offset(" in name]:
            raise ValueError(f"an offset cannot be in a term with other columns, got {mixed[0]!r}")
        columns = matrix[names].to_numpy(float)
        if learned is None:
            unit = columns.std(axis=0)
            state = {"formula": formula, "names": names, "levels": levels, "transforms": spec.transform_state}
            state |= {"centre": columns.mean(axis=0) * intercept, "unit": np.where(unit > 0, unit, 1.0)}
            state |= {"answer": answer, "shift": offset.mean() * intercept}
            learned = json.dumps(state, default=lambda part: part.tolist())
        if names != state["names"]:
            raise ValueError(f"the columns of {self.text!r} are {names}, but the fit had {state['names']}")
        codes = {name: pd.Categorical(values, levels[name]).codes.astype(int) for name, values in by.items()}
        groups = tuple((name, tuple(levels[name])) for name in by)
        centre, unit, shift, scale = (np.array(state[n], float) for n in ("centre", "unit", "shift", "answer"))
        scaled = (columns - centre) / unit, codes, centre, unit, offset.to_numpy(float) - shift, shift, scale
        return DesignMatrix(*scaled, tuple(names), groups, intercept, learned)


def _quoted(text: str, names: list[str]) -> str:
    """A formula in which these names stand between backticks."""
    pattern = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    return re.sub(rf"(`[^`]*`)|(?<![\w.])({pattern})(?!\w)", lambda found: found[1] or f"`{found[2]}`", text)


def _with_numbers(entries: dict[str, Any]) -> dict[Any, Any]:
    """Keys that JSON made texts of as numbers again."""
    return {int(key) if key.isdigit() else key: value for key, value in entries.items()}
