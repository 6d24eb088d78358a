"""Rows of `run`: what the papers print or say, beside what our studies find.

Every function takes a checkpoint, which is a function from a suffix to the file of a study, and settings of the study.
"""

import math

import numpy as np

from ldpbayes import Release
from ldpbayes.models import oue_histogram
from ldpbayes.studies import sbc
from reproductions import printed
from reproductions.ferrando_wang_sheldon import figures
from reproductions.kulkarni_et_al import histograms, regression
from reproductions.liu_huang import tables
from reproductions.verdicts import Estimate, claim, inside, number, order, share_band

# [KJKH]


def calibration(checkpoint, *, model, mechanism, count, levels, epsilons, **options):
    rows = []
    for epsilon in epsilons:
        release = Release(None, mechanism(epsilon), count)
        study = sbc(model(), release, checkpoint=checkpoint(f" {epsilon}"), progress_bar=False, **options)
        found = study.table(levels)
        shares = {level: [row["covered"] for row in found if row["level"] == level] for level in levels}
        holds = all(inside(share, study.replicates, level) for level in levels for share in shares[level])
        ours = "; ".join(" ".join(f"{share:.3f}" for share in shares[level]) for level in levels)
        bands = "; ".join("{:.3f}–{:.3f}".format(*share_band(study.replicates, level)) for level in levels)
        names = "; ".join(f"{level:.0%}" for level in levels)
        what = f"ε = {epsilon:g}: shares of central intervals that hold the truth, by level and parameter"
        rows.append(claim(what, names, ours, bands, holds))
    return rows


def histogram_errors(checkpoint, *, lower_by=None, **settings):
    """The posterior mean against the projection; `lower_by` is by how much at less than 2,000 records."""
    rows = []
    for row in histograms.histogram_error(oue_histogram(), checkpoint=checkpoint(), **settings):
        at, slack = f"ε = {row['epsilon']:g}, n = {row['count']}", 4 * row["ratio se"]
        ours = f"{row['ratio']:.3f} ± {row['ratio se']:.2g}"
        what = f"{at}: error of the posterior mean over that of the projection"
        if lower_by and row["count"] < 2000:
            low, high = 1 - lower_by[1] - slack, 1 - lower_by[0] + slack
            paper = f"lower by {100 * lower_by[0]:g}–{100 * lower_by[1]:g} %"
            holds, decided = low <= row["ratio"] <= high, high < 1  # else no gain would do as well
            rows.append(claim(what, paper, ours, f"{low:.2f}–{high:.2f}", holds, decided=decided))
        else:
            rows.append(claim(what, "not larger", ours, f"≤ {1 + slack:.2f}", row["ratio"] <= 1 + slack, number=False))
        if row["count"] == min(settings["counts"]):
            for kind, least in (("trivial", 0.0), ("unordered", None)):
                of_posterior, of_projection = row[f"{kind} posterior"], row[f"{kind} projection"]
                holds = of_posterior < of_projection and (least is None or of_posterior == least)
                text = f"{of_posterior:.0%}; {of_projection:.0%}"
                rows.append(order(f"{at}: {kind} posterior means; projections", "fewer", text, holds))
    return rows


def histogram_distances(checkpoint, **settings):
    found = histograms.histogram_distance(
        oue_histogram(), histograms.kosarak_records(), checkpoint=checkpoint(), **settings
    )
    means = {epsilon: float(distance.mean()) for epsilon, distance in found.items()}
    ours = ", ".join(f"{mean:.4f} (ε = {epsilon:g})" for epsilon, mean in means.items())
    holds = bool(np.all(np.diff(list(means.values())) < 0))
    return [order("mean distance of posterior cdfs with and without privacy", "falls as ε grows", ours, holds)]


TUNING = "LDP-SGD depends on its step and group size, which the paper does not state (docs/how_to/regression.md)"
WINE = (
    "5,200 local records say nearly nothing at these budgets, so the prediction is the mean quality with a little noise"
)


