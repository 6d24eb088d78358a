"""Releases: checked before any computation, and written so that anyone can read them."""

import json
import math
import pathlib
import warnings
import zipfile

import jax
import numpy as np
import pandas as pd
import pytest

import ldpbayes as ldp
from ldpbayes.cli import main
from ldpbayes.data import RepeatedAnswersWarning
from ldpbayes.data.release import promises, warn_of_repeats
from ldpbayes.mechanisms.protocol import Promise
from tests.programs import randomize

LAPLACE = ldp.LaplaceMechanism(1.0, -5, 5)
BINARY = ldp.RandomizedResponse(1.0)


@pytest.mark.parametrize(
    ("values", "mechanism", "message"),
    [
        ([], LAPLACE, "values is empty"),
        ([0.0, np.nan, 1.0], LAPLACE, r"must be finite; 1 are not, the first \(nan\) at 1"),
        ([0.0, np.inf], LAPLACE, r"must be finite; 1 are not, the first \(inf\) at 1"),
        (
            [[0.0, 1.0]],
            LAPLACE,
            r"one number for each record; got values of shape \(1, 2\); rows of 2 numbers need .* columns=2$",
        ),
        ([[0, 1]], BINARY, r"one number for each record; got values of shape \(1, 2\)$"),
        (["a", "b"], LAPLACE, "values must be numbers"),
        ([0, 1, 2], BINARY, r"integers in 0..1 under RandomizedResponse; 1 are not, the first \(2\) at 2"),
        ([0, -1], BINARY, r"the first \(-1\) at 1"),
        ([0.0, 0.5], BINARY, r"the first \(0.5\) at 1"),
        ([0.0, 1.0], ldp.LaplaceMechanism([1.0, 2.0, 3.0], 0, 1), r"shape \(3,\), but there are 2 records"),
    ],
)
def test_bad_values_raise_with_the_value_and_what_is_allowed(values, mechanism, message):
    with pytest.raises(ValueError, match=message):
        ldp.Release(values, mechanism)


def test_a_release_needs_a_mechanism():
    with pytest.raises(TypeError, match=r"must be an ldpbayes mechanism .*, got float"):
        ldp.Release([0.0], 1.0)


@pytest.mark.parametrize("count", [None, 0, -1, 2.5, True])
def test_a_plan_needs_a_count(count):
    message = (
        "without values needs count, its number" if count is None else "count must be an integer of at least 1, got"
    )
    with pytest.raises(ValueError, match=message):
        ldp.Release(None, LAPLACE, count)


def test_a_count_that_contradicts_the_values_is_refused():
    with pytest.raises(ValueError, match="count is 3, but there are 2 values"):
        ldp.Release([0.0, 1.0], LAPLACE, 3)


def test_booleans_and_whole_floats_are_categories():
    assert ldp.Release([True, False], BINARY).values.tolist() == [1, 0]
    assert ldp.Release([1.0, 0.0], BINARY).values.dtype == np.int32


def test_a_plan_cannot_be_sketched_or_saved(tmp_path):
    plan = ldp.Release(None, LAPLACE, 10)
    assert len(plan) == 10
    with pytest.raises(ValueError, match="without values cannot be sketched"):
        plan.sketch()
    with pytest.raises(ValueError, match="without values cannot be saved"):
        plan.save(tmp_path / "plan.npz")


@pytest.mark.parametrize("ending", ["npz", "parquet"])
@pytest.mark.parametrize(
    "release",
    [
        ldp.Release([0.5, -7.0, 12.0], LAPLACE),
        ldp.Release([0.5, -7.0], ldp.LaplaceMechanism([0.5, 2.0], -5, 5)),
        ldp.Release([0, 1, 1], BINARY),
        ldp.Release([0.1, 0.2], ldp.GaussianMechanism(1.0, 1e-6, 0, 1)),
    ],
    ids=["laplace", "personal budgets", "randomized response", "gaussian"],
)
def test_files_hold_the_values_and_the_mechanism(release, ending, tmp_path):
    path = tmp_path / f"release.{ending}"
    release.save(path)
    loaded = ldp.Release.load(path)
    np.testing.assert_array_equal(loaded.values, release.values)
    assert loaded.mechanism == release.mechanism


