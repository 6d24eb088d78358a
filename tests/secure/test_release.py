"""`ldpbayes.secure.release` and `ldpbayes release`: what they refuse, what they write, and that nothing leaks."""

import json
import math
import pickle
import struct
import traceback

import numpy as np
import pytest

import ldpbayes as ldp
from ldpbayes import mechanisms as m
from ldpbayes.cli import main
from ldpbayes.data.release import write_release

pytest.importorskip("opendp")

SECRET = 17.734219  # an original value, of which no trace may be found
MARKS = (b"17.73", b"734219", struct.pack("<d", SECRET), struct.pack(">d", SECRET), struct.pack("<f", SECRET))
LAPLACE = ldp.LaplaceMechanism(1.0, 0, 20)


def traces(*things):
    """Which marks of the secret are in bytes, texts, or what pickle makes of objects."""
    found = []
    for thing in things:
        data = thing if isinstance(thing, bytes) else thing.encode() if isinstance(thing, str) else pickle.dumps(thing)
        found += [mark for mark in MARKS if mark in data]
    return found


REFUSED = {
    "SymmetricLaplaceMechanism": (ldp.SymmetricLaplaceMechanism(1.0, 0, 1), "it has no safe sampler"),
    "IndependentLaplaceMechanism": (m.IndependentLaplaceMechanism(1.0, 0, 1), "it has no safe sampler"),
    "ZeroInflatedLaplaceMechanism": (
        ldp.ZeroInflatedLaplaceMechanism(0.1, 1.0, 0, 1),
        "it has no safe sampler",
    ),
    "StaircaseMechanism": (m.StaircaseMechanism(1.0, 0, 1), "it has no safe sampler"),
    "RROnBins": (ldp.RROnBins(1.0, [0, 1, 2], [0.5, 1.5]), "it has no safe sampler"),
    "RPWithPrior": (ldp.RPWithPrior(1.0, [0, 1], 0.1), "it has no safe sampler"),
    "Rounded": (m.Rounded(m.DiscreteLaplaceMechanism(3.0), 5), "it has no safe sampler"),
    "LinearRecordsMechanism": (m.LinearRecordsMechanism(1.0, 1e-5, 1.0, 1.0, 3), "it has no safe sampler"),
    "AdditiveMechanism": (
        m.AdditiveMechanism(ldp.noise.IndependentGaussian([1.0, 2.0]), 0, 1, columns=2),
        "it has no safe sampler; samplers exist for HadamardResponse, .*, and for DiscreteGaussian, .* noise",
    ),
    "RandomizedResponse": (ldp.RandomizedResponse([1.0, math.inf]), "infinite budget would be released unchanged"),
    "LaplaceMechanism": (
        ldp.LaplaceMechanism(1.0, 0, 1, columns=2, perturbed=[1]),
        "nothing would protect the columns",
    ),
    "LaplaceMechanism ": (ldp.LaplaceMechanism(1.0, [0, 1], 3), "bounds must be numbers, public"),
    "LaplaceMechanism  ": (ldp.LaplaceMechanism(1.0, sensitivity=1, columns=2), "a statistic must be one number"),
    "DiscreteLaplaceMechanism": (m.DiscreteLaplaceMechanism([1.0, 2.0]), "a statistic must be one number"),
    "AdditiveMechanism ": (
        m.AdditiveMechanism(ldp.noise.Laplace(1.0), sensitivity=math.inf),
        "a statistic must be one number, with a finite sensitivity",
    ),
    "DiscreteLaplaceMechanism ": (m.DiscreteLaplaceMechanism(1.0, 0, 2.0**51), r"must be below 2\^50"),
    "LaplaceMechanism   ": (ldp.LaplaceMechanism(1e12, 0, 1), "its range and scale .* too far apart"),
    "LaplaceMechanism    ": (ldp.LaplaceMechanism(1.0, 0, 1e-280), "its range and scale .* too small"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_mechanism_that_cannot_be_run_safely_is_refused_with_the_reason(name):
    mechanism, reason = REFUSED[name]
    with pytest.raises(ValueError, match=f"^{name.strip()} cannot be released: .*{reason}"):
        ldp.secure.release(mechanism, [0.5, 0.5])


def test_a_class_derived_from_one_that_is_known_is_not_taken_for_it():
    class Mine(ldp.RandomizedResponse):
        pass

    with pytest.raises(ValueError, match="Mine cannot be released"):
        ldp.secure.release(Mine(1.0), [0, 1])
    with pytest.raises(TypeError, match=r"mechanism, the first argument, must be an ldpbayes mechanism; got list$"):
        ldp.secure.release([SECRET], LAPLACE)


class Unreadable:
    def __array__(self, dtype=None, copy=None):
        raise ValueError(f"cannot read {SECRET}")


COLUMNS = ldp.LaplaceMechanism(1.0, 0, 20, columns=("a", "b"))
BAD = {
    "missing": (LAPLACE, [SECRET, math.nan], "some records are missing"),
    "masked": (LAPLACE, np.ma.array([SECRET, 1], mask=[False, True]), "some records are missing"),
    "none": (LAPLACE, [SECRET, None], "no words, no None"),
    "word": (LAPLACE, ["17.734219"], "no words, no None"),
    "ragged": (LAPLACE, [[SECRET], [1, 2]], "rows of different lengths"),
    "unreadable": (LAPLACE, Unreadable(), "no words, no None"),
    "above": (ldp.LaplaceMechanism(1.0, 0, 10), [SECRET, 1], "some records lie outside 0.0..10.0; clip=True "),
    "infinite": (ldp.LaplaceMechanism(1.0, 0, 10), [SECRET, math.inf], "some records are missing, or infinite"),
    "below": (COLUMNS, [[SECRET, -SECRET]], "some records lie outside"),
    "shape": (COLUMNS, [SECRET, 1], r"data must be rows of 2 columns, got an array of shape \(2,\)"),
    "rows": (LAPLACE, [[SECRET, 1]], r"data must be one number for each record, got an array of shape \(1, 2\)"),
    "empty": (LAPLACE, [], "data must be one number for each record"),
    "two": (ldp.LaplaceMechanism(1.0, sensitivity=1), [SECRET, 1], "data must be one number, got"),
    "far": (ldp.LaplaceMechanism(1.0, sensitivity=1e-12), SECRET * 1e9, "some records lie outside"),
    "fraction": (m.DiscreteLaplaceMechanism(1.0, 0, 20), [SECRET], "some records are not whole numbers"),
    "code": (ldp.RandomizedResponse(1.0, 5), [0, SECRET], r"some records lie outside 0..4$"),
    "half": (ldp.RandomizedResponse(1.0, 50), [SECRET], "some records are not whole numbers"),
    "budgets": (ldp.LaplaceMechanism([1.0, 2.0], 0, 20), [SECRET], r"1 records, but budgets of shape \(2,\)"),
    "times": (LAPLACE, [SECRET], "times must be an integer"),
    "clip": (ldp.RandomizedResponse(1.0, 5), [SECRET], "clip is only for numbers with bounds"),
}


@pytest.mark.parametrize("case", BAD)
def test_errors_say_what_is_wrong_with_data_and_hold_none_of_them(case):
    mechanism, data, message = BAD[case]
    with pytest.raises(ValueError, match=message) as info:
        ldp.secure.release(mechanism, data, clip=case == "clip", times=0 if case == "times" else None)
    error = info.value
    text = "".join(traceback.format_exception(error, chain=True))
    assert not traces(text, repr(error), error) and error.__cause__ is None
    assert error.__context__ is None or error.__suppress_context__


def test_data_frames_are_taken_by_the_names_of_their_columns():
    pd = pytest.importorskip("pandas")
    mechanism = ldp.LaplaceMechanism(1e5, [0, 10], [1, 20], columns=("a", "b"))
    frame = pd.DataFrame({"b": [SECRET] * 5, "a": [0.5] * 5})
    np.testing.assert_allclose(ldp.secure.release(mechanism, frame).values, [[0.5, SECRET]] * 5, atol=0.01)
    headless = pd.DataFrame({"17.734219": [1.0], "b": [2.0]})
    with pytest.raises(ValueError, match="data must have the columns a, b, and no others") as info:
        ldp.secure.release(mechanism, headless)
    assert not traces("".join(traceback.format_exception(info.value)))


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_nothing_of_the_original_data_is_in_a_release_or_its_file(tmp_path, suffix):
    rows = ldp.LaplaceMechanism(1.0, 0, 20, columns=("a", "b"))
    data = np.full(500, SECRET)
    for mechanism, x in (
        (LAPLACE, data),
        (rows, np.stack([data, data], 1)),
        (ldp.GaussianMechanism(1.0, 1e-5, 0, 20), data),
    ):
        release = ldp.secure.release(mechanism, x, times=3)
        release.save(tmp_path / f"z{suffix}")
        loaded = ldp.Release.load(tmp_path / f"z{suffix}")
        assert not traces(release, repr(release), release._repr_html_(), (tmp_path / f"z{suffix}").read_bytes())
        assert (release.sampler, release.times) == (loaded.sampler, loaded.times)
        assert (
            release.sampler.startswith("OpenDP")
            and "sampler='OpenDP" in repr(loaded)
            and "OpenDP" in loaded._repr_html_()
        )
        np.testing.assert_array_equal(release.values, loaded.values)
        assert loaded.mechanism == mechanism
        assert set(vars(release)) <= {"values", "mechanism", "count", "doubts", "times", "about"}
    assert (data == SECRET).all()


def test_releases_of_one_sampler_add_up_to_one_of_that_sampler():
    drawn = ldp.secure.release(ldp.RandomizedResponse(1.0), [0, 1])
    assert (drawn + drawn).sampler == drawn.sampler == "Python's secrets, probabilities in parts of 2^64"
    assert (drawn + ldp.Release([0, 1], ldp.RandomizedResponse(1.0))).sampler is None


def test_two_releases_of_the_same_data_differ_and_there_is_no_seed():
    for mechanism in (LAPLACE, ldp.RandomizedResponse(0.1, 10), ldp.GaussianMechanism(1.0, 1e-5, 0, 20)):
        first, second = (ldp.secure.release(mechanism, np.ones(100)).values for _ in range(2))
        assert (first != second).any()  # equal with probability below 1e-60
        with pytest.raises(TypeError):
            ldp.secure.release(mechanism, np.ones(5), seed=0)


def test_clipping_is_to_the_bounds():
    mechanism = ldp.LaplaceMechanism(1e5, 0, 10)
    z = ldp.secure.release(mechanism, [-1e9, -5, 5, SECRET], clip=True).values
    np.testing.assert_allclose(z, [0, 0, 5, 10], atol=0.01)  # 1e-40 for each
    z = ldp.secure.release(m.DiscreteLaplaceMechanism(1e-2, 0, 10), [-3, 4, 11], clip=True).values
    np.testing.assert_array_equal(z, [0, 4, 10])


def test_opendp_is_asked_for_where_it_is_missing(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"needs opendp: pip install 'ldpbayes\[opendp\]'"):
        ldp.secure.release(LAPLACE, [1.0])
    assert len(ldp.secure.release(ldp.RandomizedResponse(1.0), [0, 1])) == 2


# The command line


def run(capsys, *words):
    code = main([str(word) for word in words])
    return code, *capsys.readouterr()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = zip(np.minimum(rng.poisson(3, 20_000), 20), rng.choice(["no", "yes"], 20_000, p=[0.7, 0.3]), strict=True)
    (tmp_path / "people.csv").write_text("visits,smokes\n" + "".join(f"{visits},{smokes}\n" for visits, smokes in rows))
    (tmp_path / "secret.csv").write_text(
        "x,y,smokes\n17.734219,1,no\n17.734219,17.734219 a,yes\n2.5,,maybe 17.734219\n"
    )
    (tmp_path / "headless.csv").write_text("17.734219,no\n17.734219,yes\n")
    (tmp_path / "ragged.csv").write_text("x,y\n17.734219,1\n17.734219\n")
    (tmp_path / "quotes.csv").write_text('x,y\n"17.734219"7,1\n')
    return tmp_path


OPTIONS = ("--mechanism", "laplace", "--epsilon", 1, "--lower", 0, "--upper", 20)
ANSWER = ("--mechanism", "randomized_response", "--epsilon", 1)


def test_the_command_writes_a_release_that_the_others_read(folder, capsys):
    code, out, err = run(capsys, "release", "people.csv", "--column", "visits", *OPTIONS, "--out", "visits.npz")
    assert (code, err) == (0, "")
    assert "epsilon = 1 and delta = 0" in out and "Drawn by OpenDP 0." in out and "nothing else" in out
    visits = ldp.Release.load("visits.npz")
    assert abs(visits.values.mean() - 3) < 5.4 * math.sqrt((2 * 400 + 3) / 20_000)
    with np.load("visits.npz") as archive:
        assert set(archive.files) == {"values", "mechanism"}
        assert json.loads(str(archive["mechanism"]))["release"] == {
            "about": {"column": "visits", "sampler": visits.sampler}
        }
    words = (*ANSWER, "--levels", "no,yes", "--times", 2, "--out", "smokes.parquet")
    assert run(capsys, "release", "people.csv", "--column", "smokes", *words)[0] == 0
    smokes = ldp.Release.load("smokes.parquet")
    estimate = ldp.frequencies(smokes)
    share, error = (np.asarray(part)[1] for part in (estimate.params, estimate.standard_error))
    assert smokes.about == {"column": "smokes", "levels": ["no", "yes"], "sampler": smokes.sampler}
    assert smokes.times == 2 and abs(share - 0.3) < 5.4 * error
    assert {path.name for path in folder.iterdir()} >= {"visits.npz", "smokes.parquet"}


@pytest.mark.slow
def test_fit_of_a_released_file_is_right(folder, capsys):
    run(capsys, "release", "people.csv", "--column", "smokes", *ANSWER, "--levels", "no,yes", "--out", "smokes.npz")
    code, out, _ = run(capsys, "fit", "smokes.npz", "--model", "warner", "--no-progress")
    row = next(line.split() for line in out.splitlines() if line.startswith("theta"))
    assert "  levels: ['no', 'yes']" in out and "  sampler: Python's secrets" in out
    assert code == 0 and abs(float(row[1]) - 0.3) < 5.4 * float(row[2])


FAILING = {
    "text": (("secret.csv", "--column", "y", *OPTIONS), "some cells of column 'y' are missing, or are not a number"),
    "levels": (("secret.csv", "--column", "smokes", *ANSWER, "--levels", "no,yes"), "not one of the levels no, yes"),
    "outside": (("secret.csv", "--column", "x", *OPTIONS[:-1], 10), "some records lie outside 0.0..10.0; clip=True "),
    "column": (("secret.csv", "--column", "z", *OPTIONS), "has no column 'z'; its first line must hold"),
    "headless": (("headless.csv", "--column", "x", *OPTIONS), "has no column 'x'; its first line must hold"),
    "ragged": (("ragged.csv", "--column", "x", *OPTIONS), "some lines are empty, or do not have one cell"),
    "quotes": (("quotes.csv", "--column", "x", *OPTIONS), "is not a CSV file"),
    "columns": (("secret.csv", "--column", "x,x", *OPTIONS), "given twice"),
    "categories": (("secret.csv", "--column", "x", *ANSWER), "some records lie outside 0..1"),
    "unsafe": (
        ("secret.csv", "--column", "x", "--mechanism", "symmetric_laplace", "--scale", 1, "--lower", 0, "--upper", 20),
        "SymmetricLaplaceMechanism cannot be released",
    ),
    "personal": (("secret.csv", "--column", "x", *OPTIONS[:3], "@x", *OPTIONS[4:]), "epsilon must be positive"),
    "mechanism": (("secret.csv", "--column", "x"), "the following arguments are required: --mechanism"),
    "no file": (("nothing.csv", "--column", "x", *OPTIONS), "no file nothing.csv"),
}


@pytest.mark.parametrize("case", FAILING)
def test_a_failing_command_quotes_no_cell_and_leaves_no_file(folder, capsys, case):
    words, message = FAILING[case]
    before = sorted(folder.iterdir())
    code, out, err = run(capsys, "release", *words, "--out", "z.npz")
    assert code == 2 and message in err and not out and err.count("\n") == 1
    assert not traces(err) and sorted(folder.iterdir()) == before


def test_the_command_never_overwrites_a_file(folder, capsys, monkeypatch):
    words = ("release", "people.csv", "--column", "visits", *OPTIONS)
    (folder / "z.npz").write_text("mine")
    code, _, err = run(capsys, *words, "--out", "z.npz")
    assert code == 2 and "--out z.npz exists, and is not overwritten" in err
    for out, message in (("people.csv", "ends in .npz or .parquet"), ("no/z.npz", "no folder")):
        code, _, err = run(capsys, *words, "--out", out)
        assert code == 2 and message in err
    code, _, err = run(capsys, *words)
    assert code == 2 and "--out" in err
    (folder / "z.npz").unlink()

    def late(release, file, npz):  # while the release is being written, another program makes the file
        write_release(release, file, npz)
        (folder / "z.npz").write_text("mine")

    monkeypatch.setattr("ldpbayes.cli._main.write_release", late)
    code, _, err = run(capsys, *words, "--out", "z.npz")
    assert code == 2 and "is not overwritten" in err and (folder / "z.npz").read_text() == "mine"
    assert len([*folder.iterdir()]) == 6


def test_a_half_written_release_leaves_nothing(folder, capsys, monkeypatch):
    def broken(release, file, npz):
        file.write(release.values.tobytes()[:100])
        raise OSError("no space left on device")

    monkeypatch.setattr("ldpbayes.cli._main.write_release", broken)
    before = sorted(folder.iterdir())
    words = ("release", "people.csv", "--column", "visits", *OPTIONS, "--out", "z.npz")
    code, _, err = run(capsys, *words)
    assert code == 1 and "no space left" in err and sorted(folder.iterdir()) == before


def test_rows_and_clipping_on_the_command_line(folder, capsys):
    options = ("--epsilon", 1e6, "--lower", "0,0", "--upper", "10,10", "--clip", "--mechanism", "laplace")
    (folder / "rows.csv").write_text("a;b\n17.734219;2\n3;4\n")
    assert run(capsys, "release", "rows.csv", "--column", "a,b", *options, "--out", "z.npz")[0] == 0
    release = ldp.Release.load("z.npz")
    np.testing.assert_allclose(release.values, [[10, 2], [3, 4]], atol=0.01)
    assert release.mechanism.columns == ("a", "b")
    assert not traces((folder / "z.npz").read_bytes())
    assert not any(path.is_dir() for path in folder.iterdir())