def regressions(checkpoint, *, study, model, table, score, smaller_is_better, epsilons, **settings):
    """Statistics against LDP-SGD, at the smallest and at the largest budget."""
    found = study(model(), *table(), checkpoint=checkpoint(), epsilons=epsilons, **settings)
    at = {(row["epsilon"], row["method"]): row for row in found}
    sign, rows, replicates = -1 if smaller_is_better else 1, [], settings["replicates"]

    def text(epsilon, *methods):
        pairs = [at[epsilon, method] for method in methods]
        return "; ".join(f"{row[score]:.3f} ± {row['sd'] / math.sqrt(replicates):.2g}" for row in pairs)

    def ahead(first, second, epsilon):
        return sign * (at[epsilon, first][score] - at[epsilon, second][score]) > 0

    small, large = min(epsilons), max(epsilons)
    what = f"ε = {small:g}: {score} of statistics; LDP-SGD"
    holds = ahead("statistics", "ldp-sgd", small)
    rows.append(order(what, "statistics ahead", text(small, "statistics", "ldp-sgd"), holds, reason=TUNING))
    if smaller_is_better:
        what, holds = f"ε = {large:g}: {score} of statistics; LDP-SGD", ahead("ldp-sgd", "statistics", large)
        rows.append(order(what, "LDP-SGD ahead", text(large, "statistics", "ldp-sgd"), holds))
        private, mean = at[small, "statistics"][score], float(np.std(table()[1]))
        ours = f"{text(small, 'statistics')}; {mean:.3f}"
        what = f"ε = {small:g}: {score} of statistics; of the mean quality as prediction"
        rows.append(order(what, "performs well", ours, private < mean, reason=WINE))
    else:
        ours = f"{text(large, 'statistics')}; {text(np.inf, 'non-private')}"
        gap = at[np.inf, "non-private"][score] - at[large, "statistics"][score]
        most = 4 * at[large, "statistics"]["sd"]
        holds = gap < min(most, at[np.inf, "non-private"][score] - at[small, "statistics"][score])
        what = f"ε = {large:g}: {score} of statistics; without privacy"
        text_of_gap = f"closer than at ε = {small:g}, by four sd of a repeat or less"
        rows.append(claim(what, "almost matches", ours, text_of_gap, holds, number=False))
        if (large, "records, mode") in at:
            for epsilon in epsilons:
                holds = ahead("statistics", "records, mode", epsilon)
                ours = text(epsilon, "records, mode", "statistics")
                what = f"ε = {epsilon:g}: {score} of perturbed inputs; statistics"
                rows.append(order(what, "inputs behind", ours, holds))
    return rows


def expansions(checkpoint, **settings):
    found = regression.expansion_error(**settings, orders=(2, 3))
    pairs = zip(found[::2], found[1::2], strict=True)
    ours = ", ".join(f"{row['mean']:.4f} (d = {row['dimension']})" for row in found[::2])
    holds = all(third["mean"] < second["mean"] and second["mean"] < second["record"] for second, third in pairs)
    what = "error of the sigmoid's mean by its expansion of order 2, less than at a record and more than of order 3"
    return [order(what, "moderately accurate", ours, holds)]


# [LCQ]

SCALE_1 = "heavy tails at λ = 1; errors depend on the parameter space and the minimiser, which the paper does not state"
MINIMA = "the criterion has several minima; the paper states neither its minimiser nor its parameter space"
FEWER = "the six printed figures differ from each other by more than chance allows in 5,000 replications"
REASONS = {
    "bound": "covariates truncated to ±0.5 give the printed figures, the stated ±1 does not",
    "spread": "errors with the standard deviation 0.8 give the printed figures, the stated 1 does not",
    "abs_sin sl": "not the minimum of SL's criterion, which is at θ₀ (1 + 2π²λ²), 11 or more away",
    "abs_sin oracle": "the exact error is √(1/2 − 4/π²)/√n: 0.0138 and 0.0097; elsewhere the table has 0.013 and 0.010",
    "relu oracle": "the exact error is 1/√(12 n): 0.0129 and 0.0091",
    "1.4": "the printed half of the table is for λ = 1.2, not for the stated 1.4",
    "1.0 naive": FEWER,
    "1.0 sl": SCALE_1,
    "1.0 sdr": SCALE_1,
    "dr": MINIMA,
    "scl": MINIMA + ", nor the width of the smoothing",
}


def reason_of(*words):
    """The first known reason all of whose words are there."""
    return next((text for key, text in REASONS.items() if set(key.split()) <= set(words)), "")


def corrected_losses(checkpoint, *, study, figures, own, stated, **settings):
    """Every printed figure, with `own` settings; and some with what is `stated`, where it is something else."""
    rows = []
    for label, extra in (("", own), ("as stated: ", stated)):
        options = settings | extra
        found = study(checkpoint=checkpoint(label and " as stated"), **options)
        errors = {(row["cell"], row["method"].split()[0]): row for row in found}
        for (cell, method), row in errors.items():
            paper = figures[cell.replace("0.05 1.2", "0.05 1.4")]
            private = [name for name in paper if name not in ("oracle", "naive")]
            rival = method == "combined"
            of = min(private, key=lambda name: printed.overall(paper[name])) if rival else method
            spread = np.std(paper[of][-6:], ddof=1) / math.sqrt(6) if len(paper[of]) > 1 else 0.0
            by_replications = errors[cell, of]["overall se"] * math.sqrt(options["replicates"] / printed.REPLICATIONS)
            theirs = Estimate(printed.overall(paper[of]), max(by_replications, spread))
            ours = Estimate(row["overall"], row["overall se"])
            what = f"{label}{cell}: {f'combined; the paper has {of}' if rival else method}"
            words = (*cell.split(), method, *(stated if label else ()))
            rows.append(number(what, theirs, ours, 0.001, rival=rival, reason=reason_of(*words)))
    return rows