def test_a_file_written_without_us_is_read(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    spec = json.dumps({"mechanism": "laplace", "epsilon": 1.0, "lower": -5, "upper": 5})
    np.savez(tmp_path / "a.npz", values=np.array([1.0, 2.0]), mechanism=spec)
    table = pa.table({"value": [1.0, 2.0], "region": ["x", "y"]}).replace_schema_metadata({"ldpbayes.mechanism": spec})
    pq.write_table(table, tmp_path / "a.parquet")
    for name in ("a.npz", "a.parquet"):
        release = ldp.Release.load(tmp_path / name)
        assert release.values.tolist() == [1.0, 2.0]
        assert release.mechanism == LAPLACE


def test_files_of_another_form_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", values=[1.0])
    np.savez(tmp_path / "b.npz", values=[1.0], mechanism="{not json")
    (tmp_path / "c.csv").write_text("1\n")
    np.savez(tmp_path / "d.npz", values=np.array([1.0, None]), mechanism="{}")
    with zipfile.ZipFile(tmp_path / "e.npz", "w") as file:
        file.writestr("values.npy", "not an array")
        np.save(tmp_path / "spec.npy", json.dumps(LAPLACE.spec()))
        file.write(tmp_path / "spec.npy", "mechanism.npy")
    for name, message in (
        ("a.npz", "lacks mechanism"),
        ("b.npz", "is not JSON"),
        ("c.csv", r"must end in .npz or .parquet"),
        ("d.npz", "d.npz is not a valid release file: Object arrays cannot be loaded"),
        ("e.npz", "e.npz is not a valid release file: the magic string is not correct"),
    ):
        with pytest.raises(ValueError, match=message):
            ldp.Release.load(tmp_path / name)
    with pytest.raises(FileNotFoundError, match=r"no regular file .*nothing.npz"):
        ldp.Release.load(tmp_path / "nothing.npz")


@pytest.mark.parametrize("about", [[], "visits", 5, {"levels": 5}, {"levels": None}, {"levels": [1, 0]}])
def test_facts_about_a_release_have_names(about, tmp_path):
    with pytest.raises(TypeError, match="about must be a dict, with a list of words under"):
        ldp.Release([0, 1], BINARY, about=about)
    np.savez(tmp_path / "a.npz", values=[0, 1], mechanism=json.dumps(BINARY.spec() | {"release": {"about": about}}))
    with pytest.raises(ValueError, match=r"a.npz is not a valid release file: about must be a dict"):
        ldp.Release.load(tmp_path / "a.npz")
    assert ldp.Release([0, 1], BINARY, about={"levels": ("no", "yes")}).about["levels"] == ("no", "yes")


def test_damaged_files_are_said_to_be(tmp_path, capsys):
    for ending in ("npz", "parquet"):
        ldp.Release(np.linspace(-5, 5, 1000), ldp.LaplaceMechanism(100.0, -5, 5)).save(tmp_path / f"whole.{ending}")
    npz, parquet = (tmp_path / "whole.npz").read_bytes(), (tmp_path / "whole.parquet").read_bytes()
    flipped = bytearray(npz)
    flipped[2000] ^= 255
    np.save(tmp_path / "array.npy", np.ones(3))
    for name, content, message in (
        ("half.npz", npz[:3000], "half.npz is not a valid release file: File is not a zip file"),
        ("empty.npz", b"", "empty.npz is not a valid release file: File is not a zip file"),
        (
            "array.npz",
            (tmp_path / "array.npy").read_bytes(),
            "array.npz is not a valid release file: File is not a zip",
        ),
        ("flipped.npz", bytes(flipped), "flipped.npz is not a valid release file: Bad CRC-32 for file 'values.npy'"),
        (
            "half.parquet",
            parquet[: len(parquet) // 2],
            "half.parquet is not a valid release file: Parquet magic bytes",
        ),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=message):
            ldp.Release.load(tmp_path / name)
        assert main(["fit", str(tmp_path / name), "--model", "warner"]) == 2
        assert f"{name} is not a valid release file: " in capsys.readouterr().err


@pytest.mark.parametrize("kind", [np.dtype(">f8"), np.dtype(np.longdouble), np.dtype(">i4"), np.dtype(">f4")])
def test_numbers_of_other_machines_become_this_ones(kind, tmp_path):
    values = np.array([1, -1], kind)
    release = ldp.Release(values, LAPLACE)
    native = np.dtype(float) if kind == np.longdouble else kind.newbyteorder("=")
    assert release.values.dtype == native and release.values.dtype.isnative and release.values.tolist() == [1, -1]
    release.save(tmp_path / "a.parquet")
    assert ldp.Release.load(tmp_path / "a.parquet").values.tolist() == [1, -1]


def test_values_that_are_masked_are_refused_and_not_unmasked():
    values = np.ma.array([0.0, 1.0, 2.0], mask=[False, True, False])
    for take in (lambda: ldp.Release(values, LAPLACE), lambda: LAPLACE.validated_batch(values)):
        with pytest.raises(ValueError, match="values must not be masked, but 1 are"):
            take()
    assert ldp.Release(np.ma.array([0.0, 1.0]), LAPLACE).values.tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    "values",
    [
        pd.array([0, None, 1, 1], dtype="Int64"),
        pd.array([False, None, True, True], dtype="boolean"),
        np.ma.array([0, 1, 1, 1], mask=[0, 1, 0, 0]),
        np.ma.array(["no", "yes", "yes", "yes"], mask=[0, 1, 0, 0]),
    ],
)
def test_masked_values_are_left_out_as_missing_ones(values):
    release = ldp.Release(values, ldp.RandomizedResponse(1.0), missing="drop", about={"levels": ["no", "yes"]})
    assert release.values.tolist() == [0, 1, 1] and release.about["missing"] == "1 of 4 values, left out"


def test_levels_that_name_two_codes_and_columns_of_totals_are_refused():
    mechanism = ldp.RandomizedResponse(1.0)
    with pytest.raises(ValueError, match=r"the words under \"levels\" must differ, got \['a', 'a'\]"):
        ldp.Release(["a", "a"], mechanism, about={"levels": ["a", "a"]})
    with pytest.raises(ValueError, match="one entry for each of the 2 values"):
        ldp.Release([0, 1], mechanism, count=np.array([[2], [3]]))


def test_a_count_of_many_records_is_said_not_to_be_a_release_of_one():
    forced = ldp.LaplaceMechanism(epsilon=5000 / 36, lower=0, upper=5000)  # Laplace noise of scale 36 on a count
    assert forced.scale == pytest.approx(36)
    assert forced.guarantee.epsilon(0.0) == pytest.approx(5000 / 36)  # of a record that is a count; a person has 1/36
    page = pathlib.Path(__file__).parents[2] / "docs" / "reference" / "mechanisms.md"
    assert "noisy count" in ldp.Release.__doc__ and "noisy count" in page.read_text()
    for mechanism in (ldp.LaplaceMechanism, ldp.GaussianMechanism):
        assert "The guarantee then protects each person in the statistic" in " ".join(mechanism.__doc__.split())


def test_a_release_is_a_pytree():
    release = ldp.Release([0.5, -7.0], LAPLACE)
    doubled = jax.tree.map(lambda leaf: leaf * 2, release)
    assert doubled.values.tolist() == [1.0, -14.0]
    assert doubled.mechanism.epsilon == 2.0
    assert doubled.count == 2
    assert float(jax.jit(lambda r: r.values.sum())(release)) == -6.5


@pytest.mark.parametrize("ending", ["npz", "parquet"])
@pytest.mark.parametrize(
    "mechanism",
    [
        ldp.OptimalUnaryEncoding([0.5, np.inf, 1.0], 4),
        ldp.SubsetSelection(1.0, 4, 2),
        ldp.LocalHashing(1.0, 4, 3),
        ldp.HadamardResponse(1.0, 4),
    ],
    ids=lambda m: m.name,
)
def test_categorical_releases_come_back_from_files_as_they_were(mechanism, ending, tmp_path):
    release = ldp.Release(randomize(mechanism, np.array([0, 3, 1])), mechanism)
    release.save(tmp_path / f"release.{ending}")
    again = ldp.Release.load(tmp_path / f"release.{ending}")
    assert again.mechanism == mechanism
    assert again.values.dtype == release.values.dtype
    np.testing.assert_array_equal(again.values, release.values)


def test_a_parquet_file_may_hold_plain_lists_and_ragged_ones_are_refused(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    spec = json.dumps(ldp.OptimalUnaryEncoding(1.0, 3).spec())
    for name, rows in (("good", [[0, 1, 0], [1, 1, 0]]), ("bad", [[0, 1, 0], [1, 1]])):
        table = pa.table({"value": rows}).replace_schema_metadata({"ldpbayes.mechanism": spec})
        parquet.write_table(table, tmp_path / f"{name}.parquet")
    np.testing.assert_array_equal(ldp.Release.load(tmp_path / "good.parquet").values, [[0, 1, 0], [1, 1, 0]])
    with pytest.raises(ValueError, match="rows of different lengths"):
        ldp.Release.load(tmp_path / "bad.parquet")


def test_nulls_in_a_parquet_file_are_refused_in_every_kind_of_column_and_all_kinds_are_read(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    def load(column, mechanism):
        table = pa.table({"value": column}).replace_schema_metadata(
            {"ldpbayes.mechanism": json.dumps(mechanism.spec())}
        )
        parquet.write_table(table, tmp_path / "a.parquet")
        return ldp.Release.load(tmp_path / "a.parquet")

    personal = ldp.OptimalUnaryEncoding([0.5, 1.0], 2)
    for kind in (pa.list_(pa.int8(), 2), pa.list_(pa.int8()), pa.large_list(pa.int8())):
        np.testing.assert_array_equal(load(pa.array([[0, 1], [1, 1]], kind), personal).values, [[0, 1], [1, 1]])
        for rows in ([[0, 1], None, [1, 1]], [[0, 1], [1, None]]):  # the first would leave two rows, of two budgets
            with pytest.raises(ValueError, match="its column 'value' has nulls, 1 of them"):
                load(pa.array(rows, kind), personal)
    for column, mechanism in (([0.5, None, None], LAPLACE), ([0, None, None], BINARY), ([True, None, None], BINARY)):
        with pytest.raises(ValueError, match="its column 'value' has nulls, 2 of them"):
            load(pa.array(column), mechanism)


def test_the_promise_is_to_a_person_with_all_reports():
    values = np.array([0.5, 0.2, 0.9, 0.1])
    plain, twice = (ldp.Release(values, LAPLACE, times=times) for times in (None, 2))
    assert plain.guarantee.statement() == LAPLACE.guarantee.statement()
    assert twice.guarantee.epsilon(0.0) == pytest.approx(2.0) and "4 records, 2 reports a person" in repr(twice)
    assert "A person with up to 2 reports" in twice._repr_html_() and "Each record" in plain._repr_html_()
    of_persons = ldp.Release(values, LAPLACE, persons=["ann", "bob", "ann", "ann"])
    assert of_persons.times == 3 and of_persons.persons is None
    personal = ldp.Release(values > 0.3, ldp.RandomizedResponse([0.5, 1, 2, 1]), persons=[7, 7, 8, 9])
    assert personal.guarantee.epsilon(0.0) == pytest.approx(4.0)  # of reports that all had the largest budget


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"times": 0}, "times must be an integer of at least 1, got 0"),
        ({"persons": [1, 2, 3]}, "persons must have one person for each of the 4 values"),
        ({"persons": [1, 2, 3, 3], "times": 2}, "do not give times"),
        ({"persons": [1, 2, np.nan, np.nan]}, "persons must have one person for each"),
        ({"persons": ["a", np.nan, "a", "b"]}, "persons must have one person for each"),
        ({"persons": ["a", None, "a", "b"]}, "persons must have one person for each"),
    ],
)
def test_reports_a_person_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        ldp.Release(np.zeros(4), LAPLACE, **options)


