"""Sketches of files and of arrays as they come: those of the whole release, whatever the parts, and no file twice."""

from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest

import ldpbayes as ldp
from ldpbayes.data import CountSketch, ExpandedSketch, MomentSketch, PanelSketch, Release, Sketch, sketch_from, streams
from ldpbayes.mechanisms.protocol import statements

pa = pytest.importorskip("pyarrow")
csv, parquet = (pytest.importorskip(f"pyarrow.{name}") for name in ("csv", "parquet"))

LAPLACE, COIN = ldp.LaplaceMechanism(1.0, 0, 20), ldp.RandomizedResponse(1.0)
BITS = ldp.OptimalUnaryEncoding(2.0, 4)
ROWS = ldp.GaussianMechanism(1.0, 1e-5, -4, 4, columns=2)


def released(mechanism, n, key=0):
    shape = (n, *mechanism.record_shape)
    rng = np.random.default_rng(key)
    records = rng.integers(0, 2, shape) if mechanism.support.is_discrete else rng.uniform(0, 3, shape)
    with jax.enable_x64(True):
        return np.asarray(mechanism.randomize(jax.random.key(key), records))


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """Parts of a few hundred values."""
    monkeypatch.setattr(streams, "CHUNK", 128)
    monkeypatch.setattr(streams, "PIECE", 300)
    monkeypatch.setattr(streams, "BLOCK", 1 << 12)


def write_parquet(path, values, column="value"):
    parquet.write_table(pa.table({column: values, "other": np.arange(len(values))}), path, row_group_size=100)


def same(a, b):
    """Moments add up to rounding: each is a sum of at most 3,000 numbers between -1 and 1, in two orders."""
    assert type(a) is type(b) and a.mechanism == b.mechanism and float(a.size) == float(b.size)
    for name in ("moments", "tails", "atoms") if isinstance(a, PanelSketch) else ("nodes", "weights"):
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=1e-12, atol=3000 * 2**-52)


@pytest.fixture
def days(tmp_path):
    """Three files of numbers, and all of their values."""
    values = [released(LAPLACE, n, key) for key, n in enumerate((1000, 70, 450))]
    for i, each in enumerate(values):
        write_parquet(tmp_path / f"day-{i}.parquet", each)
    return tmp_path, np.concatenate(values)


def test_files_are_sketched_as_their_values_are(days):
    folder, values = days
    whole = Release(values, LAPLACE).sketch()
    found = sketch_from(folder / "day-*.parquet", LAPLACE)
    same(found, whole)
    assert [(name, count) for name, count, _ in found.sources] == [
        (f"day-{i}.parquet", n) for i, n in enumerate((1000, 70, 450))
    ]
    assert len(found.promises) == 3  # a release a file, whatever the number of its parts
    assert found.records is None and len(found.probes) == 256
    assert abs(np.mean(np.isin(found.probes, values[-450:])) - 450 / 1520) < 0.02  # each file by its share
    same(sketch_from([folder / f"day-{i}.parquet" for i in range(3)], LAPLACE), whole)
    same(sketch_from(folder, LAPLACE), whole)


def test_workers_change_nothing(days):
    folder, _ = days
    alone = sketch_from(folder, LAPLACE)
    with ThreadPoolExecutor(3) as executor:
        together = sketch_from(folder, LAPLACE, executor=executor)
    for name in PanelSketch.arrays:
        np.testing.assert_array_equal(getattr(alone, name), getattr(together, name))
    assert alone.sources == together.sources and alone.promises == together.promises


@pytest.mark.parametrize("mechanism", [LAPLACE, COIN, BITS, ROWS], ids=lambda m: type(m).__name__)
def test_arrays_files_and_saved_sketches_agree(mechanism, tmp_path):
    values = released(mechanism, 700)
    whole = Release(values, mechanism).sketch()
    same(sketch_from(values, mechanism), whole)
    same(sketch_from((values[i : i + 50] for i in range(0, 700, 50)), mechanism), whole)
    np.save(tmp_path / "values.npy", values)
    same(sketch_from(tmp_path / "values.npy", mechanism), whole)
    Release(values[:300], mechanism, times=2).save(tmp_path / "some.npz")
    Release(values[300:], mechanism).save(tmp_path / "rest.parquet")
    found = sketch_from([tmp_path / "some.npz", tmp_path / "rest.parquet"])
    same(found, whole)
    assert [promise.times for promise in found.promises] == [2, None]
    found.save(tmp_path / "sketch.npz")
    back = Sketch.load(tmp_path / "sketch.npz")
    same(back, found)
    assert back.promises == found.promises and back.sources == found.sources
    same(sketch_from([tmp_path / "sketch.npz", tmp_path / "values.npy"], mechanism), whole + whole)