# [FWS]

WIDE = "with so few records the noise dominates, so intervals reach the ends of the parameter's range"
CLAMPING = (
    "bounds that clamp one record in a thousand bias by a quarter of a standard error; "
    "`account_for_clamping` corrects this"
)
AGGREGATE = "the aggregate's intervals cover here too: their variance includes the noise, whose scale is known"
METHOD = ("setting", "parameter", "epsilon")


def by(rows, *keys, **values):
    """Rows with these values, in groups by the keys."""
    groups = {}
    for row in rows:
        if all(row.get(name) == value for name, value in values.items()):
            groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return groups


def coverage_rows(rows, trials, what):
    """A row a setting and number of records: do percentile intervals cover as often as they say?"""
    found, (low, high) = [], share_band(trials, 0.95)
    for (setting, count), points in by(rows, "setting", "count", method="percentile").items():
        shares = [point["coverage"] for point in points]
        wide = count <= 300 and max(shares) > high and min(shares) >= low
        clamped = count >= 10_000 and min(shares) < low and max(shares) <= high
        reason = WIDE if wide else CLAMPING if clamped else ""
        holds = all(inside(share, trials, 0.95) for share in shares)
        ours = f"{min(shares):.3f}–{max(shares):.3f}"
        text = f"{what}{setting}, n = {count}: coverage, over parameters and ε"
        found.append(claim(text, "0.95", ours, f"{low:.3f}–{high:.3f}", holds, reason=reason))
    return found


def bootstrap_coverage(checkpoint, *, counts, trials, **settings):
    rows = figures.figure_1(counts=counts, trials=trials, checkpoint=checkpoint(), **settings)
    found = coverage_rows(rows, trials, "")
    below = {
        count: [point["verdict"] == "below" for point in points]  # its 99 % band
        for (count,), points in by(rows, "count", method="private Fisher").items()
    }
    ours = ", ".join(f"{sum(those)} of {len(those)} (n = {count})" for count, those in below.items())
    holds = all(below[counts[0]]) and sum(below[counts[-1]]) < len(below[counts[-1]])
    what = "curves of private Fisher intervals that cover too seldom"
    found.append(order(what, "all, until n is large", ours, holds))
    curves = by(rows, *METHOD, method="percentile").values()
    first, last = ([curve[at]["relative_width"] for curve in curves] for at in (0, -1))
    ours = f"{np.median(first):.2f} (n = {counts[0]}), {np.median(last):.2f} (n = {counts[-1]})"
    holds = all(0.95 < b < a for a, b in zip(first, last, strict=True))
    what = "width over that without privacy, median of the curves; it falls in all"
    return [*found, order(what, "approaches 1", ours, holds)]


def posterior_samples_and_bias(checkpoint, *, trials, **settings):
    rows = figures.figure_2(trials=trials, checkpoint=checkpoint(), **settings)
    found = coverage_rows([row for row in rows if row["part"] == "posterior sample"], trials, "one posterior sample: ")
    low, high = share_band(trials, 0.95)
    for (setting,), points in by(rows, "setting", part="bias correction").items():
        methods = {name: points_of for (name,), points_of in by(points, "method").items()}
        # where the bias is known to be one
        biased = [i for i, row in enumerate(methods["percentile"]) if abs(row["bias"]) > 4 * row["bias_error"]]
        removed = {name: [rows_of[i]["removed"] for i in biased] for name, rows_of in methods.items()}
        one_step = removed["one step"]
        text = "{}: share of the clamping bias that is removed, {} thresholds"
        ours = f"{min(one_step):.0%}–{max(one_step):.0%}"
        what = text.format(setting, len(biased))
        found.append(order(what, "mitigated", ours, all(share > 0 for share in one_step)))
        for name in ("matched", "accounted for, percentile"):
            ours = f"{name}: {min(removed[name]):.0%}–{max(removed[name]):.0%}"
            holds = min(removed[name]) > min(one_step)
            found.append(order(what, "more than by the paper's one step", ours, holds))
        shares = [row["coverage"] for row in methods["accounted for, percentile"]]
        holds = all(inside(share, trials, 0.95) for share in shares)
        ours = f"{min(shares):.3f}–{max(shares):.3f}"
        what = f"{setting}: coverage with clamping accounted for, all thresholds"
        found.append(claim(what, "0.95", ours, f"{low:.3f}–{high:.3f}", holds))
    return found