@pytest.mark.parametrize("ending", ["npz", "parquet"])
def test_files_hold_how_many_reports_a_person_has_and_not_whose_they_are(ending, tmp_path):
    path = tmp_path / f"release.{ending}"
    ldp.Release([0.5, 0.2, 0.9], LAPLACE, persons=["ann", "bob", "ann"]).save(path)
    assert ldp.Release.load(path).times == 2 and b"ann" not in path.read_bytes()
    ldp.Release([0.5, 0.2, 0.9], LAPLACE).save(path)
    assert ldp.Release.load(path).times is None
    table = ldp.NoisyTable([3, 5], ldp.DiscreteLaplaceMechanism(1.0, sensitivity=1), keys={"age": [1, 2]}, times=2)
    table.save(path)
    assert ldp.NoisyTable.load(path).times == 2 and "2 reports" in ldp.NoisyTable.load(path).guarantee.statement()


def test_reports_a_person_pass_through_transformations_and_cost_no_compilation():
    mean = jax.jit(lambda release: release.values.mean())
    releases = [ldp.Release(np.array([0.5, 0.2]), LAPLACE, times=times) for times in (None, 2)]
    assert [float(mean(release)) for release in releases] == pytest.approx([0.35, 0.35])
    assert mean._cache_size() == 1
    assert jax.tree.map(lambda leaf: leaf, releases[1]).times == 2
    mapped = jax.vmap(lambda values: mean(jax.tree.unflatten(jax.tree.structure(releases[1]), [values, *REST])))
    np.testing.assert_allclose(mapped(np.ones((3, 2))), 1.0)


