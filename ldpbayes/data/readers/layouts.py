"""Published data sets by name. To add one, write an entry of `LAYOUTS`, or call `register_layout` from anywhere."""

import dataclasses
import inspect
import os
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ldpbayes._core.checks import ArgumentError, guess
from ldpbayes._core.tabular import column
from ldpbayes.data._tables import NoisyTable
from ldpbayes.data.readers import _FORMATS, Contents, Format, formats
from ldpbayes.data.readers._chrome import read_confidences
from ldpbayes.data.readers.files import FileError
from ldpbayes.data.readers.rappor import read_rappor
from ldpbayes.data.release import Release
from ldpbayes.data.sketches import Sketch

NOISE_SIZES = NoisyTable.NOISE_SIZES


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a data set is published, for `open`.

    Parameters
    ----------
    source : str
        The address at which its publisher describes it.
    stated : dict
        Arguments of `NoisyTable.from_frame`: columns, noise, reporting rules and the publisher's promise. What is not
        known is left out, and must be given to `open`.
    format, options : str, dict
        Format of the files, and options of the format that they need. Default: CSV files.
    apart : dict of str to dict
        By column and label, what is stated of the rows with this label instead.
    since : dict of str to dict
        By the first day to which they apply, such as "2023-02-06", fields of this class that changed.
    """

    source: str
    stated: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    format: str = "csv"
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    apart: Mapping[str, Mapping[str, Mapping[str, Any]]] = dataclasses.field(default_factory=dict)
    since: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    def on(self, path: str | os.PathLike, date: str) -> "Layout":
        """The layout on the day of a file."""
        day = re.search(r"\d{4}-\d\d-\d\d", date or pathlib.Path(path).name)
        starts = [start for start in self.since if day and start <= day[0]]
        if self.since and not starts:
            allowed = f"a day from {min(self.since)} on, written as 2024-03-01, if the name of the file has none"
            raise ArgumentError("date", allowed, f"{date!r} for {path}")
        return dataclasses.replace(self, since={}, **self.since[max(starts)]) if starts else self


def open(layout: str, path: str | os.PathLike, **options: Any) -> NoisyTable | Release | Sketch:
    """Open a published data set by the name of its layout, with its noise, reporting rules and the publisher's promise.

    Parameters
    ----------
    layout, path : str, path-like
        The layout, such as "wikimedia-pageviews" (``docs/reference/layouts.md`` lists all), and the file. Raises
        ValueError, with line and column, if the file does not have the layout.
    **options
        ``only``, the rows that are used, by labels in columns, as in ``{"country_code": ["FR", "BE"]}``; ``date``, the
        day of the data, if the layout depends on it and the name of the file does not have it; options of the layout,
        such as ``epsilon``; and those of `NoisyTable.from_file`, in place of what the layout states.

    Returns
    -------
    NoisyTable, Release or BitCounts
        A release if the file has answers of single people, and counts of bits if it has these.
    """
    if callable(entry := LAYOUTS.get(layout)):
        return entry(path, **options)
    if layout not in formats():
        names = dict.fromkeys([*LAYOUTS, *formats()])
        raise ArgumentError("layout", f"one of {', '.join(names)}", f"{layout!r}{guess(layout, names)}")
    for name, option in formats()[layout].options.items():
        if option.default is option.empty and name not in options:
            raise ArgumentError(name, f"given for the layout {layout}", "none")
    return NoisyTable.from_file(path, format=layout, **options)


def register_layout(name: str, layout: Layout | Callable[..., Release | Sketch]) -> None:
    """Add a `layout`, or a function of (path, options) that returns a `Release`, to those that `open` has by `name`."""
    LAYOUTS[name] = layout
    if isinstance(layout, Layout):
        read = partial(_read, name, layout)
        own = {option: p for option, p in inspect.signature(read).parameters.items() if option in ("date", "only")}
        inner = {option: p for option, p in formats()[layout.format].options.items() if option not in layout.options}
        _FORMATS[name] = Format(read, (), own | inner)


def _read(
    layout_name: str,
    layout: Layout,
    path: str | os.PathLike,
    keys: Sequence[str],
    numbers: Sequence[str],
    *,
    date: str = "",
    only: Mapping[str, Any] | None = None,
    **options: Any,
) -> Contents:
    """The columns of a file, and what its layout states of them."""
    if not isinstance(only, Mapping | None):
        raise ArgumentError("only", 'labels by column, as in {"country_code": "FR"}', f"{only!r}")
    layout, only = layout.on(path, date), {**(only or {})}
    stated, words = dict(layout.stated), [*(keys or layout.stated.get("keys", ())), *only, *layout.apart]
    sizes = [size for argument in ("value", *NOISE_SIZES) if isinstance(size := stated.get(argument), str)]
    named = [*dict.fromkeys(words)], [*dict.fromkeys([*numbers, *sizes])]
    try:
        contents, found = formats()[layout.format].read(path, *named, **{**layout.options, **options})
    except FileError as error:
        raise FileError(f"{error} (the layout {layout_name} is described at {layout.source})") from None
    columns = {name: np.asarray(cells) for name, cells in contents.items()}
    for name, labels in only.items():
        cells, wanted = column(columns, name).astype(str), np.ravel(labels).astype(str).tolist()
        if absent := [label for label in wanted if label not in cells]:
            raise FileError(f"{path}: no row has {absent[0]!r} in the column {name!r}")
        columns = {other: values[np.isin(cells, wanted)] for other, values in columns.items()}
    for key, kinds in layout.apart.items():
        labels, rows = np.unique(columns[key], return_inverse=True)
        for argument in dict.fromkeys(argument for kind in kinds.values() for argument in kind):
            values = [kinds.get(label, {}).get(argument, stated.get(argument)) for label in labels.tolist()]
            if len({*values}) == 1:
                stated[argument] = values[0]
            elif argument == "noise" or None in values:
                unlike = ", ".join(label for label in labels.tolist() if label in kinds)
                problem = f"rows whose {key} is {unlike} have noise of another law; open them and the others apart"
                raise FileError(f"{path}: {problem}, with only={{{key!r}: ...}}")
            else:
                columns[argument] = np.array(values)[rows]
                stated[argument] = argument if argument in NOISE_SIZES else columns[argument]
    return Contents(columns, {**found, **stated})


# Page views of a day, of which only those above a threshold are in the files.
PAGEVIEWS = "https://analytics.wikimedia.org/published/datasets/country_project_page"
PAGES = ["country", "country_code", "project", "page_id", "page_title", "item_id", "count"]
VIEWS: dict[str, Any] = {"value": "count", "keys": ["country_code", "project", "page_id"], "unpublished": "unknown"}
OLDEST: dict[str, Any] = {"options": {"names": [name for name in PAGES if name != "item_id"]}}  # and no page_id
OLDEST["stated"] = VIEWS | {"keys": ["country_code", "project", "page_title"], "noise": "discrete_laplace"}
OLDEST["stated"] |= {"scale": 300.0, "threshold": 3500.0}
OLDEST["stated"]["privacy"] = f"Wikimedia: epsilon = 1 for 300 page views of a day ({PAGEVIEWS}_historical_pre_2017)."
LAPLACE = {"noise": "discrete_laplace", "scale": 30.0, "variance": None, "threshold": 450.0}
LAPLACE["privacy"] = f"Wikimedia: epsilon = 1 for 30 page views of a day ({PAGEVIEWS}_historical)."
# The variance is 10/(2 rho): 95 % of errors are at most 35.7, and 176.5 or 352.5 in countries of higher risk.
GAUSSIAN = {"noise": "discrete_gaussian", "variance": 5 / 0.01505, "threshold": 90.0}
GAUSSIAN["privacy"] = f"Wikimedia: zCDP, rho at most 0.0151, for 10 pages of a device on a day ({PAGEVIEWS})."
MEDIUM, HIGHER = {"variance": 5 / 6.166e-4, "threshold": 550.0}, {"variance": 5 / 1.546e-4, "threshold": 1000.0}


def _current(medium: str = "", higher: str = "", **apart: Mapping[str, Any]) -> dict[str, Any]:
    risks = dict.fromkeys(medium.split(), MEDIUM) | dict.fromkeys(higher.split(), HIGHER)
    return {"stated": VIEWS | GAUSSIAN, "apart": {"country_code": {**risks, **apart}}}


REPAIRED = ["2023-06-19", "2023-10-25", "2023-11-13", "2023-11-17", "2023-11-19", "2023-11-23", "2023-11-27"]
DAYS = {"2015-07-01": OLDEST, "2017-02-09": {"stated": VIEWS | LAPLACE}, "2023-02-06": _current(US=LAPLACE)}
DAYS |= {f"{day[:-2]}{int(day[-2:]) + 1}": _current() for day in REPAIRED} | {"2023-06-20": _current(US=LAPLACE)}
DAYS |= {day: {"stated": VIEWS | LAPLACE} for day in REPAIRED} | {"2023-09-20": _current()}
DAYS["2024-02-15"] = _current("AE AF AZ BD DJ ET HN IQ KW KZ LA NI OM PK PS SD TJ UZ VE YE", "BH BY EG ER RU SA TM TR")
DAYS["2026-01-26"] = _current("BD BT ET HN IQ KH KZ LA RW", "AE AZ BH DJ EG NI PK PS SD TJ TR UZ YE")

BROADBAND, ERROR = "https://github.com/microsoft/USBroadbandUsagePercentages", "ERROR RANGE (95%)(+/-)"
SHARES: dict[str, Any] = {"value": "BROADBAND USAGE", "keys": ["ST", "COUNTY ID", "POSTAL CODE"], "noise": "laplace"}
SHARES |= {"margin": ERROR, "margin_level": 0.95, "unit": 0.001, "floor": 0.0, "cap": 1.0}
SHARES["privacy"] = f"Microsoft: epsilon = 0.2 for the counts from which a share was computed ({BROADBAND})."
CENSUS = "https://registry.opendata.aws/census-2020-pl94-nmf"
CENSUS_PROMISE = f"U.S. Census Bureau: zCDP, for two data sets that differ in the record of one person ({CENSUS})."
PSEO = "https://lehd.ces.census.gov/data/schema/latest/lehd_public_use_schema.html"
EARNINGS: dict[str, Any] = {"value": "y1_p50_earnings", "keys": ["institution", "degree_level", "cipcode"]}
EARNINGS["keys"] += ["grad_cohort"]
EARNINGS["privacy"] = "U.S. Census Bureau: percentiles of a histogram with noise (working paper CES-WP-19-13)."

LAYOUTS: dict[str, Layout | Callable[..., Release | Sketch]] = {
    "chrome-confidence": read_confidences,
    "rappor": read_rappor,
    "us-broadband": Layout(BROADBAND, SHARES),
    "us-census-2020": Layout(CENSUS, {"privacy": CENSUS_PROMISE}, "census"),
    "us-pseo-earnings": Layout(PSEO, EARNINGS),
    "wikimedia-pageviews": Layout(f"{PAGEVIEWS}/00_README.html", options={"names": PAGES}, since=DAYS),
}
for _name, _layout in [*LAYOUTS.items()]:
    register_layout(_name, _layout)