def aggregates(checkpoint, *, trials, **settings):
    rows, found = figures.figure_3(trials=trials, checkpoint=checkpoint(), **settings), []
    for (epsilon, count), points in by(rows, "epsilon", "count").items():
        methods = {row["method"]: row for row in points}
        boot, others = methods["bootstrap"], [row for name, row in methods.items() if name.startswith("aggregate")]
        for value, paper in (("rmse", "more accurate"), ("width", "tighter")):
            ours = "; ".join(f"{row[value]:.3g}" for row in (boot, *others))
            what = (
                f"ε = {epsilon:g}, n = {count}: {value} of the bootstrap; of subsample and aggregate, √n and n/5 blocks"
            )
            found.append(order(what, paper, ours, all(boot[value] < row[value] for row in others)))
    for name in dict.fromkeys(row["method"] for row in rows if row["method"].startswith("aggregate")):
        shares = {
            method: [row["coverage"] for row in rows if row["method"] == method] for method in ("bootstrap", name)
        }
        ours = "; ".join(f"{min(each):.3f}–{max(each):.3f}" for each in shares.values())
        calibrated = {method: all(inside(share, trials, 0.95) for share in each) for method, each in shares.items()}
        what = f"coverage of the bootstrap; of the {name}"
        holds = calibrated["bootstrap"] and not calibrated[name]
        found.append(order(what, "better calibrated", ours, holds, reason=AGGREGATE if calibrated["bootstrap"] else ""))
    return found


# [LH]

PRIOR = "the paper does not say how the prior is estimated; here this takes the budget of Table 5"
LEAK = "the printed errors are those of a prior from the labels themselves, which no budget pays for; see its row"
NARROW = (
    "the interval, best for the prior's small budget, leaves out a sixth to a half of the labels; "
    "the printed errors are those of Algorithm 4, see the row RPWithPrior"
)
DRAW = "the authors' code draws another noise than the staircase mechanism's"
SPLITS = (
    "the network on features as they are (populations in thousands) has errors that vary from split to split by a half"
)
FROM_LABELS = "RPWithPrior, prior from the labels"
LH_REASONS = {
    "Table 1": {"RRonBins": PRIOR, "Unbiased": PRIOR, "RPWithPrior": LEAK, "staircase": DRAW},
    "Table 4": {
        "RRonBins": PRIOR,
        "Unbiased": PRIOR,
        "staircase": DRAW,
        "Laplace": SPLITS,
        "Gaussian": SPLITS,
        FROM_LABELS: NARROW,
    },
}
PAPERS = (*tables.TIMED,)[:6]
LINEAR, NETWORK = (f"public range, marginal likelihood, {learner}" for learner in ("linear", "network"))


def label_privacy(checkpoint, *, name, study, trials, **settings):
    table, rows = study(trials=trials, checkpoint=checkpoint(), **settings), []
    for epsilon, column in table.errors:
        rival = column.startswith("public range")
        of = "RPWithPrior" if rival or column == FROM_LABELS else column
        mean, deviation = table.printed[epsilon][of]
        variances = np.array([deviation, table.deviation(epsilon, column)]) ** 2
        freedom = np.array([printed.TRIALS, trials]) - 1
        pooled = math.sqrt(variances @ freedom / freedom.sum())
        theirs = Estimate(mean, pooled / math.sqrt(printed.TRIALS), freedom[0])
        ours = Estimate(table.mean(epsilon, column), pooled / math.sqrt(trials), freedom[1])
        what = f"ε = {epsilon:g}: {column}" + (f"; the paper has {of}" if of != column else "")
        rows.append(number(what, theirs, ours, 0.0001, rival=rival, reason=LH_REASONS[name].get(column, "")))
    return rows


def run_times(checkpoint, **settings):
    rows = []
    for (data,), found in by(tables.run_times(fits=False, **settings), "data").items():
        of = {row["method"]: row for row in found}
        slow, ours = of["RRonBins"], of["RPWithPrior"]
        text = f"{slow['seconds']:.2g}; {ours['seconds']:.2g}"
        what = f"{data}, {ours['count']:,} labels: seconds of RRonBins; RPWithPrior"
        paper = f"{slow['printed']:.3g}; {ours['printed']:.3g}"
        rows.append(order(what, paper, text, slow["seconds"] > ours["seconds"]))
    return rows