REST = jax.tree.leaves(LAPLACE)


@pytest.mark.filterwarnings("ignore::ldpbayes.data.RepeatedAnswersWarning")
def test_sketches_and_frequencies_state_the_promise_to_a_person():
    rng, one = np.random.default_rng(0), ldp.RandomizedResponse(0.5)
    codes = ldp.Release(rng.integers(0, 2, 60), one, times=30)
    promise = codes.guarantee.statement()
    assert promise.startswith("A person with up to 30 reports") and "epsilon = 15 and delta = 0" in promise
    assert ldp.frequencies(codes).privacy == ldp.frequencies(codes.sketch()).privacy == promise
    both = ldp.frequencies(codes.sketch() + ldp.Release(rng.integers(0, 2, 60), one).sketch()).privacy
    assert "someone with as many reports as are allowed in each is promised" in both
    assert "epsilon = 15.5 and delta = 0 in all" in both and promise in both and one.guarantee.statement() in both
    numbers = ldp.Release(rng.laplace(0, 10, 60), LAPLACE, times=30)
    assert numbers.sketch().refine().promises == numbers.promises


def test_a_sketch_shows_the_promise_to_a_person():
    several = ldp.Release([0.5, 0.2], LAPLACE, times=30).sketch()
    assert "A person with up to 30 reports" in several._repr_html_()
    one = ldp.Release([0.5, 0.2], LAPLACE).sketch()
    assert one._repr_html_().count("Each record") == (one + one)._repr_html_().count("Each record") == 1


