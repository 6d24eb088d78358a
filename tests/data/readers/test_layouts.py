"""Published data sets by name: small files as their publishers describe them, and files that are not such files."""

import json
import math
import os
import pathlib

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.stats import laplace

import ldpbayes as ldp
from ldpbayes.data import readers
from ldpbayes.data.readers import layouts

DATA = pathlib.Path(os.environ.get("LDPBAYES_DATA", "absent"))
BROADBAND = """ST,COUNTY NAME,COUNTY ID,POSTAL CODE,BROADBAND USAGE,ERROR RANGE (MAE)(+/-),ERROR RANGE (95%)(+/-),MSD
SC,Abbeville,45001,29639,0.948,0.034,0.11,0.002
SC,Abbeville,45001,29620,0.398,0.002,0.007,0
VA,Accomack,51001,23395,0,0.05,0.17,0.007
"""
EARNINGS = """agg_level_pseo,inst_level,institution,degree_level,cip_level,cipcode,grad_cohort,grad_cohort_years,\
y1_p25_earnings,y1_p50_earnings,y1_p75_earnings,y1_grads_earn,status_y1_earnings
38,I,00365800,05,2,45,2016,3,31000,40123,52000,310,1
38,I,00365800,05,2,46,2016,3,,,,,5
"""
PAGES = [
    ("Iceland", "IS", "is.wikipedia", 111, "Reykjavík", "Q1764", 205),
    ("Bangladesh", "BD", "bn.wikipedia", 333, "ঢাকা", "Q1354", 1780),
    ("Pakistan", "PK", "ur.wikipedia", 444, 'A,_"B"|C;D', "", 1420),
]
SUMMARY = [{"bucket": "\u0005Y", "metric": 26308}, {"bucket": "\u0000\u0000\u00ff", "metric": -17}]
CONFIDENCE = {"value": "high", "randomizedTriggerRate": 0.4994798}


def pages(folder, day, *rows):
    path = folder / f"{day}.tsv"
    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows), encoding="utf-8")
    return path


def written(folder, name, text):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def threshold_of(table):
    """The threshold of the table, under whatever other rules it has."""
    rule = table.mechanism
    while not hasattr(rule, "threshold"):
        rule = rule.mechanism
    return rule.threshold


def test_all_layouts_have_a_source_at_an_address_and_a_test():
    ours = {
        name: layout for name, layout in layouts.LAYOUTS.items() if name != "towns"
    }  # of a page of the documentation
    tables = {name for name, layout in ours.items() if isinstance(layout, layouts.Layout)}
    assert tables == {"us-broadband", "us-census-2020", "us-pseo-earnings", "wikimedia-pageviews"}
    assert {*ours} - tables == {"chrome-confidence", "rappor"} and "chrome-summary-report" in readers.formats()
    assert all(layouts.LAYOUTS[name].source.startswith("https://") for name in tables)


