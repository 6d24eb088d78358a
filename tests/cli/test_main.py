"""The command line: what it prints, what it writes, and how it refuses."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import ldpbayes as ldp
from ldpbayes.cli import _main as cli
from ldpbayes.inference.result import convergence_problems, helpful_options, inference_data
from tests.cli import made_up

with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)
    import arviz as az

FEW = ["--chains", "1", "--warmup", "30", "--samples", "40"]
MODEL = """
from __future__ import annotations

import dataclasses

import numpyro.distributions as dist

import ldpbayes as ldp
from priors import share_of


@dataclasses.dataclass  # which looks for its module while it is made
class Site:
    name: str = "z"


def model(release):
    from sites import SHARE

    ldp.observe(Site().name, dist.Bernoulli(share_of(SHARE)), release)
"""
PRIORS = """
import numpyro
import numpyro.distributions as dist


def share_of(name):
    return numpyro.sample(name, dist.Beta(2, 2))
"""


@pytest.fixture(autouse=True)
def no_cache(monkeypatch):
    monkeypatch.setenv("LDPBAYES_NO_CACHE", "1")


@pytest.fixture
def answers(tmp_path):
    values = np.random.default_rng(0).integers(0, 2, 500)
    path = tmp_path / "answers.npz"
    ldp.Release(values, ldp.RandomizedResponse(1.0)).save(path)
    return path


@pytest.fixture
def numbers(tmp_path):
    rng = np.random.default_rng(1)
    values = np.clip(rng.normal(1, 2, 2000), -5, 5) + rng.laplace(0, 10, 2000)
    path = tmp_path / "numbers.parquet"
    ldp.Release(values, ldp.LaplaceMechanism(1.0, -5, 5)).save(path)
    return path


def refused(capsys, *argv):
    code = cli.main([str(a) for a in argv])
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    return code, err


def test_mechanisms_are_listed_with_their_parameters(capsys):
    assert cli.main(["mechanisms"]) == 0
    out = capsys.readouterr().out
    options = "lower=None, upper=None, columns=None, perturbed=None, sensitivity=None"
    assert f"laplace(epsilon, {options})\n    Laplace noise" in out
    assert "randomized_response(epsilon=None, categories=2, truth=None, flip=None, random=None)" in out


def test_the_json_listing_names_every_registered_mechanism(capsys):
    assert cli.main(["mechanisms", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == ldp.mechanisms.mechanism_names()
    gaussian = next(row for row in rows if row["name"] == "gaussian")
    assert [p["name"] for p in gaussian["parameters"]][:4] == ["epsilon", "delta", "lower", "upper"]
    assert all(row["description"] for row in rows if row["class"].startswith("ldpbayes."))


def models_table():
    """Name and default priors of each model in the table of docs/reference/command_line.md."""
    text = (pathlib.Path(__file__).parents[2] / "docs" / "reference" / "command_line.md").read_text()
    lines = (
        text.partition("| name | records | parameters | default priors |\n")[2].partition("\n\n")[0].splitlines()[1:]
    )
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0].strip("`"): row[3].strip("`") for row in rows}


def test_models_are_listed_with_the_priors_that_the_documentation_states(capsys):
    assert cli.main(["models", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["name"]: row["priors"] for row in rows} == models_table()
    assert [row["name"] for row in rows] == ldp.models.__all__ and all(row["description"] for row in rows)
    assert cli.main(["models"]) == 0
    out = capsys.readouterr().out
    assert "clipped_counts(mean=LogNormal(0, 2), concentration=LogNormal(0, 1))\n    Model of counts that were" in out
    assert "\n    Takes a release of yes-or-no answers.\n" in out or out.endswith("answers.\n")
    assert "Takes one release for each group, of categories." in out


BERNOULLI = ["design", "--law", "Bernoulli", "--at", "probs=0.3", "--mechanism", "randomized_response"]


def test_a_plan_names_mechanisms_and_budgets_and_how_many_people_are_needed(tmp_path, capsys):
    picture = tmp_path / "plan.png"
    options = ["--categories", "2", "--epsilon", "1,2", "--people", "400", "--width", "0.05", "--plot", str(picture)]
    assert cli.main([*BERNOULLI, *options, "--design-effect", "1.5"]) == 0
    out = capsys.readouterr().out
    kept = np.tanh(np.array([1.0, 2.0]) / 2)  # by a factor of which randomized response moves a share from 1/2
    seen = 0.5 + kept * (0.3 - 0.5)
    errors = np.sqrt(1.5 * seen * (1 - seen)) / kept
    for epsilon, error in zip((1, 2), errors, strict=True):
        line, needed = (line for line in out.splitlines() if line.startswith(f"randomized_response {epsilon}"))
        assert f" {2 * 1.959964 * error / 20:.4g} (" in line
        assert int(needed.split()[-1].replace(",", "")) == np.ceil((2 * 1.959964 * error / 0.05) ** 2)
    assert picture.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"--law": "Bernouli"}, "did you mean Bernoulli"),
        ({"--at": "probs"}, "numbers by name"),
        ({"--at": "probs=2"}, "invalid probs"),
        ({"--at": "prob=0.3"}, "unexpected keyword"),
        ({"--mechanism": "randomised_response"}, "did you mean randomized_response"),
        ({"--lower": "0"}, "none of the mechanisms has an option --lower"),
        ({"--plot": "plan.jpg"}, "written as PNG"),
        ({"--people": "0"}, "at least 1"),
        ({"--design-effect": "0"}, "--design-effect must be a positive and finite number, got 0.0"),
    ],
)
def test_plans_that_cannot_be_made_are_refused(changes, said, capsys):
    given = dict(zip(BERNOULLI[1::2], BERNOULLI[2::2], strict=True)) | {"--categories": "2", "--epsilon": "1"}
    argv = [word for pair in (given | changes).items() for word in pair]
    assert cli.main(["design", *argv]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_a_model_is_calibrated_for_each_budget_and_goes_on_from_its_checkpoints(tmp_path, capsys):
    options = ["--people", "40", "--repeats", "4", "--warmup", "10", "--samples", "10", "--no-progress"]
    argv = ["calibrate", "warner", "--epsilon", "1", "2", *options, "--checkpoints", str(tmp_path)]
    assert cli.main([*argv, "--plot", str(tmp_path / "c.png")]) == 0
    out = capsys.readouterr().out
    assert out.count("4 replicates: shares of central intervals") == 2
    assert "RandomizedResponse(epsilon=2.0, categories=2), 40 records" in out
    assert (tmp_path / "c.png").stat().st_size > 10_000
    names = {f"warner randomized_response {epsilon}.npz" for epsilon in (1, 2)}
    assert names < {path.name for path in tmp_path.iterdir()}
    assert cli.main(argv) == 0
    assert capsys.readouterr().out == out.removesuffix(f"\nwrote {tmp_path / 'c.png'}\n")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["hierarchical"], "hierarchical takes several releases; use ldpbayes.studies.sbc"),
        (["clipped_counts", "--epsilon", "1"], "--mechanism is needed: clipped_counts has no default"),
        (["warner", "--epsilon", "x"], "--epsilon"),
        (["warner", "--epsilon", "1", "--checkpoints", "missing"], "there is no folder missing"),
        (["warnr", "--epsilon", "1"], "did you mean warner"),
        (["warner", "--epsilon", "1", "--samples", "4"], "at least 5"),
    ],
)
def test_studies_of_calibration_that_cannot_be_are_refused(argv, said, capsys):
    assert cli.main(["calibrate", *argv]) == 2
    assert said in capsys.readouterr().err


LAPLACE = ["--mechanism", "laplace", "--epsilon", "1", "--lower", "0", "--upper", "20"]


def test_files_are_sketched_and_the_sketch_is_fitted(tmp_path, capsys, monkeypatch):
    pytest.importorskip("pyarrow")
    rng, values = np.random.default_rng(0), {}
    for day in ("monday", "tuesday"):
        values[day] = rng.normal(7, 3, 300).clip(0, 20) + rng.laplace(0, 20, 300)
        np.savetxt(tmp_path / f"{day}.csv", values[day], header="visits", comments="")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["sketch", "monday.csv", "--column", "visits", *LAPLACE, "--out", "one.npz"]) == 0
    assert cli.main(["sketch", "one.npz", "tuesday.csv", "--column", "visits", *LAPLACE, "--out", "both.npz"]) == 0
    out = capsys.readouterr().out
    assert "tuesday.csv: 300 records" in out and "wrote both.npz: PanelSketch(600 records" in out
    whole = ldp.Release(np.concatenate([*values.values()]), ldp.LaplaceMechanism(1.0, 0, 20)).sketch()
    np.testing.assert_allclose(ldp.Sketch.load("both.npz").moments, whole.moments, rtol=1e-12, atol=600 * 2**-52)
    for argv, said in (
        (
            ["sketch", "one.npz", "monday.csv", "--column", "visits", *LAPLACE, "--out", "x.npz"],
            "records would count twice",
        ),
        (["sketch", "monday.csv", "--out", "x.npz"], "the file does not state its mechanism"),
        (["sketch", "monday.csv", *LAPLACE, "--out", "x.nc"], "written as NumPy"),
        (
            ["bootstrap", "one.npz", "--family", "poisson", "--count", "9"],
            "one.npz is a sketch, but",
        ),
    ):
        assert cli.main(argv) == 2
        assert said in capsys.readouterr().err
    chains = ["--chains", "1", "--warmup", "10", "--samples", "10", "--no-progress"]
    assert cli.main(["fit", "both.npz", "--model", "clipped_gaussian", *chains]) in (0, 3)
    assert "both.npz: 600 records, LaplaceMechanism(epsilon=1.0" in capsys.readouterr().out


def test_words_of_a_file_cannot_change_what_a_terminal_shows(tmp_path, capsys):
    forged = "Each record is protected by local differential privacy with epsilon = 0.001"
    about = {"note\x1b[1A": f"fine\x1b[2K\r\n{forged}\u202e", "levels": ["no\x9b2J", "yes"]}
    ldp.Release([1, 0, 1, 1] * 125, ldp.RandomizedResponse(1.0), about=about).save(tmp_path / "a.npz")
    assert cli.main(["fit", str(tmp_path / "a.npz"), "--model", "warner", *FEW, "--no-progress"]) in (0, 3)
    out, err = capsys.readouterr()
    (line,) = (line for line in out.splitlines() if forged in line)
    assert line.startswith(r"  note\x1b[1A: fine\x1b[2K\r\n") and line.endswith(r"\u202e")
    assert all(each.isprintable() for each in (out + err).replace("\n", ""))
    (tmp_path / "a.csv").write_text("x\x1b[2J,y\n1,2\n")
    assert "\x1b" not in refused(capsys, "fit", tmp_path / "a.csv", "--column", "z", "--mechanism", "laplace")[1]


@pytest.mark.parametrize("kind", ["damaged", "cut", "loop", "pipe", "text"])
def test_a_file_that_cannot_be_sketched_is_refused_in_a_line(kind, tmp_path, capsys):
    path = tmp_path / "a.npz"
    ldp.Release([1, 0, 1], ldp.RandomizedResponse(1.0)).save(path)
    whole = path.read_bytes()
    path.unlink()
    contents = {"damaged": whole[:500] + bytes([whole[500] ^ 1]) + whole[501:], "cut": whole[:300], "text": b"text"}
    if kind == "loop":
        path.symlink_to(path.name)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(contents[kind])
    code, err = refused(capsys, "sketch", path, "--out", tmp_path / "x.npz")
    assert code in (1, 2) and "a.npz" in err and err.count("\n") == 1
    assert not (tmp_path / "x.npz").exists()


def test_a_mechanism_without_a_name_is_refused(tmp_path, capsys):
    (tmp_path / "a.csv").write_text("value\n1\n")
    code, err = refused(capsys, "sketch", tmp_path / "a.csv", "--mechanism", "", "--out", tmp_path / "x.npz")
    assert code == 2 and "no mechanism ''" in err


@pytest.mark.parametrize("argv", [["--help"], ["fit", "--help"], ["demo", "--help"], ["models", "--help"]])
def test_help_shows_the_exit_codes(argv, capsys):
    assert cli.main(argv) == 0
    assert "exit codes:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "required: COMMAND"),
        (["fit"], "required: RELEASE"),
        (["nonsense"], "invalid choice"),
        (
            ["fit", "z.npz", "--model", "warner", "--chains", "0"],
            "--chains: must be an integer of at least 1, below 2**63, got '0'",
        ),
    ],
)
def test_bad_usage_is_refused(argv, message, capsys):
    code, err = refused(capsys, *argv)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1 and err.startswith("ldpbayes: error: ")  # no usage above it


def test_a_missing_file_is_refused(tmp_path, capsys):
    code, err = refused(capsys, "fit", tmp_path / "z.npz", "--model", "warner")
    assert (code, err) == (2, f"ldpbayes: error: there is no regular file {tmp_path / 'z.npz'}\n")
    code, err = refused(capsys, "sketch", tmp_path / "z.npz", "--out", tmp_path / "out.npz")
    assert (code, err) == (2, f"ldpbayes: error: sketch: there is no file '{tmp_path / 'z.npz'}'\n")


DESIGN = ["--mechanism", "laplace", "--epsilon", "1", "--lower", "0", "--upper", "5"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["design", "--law", "Levy", "--at", "loc=0,scale=1", *DESIGN], "must keep its support as a pytree of JAX"),
        (["design", "--law", "ProjectedNormal", "--at", "concentration=1", *DESIGN], "cannot be the law of a number"),
        (["design", "--law", "ZeroInflatedProbs", "--at", "base_dist=1,gate=.5", *DESIGN], "cannot be the law of a"),
        (["design", "--law", "Distribution", "--at", "batch_shape=1", *DESIGN], "cannot be the law of a number"),
        (
            ["design", "--law", "Normal", "--at", "loc=0,scale=1", "--mechanism", "independent_laplace", "--scale", "0"]
            + DESIGN[4:],
            "adds no noise",
        ),
        (["design", "--law", "Normal", "--at", "loc=0,scale=1", *DESIGN[:3], "[" * 3000, *DESIGN[4:]], "epsilon must"),
        (["fit", "z.npz", "--model", "warner", "--seed", "9223372036854775808"], "--seed: must be an integer of"),
        (
            ["table", "z.csv", "--value", "n", "--keys", "k", "--seed", "9223372036854775808"],
            "--seed: must be an integer of",
        ),
    ],
)
def test_odd_arguments_are_refused_in_one_line(argv, message, capsys):
    code, err = refused(capsys, *argv)
    assert code == 2 and message in err and err.count("\n") == 1


def test_an_error_of_several_lines_is_printed_in_one(tmp_path, capsys):
    """As pyarrow's of a broken file are."""
    pytest.importorskip("pyarrow")
    path = tmp_path / "z.parquet"
    path.write_bytes(b"PAR1" + bytes(40) + b"PAR1")
    commands = ["table", path, "--value", "n", "--keys", "k"], ["fit", path, "--model", "warner"]
    for argv in (*commands, ["sketch", path, "--out", tmp_path / "out.npz"]):
        code, err = refused(capsys, *argv)
        assert code == 2 and err.count("\n") == 1 and "thrift" in err
    assert cli._fail("first\n  second", 2) == 2 and capsys.readouterr().err == "ldpbayes: error: first second\n"