def test_releases_add_as_if_people_were_in_both():
    one = ldp.Release([0.5, 0.2], LAPLACE)
    both = one + ldp.Release([0.9], LAPLACE, times=2)
    assert both.values.tolist() == [0.5, 0.2, 0.9] and both.mechanism == LAPLACE and both.times == 3
    for data in (both, both.sketch()):
        assert data.promises == one.promises + (Promise(LAPLACE, 2),)
        assert promises([data]).startswith("2 releases. Where they are about the same people, their budgets add up")
        assert promises([data], different=True).startswith("2 releases about different people. What each")
    table = ldp.NoisyTable([3, 5], ldp.DiscreteLaplaceMechanism(1.0, sensitivity=1), keys={"age": [1, 2]})
    answers = [ldp.Release([0, 1], ldp.RandomizedResponse(1.0, categories)) for categories in (2, 3)]
    for first, second in ((one, answers[0]), answers, (one, ldp.Release(None, LAPLACE, 3)), (table, table), (one, 1)):
        with pytest.raises(ValueError, match="only releases with values and with mechanisms of one kind can be added"):
            first + second


def ways(times):
    """Ways to analyse a release, each with the call."""
    rng = np.random.default_rng(0)
    codes = ldp.Release(rng.integers(0, 2, 60), BINARY, times=times)
    numbers = ldp.Release(rng.laplace(0, 3, 60), LAPLACE, times=times)
    features = rng.normal(size=(60, 1))
    mean, short = ldp.losses.squared(features=()), {"num_warmup": 10, "num_samples": 10, "num_chains": 1}
    yield "fit", lambda: ldp.fit(ldp.models.warner(), codes.sketch(), progress_bar=False, **short)
    yield "frequencies", lambda: ldp.frequencies(codes, "projection")
    yield "m_estimate", lambda: ldp.m_estimate(mean, numbers, "sl")
    yield "update", lambda: ldp.m_estimate(mean, numbers, "sl").update(ldp.Release([0.5, 0.2], LAPLACE))
    share = {"positive": ldp.functionals.share(0.0, 5.0)}
    yield "density", lambda: ldp.estimation.estimate_density(numbers.sketch(), functionals=share)
    yield "labels", lambda: ldp.estimation.linear_fit(features, numbers, penalty=1.0)


