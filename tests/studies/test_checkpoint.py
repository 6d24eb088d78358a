"""Checkpoints: whatever happens to a study or its file, nothing finished is lost and no result is another study's."""

import json
import signal
import subprocess
import sys
import time

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import ldpbayes as ldp
from ldpbayes.models import oue_histogram, warner
from ldpbayes.studies import Checkpoint, ReplicatedFit, sbc
from tests.checkpoints import read, write

SETTINGS = {"seed": 3, "budgets": [0.5, float("inf")], "none": float("nan")}
PLAN = ldp.Release(None, ldp.RandomizedResponse(1.0), 20)
RESULTS = {"mu": np.arange(3.0), "root/of x": np.eye(2)}


def saved(path, settings=SETTINGS, results=RESULTS):
    with Checkpoint(path, settings) as done:
        done.update(results)
        done.save()
    return path


def loaded(path, settings=SETTINGS):
    with Checkpoint(path, settings) as done:
        return dict(done)


def same(a, b):
    return list(a) == list(b) and all(np.array_equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("name", ["study.npz", "study", "s.a", "a b.npz"])
def test_what_was_saved_comes_back_and_nothing_else_is_left_behind(name, tmp_path):
    saved(tmp_path / name)
    assert same(loaded(tmp_path / name), RESULTS)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_without_a_path_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert loaded(saved(None)) == {}
    assert list(tmp_path.iterdir()) == []


def test_sites_may_have_any_name(tmp_path):
    names = ["settings", "file", "header", "names", "0", "self", "args", "x.npy", "x", "../x", "", "µ", "finished"]
    results = {name: np.full(2, i) for i, name in enumerate(names)}
    assert same(loaded(saved(tmp_path / "c.npz", results=results)), results)


def test_a_study_of_sites_with_such_names_is_complete_and_kept(tmp_path, monkeypatch):
    def model(release):
        numpyro.sample("settings", dist.Normal(0, 1))
        numpyro.sample("finished", dist.Normal(0, 1).expand([2]).to_event(1))
        ldp.observe("z", dist.Bernoulli(numpyro.sample("file", dist.Uniform(0, 1))), release)

    shapes = {"settings": (2, 5), "finished": (2, 5, 2), "file": (2, 5)}
    draws = {name: np.random.default_rng(0).uniform(size=shape) for name, shape in shapes.items()}
    monkeypatch.setattr(ReplicatedFit, "__call__", lambda *_: draws)  # the names are those of what is simulated
    options = {"replicates": 2, "num_warmup": 5, "num_samples": 5, "thin": 1, "checkpoint": tmp_path / "c.npz"}
    first = sbc(model, PLAN, **options).pit
    assert {name: len(q) for name, q in first.items()} == dict.fromkeys(
        ["settings", "finished[0]", "finished[1]", "file"], 2
    )
    assert same(sbc(model, PLAN, **options).pit, first)


def test_a_file_cut_off_at_any_byte_is_refused_and_left_as_it_is(tmp_path):
    whole = saved(tmp_path / "c.npz").read_bytes()
    for length in range(len(whole)):
        path = tmp_path / "cut.npz"
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="is damaged, or is not a checkpoint; remove the file to start again"):
            loaded(path)
        assert path.read_bytes() == whole[:length]
    assert {path.name for path in tmp_path.iterdir()} == {"c.npz", "cut.npz"}


def test_a_flipped_byte_is_never_a_wrong_result(tmp_path):
    whole, path = bytearray(saved(tmp_path / "c.npz").read_bytes()), tmp_path / "flipped.npz"
    refused = 0
    for place in range(len(whole)):
        whole[place] ^= 0xFF
        path.write_bytes(whole)
        whole[place] ^= 0xFF
        try:
            assert same(loaded(path), RESULTS)  # a date, say, decides nothing
        except ValueError:
            refused += 1
    assert refused > len(whole) / 2


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ({"x": np.arange(3)}, "is damaged, or is not a checkpoint"),  # somebody's file
        (
            {"header": np.array('{"format": 3, "settings": {}, "names": []}')},
            "its format is 3, of another version",
        ),
        ({"header": np.array('{"format": 2, "names": []}')}, "is damaged, or is not a checkpoint"),
        ({"header": np.array("[]")}, "is damaged, or is not a checkpoint"),
        ({"header": np.array([{}], dtype=object)}, "is damaged, or is not a checkpoint"),
    ],
    ids=["another file", "later version", "without settings", "no dict", "pickle"],
)
def test_files_of_another_kind_are_refused(contents, message, tmp_path):
    np.savez(tmp_path / "c.npz", **contents)
    with pytest.raises(ValueError, match=message):
        loaded(tmp_path / "c.npz")


def test_arrays_that_are_missing_are_noticed(tmp_path):
    header, arrays = read(saved(tmp_path / "c.npz"))
    with open(tmp_path / "c.npz", "wb") as file:
        np.savez(file, header=np.array(json.dumps(header)), **{"0": arrays["mu"]})
    with pytest.raises(ValueError, match="is damaged"):
        loaded(tmp_path / "c.npz")