def test_chunks_of_one_data_set_promise_what_one_of_them_does(tmp_path):
    values = released(COIN, 720)
    for place, chunk in enumerate(np.split(values, 24)):
        Release(chunk, COIN, times=2 if place == 5 else None).save(tmp_path / f"{place}.parquet")
    alone = Release(values, COIN, times=2).guarantee.statement()
    once = sketch_from(tmp_path, different_people=True)
    assert statements(once.promises) == alone and once.weights.sum() == 720
    assert statements(sketch_from(tmp_path).promises).startswith("24 releases. Where they are about the same people")
    assert statements(sketch_from(tmp_path).promises, different_people=True).startswith("24 releases about different")
    once.save(tmp_path / "once.npz")
    assert statements(Sketch.load(tmp_path / "once.npz").promises) == alone


def test_csv_files_are_read_in_blocks(tmp_path):
    values, words = released(LAPLACE, 2000), np.where(released(COIN, 2000), "yes", "no")
    pairs = released(ROWS, 2000)
    table = pa.table({"z": values, "answer": words, "x": pairs[:, 0], "y": pairs[:, 1]})
    csv.write_csv(table, tmp_path / "all.csv")
    csv.write_csv(table, tmp_path / "all.tsv", csv.WriteOptions(delimiter="\t"))
    for name in ("all.csv", "all.tsv"):
        same(sketch_from(tmp_path / name, LAPLACE, column="z"), Release(values, LAPLACE).sketch())
    answers = sketch_from(tmp_path / "all.csv", COIN, column="answer", levels=["no", "yes"])
    assert answers.weights[answers.nodes == 1] == np.sum(words == "yes")
    rows = sketch_from(tmp_path / "all.csv", ROWS, column=["x", "y"])
    same(rows, Release(pairs, ROWS).sketch())
    with pytest.raises(
        ValueError, match=r"all.csv: column 'answer' has words that are not among the levels, .* of them"
    ):
        sketch_from(tmp_path / "all.csv", COIN, column="answer", levels=["no", "maybe"])


def test_an_expansion_of_files_is_that_of_the_whole_release(tmp_path):
    values = released(BITS, 2000)
    np.save(tmp_path / "bits.npy", values)
    whole = Release(values, BITS).sketch(expand=True)
    # within some three standard deviations of the mode
    shares = np.random.default_rng(0).dirichlet(300 * whole.polynomial.center, size=5)
    for found, error in (
        (sketch_from(tmp_path / "bits.npy", BITS, expand=True), 0.02),  # at another place, less than NEAR away
        (sketch_from(values, BITS, expand=True), 0.02),
        (sketch_from((values[i : i + 500] for i in range(0, 2000, 500)), BITS, at=whole), 1e-8),  # in another order
    ):
        np.testing.assert_allclose(found.polynomial.values(shares), whole.polynomial.values(shares), rtol=0, atol=error)
        found.save(tmp_path / "expansion.npz")
        back = Sketch.load(tmp_path / "expansion.npz")
        assert isinstance(back, ExpandedSketch) and back.size == 2000
        np.testing.assert_array_equal(back.polynomial.values(shares), found.polynomial.values(shares))
    with pytest.raises(ValueError, match="an expansion reads the values several times: give files"):
        sketch_from(iter([values]), BITS, expand=True)


def test_sketches_of_groups_and_of_sums_are_saved(tmp_path):
    values = released(COIN, 60)
    by = Release(values, COIN).sketch(by=np.resize(["north", "south"], 60))
    by.save(tmp_path / "by.npz")
    back = Sketch.load(tmp_path / "by.npz")
    assert isinstance(back, CountSketch) and back.coords == by.coords and back.num_groups == 2
    np.testing.assert_array_equal(back.groups, by.groups)
    personal = ldp.RandomizedResponse(np.resize([1.0, 2.0], 60))
    sketch = Release(values, personal).sketch()
    sketch.save(tmp_path / "personal.npz")
    assert Sketch.load(tmp_path / "personal.npz").mechanism == sketch.mechanism
    moments = Release(released(ROWS, 50), ROWS).sketch()
    moments.save(tmp_path / "rows.npz")
    assert isinstance(Sketch.load(tmp_path / "rows.npz"), MomentSketch)