@pytest.mark.parametrize("way", [name for name, _ in ways(None)])
def test_every_analysis_warns_of_repeated_answers_once(way):
    for times, calls in ((None, 0), (1, 0), (10, 2 if way == "update" else 1)):
        with warnings.catch_warnings(record=True, action="always") as caught:
            result = dict(ways(times))[way]()
        texts = [str(each.message) for each in caught if each.category is RepeatedAnswersWarning]
        assert len(texts) == calls and all("up to 10 of the released values may be about one" in text for text in texts)
        assert way != "fit" or json.loads(result.attrs["release_warnings"]) == texts


def test_what_is_said_of_repeated_answers_bounds_the_errors_and_a_table_has_no_answers():
    """The variance of the mean of T randomized answers of each of n people, who all answer alike or all alone, by
    enumeration of the number of ones of a person: at most T times, and more than once, that of nT independent answers.
    """
    flip, times, theta = 1 / (1 + np.exp(2.0)), 10, 0.3
    ones = np.arange(times + 1)
    laws = {p: np.array([math.comb(times, k) * p**k * (1 - p) ** (times - k) for k in ones]) for p in (flip, 1 - flip)}
    law = theta * laws[1 - flip] + (1 - theta) * laws[flip]
    share = ones @ law / times
    own, alone = (ones - times * share) ** 2 @ law, times * share * (1 - share)
    with pytest.warns(RepeatedAnswersWarning, match="by a factor of up to 3.16"):
        warn_of_repeats([Promise(BINARY, times)])
    assert 1 < (own / alone) ** 0.5 < 3.16
    with pytest.warns(RepeatedAnswersWarning, match="up to 5 of the"):
        warn_of_repeats([Promise(BINARY, 2), Promise(BINARY, 3)], [Promise(BINARY)], same_people=True)
    with pytest.warns(RepeatedAnswersWarning, match="up to 3 of the"):
        warn_of_repeats([Promise(BINARY, 2), Promise(BINARY, 3)])
    counts = ldp.NoisyTable([3, 5], ldp.DiscreteLaplaceMechanism(1.0, sensitivity=1), keys={"age": [1, 2]}, times=2)
    assert warn_of_repeats([Promise(BINARY), Promise(BINARY)], counts.promises) == []


THREE = ldp.mechanisms.TransitionMatrix([[0.8, 0.1, 0.1], [0.2, 0.6, 0.2]])


def in_words(answers, levels, mechanism=BINARY, **options):
    return ldp.Release(answers, mechanism, about={"levels": levels}, **options)


@pytest.mark.parametrize("kind", [list, np.array, pd.Series, lambda words: pd.Series(words, dtype="string")])
def test_words_are_codes_by_their_place_among_the_levels(kind):
    about = {"levels": ["Nein", "Ja"]}
    release = ldp.Release(kind(["Ja", "Nein", "Ja"]), BINARY, about=about)
    assert release.values.tolist() == [1, 0, 1] and release.about == about
    outputs = in_words(kind(["c", "a", "b"]), ["a", "b", "c"], THREE)  # words are of what is released
    assert outputs.values.tolist() == [2, 0, 1]


