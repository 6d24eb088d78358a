"""Compiled code on disk: where it is kept, and how much of it."""

import os
import pathlib
import time

import jax

import ldpbayes as ldp
from ldpbayes._core.running import CACHE_ENTRY, _delete_old


def test_a_folder_that_jax_has_been_given_is_left_alone(tmp_path):
    before = jax.config.jax_compilation_cache_dir
    assert ldp.keep_compiled_code(tmp_path / "other") == pathlib.Path(before)
    assert jax.config.jax_compilation_cache_dir == before
    assert not (tmp_path / "other").exists()


def entry(age, kind="cache"):
    """A name as JAX gives to a file of compiled code."""
    return f"jit_f-{age:064x}-{kind}"


def test_what_has_not_been_used_for_longest_goes_first(tmp_path):
    for age in range(6):
        path = tmp_path / entry(age)
        path.write_bytes(b"x" * 100)
        os.utime(path, (1e9 - 3600 * age, 1e9))

    def left():
        return sorted(int(path.name.split("-")[1], 16) for path in tmp_path.iterdir())

    _delete_old(tmp_path, files=4, size=10**6)
    assert left() == [0, 1, 2, 3]
    _delete_old(tmp_path, files=4, size=250)
    assert left() == [0, 1]


def test_files_that_jax_has_not_written_stay_and_do_not_count(tmp_path):
    own = ["data.csv", "my-cache", "notes-atime", f"{entry(1)}.bak", "study-0123-cache"]
    for name in own:
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, 1 << 31)  # 2 GiB, of which nothing is on the disk
        os.utime(tmp_path / name, (0, 0))
    for kind in ("cache", "atime"):
        (tmp_path / entry(2, kind)).write_bytes(b"x")
    _delete_old(tmp_path)
    assert len([*tmp_path.iterdir()]) == len(own) + 2
    _delete_old(tmp_path, files=0)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(own)


def test_the_names_that_jax_gives_are_known():
    folder = pathlib.Path(jax.config.jax_compilation_cache_dir)
    least = jax.config.jax_persistent_cache_min_compile_time_secs
    number = time.time()  # in no program that has been compiled before
    try:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.jit(lambda x: x + number)(1.0)
    finally:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", least)
    newest = max(folder.iterdir(), key=lambda path: path.stat().st_mtime)
    assert newest.stat().st_mtime >= number - 1 and CACHE_ENTRY.search(newest.name)


def test_a_folder_that_cannot_be_written_to_is_no_error(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("ldpbayes._core.running.jax", Unset)
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