@pytest.mark.parametrize(
    ("day", "country", "noise", "deviation", "threshold"),
    [
        ("2017-02-09", "FR", "DiscreteLaplace", 30 * math.sqrt(2), 450),
        ("2023-02-05", "US", "DiscreteLaplace", 30 * math.sqrt(2), 450),
        ("2023-02-06", "US", "DiscreteLaplace", 30 * math.sqrt(2), 450),
        ("2023-02-06", "FR", "DiscreteGaussian", 35.7 / 1.96, 90),
        ("2023-06-19", "FR", "DiscreteLaplace", 30 * math.sqrt(2), 450),
        ("2023-06-20", "FR", "DiscreteGaussian", 35.7 / 1.96, 90),
        ("2023-06-20", "US", "DiscreteLaplace", 30 * math.sqrt(2), 450),
        ("2023-09-19", "US", "DiscreteLaplace", 30 * math.sqrt(2), 450),
        ("2023-09-20", "US", "DiscreteGaussian", 35.7 / 1.96, 90),
        ("2023-11-23", "FR", "DiscreteLaplace", 30 * math.sqrt(2), 450),
        ("2023-11-24", "FR", "DiscreteGaussian", 35.7 / 1.96, 90),
        ("2023-11-27", "FR", "DiscreteLaplace", 30 * math.sqrt(2), 450),
        ("2023-11-28", "US", "DiscreteGaussian", 35.7 / 1.96, 90),
        ("2024-02-14", "PK", "DiscreteGaussian", 35.7 / 1.96, 90),
        ("2024-02-15", "PK", "DiscreteGaussian", 176.5 / 1.96, 550),
        ("2024-02-15", "RU", "DiscreteGaussian", 352.5 / 1.96, 1000),
        ("2026-01-25", "KW", "DiscreteGaussian", 176.5 / 1.96, 550),
        ("2026-01-26", "KW", "DiscreteGaussian", 35.7 / 1.96, 90),
        ("2026-01-26", "PK", "DiscreteGaussian", 352.5 / 1.96, 1000),
    ],
)
def test_noise_of_page_views_is_that_of_the_day_and_the_country(tmp_path, day, country, noise, deviation, threshold):
    path = pages(tmp_path, day, ("Name", country, "en.wikipedia", 7, "Earth", "Q2", 1421))
    table = ldp.data.open("wikimedia-pageviews", path)
    law = table.mechanism.innermost.noise
    assert type(law).__name__ == noise and threshold_of(table) == threshold
    assert float(law.standard_deviation) == pytest.approx(deviation, rel=2e-3)  # intervals are stated to 3 digits
    assert table.privacy.startswith("Wikimedia: ") and "https://analytics.wikimedia.org" in table.privacy
    assert table.labels.tolist() == [f"{country}, en.wikipedia, 7"] and table.values.tolist() == [1421]


def test_rows_of_a_file_may_have_different_noise_and_thresholds(tmp_path):
    table = ldp.data.open("wikimedia-pageviews", pages(tmp_path, "2024-03-01", *PAGES))
    assert threshold_of(table).tolist() == [90, 550, 550] and table.values.tolist() == [205, 1780, 1420]
    deviations = np.asarray(table.mechanism.innermost.noise.standard_deviation)
    np.testing.assert_allclose(1.96 * deviations, [35.7, 176.5, 176.5], rtol=2e-3)
    rho = 10 / (2 * deviations**2)  # ten pages of a device, each changed by one
    np.testing.assert_allclose(rho, [0.01505, 0.0006166, 0.0006166], rtol=1e-4)
    titles = ldp.data.open("wikimedia-pageviews", tmp_path / "2024-03-01.tsv", keys=["country_code", "page_title"])
    assert titles.keys["page_title"].tolist() == [row[4] for row in PAGES]  # quotation marks and commas as they are
    few = ldp.data.open("wikimedia-pageviews", tmp_path / "2024-03-01.tsv", only={"country_code": ["IS", "PK"]})
    assert few.values.tolist() == [205, 1420] and threshold_of(few).tolist() == [90, 550]
    one = ldp.data.open("wikimedia-pageviews", tmp_path / "2024-03-01.tsv", only={"page_id": 111}, threshold=91.0)
    assert one.values.tolist() == [205] and threshold_of(one) == 91


def test_the_day_is_given_if_the_name_of_the_file_does_not_have_it(tmp_path):
    path = pages(tmp_path, "views", *PAGES[:1])
    with pytest.raises(ValueError, match="date must be a day from 2015-07-01 on, written as 2024-03-01"):
        ldp.data.open("wikimedia-pageviews", path)
    assert threshold_of(ldp.data.open("wikimedia-pageviews", path, date="2024-03-01")) == 90
    with pytest.raises(ValueError, match=r"date must be a day from 2015-07-01 on.*'2015-06-30'"):
        ldp.data.open("wikimedia-pageviews", path, date="2015-06-30")


def test_the_oldest_page_views_have_no_number_of_a_page(tmp_path):
    table = ldp.data.open(
        "wikimedia-pageviews", pages(tmp_path, "2016-01-01", ("Canada", "CA", "en.w", "", "2016", 4360))
    )
    assert float(table.mechanism.innermost.noise.scale) == 300 and threshold_of(table) == 3500
    assert table.labels.tolist() == ["CA, en.w, 2016"] and "300 page views of a day" in table.privacy