def test_every_difference_in_settings_and_versions_is_named(tmp_path):
    path = saved(tmp_path / "c.npz")
    said = r"other settings: budgets is \[0.5, Infinity\] in the file, null in this study; seed is 3 in the file, 4 in"
    with pytest.raises(ValueError, match=said):
        loaded(path, {"seed": 4, "none": float("nan")})
    header, arrays = read(path)
    header["settings"]["versions"] |= {"jax": "0.0.1"}
    write(path, header, arrays)
    with pytest.raises(ValueError, match=r'other settings: versions.jax is "0.0.1" in the file, "'):
        loaded(path)


def test_a_missing_folder_is_named_before_any_work(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no folder .*missing for the checkpoint c.npz"):
        loaded(tmp_path / "missing" / "c.npz")


def test_two_studies_cannot_have_a_file_at_the_same_time(tmp_path):
    with Checkpoint(tmp_path / "c.npz", SETTINGS) as done:
        for settings in (SETTINGS, {"another": "study"}):
            with pytest.raises(ValueError, match="another running study uses the checkpoint"):
                loaded(tmp_path / "c.npz", settings)
        done.update(RESULTS)
        done.save()
        loaded(saved(tmp_path / "c.other"))  # a neighbour is no hindrance
    assert same(loaded(tmp_path / "c.npz"), RESULTS)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_interrupted_write_leaves_what_was_there(error, tmp_path, monkeypatch):
    path = saved(tmp_path / "c.npz")

    def half(file, **arrays):
        file.write(b"PK half")
        raise error

    with pytest.raises(error), Checkpoint(path, SETTINGS) as done:
        done["more"] = np.arange(5)
        monkeypatch.setattr(np, "savez", half)
        done.save()
    monkeypatch.undo()
    assert same(loaded(path), RESULTS)


WRITER = """
import sys
import numpy as np
from ldpbayes.studies import Checkpoint

with Checkpoint(sys.argv[1], {"writer": 1}) as done:
    start = int(done.get("n", -1)) + 1
    for n in range(start, 10**9):
        done["n"], done["rows"] = np.array(n), np.full(200_000, n)
        done.save()
        print(n, flush=True)
"""


@pytest.mark.slow
def test_a_study_killed_while_writing_loses_nothing_that_it_had_finished(tmp_path):
    path, last = tmp_path / "c.npz", -1
    for kill_after in (0.003, 0.011):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as process:
            assert int(process.stdout.readline()) == last + 1  # it goes on where the one before was killed
            time.sleep(kill_after)
            process.send_signal(signal.SIGKILL)
            printed = [int(line) for line in process.stdout.read().split()]
        done = loaded(path, {"writer": 1})
        last = int(done["n"])
        assert last >= max(printed, default=last)
        assert np.all(done["rows"] == last)


# --- models ---------------------------------------------------------------------------------------------------------

RR = ldp.Release(None, ldp.RandomizedResponse(1.0), 10)


def regression(slope, x, factor=0.0):
    """A model whose constants, arrays and factors a checkpoint must know."""

    def model(release):
        share = numpyro.sample("theta", dist.Uniform(0, 1))
        numpyro.factor("factor", factor * share)
        numpyro.deterministic("logit", slope * share + x[3])
        ldp.observe("z", dist.Bernoulli(share), release)

    return model


def fingerprint(model, plan, folder):
    """What a checkpoint in a folder would keep of a model."""
    with Checkpoint(folder / "fingerprint.npz", {}, (model, plan)) as done:
        return done.settings["model"]


def test_a_fingerprint_tells_models_apart_by_all_that_they_compute(tmp_path):
    x = np.arange(5.0)
    weighted = numpyro.handlers.scale(regression(1.0, x), scale=2.0)
    models = {
        "itself": regression(1.0, x),
        "a constant": regression(1.0 + 1e-15, x),
        "an entry of an array": regression(1.0, x + np.array([0, 0, 0, 1e-12, 0])),
        "a factor": regression(1.0, x, 0.5),
        "a weight": weighted,
        "a prior": warner(dist.Uniform(0, 0.9)),
        "a site's name": warner(dist.Uniform(0, 1)),
    }
    found = {name: fingerprint(model, RR, tmp_path) for name, model in models.items()}
    assert len(set(found.values())) == len(models)
    assert fingerprint(regression(1.0, x.copy()), RR, tmp_path) == found["itself"]  # made anew, it is the same
    other = ldp.Release(None, ldp.RandomizedResponse(2.0), 10)
    assert fingerprint(models["itself"], other, tmp_path) != found["itself"]


@pytest.mark.parametrize("made", ["numbers", "rows", "personal bits", "hashes"])
def test_every_kind_of_release_has_a_fingerprint(made, tmp_path):
    from ldpbayes.models import clipped_gaussian, multivariate_normal

    model, mechanism = {
        "numbers": (clipped_gaussian(), ldp.LaplaceMechanism(1.0, -5, 5)),
        "rows": (multivariate_normal(), ldp.ZeroInflatedLaplaceMechanism(0.2, 1.0, -4, 4, 2)),
        "personal bits": (oue_histogram(), ldp.OptimalUnaryEncoding(np.resize([0.5, np.inf], 10), 3)),
        "hashes": (oue_histogram(), ldp.LocalHashing(1.0, 3, 2)),
    }[made]
    plan = ldp.Release(None, mechanism, 10)
    assert fingerprint(model, plan, tmp_path) == fingerprint(model, plan, tmp_path)
