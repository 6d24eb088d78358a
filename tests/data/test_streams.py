"""Sketches of files and of arrays as they come: those of the whole release, whatever the parts, and no file twice."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import ldpbayes as ldp
from ldpbayes._core import archive
from ldpbayes.data import (
    CountSketch,
    ExpandedSketch,
    PanelSketch,
    Release,
    Sketch,
    category_sketches,
    sketch_from,
    streams,
)
from ldpbayes.data.sketches import MomentSketch
from ldpbayes.mechanisms.protocol import statements

pa = pytest.importorskip("pyarrow")
csv, parquet = (pytest.importorskip(f"pyarrow.{name}") for name in ("csv", "parquet"))

LAPLACE, COIN = ldp.LaplaceMechanism(1.0, 0, 20), ldp.RandomizedResponse(1.0)
BITS = ldp.OptimalUnaryEncoding(2.0, 4)
ROWS = ldp.GaussianMechanism(1.0, 1e-5, -4, 4, columns=2)


def released(mechanism, n, seed=0):
    """Values of n records, drawn by NumPy."""
    rng = np.random.default_rng(seed)
    if mechanism in (LAPLACE, ROWS):
        noise, shape = rng.laplace if mechanism is LAPLACE else rng.normal, (n, *mechanism.record_shape)
        return rng.uniform(0, 3, shape) + noise(0, mechanism.scale, shape)
    own, other = mechanism.support_probabilities
    records = rng.integers(0, 2, n)
    if mechanism is COIN:
        return np.where(rng.uniform(size=n) < own, records, 1 - records)
    chances = np.where(records[:, None] == np.arange(mechanism.categories), own, other)
    return (rng.uniform(size=chances.shape) < chances).astype(np.uint8)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """Parts of a few hundred values."""
    monkeypatch.setattr(archive, "ROWS_PER_DIGEST", 128)
    monkeypatch.setattr(streams, "ROWS_PER_PIECE", 300)
    monkeypatch.setattr(streams, "CSV_BYTES_AT_ONCE", 1 << 12)


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
    values = [released(LAPLACE, n, seed) for seed, n in enumerate((1000, 70, 450))]
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
    with pytest.raises(ValueError, match=r"x.npz is not a valid sketch file: "):
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


@pytest.mark.parametrize("sizes", [(20, 9000), (9000, 20)], ids=["small first", "large first"])
@pytest.mark.parametrize("form", ["files", "arrays"])
def test_categories_have_sketches_of_one_kind_whatever_the_sizes_of_files(sizes, form, tmp_path, monkeypatch):
    monkeypatch.setattr(category_sketches, "LEAST_KINDS_TO_EXPAND", 50)
    monkeypatch.setattr(archive, "ROWS_PER_DIGEST", 1 << 20)
    monkeypatch.setattr(streams, "ROWS_PER_PIECE", 1 << 22)
    mechanism = ldp.OptimalUnaryEncoding(1.0, 12)
    values = [released(mechanism, n, seed) for seed, n in enumerate(sizes)]
    for i, each in enumerate(values):
        np.save(tmp_path / f"{i}.npy", each)
    if form == "arrays" and sizes[0] > sizes[1]:
        pytest.skip("an expansion needs the arrays several times")
    source = tmp_path if form == "files" else iter(values)
    found = sketch_from(source, mechanism)
    assert isinstance(found, ExpandedSketch if form == "files" else CountSketch) and found.size == sum(sizes)
    found.save(tmp_path / "sketch.npz")
    np.save(tmp_path / "more.npy", released(mechanism, 30, 5))
    again = sketch_from([tmp_path / "sketch.npz", tmp_path / "more.npy"], mechanism)
    assert type(again) is type(found) and again.size == sum(sizes) + 30


def test_sketches_of_different_kinds_say_how_they_are_made_alike():
    release = Release(released(BITS, 300), BITS)
    with pytest.raises(ValueError, match=r"sketches of different kinds cannot be added: .*the same expand="):
        release.sketch(expand=False) + release.sketch(expand=True)


def test_paths_may_come_from_a_generator(days):
    folder, values = days
    whole = Release(values, LAPLACE).sketch()
    same(sketch_from(folder.glob("day-*.parquet"), LAPLACE), whole)
    same(sketch_from({str(folder / f"day-{i}.parquet"): i for i in range(3)}, LAPLACE), whole)
    same(sketch_from((each for each in [values[:100], values[100:]]), LAPLACE), whole)
    with pytest.raises(ValueError, match="no released value"):
        sketch_from(iter([]), LAPLACE)


def test_equal_files_of_different_people_are_told_apart_by_what_they_note(tmp_path):
    answers = [1, 0, 1]
    for i, day in enumerate(("Monday", "Tuesday")):
        Release(answers, COIN).save(tmp_path / f"plain-{i}.npz")
        Release(answers, COIN, about={"day": day}).save(tmp_path / f"noted-{i}.npz")
        csv.write_csv(pa.table({"value": answers}), tmp_path / f"plain-{i}.csv")
        csv.write_csv(pa.table({"value": answers, "day": [day] * 3}), tmp_path / f"noted-{i}.csv")
    for ending in ("npz", "csv"):
        with pytest.raises(ValueError, match="equal content; if they hold different people, note in one of them what"):
            sketch_from(tmp_path / f"plain-*.{ending}", COIN)
        assert sketch_from(tmp_path / f"noted-*.{ending}", COIN).size == 6


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("value\n1\n\n2\n", "column 'value' has nulls, 1 of them"),
        ("day,value\n1,2\n\n2,3\n", "column 'value' has nulls, 1 of them"),
        ("value,day,value\n1,2,3\n", "it has 2 columns 'value'; its columns are value, day, value"),
        ("day\n1\n", "it has 0 columns 'value'; its columns are day"),
        ("", "it has 0 columns 'value'"),
    ],
)
def test_lines_and_columns_of_a_csv_file_are_not_lost(text, message, tmp_path):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(ValueError, match=rf"a.csv: .*{message}"):
        sketch_from(tmp_path / "a.csv", LAPLACE)


def test_two_columns_of_a_parquet_file_cannot_have_one_name(tmp_path):
    spec = {"ldpbayes.mechanism": json.dumps(LAPLACE.spec())}
    table = pa.table([released(LAPLACE, 5), released(LAPLACE, 5)], names=["value", "value"])
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="it has 2 columns 'value'"):
        sketch_from(tmp_path / "a.parquet", LAPLACE)
    parquet.write_table(table.replace_schema_metadata(spec), tmp_path / "b.parquet")
    with pytest.raises(ValueError, match=r"b.parquet is not a valid release file: it needs one column 'value'"):
        Release.load(tmp_path / "b.parquet")


def test_a_column_may_have_fractions_behind_its_first_block(tmp_path):
    values = np.append(np.round(released(LAPLACE, 2000)), 2.5)
    (tmp_path / "a.csv").write_text("\n".join(["value", *(f"{each:g}" for each in values)]))
    same(sketch_from(tmp_path / "a.csv", LAPLACE), Release(values, LAPLACE).sketch())


def test_a_saved_sketch_is_of_the_stated_mechanism(tmp_path):
    Release(released(LAPLACE, 50), LAPLACE).sketch().save(tmp_path / "a.npz")
    sketch_from(tmp_path / "a.npz", LAPLACE)
    with pytest.raises(ValueError, match=r"a.npz: the sketch is of values released by .*epsilon=1.0.*, not by .*=2.0"):
        sketch_from(tmp_path / "a.npz", ldp.LaplaceMechanism(2.0, 0, 20))
    made = ldp.mechanisms.LinearStatisticsMechanism(1.0, 1e-6, 1.0, 1.0, columns=2)
    statistics = Release(np.zeros((4, 3)), made).sketch()
    statistics.save(tmp_path / "b.npz")
    assert sketch_from(tmp_path / "b.npz", made).size == 4


@pytest.mark.parametrize("groups", [128, 100, 1000])
def test_a_signed_file_is_checked_in_its_parts(groups, tmp_path):
    values = released(LAPLACE, 1000)
    Release(values, LAPLACE).save(tmp_path / "a.parquet")
    table = parquet.read_table(tmp_path / "a.parquet")
    # other programs may divide the rows differently
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=groups)
    whole = Release(values, LAPLACE).sketch()
    with ThreadPoolExecutor(3) as executor:
        for options in ({}, {"executor": executor}):
            same(sketch_from(tmp_path / "a.parquet", **options), whole)
    swapped = table.set_column(0, "value", pa.array(np.roll(values, 1)))  # with the same sketch
    short = table.slice(0, 999)
    for name, each in (("swapped", swapped), ("short", short), ("empty", table.slice(0, 0))):
        parquet.write_table(each, tmp_path / f"{name}.parquet", row_group_size=groups)
        with pytest.raises(ValueError, match=rf"{name}.parquet: .*(does not agree with its digest|has no values)"):
            sketch_from(tmp_path / f"{name}.parquet")


@pytest.mark.parametrize("mechanism", [LAPLACE, COIN, ROWS], ids=lambda m: type(m).__name__)
def test_a_sketch_file_that_was_changed_or_has_no_digest_is_refused(mechanism, tmp_path):
    path = tmp_path / "a.npz"
    Release(released(mechanism, 300), mechanism).sketch().save(path)
    with np.load(path) as file:
        content = dict(file)
    header = json.loads(str(content.pop("sketch")))
    name = "moments" if mechanism is LAPLACE else "weights"
    for change, message in (({name: 2 * content[name]}, "does not agree with its digest"), ({}, "it has no digest")):
        kept = {key: value for key, value in header.items() if change or key != "digest"}
        np.savez(path, **content | change, sketch=np.array(json.dumps(kept)))
        with pytest.raises(ValueError, match=f"a.npz is not a valid sketch file: .*{message}"):
            Sketch.load(path)


def test_loops_of_links_are_no_files(tmp_path):
    (tmp_path / "a.npz").symlink_to("b.npz")
    (tmp_path / "b.npz").symlink_to("a.npz")
    for source in (tmp_path, tmp_path / "a.npz", tmp_path / "*.npz"):
        with pytest.raises(FileNotFoundError, match=r"no (regular )?file .*[ab].npz|\*.npz"):
            sketch_from(source)


def test_different_people_of_different_budgets_are_all_in_the_statement(tmp_path):
    for budget in (1.0, 5.0):
        release = ldp.Release(np.arange(50 + int(budget)) % 2, ldp.RandomizedResponse(budget))
        release.save(tmp_path / f"{budget:g}.npz")
    for order in ("15", "51"):
        paths = [tmp_path / f"{each}.npz" for each in order]
        stated = statements(sketch_from(paths, different_people=True).promises)
        assert stated.startswith("2 releases about different people") and "epsilon = 5 and" in stated