def test_rows_with_noise_of_several_laws_are_opened_apart(tmp_path):
    rows = ("United States", "US", "en.w", 1, "A", "", 4021), ("France", "FR", "fr.w", 2, "B", "", 512)
    path = pages(tmp_path, "2023-05-02", *rows)
    with pytest.raises(ValueError, match="rows whose country_code is US have noise of another law; open them and the"):
        ldp.data.open("wikimedia-pageviews", path)
    assert threshold_of(ldp.data.open("wikimedia-pageviews", path, only={"country_code": "US"})) == 450
    assert threshold_of(ldp.data.open("wikimedia-pageviews", path, only={"country_code": "FR"})) == 90


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\tIS\tb\t1\tc\t\t205\na\tIS\tb\t2\tc\t205\n", "2024-03-01.tsv, line 2: the line has 6 cells, but 7 names"),
        ("a\tIS\tb\t1\tc\t\t205\n\na\tIS\tb\t2\tc\t\t205\n", "line 2: the line is empty, but more lines follow"),
        ("a\tIS\tb\t1\tc\t\t205\na\tIS\tb\t2\tc\t\t2o5\n", "line 2: column 'count' holds '2o5', which is not a number"),
        ("", "has no records"),
        ("a\tIS\tb\t1\tc\t\t89\n", "column 'count' holds 89.0 for IS, b, 1: possible values are whole numbers"),
        ("a\tIS\tb\t1\tc\t\t99.5\n", "column 'count' holds 99.5 for IS, b, 1: possible values are whole numbers"),
        ("a\tIS\tb\t1\tc\t\t205\na\tIS\tb\t1\td\t\t205\n", "rows 0 and 1 are of the same cell"),
    ],
)
def test_damaged_page_views_are_refused_with_their_place(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        ldp.data.open("wikimedia-pageviews", written(tmp_path, "2024-03-01.tsv", text))


def test_bytes_that_are_no_text_are_refused_with_their_line(tmp_path):
    path = tmp_path / "2024-03-01.tsv"
    path.write_bytes(b"a\tIS\tb\t1\tc\t\t205\na\tIS\tb\t2\t\xff\t\t205\n")
    with pytest.raises(
        ValueError, match=r"is not text in UTF-8, line 2: .*the layout wikimedia-pageviews is described at"
    ):
        ldp.data.open("wikimedia-pageviews", path)


def test_other_files_are_refused_where_only_names_what_they_lack(tmp_path):
    path = pages(tmp_path, "2024-03-01", *PAGES)
    for only, message in (
        ({"country": "Iceland", "code": "IS"}, "has no column 'code'"),
        ({"country_code": ["IS", "FR"]}, "no row has 'FR' in the column 'country_code'"),
        ("IS", "only must be labels by column"),
    ):
        with pytest.raises(ValueError, match=message):
            ldp.data.open("wikimedia-pageviews", path, only=only)


def test_shares_have_laplace_noise_whose_95_percent_error_is_stated(tmp_path):
    table = ldp.data.open("us-broadband", written(tmp_path, "broadband.csv", BROADBAND))
    assert [*table.keys] == ["ST", "COUNTY ID", "POSTAL CODE"] and table.values.tolist() == [0.948, 0.398, 0]
    scales = np.asarray(table.mechanism.innermost.noise.scale)
    np.testing.assert_allclose(laplace.cdf([0.11, 0.007, 0.17], scale=scales), 0.975, rtol=1e-12)
    assert "epsilon = 0.2" in table.privacy
    # A share is rounded to 0.001, and printed as 0 if it is negative.
    x = np.array([0.9, 0.4, 0.05])
    low, high = [0.9475, 0.3975, -np.inf], [0.9485, 0.3985, 0.0005]
    expected = np.log(laplace.cdf(high, x, scales) - laplace.cdf(low, x, scales))
    with jax.enable_x64(True):
        law = ldp.Privatized(dist.Delta(x), table.mechanism)
        np.testing.assert_allclose(law.log_prob(table.values), expected, rtol=1e-10)


@pytest.mark.skipif(not DATA.is_dir(), reason="LDPBAYES_DATA names no folder of data")
def test_the_broadband_shares_of_massachusetts_open_by_name():
    table = ldp.data.open("us-broadband", DATA / "broadband_ma.csv")
    assert table.count == 533 and {*table.keys["ST"]} == {"MA"} and (table.values == 0).sum() == 13
    ranges = np.asarray(table.mechanism.innermost.noise.scale) * math.log(20)
    assert ranges.min() == pytest.approx(0.002) and ranges[0] == pytest.approx(0.031)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("BROADBAND USAGE", "USAGE"), "has no column 'BROADBAND USAGE'.* its columns are ST, .*described at https"),
        (
            ("ERROR RANGE (95%)(+/-)", "RANGE"),
            r"has no column 'ERROR RANGE \(95%\)\(\+/-\)' \(did you mean ERROR RANGE",
        ),
        (("0.398", "n0"), "line 3: column 'BROADBAND USAGE' holds 'n0', which is not a number"),
        (("0.398", "-0.1"), "column 'BROADBAND USAGE' holds -0.1 for SC, 45001, 29620: possible values are"),
        (("0.007,0", "0.007"), "line 3: the line has 7 cells, but the first line has 8 names"),
        (("0.007,0", "0,0"), r"column 'ERROR RANGE \(95%\)\(\+/-\)' holds 0.0 for SC, 45001, 29620: a margin must be"),
    ],
)
def test_files_that_are_no_broadband_shares_are_refused(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        ldp.data.open("us-broadband", written(tmp_path, "broadband.csv", BROADBAND.replace(*change)))


def test_the_noise_of_earnings_is_asked_for_as_it_is_not_published(tmp_path):
    path = written(tmp_path, "pseoe_tx.csv", EARNINGS)
    with pytest.raises(ValueError, match="noise must be one of"):
        ldp.data.open("us-pseo-earnings", path)
    table = ldp.data.open("us-pseo-earnings", path, noise="laplace", scale=900.0)
    assert table.labels.tolist() == ["00365800, 05, 45, 2016", "00365800, 05, 46, 2016"]
    np.testing.assert_array_equal(table.values, [40123, np.nan])
    quartile = ldp.data.open("us-pseo-earnings", path, noise="laplace", scale=9.0, value="y1_p25_earnings")
    assert quartile.values[0] == 31000 and "CES-WP-19-13" in quartile.privacy


def test_noisy_measurements_of_the_census_have_the_promise_of_the_bureau(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    row = {"geocode": "0500000US01001", "query_name": "total", "query_shape": [1, 2], "value": [5, 6], "variance": 2.5}
    path = tmp_path / "part-0.parquet"
    pq.write_table(pa.Table.from_pylist([row]), path)
    table = ldp.data.open("us-census-2020", path, query="total")
    assert table.values.tolist() == [5, 6] and table.count == 2
    assert ldp.data.open("us-census-2020", path, query="total", only={"axis_0": 1}).values.tolist() == [6]
    assert table.privacy.startswith("U.S. Census Bureau: zCDP")
    with pytest.raises(ValueError, match="query must be given for the layout us-census-2020"):
        ldp.data.open("us-census-2020", path)


@pytest.mark.parametrize("lines", [False, True])
def test_metrics_of_a_summary_report_have_discrete_laplace_noise(tmp_path, lines):
    text = "\n".join(map(json.dumps, SUMMARY)) if lines else json.dumps(SUMMARY, indent=2)
    table = ldp.data.open("chrome-summary-report", written(tmp_path, "output.json", text), epsilon=10)
    assert table.keys["bucket"].tolist() == ["0x559", "0xff"] and table.values.tolist() == [26308, -17]
    assert float(table.mechanism.noise.scale) == 6553.6 and "epsilon = 10 for one source" in table.privacy


def test_confidences_are_answers_that_are_random_at_the_stated_rate(tmp_path):
    rows = [{"name": "https://a.example/", "confidence": CONFIDENCE}, CONFIDENCE | {"value": "low"}]
    release = ldp.data.open("chrome-confidence", written(tmp_path, "c.json", "\n".join(map(json.dumps, rows))))
    assert release.values.tolist() == [1, 0] and release.about["levels"] == ["low", "high"]
    assert float(release.mechanism.epsilon) == pytest.approx(1.1, abs=1e-4)
    np.testing.assert_allclose(release.mechanism.matrix[1], [0.4994798 / 2, 1 - 0.4994798 / 2], rtol=1e-6)
    several = [CONFIDENCE, CONFIDENCE | {"randomizedTriggerRate": 0.25}]
    release = ldp.data.open("chrome-confidence", written(tmp_path, "c.json", json.dumps(several)))
    np.testing.assert_allclose(release.mechanism.epsilon, np.log(2 / np.array([0.4994798, 0.25]) - 1), rtol=1e-6)


@pytest.mark.parametrize(
    ("layout", "text", "message"),
    [
        ("summary-report", "", "output.json, line 1: this is no JSON"),
        ("summary-report", "[]", "output.json holds no objects"),
        ("summary-report", '{"bucket": "Y", "metric": 1}\n{"bucket": ', "line 2: this is no JSON"),
        ("summary-report", '[{"bucket": "Y",\n"metric": 1},\n{"bucket"}]', "line 3: this is no JSON"),
        ("summary-report", '{"bucket": "Y", "metric": 1.5}', "object 1: the field 'metric' holds 1.5"),
        ("summary-report", '{"bucket": "Y", "metric": 1}\n{"key": "Z"}', "object 2: the field 'bucket' is missing"),
        ("summary-report", '{"bucket": "Y", "metric": true}', "object 1: the field 'metric' holds True"),
        ("confidence", '{"value": "low"}', "object 1: the field 'randomizedTriggerRate' is missing"),
        (
            "confidence",
            '{"value": "mid", "randomizedTriggerRate": 0.5}',
            "'value' holds 'mid', and must be low or high",
        ),
        ("confidence", '{"value": "low", "randomizedTriggerRate": 1}', "holds 1, and must be at least 0 and below 1"),
        ("confidence", "[3]", "object 1: the field 'value' is missing"),
    ],
)
def test_reports_that_are_damaged_are_refused_with_their_place(tmp_path, layout, text, message):
    options = {"epsilon": 10} if layout == "summary-report" else {}
    with pytest.raises(ValueError, match=message):
        ldp.data.open(f"chrome-{layout}", written(tmp_path, "output.json", text), **options)


def test_what_a_summary_report_needs_is_asked_for(tmp_path):
    path = written(tmp_path, "output.json", json.dumps(SUMMARY))
    with pytest.raises(ValueError, match="epsilon must be given for the layout chrome-summary-report"):
        ldp.data.open("chrome-summary-report", path)
    with pytest.raises(ValueError, match="epsilon must be a positive and finite number"):
        ldp.data.open("chrome-summary-report", path, epsilon=0)


def test_a_layout_of_the_user_is_opened_by_its_name(tmp_path, monkeypatch):
    formats = dict(readers.formats())
    monkeypatch.setattr(layouts, "LAYOUTS", dict(layouts.LAYOUTS))
    for module in (layouts, readers):
        monkeypatch.setattr(module, "_FORMATS", formats)
    stated = {"value": "n", "keys": ["town"], "noise": "gaussian", "standard_deviation": 2.0, "privacy": "As stated."}
    ldp.data.register_layout("towns", ldp.data.Layout("https://example.org", stated))
    path = written(tmp_path, "towns.csv", "town,n\nA,150\nB,*\n")
    with pytest.raises(ValueError, match=r"line 3: column 'n' holds '\*'.*the layout towns is described at https://ex"):
        ldp.data.open("towns", path)
    table = ldp.data.open("towns", path, withheld="*", standard_deviation=3.0)
    np.testing.assert_array_equal(table.values, [150, np.nan])
    assert float(table.mechanism.innermost.noise.standard_deviation) == 3 and table.privacy == "As stated."
    ldp.data.register_layout("reports", lambda path, shift: ldp.Release(np.array([shift]), ldp.RandomizedResponse(1.0)))
    assert ldp.data.open("reports", path, shift=1).values.tolist() == [1]


def test_an_unknown_layout_is_refused_with_those_that_are_known(tmp_path):
    with pytest.raises(
        ValueError, match=r"layout must be one of .*us-broadband.*got 'us-brodband' .did you mean us-broad"
    ):
        ldp.data.open("us-brodband", tmp_path / "x.csv")
    assert ldp.NoisyTable.from_file(written(tmp_path, "b.csv", BROADBAND), format="us-broadband").count == 3
