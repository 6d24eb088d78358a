"""Data frames as arguments of models: numeric columns by name, and refusals of what has gaps."""

import decimal

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import ldpbayes as ldp
from ldpbayes._core.tabular import arrays_of_frames, column, column_names, columns_of, levels_in_order

COUNT = 300


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    columns = {"age": rng.normal(size=COUNT), "income": rng.integers(0, 3, COUNT)}
    return pd.DataFrame(columns | {"region": rng.choice(["north", "south"], COUNT)}, index=np.arange(COUNT)[::-1])


def test_a_table_has_the_columns_of_its_frame_also_when_it_is_traced(frame):
    numbers = arrays_of_frames(frame[["age", "income"]])
    slopes = jnp.array([1.0, 2.0])
    expected = frame[["age", "income"]].to_numpy() @ np.array([1.0, 2.0])
    for predictor in (numbers @ slopes, jax.jit(lambda table: table @ slopes)(numbers), slopes @ numbers.T):
        np.testing.assert_allclose(predictor, expected, atol=1e-5)  # single precision
    ages = jax.vmap(lambda table: table.age + table["income"])(numbers)
    np.testing.assert_allclose(ages, frame["age"] + frame["income"], atol=1e-5)
    assert numbers.shape == np.shape(np.asarray(numbers)) == jnp.asarray(numbers).shape == (COUNT, 2)
    assert list(numbers) == numbers.columns == ["age", "income"] and "age" in numbers and len(numbers) == COUNT


def test_what_a_frame_does_not_have_is_said(frame):
    table = arrays_of_frames(frame.assign(known=pd.array([1, None] * (COUNT // 2), dtype="Int64")))
    with pytest.raises(KeyError, match="no column 'sex'; the columns are"):
        table["sex"]
    with pytest.raises(AttributeError, match="no column or attribute 'iloc'"):
        table.iloc  # noqa: B018
    with pytest.raises(TypeError, match="a table can be indexed only by column names"):
        table[:5]
    with pytest.raises(ValueError, match="column 'known' has 150 missing values, the first in row 1"):
        table["known"]
    with pytest.raises(TypeError, match="column 'region' holds"):
        table[["age", "region"]] @ np.ones(2)
    with pytest.raises(ValueError, match="series 'age' has 1 missing values"):
        arrays_of_frames(frame["age"].where(frame["age"] < frame["age"].max()))
    with pytest.raises(ValueError, match="several columns of the name 'age'"):
        arrays_of_frames(pd.concat([frame, frame["age"]], axis=1))


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 0, None], "boolean"),
        ([1, 2, None], "Int8"),
        ([1.5, 2, None], "Float32"),
        ([1, 2, None], "int64[pyarrow]"),
        ([1.5, 2, None], "double[pyarrow]"),
        ([1, 0, None], "bool[pyarrow]"),
        ([10, 30, None], "category"),
    ],
)
def test_numbers_of_every_kind_are_numbers_and_their_gaps_are_seen(values, kind):
    if "pyarrow" in kind:
        pytest.importorskip("pyarrow")
    series = pd.Series(values, dtype="category" if kind == "category" else None).astype(kind)
    table = arrays_of_frames(pd.DataFrame({"x": series, "width": pd.interval_range(0, 3)}))  # "interval" is no "int"
    with pytest.raises(ValueError, match="column 'x' has 1 missing values, the first in row 2"):
        table["x"]
    with pytest.raises(ValueError, match="a series has 1 missing values"):
        arrays_of_frames(series)
    whole = arrays_of_frames(pd.DataFrame({"x": series[:2]}))
    np.testing.assert_array_equal(whole.values, np.array(values[:2], float)[:, None])


def test_arrays_of_arrow_are_series():
    pa = pytest.importorskip("pyarrow")
    arrays = arrays_of_frames({"x": pa.chunked_array([[1.5], [2.0]]), "y": pa.array([True, False])})
    np.testing.assert_array_equal(arrays["x"] + arrays["y"], [2.5, 2.0])
    with pytest.raises(ValueError, match="1 missing values, the first in row 1"):
        arrays_of_frames(pa.array([1, None]))


def pandas(columns):
    return pd.DataFrame(columns)


def polars(columns):
    return pytest.importorskip("polars").DataFrame(columns, strict=False)


def arrow(columns):
    return pytest.importorskip("pyarrow").table(columns)


COLUMNS = {
    "whole": [1, None, 3],
    "number": [1.5, 2.5, None],
    "answer": [True, None, False],
    "price": [decimal.Decimal("1.25"), None, decimal.Decimal("3")],
    "word": ["a", "b", "c"],
}


@pytest.mark.parametrize("library", [pandas, polars, arrow, dict])
def test_a_frame_of_any_library_is_read_alike(library):
    columns = columns_of(library(COLUMNS))
    nan = np.nan
    expected = {"whole": [1, nan, 3], "number": [1.5, 2.5, nan], "answer": [1, nan, 0], "price": [1.25, nan, 3]}
    for name, values in expected.items():
        assert columns[name].dtype == np.float64
        np.testing.assert_array_equal(columns[name], values)
    assert columns["word"].tolist() == ["a", "b", "c"] and list(columns) == list(COLUMNS)
    with pytest.raises(ValueError, match="there is no column 'when'"):
        column(columns, "when")


@pytest.mark.parametrize("library", [pandas, polars, arrow])
def test_rows_of_a_frame_of_any_library_are_read_by_their_names(library):
    mechanism = ldp.SymmetricLaplaceMechanism(1.0, 0, 9, columns=("x", "y"))
    frame = library({"y": [3.0, 4.0], "x": [1.0, 2.0]})
    assert ldp.Release(frame, mechanism).values.tolist() == [[1, 3], [2, 4]]
    with pytest.raises(ValueError, match="the mechanism's columns are x, y; got x, z"):
        ldp.Release(library({"x": [1.0], "z": [1.0]}), mechanism)
    table = arrays_of_frames(frame)
    assert table.columns == column_names(frame) == column_names(table) == ["y", "x"]


def test_levels_keep_the_order_of_their_categories():
    pl = pytest.importorskip("polars")
    words, order = ["low", "high", "low"], ["low", "middle", "high"]
    of_pandas = pd.Series(pd.Categorical(words, categories=order, ordered=True), name="income")
    of_polars = pl.Series("income", words, dtype=pl.Enum(order))
    for by in (of_pandas, of_pandas.cat.as_unordered(), of_polars):
        sketch = ldp.Release([1, 0, 1], ldp.RandomizedResponse(1.0)).sketch(by=by)
        assert sketch.coords == {"group": ("low", "high"), "income": ("low", "high")}
        assert sketch.groups.tolist() == [0, 1]
    assert levels_in_order(words) is levels_in_order(pl.Series(words)) is None


def test_two_columns_of_a_name_are_refused_in_every_library():
    pa = pytest.importorskip("pyarrow")
    twice = pa.table([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(ValueError, match="a data frame has several columns of the name 'a'; rename them"):
        arrays_of_frames(twice)
