"""Noisy measurement files: the layout of the Census Bureau's, read in part."""

import numpy as np
import pytest

from ldpbayes.tables import read_measurements

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

GEOCODES = ("0500000US01001", "0500000US01003", "0500000US02001")
SHAPES = {"total_dpq": [1, 1, 1, 1], "votingage_cenrace_dpq": [1, 2, 1, 3]}
VARIANCES = {"total_dpq": 2.5, "votingage_cenrace_dpq": 100.0}


def answers(geocode, query):
    return 100 * GEOCODES.index(geocode) + np.arange(np.prod(SHAPES[query]))


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Columns geocode, query_name, query_shape, value (the answers in C order) and variance, in several row groups."""
    rows = [
        {
            "geocode": geocode,
            "query_name": query,
            "query_shape": SHAPES[query],
            "value": answers(geocode, query).tolist(),
            "variance": VARIANCES[query],
        }
        for geocode in GEOCODES
        for query in SHAPES
    ]
    path = tmp_path_factory.mktemp("measurements") / "part-0.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=2)
    return path


def test_a_query_of_one_number_has_a_cell_an_area(file):
    table = read_measurements(file, "total_dpq", privacy="zCDP, as the Bureau states it.")
    assert {key: labels.tolist() for key, labels in table.keys.items()} == {"geocode": [*GEOCODES]}
    assert table.values.tolist() == [0, 100, 200] and table.privacy == "zCDP, as the Bureau states it."
    np.testing.assert_allclose(table.mechanism.noise.variance, 2.5, rtol=1e-12)
    assert read_measurements(file.parent, "total_dpq").keys == table.keys  # of a folder


def test_axes_of_a_query_become_keys_with_the_answers_in_their_places(file):
    races = ["white", "black", "other"]
    axes = {"votingage": ["under 18", "18 and over"], "cenrace": races}
    table = read_measurements(file, "votingage_cenrace_dpq", axes=axes)
    assert [*table.keys] == ["geocode", "votingage", "cenrace"] and table.count == 18
    for geocode, age, race, value in zip(*table.keys.values(), table.values, strict=True):
        place = 3 * axes["votingage"].index(age) + races.index(race)
        assert value == answers(geocode, "votingage_cenrace_dpq")[place]
    plain = read_measurements(file, "votingage_cenrace_dpq")
    assert [*plain.keys] == ["geocode", "axis_0", "axis_1"] and plain.labels[5] == "0500000US01001, 1, 2"


def test_geocodes_are_chosen_by_their_start(file):
    table = read_measurements(file, "total_dpq", "0500000US01")
    assert table.keys["geocode"].tolist() == [*GEOCODES[:2]]


def test_other_rows_are_not_kept_in_memory(tmp_path):
    count, before = 2000, pa.total_allocated_bytes()
    columns = {
        "geocode": [f"{number:05}" for number in range(count)],
        "query_name": ["large_dpq" if number % 1000 else "total_dpq" for number in range(count)],
        "query_shape": [[1] if number % 1000 == 0 else [1000] for number in range(count)],
        "value": [[0] if number % 1000 == 0 else [0] * 1000 for number in range(count)],
        "variance": np.ones(count),
    }
    path = tmp_path / "large.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=100)
    del columns
    table = read_measurements(path, "total_dpq")
    # Of 16 MB; Arrow's threads may still hold a few groups of rows (.8 MB each) that they read ahead.
    assert table.count == 2 and pa.total_allocated_bytes() - before < 4e6


def test_variances_may_differ_between_answers(tmp_path):
    row = {"geocode": "1", "query_name": "q", "query_shape": [2], "value": [5, 6], "variance": [1.0, 4.0]}
    path = tmp_path / "one.parquet"
    pq.write_table(pa.Table.from_pylist([row]), path)
    np.testing.assert_allclose(read_measurements(path, "q", noise="laplace").mechanism.noise.scale ** 2, [0.5, 2])


@pytest.mark.parametrize(
    ("query", "options", "message"),
    [
        ("total", {}, "no query 'total' for .*: the file has total_dpq, votingage_cenrace_dpq"),
        ("total_dpq", {"geocodes": "09"}, "no query 'total_dpq' for geocodes '09'"),
        ("votingage_cenrace_dpq", {"axes": {"cenrace": "xyz"}}, "axes must label each axis with several places, got"),
        ("votingage_cenrace_dpq", {"axes": {"a": "xy", "b": "xy"}}, "axes must label"),
    ],
)
def test_what_the_file_does_not_have_is_refused_with_what_it_has(file, query, options, message):
    with pytest.raises(ValueError, match=message):
        read_measurements(file, query, **options)


def test_rows_that_are_no_answers_are_refused(tmp_path):
    row = {"geocode": "1", "query_name": "q", "query_shape": [3], "value": [5, 6], "variance": 1.0}
    path = tmp_path / "short.parquet"
    pq.write_table(pa.Table.from_pylist([row]), path)
    with pytest.raises(ValueError, match=r"query 'q' has shapes \[\(3,\)\], and \[2\] values in each row"):
        read_measurements(path, "q")
    pq.write_table(pa.Table.from_pylist([row | {"value": [1, 2, 3], "variance": 0.0}]), path)
    with pytest.raises(
        ValueError, match=r"column 'variance' holds 0\.0 for 1, 0 and 2 other cells: a variance must be positive"
    ):
        read_measurements(path, "q")
