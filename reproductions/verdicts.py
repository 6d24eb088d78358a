"""Rows of a comparison with a paper: its value, ours, how far these may be apart, and the verdict.

The allowed difference is `ERRORS` standard errors of the difference, by Monte Carlo in ours and in the paper's figure,
and half a unit of the paper's last digit. Standard errors that are estimated from few trials ask for Student's quantile
of the same probability. A share of covering intervals may be anywhere in the binomial band of this probability. So one
correct row in 16,000 is called different. A band wider than half of the number, from few replicates, decides nothing.
"""

import dataclasses
import math
from typing import NamedTuple

from scipy import stats
from scipy.stats import binom

ERRORS = 4.0
CONFIDENCE = float(2 * stats.norm.cdf(ERRORS) - 1)

REPRODUCED = "reproduced"  # in the allowed band of the paper's number
BETTER = "better"  # a method of ours is beyond the band, on the good side
NO_NUMBER = "no number"  # the paper prints none; the order, or what else it says, holds
DIFFERS = "differs"
UNDECIDED = "undecided"  # inside a band that is too wide to say
SKIPPED = "skipped: no data"
FAILED = "failed"
VERDICTS = (REPRODUCED, BETTER, NO_NUMBER, UNDECIDED, DIFFERS, SKIPPED, FAILED)


@dataclasses.dataclass(frozen=True)
class Row:
    """A line of the report; the reason says why a row differs, where that is known."""

    what: str
    paper: str
    ours: str
    allowed: str
    verdict: str
    reason: str = ""
    exhibit: str = ""

    @property
    def unexplained(self):
        """Whether it failed, or differs for no known reason."""
        return self.verdict == FAILED or (self.verdict == DIFFERS and not self.reason)


class Estimate(NamedTuple):
    """A number, its standard error, and the degrees of freedom with which the error is known."""

    value: float
    error: float
    freedom: float = math.inf


def allowed(ours, paper, unit):
    """Largest difference of two estimates; `unit` is one of the last printed digit."""
    freedom = ours.freedom + paper.freedom
    quantile = ERRORS if math.isinf(freedom) else stats.t.isf((1 - CONFIDENCE) / 2, freedom)
    return float(quantile * math.hypot(ours.error, paper.error) + unit / 2)


def number(what, paper, ours, unit, *, rival=False, reason=""):
    """A row that compares an error with a printed one; a `rival` is a method of ours, and better if it has less."""
    most = allowed(ours, paper, unit)
    difference = ours.value - paper.value
    if abs(difference) <= most:
        verdict = REPRODUCED if most <= paper.value / 2 else UNDECIDED
    else:
        verdict = BETTER if rival and difference < 0 else DIFFERS
    text = f"{ours.value:.4g} ± {ours.error:.2g}"
    text += f" (ratio {ours.value / paper.value:.2f})" if rival else ""
    digits = round(-math.log10(unit))
    row = (f"{paper.value:.{digits}f}", text, f"± {most:.2g}")
    return Row(what, *row, verdict, reason if verdict == DIFFERS else "")


def claim(what, paper, ours, allowed, holds, *, number=True, decided=True, reason=""):
    """A row for a statement, with a `number` of the paper's in it or without; not `decided` if too much is allowed."""
    if holds:
        verdict = UNDECIDED if not decided else REPRODUCED if number else NO_NUMBER
        return Row(what, paper, ours, allowed, verdict)
    return Row(what, paper, ours, allowed, DIFFERS, reason)


def order(what, paper, ours, holds, *, reason=""):
    """A row for a statement without a number."""
    return claim(what, paper, ours, "the order", holds, number=False, reason=reason)


def share_band(size, level):
    """Ends of the band for the share of `size` intervals of this level that cover."""
    return tuple(float(end) / size for end in binom.interval(CONFIDENCE, size, level))


def inside(share, size, level):
    """Whether a share is in its band."""
    low, high = share_band(size, level)
    return low - 1e-9 <= share <= high + 1e-9


def markdown(rows_by_paper):
    """Tables in Markdown, one a paper, and the counts of verdicts."""
    heads = ("exhibit", "what", "paper", "ours", "allowed", "verdict", "reason")
    parts = []
    for paper, rows in rows_by_paper.items():
        lines = [[getattr(row, head) for head in heads] for row in rows]
        parts.append(f"## {paper}\n\n{_table(heads, lines)}")
    counts = [
        [paper, *(str(sum(row.verdict == verdict for row in rows)) for verdict in VERDICTS)]
        for paper, rows in rows_by_paper.items()
    ]
    totals = ["all", *(str(sum(int(line[1 + j]) for line in counts)) for j in range(len(VERDICTS)))]
    parts.append(f"## Verdicts\n\n{_table(('paper', *VERDICTS), [*counts, totals])}")
    return "\n\n".join(parts) + "\n"


def _table(heads, lines):
    cells = [heads, ["---"] * len(heads), *([text.replace("|", r"\|") for text in line] for line in lines)]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)
