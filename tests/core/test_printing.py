"""What mechanisms, releases and sketches show of themselves: one line, and a table in notebooks."""

import html.parser
import re

import jax
import numpy as np
import pytest

import ldpbayes as ldp
from ldpbayes.data import CountSketch, ExpandedSketch, PanelSketch
from ldpbayes.data.category_sketches import joined_sketch
from ldpbayes.data.sketches import MomentSketch, TotalSketch

LAPLACE = ldp.LaplaceMechanism(1.0, -5, 5)
PERSONAL = ldp.LaplaceMechanism(np.linspace(0.3, 4, 24_000), -5, 5)
ROWS = ldp.GaussianMechanism(1.0, 1e-6, [0] * 20, [1] * 20, columns=[f"<x{j}>" for j in range(20)])
BITS = ldp.OptimalUnaryEncoding(1.0, 5)
STATISTICS = ldp.mechanisms.LinearStatisticsMechanism(1.0, 1e-6, 1.0, 2.0, 2)
RNG = np.random.default_rng(0)


NUMBERS = ldp.Release(RNG.uniform(-5, 5, 20_000) + RNG.laplace(0, 10, 20_000), LAPLACE)
OWN = RNG.integers(5, size=(3_000, 1)) == np.arange(5)
CATEGORIES = ldp.Release(RNG.uniform(size=(3_000, 5)) < np.where(OWN, *BITS.support_probabilities), BITS)
SKETCH = NUMBERS.sketch()
ROW_SKETCH = MomentSketch.of(RNG.normal(size=(5_000, 20)), ROWS)
SHOWN = [
    (PERSONAL, "LaplaceMechanism(epsilon=<24,000 values in [0.3, 4]>, lower=-5.0, upper=5.0)"),
    (
        ldp.mechanisms.AdditiveMechanism(ldp.noise.Laplace(np.linspace(1, 2, 2_000)), 0, 1),
        "AdditiveMechanism(noise=Laplace(scale=<2,000 values in [1, 2]>), lower=0.0, upper=1.0)",
    ),
    (ldp.LaplaceMechanism(1.0, sensitivity=2.0), "LaplaceMechanism(epsilon=1.0, sensitivity=2.0)"),
    (NUMBERS, "Release(20,000 records, LaplaceMechanism(epsilon=1.0, lower=-5.0, upper=5.0))"),
    (
        ldp.Release(None, LAPLACE, 1),
        "Release(1 record to simulate, LaplaceMechanism(epsilon=1.0, lower=-5.0, upper=5.0))",
    ),
    (SKETCH, "PanelSketch(20,000 records, 324 nodes, LaplaceMechanism(epsilon=1.0, lower=-5.0, upper=5.0))"),
    (
        SKETCH + SKETCH,
        "PanelSketch(40,000 records, 324 nodes, LaplaceMechanism(epsilon=1.0, lower=-5.0, upper=5.0))",
    ),
    (
        ROW_SKETCH,
        "MomentSketch(5,000 records, 20 columns, GaussianMechanism(epsilon=1.0, delta=1e-06, lower=<20 values, all 0>, "
        "upper=<20 values, all 1>, columns=<20 from '<x0>' to '<x19>'>))",
    ),
    (
        CATEGORIES.sketch(by=np.arange(3_000) % 3),
        "CountSketch(3,000 records, 96 nodes, 3 groups, OptimalUnaryEncoding(epsilon=1.0, categories=5))",
    ),
    (
        CATEGORIES.sketch(expand=True),
        "ExpandedSketch(3,000 records, OptimalUnaryEncoding(epsilon=1.0, categories=5))",
    ),
    (
        joined_sketch([SKETCH, SKETCH]),
        "MixedSketch(40,000 records, 2 groups, LaplaceMechanism(epsilon=1.0, lower=-5.0, upper=5.0))",
    ),
]


@pytest.mark.parametrize(("thing", "line"), SHOWN, ids=[type(thing).__name__ for thing, _ in SHOWN])
def test_each_shows_itself_in_one_line(thing, line):
    assert repr(thing) == str(thing) == line


