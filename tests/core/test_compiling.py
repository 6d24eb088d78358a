"""Compiled code on disk: where it is kept, and how much of it."""

import os
import pathlib

import jax

import ldpbayes as ldp
from ldpbayes._core.compiling import _delete_old


def test_a_folder_that_jax_has_been_given_is_left_alone(tmp_path):
    before = jax.config.jax_compilation_cache_dir
    assert ldp.keep_compiled_code(tmp_path / "other") == pathlib.Path(before)
    assert jax.config.jax_compilation_cache_dir == before
    assert not (tmp_path / "other").exists()


def test_what_has_not_been_used_for_longest_goes_first(tmp_path):
    for age in range(6):
        path = tmp_path / f"used {age} hours ago"
        path.write_bytes(b"x" * 100)
        os.utime(path, (1e9 - 3600 * age, 1e9))

    def left():
        return sorted(int(path.name.split()[1]) for path in tmp_path.iterdir())

    _delete_old(tmp_path, files=4, size=10**6)
    assert left() == [0, 1, 2, 3]
    _delete_old(tmp_path, files=4, size=250)
    assert left() == [0, 1]


def test_a_folder_that_cannot_be_written_to_is_no_error(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("ldpbayes._core.compiling.jax", Unset)
    assert ldp.keep_compiled_code(tmp_path / "file" / "below") is None
    monkeypatch.setenv("LDPBAYES_COMPILED_CODE", str(tmp_path / "own"))
    assert ldp.keep_compiled_code() == tmp_path / "own"
    assert Unset.config.settings["jax_compilation_cache_dir"] == str(tmp_path / "own")


class Unset:
    """JAX before anybody has named a folder."""

    class config:
        jax_compilation_cache_dir = None
        settings = {}

        @classmethod
        def update(cls, name, value):
            cls.settings[name] = value