def test_no_file_counts_twice(days):
    folder, _ = days
    first = sketch_from(folder / "day-0.parquet", LAPLACE)
    (folder / "copy.parquet").write_bytes((folder / "day-0.parquet").read_bytes())
    with pytest.raises(ValueError, match=r"count twice: day-0.parquet and copy.parquet are the same file, or have"):
        sketch_from([folder / "day-0.parquet", folder / "copy.parquet"], LAPLACE)
    with pytest.raises(ValueError, match=r"count twice: day-0.parquet is given twice"):
        sketch_from([folder / "day-0.parquet", folder / "day-*.parquet"], LAPLACE)
    with pytest.raises(FileNotFoundError, match=r"there is no file .*night-\*"):  # and not the days alone
        sketch_from([folder / "day-0.parquet", folder / "night-*.parquet"], LAPLACE)
    first.save(folder / "sofar.npz")
    with pytest.raises(ValueError, match=r"count twice: day-0.parquet and day-0.parquet are the same file"):
        sketch_from([folder / "sofar.npz", folder / "day-0.parquet"], LAPLACE)
    total = first + sketch_from(folder / "day-1.parquet", LAPLACE)
    assert [source.name for source in total.sources] == ["day-0.parquet", "day-1.parquet"]


@pytest.mark.parametrize(
    ("make", "options", "error", "message"),
    [
        ("nothing-*.parquet", {}, FileNotFoundError, "there is no file"),
        ("notes.txt", {}, ValueError, "notes.txt cannot be read in parts"),
        ("day-0.parquet", {"mechanism": None}, ValueError, "day-0.parquet: the file does not state its mechanism"),
        ("day-0.parquet", {"column": "missing"}, ValueError, "day-0.parquet: .*missing"),
        ("day-0.parquet", {"mechanism": COIN}, ValueError, "day-0.parquet: "),
        ("release.npz", {}, ValueError, "release.npz: the file was released by RandomizedResponse"),
        ("nulls.parquet", {}, ValueError, r"nulls.parquet: column 'value' has nulls, 1 of them"),
        ("day-0.parquet", {"keep_records": True}, TypeError, "sketch_from has no option 'keep_records'"),
        ("empty.parquet", {}, ValueError, "there is no released value to sketch"),
        ("damaged.parquet", {}, ValueError, "damaged.parquet: "),
    ],
)
def test_what_cannot_be_read_says_why(make, options, error, message, days):
    folder, _ = days
    (folder / "notes.txt").write_text("")
    (folder / "damaged.parquet").write_bytes(b"PAR1")
    Release(released(COIN, 10), COIN).save(folder / "release.npz")
    write_parquet(folder / "nulls.parquet", pa.array([1.0, None, 2.0]))
    write_parquet(folder / "empty.parquet", np.empty(0))
    with pytest.raises(error, match=message):
        sketch_from(folder / make, **{"mechanism": LAPLACE} | options)


def test_arrays_need_a_mechanism_and_a_file_of_a_sketch_is_known():
    with pytest.raises(ValueError, match="arrays need mechanism="):
        sketch_from(np.zeros(3))


@pytest.mark.parametrize("content", [b"", b"PK", "a release"])
def test_other_files_are_no_sketches(content, tmp_path):
    path = tmp_path / "x.npz"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        Release(released(COIN, 5), COIN).save(path)
    with pytest.raises(ValueError, match=r"x.npz is not a sketch file, or is damaged"):
        Sketch.load(path)
    with pytest.raises(ValueError, match=r"must end in .npz"):
        Release(released(COIN, 5), COIN).sketch().save(tmp_path / "x.json")


def test_an_interrupted_write_leaves_the_old_sketch(tmp_path, monkeypatch):
    sketch, path = Release(released(COIN, 50), COIN).sketch(), tmp_path / "x.npz"
    sketch.save(path)

    def half(file, **_):
        file.write(b"PK half")
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez", half)
    with pytest.raises(KeyboardInterrupt):
        (sketch + sketch).save(path)
    assert Sketch.load(path).size == 50


def test_implausible_values_are_doubted_once(tmp_path):
    values = np.full(1000, 10.0)
    with pytest.warns(ldp.data.ReleaseWarning) as seen:
        found = sketch_from(values, LAPLACE)
    assert len(seen) == 1 and len(found.doubts) == 1