def test_sums_of_statistics_show_how_many_there_are():
    values = np.zeros((50, *STATISTICS.event_shape))
    assert repr(TotalSketch.of(values, STATISTICS)).startswith("TotalSketch(50 records, LinearStatisticsMechanism(")


def test_every_kind_of_sketch_shows_a_line():
    kinds = {type(thing) for thing, _ in SHOWN} | {TotalSketch}
    assert {PanelSketch, CountSketch, MomentSketch, ExpandedSketch} < kinds
    assert all("__repr__" not in vars(kind) for kind in kinds if issubclass(kind, ldp.Sketch))


TREES = [thing for thing, _ in SHOWN]


@pytest.mark.parametrize("thing", TREES, ids=[type(thing).__name__ for thing in TREES])
def test_a_line_can_be_asked_for_where_nothing_is_known(thing):
    said = []

    def look(tree):
        said.extend([repr(tree), tree._repr_html_()])
        return 0.0

    jax.eval_shape(look, thing)
    jax.vmap(look)(jax.tree.map(lambda part: np.stack([part, part]), thing))
    assert re.search(r"float(32|64)\[", said[0])
    for mapped in (lambda _: None, lambda _: "a<b", lambda part: jax.ShapeDtypeStruct(np.shape(part), float), np.shape):
        look(jax.tree.map(mapped, thing))
    assert all("\n" not in line and len(line) < 600 for line in said[::2])


def test_arrays_that_were_given_away_show_their_shape():
    gone = ldp.LaplaceMechanism(jax.numpy.ones(7), -5, 5)
    array = jax.numpy.ones(7)
    object.__setattr__(gone, "epsilon", array)
    array.delete()
    assert repr(gone) == "LaplaceMechanism(epsilon=float32[7], lower=-5.0, upper=5.0)"


class Cells(html.parser.HTMLParser):
    """Cells of a table."""

    def __init__(self):
        super().__init__()
        self.tags, self.cells = [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.cells += [""] if tag in ("th", "td") else []

    def handle_data(self, data):
        if self.cells:
            self.cells[-1] += data


def rows(thing):
    table = Cells()
    table.feed(thing._repr_html_())
    assert set(table.tags) <= {"table", "caption", "b", "tr", "th", "td"}
    return dict(zip(table.cells[::2], table.cells[1::2], strict=True))


def test_notebooks_show_what_was_promised_and_what_is_doubted():
    with pytest.warns(ldp.data.ReleaseWarning):
        doubtful = ldp.Release(np.full(1_000, 500.0), LAPLACE)
    statement = LAPLACE.guarantee.statement()
    assert rows(doubtful) == {
        "records": "1,000",
        "mechanism": repr(LAPLACE),
        "guarantee": statement,
        "doubt": doubtful.doubts[0],
        "in memory": "8 kB",
    }
    assert rows(doubtful.sketch(keep_records=False))["doubt"] == doubtful.doubts[0]
    assert rows(LAPLACE) == {"epsilon": "1.0", "lower": "-5.0", "upper": "5.0", "guarantee": statement}
    assert rows(SKETCH)["nodes"] == "324"


def test_tables_escape_what_they_show():
    assert rows(ROWS)["columns"] == "<20 from '<x0>' to '<x19>'>"
    assert "<x0>" not in ROWS._repr_html_() and "&lt;x0&gt;" in ROW_SKETCH._repr_html_()


def test_memory_counts_kept_records_once_and_not_what_stays_in_a_file(tmp_path):
    assert rows(NUMBERS)["in memory"] == "160 kB"  # 20,000 numbers of 8 bytes
    np.save(tmp_path / "values.npy", NUMBERS.values)
    mapped = ldp.Release(np.load(tmp_path / "values.npy", mmap_mode="r"), LAPLACE)
    assert rows(mapped)["in memory"] == "0 bytes"
    kept, alone = (CATEGORIES.sketch(expand=True, keep_records=keep) for keep in (True, False))
    sizes = [float(rows(sketch)["in memory"].split()[0]) for sketch in (kept, alone)]
    assert sizes[0] - sizes[1] == pytest.approx(CATEGORIES.values.nbytes / 1000, abs=0.1)