def test_categorical_columns_bring_their_levels():
    answers = pd.Series(pd.Categorical(["yes", None, "no"], categories=["no", "yes"]))
    release = ldp.Release(answers, BINARY, missing="drop")
    assert release.values.tolist() == [1, 0] and release.about["levels"] == ["no", "yes"]
    assert in_words(answers, ["yes", "no"], missing="drop").values.tolist() == [0, 1]  # what is said counts


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: in_words(["no", "maybe", "Yes"], ["no", "yes"]),
            r"2 values are not among the levels no, yes, .*row 1",
        ),
        (
            lambda: in_words(["no", "yes"], ["no", "yes", "other"]),
            "words need levels for each of 2 released codes; got",
        ),
        (lambda: in_words(["no"], ["no", "yes"], ldp.HadamardResponse(1.0, 2)), "each of 4 released codes"),
        (
            lambda: ldp.Release(["no", "yes"], BINARY),
            r"name the words of codes, as in about=\{'levels': \['no', 'yes'\]",
        ),
        (lambda: in_words(["no", None], ["no", "yes"]), r"must be finite; 1 are not, the first \(nan\) at 1"),
        (
            lambda: ldp.Release([0, 1], BINARY, missing="ignore"),
            "missing must be \"drop\" to leave out .* got 'ignore'",
        ),
        (lambda: ldp.Release([np.nan], BINARY, missing="drop"), "values is empty"),
        (lambda: ldp.Release([0, 1], BINARY, [20, 80, 1]), "count and persons must have one entry for each of the 2"),
        (lambda: ldp.Release([0, 1], BINARY, [20, -1]), r"count must be whole numbers of records, .* count\[1\] = -1"),
        (lambda: ldp.Release([0, 1], BINARY, [20, 0.5]), r"count\[1\] = 0.5"),
        (lambda: ldp.Release([0, 1], BINARY, missing="drop", persons=[1, 2, 3]), "count and persons must have one"),
    ],
)
def test_answers_that_cannot_be_read_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_missing_values_are_left_out_with_what_belongs_to_them():
    budgets, about = np.array([1.0, 2.0, 3.0, 4.0]), {"column": "q"}
    mechanism = ldp.RandomizedResponse(budgets)
    release = ldp.Release([1, np.nan, 0, 1], mechanism, missing="drop", persons=list("abaa"), about=about)
    assert release.values.tolist() == [1, 0, 1] and release.mechanism.epsilon.tolist() == [1, 3, 4]
    assert release.times == 3 and release.rows.tolist() == [0, 2, 3] and release.row_counts.tolist() == [1, 0, 1, 1]
    assert release.about == {"column": "q", "missing": "1 of 4 values, left out"} and about == {"column": "q"}
    assert "3 records" in repr(release) and "missing='1 of 4 values, left out'" in repr(release)
    by_row = release.sketch(by=pd.Series(list("xyxy"), name="region"))
    by_value = ldp.Release([1, 0, 1], ldp.RandomizedResponse(budgets[[0, 2, 3]])).sketch(by=list("xxy"))
    np.testing.assert_array_equal(by_row.weights, by_value.weights)
    whole = ldp.Release([1, 0], BINARY, missing="drop")  # nothing is missing
    assert whole.about is None and whole.rows.tolist() == [0, 1]
    rows = ldp.Release(
        [[1, 0.5], [np.nan, 2], [3, 4]], ldp.LaplaceMechanism(1.0, [0, 0], [5, 5], columns=("a", "b")), missing="drop"
    )
    assert rows.values.tolist() == [[1, 0.5], [3, 4]]


def test_what_was_left_out_is_saved(tmp_path):
    release = in_words(["yes", None], ["no", "yes"], missing="drop")
    release.save(tmp_path / "z.npz")
    assert ldp.Release.load(tmp_path / "z.npz").about == release.about


def test_totals_are_as_many_records():
    answers = in_words(["no", "yes", None], ["no", "yes"], count=pd.Series([2, 3, 4]), missing="drop")
    assert answers.values.tolist() == [0, 0, 1, 1, 1] and answers.count == 5
    assert answers.about["missing"] == "4 of 9 values, left out"
    assert ldp.Release([1, 0], BINARY, count=[1, 0]).values.tolist() == [1]


def test_the_share_of_a_coin_and_the_truth_from_a_total():
    """Heads: say yes; tails: the truth. The density is proportional to (1 + θ)^80 (1 - θ)^20: by quadrature."""
    coin = ldp.mechanisms.TransitionMatrix([[0.5, 0.5], [0.0, 1.0]])
    estimate = ldp.frequencies(in_words(["no", "yes"], ["no", "yes"], coin, count=[20, 80]))
    np.testing.assert_allclose(estimate.estimate, [0.4, 0.6], atol=1e-12)
    np.testing.assert_allclose(estimate.standard_error, 2 * np.sqrt(0.8 * 0.2 / 100), rtol=1e-9)


def test_the_posterior_of_a_coin_and_the_truth_from_a_total():
    coin = ldp.mechanisms.TransitionMatrix([[0.5, 0.5], [0.0, 1.0]])
    theta = ldp.fit(ldp.models.warner(), ldp.Release([0, 1], coin, [20, 80]), progress_bar=False)["posterior"]["theta"]
    # of 4,000 draws: four standard errors are 0.005, and 0.0036 of a standard deviation
    assert float(theta.mean()) == pytest.approx(0.58824, abs=0.005)
    assert float(theta.std()) == pytest.approx(0.07968, abs=0.0036)