def test_an_interrupt_during_the_imports_is_no_traceback():
    """The imports of JAX take seconds; here they are interrupted as soon as they begin."""
    script = """
import sys

class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == "jax":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupted())
from ldpbayes.cli import main
sys.exit(main(["--version"]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "ldpbayes: error: interrupted\n")


@pytest.mark.parametrize("name", ["z.npz", "z.parquet"])
def test_a_corrupt_file_is_refused(name, tmp_path, capsys):
    path = tmp_path / name
    path.write_bytes(b"PK\x03\x04 no archive")
    code, err = refused(capsys, "fit", path, "--model", "warner")
    assert code == 2
    assert f"{path} is not a valid release file" in err


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ({"values": [0.0, 1.0]}, "lacks mechanism"),
        ({"values": [0.0, 1.0], "mechanism": "laplace"}, "is not JSON"),
        ({"values": [0.0, 1.0], "mechanism": '{"mechanism": "laplac"}'}, "mechanism must be one of"),
        (
            {"values": [0.0, 1.0], "mechanism": '{"mechanism": "laplace", "epsilon": 1}'},
            "give lower and upper, the bounds of a record; or, for a statistic of many records, sensitivity",
        ),
        ({"values": [0.0, 2.0], "mechanism": '{"mechanism": "randomized_response", "epsilon": 1}'}, "integers in 0..1"),
    ],
)
def test_a_file_that_is_no_release_is_refused(contents, message, tmp_path, capsys):
    path = tmp_path / "z.npz"
    np.savez(path, **contents)
    code, err = refused(capsys, "fit", path, "--model", "warner")
    assert code == 2
    assert message in err


def test_an_unknown_model_is_refused(answers, capsys):
    code, err = refused(capsys, "fit", answers, "--model", "warnr")
    assert code == 2
    assert "no model 'warnr' (did you mean warner?); --model must be one of always_no" in err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", "defines no function model(release)"),
        ("x = 1\ny = x +\n", "my_model.py:2: SyntaxError"),
        ("\n\nimport no_such_module\n", "my_model.py:3: ModuleNotFoundError"),
        ("def model(release):\n    return undefined\n", "my_model.py:2: NameError"),
    ],
)
def test_a_faulty_model_file_is_refused_with_its_line(text, message, answers, tmp_path, capsys):
    path = tmp_path / "my_model.py"
    path.write_text(text)
    code, err = refused(capsys, "fit", answers, "--model", path)
    assert code == 2
    assert message in err


def test_a_model_that_does_not_fit_the_mechanism_is_refused(answers, capsys):
    code, err = refused(capsys, "fit", answers, "--model", "clipped_gaussian")
    assert code == 2
    assert "clipped_gaussian takes a release of numbers, got one under RandomizedResponse" in err


def test_a_model_of_answers_refuses_numbers(numbers, capsys):
    code, err = refused(capsys, "fit", numbers, "--model", "warner")
    assert code == 2
    assert "warner takes a release of yes-or-no answers, got one under LaplaceMechanism" in err


def test_advice_on_divergences_is_of_options(capsys):
    draws = np.random.default_rng(0).normal(size=(2, 1000))
    data = {"posterior": {"mu": draws}, "sample_stats": {"diverging": draws > 3}}
    result = inference_data(data, {})
    (problem,) = convergence_problems(result)
    with cli._plain_warnings() as said:
        warnings.warn(ldp.inference.ConvergenceWarning(problem, helpful_options(result, 10)), stacklevel=1)
    options = "give more --warmup and --samples, raise --target-accept, or try --dense-mass if"
    assert f"draws diverged; {options} parameters are correlated\n" in capsys.readouterr().err
    assert len(said) == 1


def test_several_releases_for_a_model_of_one_are_refused(answers, capsys):
    code, err = refused(capsys, "fit", answers, answers, "--by", "file", "--model", "warner")
    assert code == 2
    assert "--model warner is not for groups: give it one RELEASE" in err


@pytest.mark.filterwarnings("ignore::ldpbayes.data.ReleaseWarning")
def test_a_release_that_its_mechanism_hardly_made_is_warned_of_once_and_exits_with_3(tmp_path, capsys):
    ldp.Release(np.arange(1000) < 900, ldp.RandomizedResponse(0.5)).save(tmp_path / "wrong.npz")
    code = cli.main(["fit", str(tmp_path / "wrong.npz"), "--model", "warner", "--quiet", *FEW])
    printed = capsys.readouterr()
    assert code == 3
    assert printed.err.count("these values are nearly impossible under") == 1
    assert "900 of 1,000 support category 1, where at most 622.5 are expected" in printed.err
    good = SimpleNamespace(attrs={"convergence_warnings": "[]", "release_warnings": "[]"})
    doubted = SimpleNamespace(attrs=good.attrs | {"release_warnings": '["..."]'})
    assert (cli._exit_code([good]), cli._exit_code([good, doubted])) == (0, 3)  # whether or not the chains converged


def test_one_release_for_a_hierarchical_model_is_refused(answers, capsys):
    code, err = refused(capsys, "fit", answers, "--model", "hierarchical")
    assert code == 2
    assert "several" in err


def test_an_impossible_output_is_refused_before_sampling(answers, tmp_path, capsys):
    code, err = refused(capsys, "fit", answers, "--model", "warner", "--out", tmp_path / "missing" / "x.nc")
    assert code == 2
    assert f"there is no folder {tmp_path / 'missing'}" in err


@pytest.mark.filterwarnings("ignore::ldpbayes.data.ReleaseWarning")
def test_a_number_that_the_mechanism_cannot_have_released_is_refused_and_not_given_to_the_model(tmp_path, capsys):
    path = tmp_path / "far.npz"
    ldp.Release(np.append(np.zeros(20), 1e6), ldp.GaussianMechanism(1.0, 1e-5, 0, 20)).save(path)
    code, err = refused(capsys, "fit", path, "--model", "clipped_gaussian", *FEW)
    assert code == 2
    assert f"{path}: GaussianMechanism cannot have released 1e+06" in err


def test_a_missing_extra_is_named(tmp_path, capsys, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n == "statsmodels" else find_spec(n))
    code, err = refused(capsys, "demo", "--out", tmp_path)
    assert code == 1
    assert (
        "this needs statsmodels: pip install 'ldpbayes[demo]' (in a clone of the project: pip install '.[demo]')" in err
    )


def test_a_parquet_release_is_fitted_and_written(answers, tmp_path, capsys):
    release = tmp_path / "answers.parquet"
    ldp.Release.load(answers).save(release)
    out = tmp_path / "posterior.nc"
    argv = ["fit", str(release), "--model", "warner", "--out", str(out), "--target-accept", "0.8", *FEW]
    code = cli.main(argv)
    printed = capsys.readouterr()
    assert code == 3  # so few draws cannot have converged
    assert "bulk effective sample size is below 100: theta" in printed.err
    assert "; give more --warmup and --samples, " in printed.err
    assert ", or try --dense-mass if parameters are correlated\n" in printed.err
    assert "reparametrise" not in printed.err and "target_accept_prob" not in printed.err
    assert "500 records, RandomizedResponse(epsilon=1.0, categories=2)" in printed.out
    assert "local differential privacy with epsilon = 1" in printed.out
    posterior = az.from_netcdf(out)
    assert posterior["posterior"]["theta"].shape == (1, 40)
    assert json.loads(posterior.attrs["mechanisms"])[0]["mechanism"] == "randomized_response"


@pytest.mark.slow  # 25 seconds, of which most compile
def test_a_density_without_a_family_is_drawn_and_summarised_by_its_functionals(numbers, tmp_path, capsys):
    picture = tmp_path / "density.png"
    argv = ["fit", numbers, "--model", "smooth_density", "--plot", picture, "--chains", "1", "--samples", "200"]
    assert cli.main([*map(str, argv), "--warmup", "200"]) in (0, 3)  # so few draws may not have converged
    out = capsys.readouterr().out
    rows = [line.split()[0] for line in out.splitlines() if line]
    assert rows[-9:-1] == ["mean", "mean", "sd", *(f"quantile[{q}]" for q in (0.05, 0.25, 0.5, 0.75, 0.95))]
    assert rows[-1] == "wrote" and "roughness" in rows  # there is no Gini coefficient of numbers from -5 to 5
    assert not any(row.startswith(("coefficients", "log_density")) for row in rows)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_counts_are_drawn_with_all_personal_budgets(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(ldp, "fit", made_up.fit)
    rng, epsilon = np.random.default_rng(0), np.repeat([1.0, 2.0], 50)
    values = rng.poisson(2.0, 100).clip(0, 8) + rng.laplace(0, 8 / epsilon)
    ldp.Release(values, ldp.LaplaceMechanism(epsilon, 0, 8)).save(tmp_path / "counts.npz")
    picture = tmp_path / "counts.png"
    argv = ["fit", tmp_path / "counts.npz", "--model", "clipped_counts", "--plot", picture, "--quiet", *FEW]
    assert cli.main([str(a) for a in argv]) == 0
    assert "concentration" in capsys.readouterr().out
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_pictures_of_other_models_and_releases_are_refused_before_sampling(answers, numbers, tmp_path, capsys):
    wanted = "--plot needs one RELEASE of numbers, without --by, and a model of their law"
    picture = ["--plot", tmp_path / "x.png"]
    for release, model in ((answers, "warner"), (numbers, "regional_histograms"), (answers, "clipped_gaussian")):
        several = [release, "--by", "file"] if model == "regional_histograms" else []
        code, err = refused(capsys, "fit", release, *several, "--model", model, *picture)
        assert (code, err) == (2, f"ldpbayes: error: {wanted}\n")
    ldp.Release([3.0], ldp.LaplaceMechanism(1.0, sensitivity=1.0)).save(tmp_path / "sum.npz")
    code, err = refused(capsys, "fit", tmp_path / "sum.npz", "--model", "clipped_gaussian", *picture)
    assert code == 2 and "--plot: a density needs a mechanism that clips numbers to bounds" in err
    for path, problem in (("x.pdf", "written as PNG; give"), ("missing/x.png", "--plot: there is no folder")):
        code, err = refused(capsys, "fit", numbers, "--model", "clipped_gaussian", "--plot", tmp_path / path)
        assert code == 2 and problem in err


def test_a_picture_names_the_extra_that_it_needs(numbers, tmp_path, capsys, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n == "matplotlib" else find_spec(n))
    code, err = refused(capsys, "fit", numbers, "--model", "clipped_gaussian", "--plot", tmp_path / "x.png")
    assert code == 1 and "this needs matplotlib: pip install 'ldpbayes[demo]'" in err


def test_the_installed_command_fits_a_users_model_quietly_and_keeps_compiled_code(answers, tmp_path):
    path = tmp_path / "model" / "my_model.py"
    path.parent.mkdir()
    path.write_text(MODEL)
    (path.parent / "priors.py").write_text(PRIORS)  # imported when the file is run
    (path.parent / "sites.py").write_text('SHARE = "share"\n')  # and this one when the model is
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    del environment["LDPBAYES_NO_CACHE"]
    options = ["--model", str(path), "--quiet", "--samples", "600"]
    script = "import sys; from ldpbayes.cli import main; sys.exit(main())"  # as the command's own
    command = [sys.executable, "-c", script, "fit", str(answers), *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split()[:2] == ["mean", "sd"]
    assert lines[1].startswith("share")
    assert any((tmp_path / "ldpbayes" / "jax").iterdir())


@pytest.mark.slow  # ten seconds; .ci/run runs the demo of the installed package
def test_the_demo_prints_its_table_and_writes_its_files(tmp_path, capsys):
    fewer = ["--chains", "1", "--warmup", "10", "--samples", "10"]
    assert cli.main(["demo", "--out", str(tmp_path / "out"), *fewer]) in (0, 3)
    out = capsys.readouterr().out
    rows = {line[:20].strip(): line for line in out.splitlines()}
    for quantity in ("affair, epsilon=0.5", "affair, epsilon=1", "affair, epsilon=2", "mean visits", "no visit"):
        assert rows[quantity].count("[") == 3
    assert (tmp_path / "out" / "demo.png").read_bytes().startswith(b"\x89PNG")
    posterior = az.from_netcdf(tmp_path / "out" / "randhie.nc")
    assert {"mean", "concentration"} <= set(posterior["posterior"].data_vars)
    assert "theta" in az.from_netcdf(tmp_path / "out" / "fair-epsilon-1.nc")["posterior"].data_vars


def regression_files(tmp_path):
    rng = np.random.default_rng(2)
    rows = np.column_stack([rng.uniform(-0.6, 0.6, (300, 2)), rng.integers(0, 2, 300)])
    sums = ldp.mechanisms.LogisticStatisticsMechanism(2.0, 1e-4, 1.0, columns=("a", "b", "y"))
    numeric = ldp.mechanisms.LinearRecordsMechanism(2.0, 1e-4, 1.0, 1.0, columns=("a", "b", "y"))
    files = []
    products = np.column_stack([*(rows[:, [0, 0, 1]] * rows[:, [0, 1, 1]]).T, *(rows[:, :2] * rows[:, 2:] - 0.5).T])
    for mechanism, given in ((numeric, rows), (sums, products)):
        files.append(tmp_path / f"{mechanism.name}.npz")
        noise = rng.normal(size=given.shape) * np.asarray(mechanism.noise.standard_deviation)
        ldp.Release(given + noise, mechanism).save(files[-1])
    return files


@pytest.mark.parametrize(("place", "model"), [(0, "linear_regression"), (1, "logistic_regression")])
def test_regressions_are_fitted_to_rows_and_to_statistics_by_name(place, model, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(ldp, "fit", made_up.fit)
    path = regression_files(tmp_path)[place]
    assert cli.main(["fit", str(path), "--model", model, *FEW]) == 0
    out = capsys.readouterr().out
    assert "slopes[1]" in out and "300 records" in out and "local differential privacy" in out


def test_a_regression_refuses_a_release_of_another_kind(tmp_path, capsys):
    rows, sums = regression_files(tmp_path)
    code, err = refused(capsys, "fit", sums, "--model", "linear_regression", *FEW)
    assert code == 2 and "linear_regression takes a release of rows or linear statistics" in err
    code, err = refused(capsys, "fit", rows, "--model", "clipped_gaussian", *FEW)
    assert code == 2 and "takes a release of numbers" in err


@pytest.fixture
def sums(tmp_path):
    family = ldp.bootstrap.Poisson(12)
    estimator = ldp.bootstrap.sufficient_statistics(family, count=3000, epsilon=1.0)
    path = tmp_path / "sums.npz"
    estimator.release(np.random.default_rng(0).poisson(2.0, 3000), seed=0).save(path)
    return path


def test_statistics_are_bootstrapped_by_the_name_of_their_family(sums, tmp_path, capsys):
    out = tmp_path / "replicates.nc"
    argv = [
        "bootstrap",
        sums,
        "--family",
        "poisson",
        "--upper",
        "12",
        "--count",
        "3000",
        "--draws",
        "100",
        "--out",
        out,
    ]
    assert cli.main([str(a) for a in argv]) == 0
    printed = capsys.readouterr().out
    estimator = ldp.bootstrap.sufficient_statistics(ldp.bootstrap.Poisson(12), count=3000, epsilon=1.0)
    expected = ldp.parametric_bootstrap(estimator, ldp.Release.load(sums), draws=100)
    assert expected.summary() in printed
    assert "central differential privacy" in printed
    import xarray

    np.testing.assert_array_equal(xarray.load_dataset(out, engine="h5netcdf")["rate"], expected.draws[:, 0])


POISSON = ["--family", "poisson", "--upper", "12", "--draws", "100"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--family", "weibull"], "--family must be one of bernoulli"),
        (["--family", "gaussian", "--lower", "0"], "upper is missing"),
        (["--family", "poisson"], "needs bounds"),
        (["--family", "poisson", "--upper", "12", "--scale", "1"], "has no --scale"),
        (["--family", "gaussian_mean", "--lower", "0", "--upper", "12"], "needs --scale"),
        (["--family", "poisson", "--upper", "20"], "one record can change the statistics by 20"),
        (["--family", "least_squares", "--upper", "1,2"], "lower is missing"),
        ([*POISSON, "--level", "1.5"], "--level: must be a number between 0 and 1, exclusive, got '1.5'"),
        ([*POISSON, "--level", "0.99"], "at least 199 replicates, better ten times as many; there are 100"),
        (["--family", "poisson", "--upper", "12", "--kind", "bca"], "kind must be one of"),
    ],
)
def test_a_bootstrap_of_what_the_release_is_not_is_refused(options, message, sums, capsys):
    code, err = refused(capsys, "bootstrap", sums, "--count", "3000", *options)
    assert code == 2
    assert message in err


def test_a_release_outside_the_domain_is_printed_and_exits_with_3(tmp_path, capsys):
    path = tmp_path / "sums.npz"
    ldp.Release([-40.0], ldp.LaplaceMechanism(1.0, sensitivity=12.0)).save(path)
    argv = ["bootstrap", path, "--family", "poisson", "--upper", "12", "--count", "3000", "--draws", "100"]
    assert cli.main([str(a) for a in argv]) == 3
    out, err = capsys.readouterr()
    assert "rate" in out
    assert "outside the domain" in err


@pytest.fixture
def labels(tmp_path):
    """A release of labels in tenths of a line, with the features in both formats."""
    rng = np.random.default_rng(2)
    features = rng.normal(size=(4000, 2))
    y = 0.5 + features @ [0.1, -0.05] + 0.1 * rng.normal(size=4000)
    near = rng.random(4000) < 0.6
    values = np.where(near, y.clip(0, 1) + rng.uniform(-0.3, 0.3, 4000), rng.uniform(-0.3, 1.3, 4000))
    ldp.Release(values, ldp.RPWithPrior(2.0, (0, 1), 0.3)).save(tmp_path / "labels.npz")
    np.save(tmp_path / "features.npy", features)
    np.savetxt(tmp_path / "features.csv", features, delimiter=",", header='age,"rooms, mean"', comments="")
    return tmp_path


def test_a_bootstrap_of_labels_is_refused(labels, capsys):
    for family in (["gaussian", "--lower", "0", "--upper", "1"], ["least_squares", "--lower", "0,0", "--upper", "1,1"]):
        code, err = refused(capsys, "bootstrap", labels / "labels.npz", "--count", "4000", "--family", *family)
        assert code == 2
        assert "adds noise to statistics" in err


def test_labels_are_regressed_on_features(labels, capsys):
    release, out = labels / "labels.npz", labels / "fit.csv"
    options = ["--features", str(labels / "features.csv"), "--penalty", "1"]
    assert cli.main(["regress", str(release), *options, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "rooms, mean" in printed
    assert "Each label is protected" in printed
    features = np.load(labels / "features.npy")
    fitted = ldp.estimation.linear_fit(features, ldp.Release.load(release), penalty=1.0)
    rows = np.loadtxt(out, delimiter=",", skiprows=1, usecols=(-4, -3, -2, -1), quotechar='"')
    expected = np.column_stack([fitted.params, fitted.standard_error, *fitted.interval()])
    np.testing.assert_allclose(rows, expected, rtol=1e-9)


def test_a_posterior_of_released_labels_is_sampled_given_the_features(labels, capsys, monkeypatch):
    monkeypatch.setattr(ldp, "fit", made_up.fit)
    argv = ["fit", labels / "labels.npz", "--model", "label_regression", "--features", labels / "features.npy", *FEW]
    assert cli.main([str(a) for a in argv]) == 0
    assert "slopes[1]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["fit", "labels.npz", "--model", "label_regression"], "no other model takes --features"),
        (["fit", "labels.npz", "--model", "clipped_gaussian", "--features", "features.npy"], "no other model takes"),
        (["regress", "labels.npz", "--features", "features.txt"], "must be a .csv or .npy file"),
        (["regress", "labels.npz", "--features", "none.csv"], "no file"),
        (["regress", "labels.npz", "--features", "words.csv"], "line 2: column 'b' holds 'x'"),
        (["regress", "labels.npz", "--features", "few.csv"], "features must have one row for each label"),
        (["regress", "labels.npz", "--features", "index.csv"], "column 1 of"),
        (["regress", "labels.npz", "--features", "features.npy", "--penalty", "-1"], "penalty must be"),
        (["regress", "labels.npz", "--features", "features.npy", "--penalty", "1", "--level", "2"], "level"),
    ],
)
def test_a_regression_on_what_does_not_fit_is_refused(argv, message, labels, capsys):
    (labels / "words.csv").write_text("a,b\n1,x\n")
    (labels / "few.csv").write_text("1,2\n3,4\n")
    (labels / "index.csv").write_text(",a\n0,2\n1,4\n")
    code, err = refused(capsys, *(labels / a if "." in a else a for a in argv))
    assert code == 2
    assert message in err


def test_a_formula_takes_its_columns_from_the_file_of_the_release(tmp_path, capsys):
    rng = np.random.default_rng(0)
    columns = {"age": rng.uniform(20, 70, 50), "education": rng.choice(["high", "low"], 50)}
    income = 30 + columns["age"] / 2 + rng.laplace(0, 5, 50)
    path = tmp_path / "people.csv"
    pd.DataFrame(columns | {"income": income}).to_csv(path, index=False)
    released = ["--column", "income", "--mechanism", "laplace", "--epsilon", "20", "--lower", "0", "--upper", "100"]
    argv = ["fit", str(path), *released, "--quiet", "--chains", "2", "--warmup", "100", "--samples", "50"]
    cli.main([*argv, "--formula", "income ~ education"])  # three parameters, which are integrated
    out = capsys.readouterr().out
    assert "coefficients[education[T.low]]" in out and "sigma" in out
    assert cli.main([*argv, "--formula", "income ~ agee"]) == 2
    assert "`agee` is not present" in (error := capsys.readouterr().err) and "the columns are age, education" in error
    twice = path.read_text().replace("age,education", "age,age", 1)
    (tmp_path / "twice.csv").write_text(twice)
    assert cli.main(["fit", str(tmp_path / "twice.csv"), *argv[2:], "--formula", "income ~ age"]) == 2
    assert "has several columns 'age'" in capsys.readouterr().err
    assert cli.main([*argv, "--formula", "income ~ age", "--model", "warner"]) == 2
    assert "fit needs either --model or --formula" in capsys.readouterr().err
