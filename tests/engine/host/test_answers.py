"""An answer is remembered until a file changes that it depends on, and only where no other user can have written it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from compose_sim.engine.host.answers import remembered


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], tuple[int, str]]:
    """Return a function that counts its calls, and answers with their number."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    calls: list[None] = []

    def answer() -> tuple[int, str]:
        calls.append(None)
        return 0, str(len(calls))

    return answer


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "program"
    file.write_text("one")
    return file


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "composesim" / "answers"


def test_an_answer_is_remembered_until_a_file_is_written_replaced_or_created(
    ask: Callable[[], tuple[int, str]], program: Path, kept: Path
) -> None:
    other = program.with_name("other")
    assert remembered("version", (program, other), ask) == (0, "1")
    assert remembered("version", (program, other), ask) == (0, "1")
    program.write_text("two")
    assert remembered("version", (program, other), ask) == (0, "2")
    before = program.stat()
    program.rename(program.with_name("old"))
    program.write_text("six")  # the same size, and the same time of the last change
    os.utime(program, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert remembered("version", (program, other), ask) == (0, "3")
    other.touch()
    assert remembered("version", (program, other), ask) == (0, "4")
    assert remembered("version", (program,), ask) == (0, "5")
    assert [file.name for file in kept.iterdir()] == ["version"]


def test_a_failure_is_not_remembered(program: Path, ask: Callable[[], tuple[int, str]]) -> None:
    assert remembered("version", (program,), lambda: (1, "failed")) == (1, "failed")
    assert remembered("version", (program,), ask) == (0, "1")


@pytest.mark.parametrize("mode", [0o770, 0o705, 0o777])
def test_a_folder_that_others_can_use_is_neither_read_nor_written(
    ask: Callable[[], tuple[int, str]], program: Path, kept: Path, mode: int
) -> None:
    remembered("version", (program,), ask)
    kept.chmod(mode)
    (kept / "version").rename(kept / "moved")
    assert [remembered("version", (program,), ask)[1] for _ in range(2)] == ["2", "3"]
    assert not (kept / "version").exists()


def test_a_link_in_place_of_the_folder_or_the_file_is_not_followed(
    ask: Callable[[], tuple[int, str]], program: Path, kept: Path, tmp_path: Path
) -> None:
    remembered("version", (program,), ask)
    (kept / "version").rename(tmp_path / "planted")
    (kept / "version").symlink_to(tmp_path / "planted")
    assert remembered("version", (program,), ask) == (0, "2")
    kept.rename(tmp_path / "folder")
    kept.symlink_to(tmp_path / "folder")
    assert remembered("version", (program,), ask) == (0, "3")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"files": 1}', '{"text": "9"}', "\0" * 9])
def test_a_damaged_file_is_written_again(
    ask: Callable[[], tuple[int, str]], program: Path, kept: Path, content: str
) -> None:
    remembered("version", (program,), ask)
    (kept / "version").write_text(content)
    assert [remembered("version", (program,), ask)[1] for _ in range(2)] == ["2", "2"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_root_remembers_nothing_with_files_of_another_user(
    ask: Callable[[], tuple[int, str]], program: Path, kept: Path
) -> None:
    remembered("version", (program,), ask)
    os.chown(kept / "version", 4242, 4242)
    assert remembered("version", (program,), ask) == (0, "2")
    os.chown(kept, 4242, 4242)
    assert remembered("version", (program,), ask) == (0, "3")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders to another user")
def test_root_creates_nothing_in_the_home_of_another_user(
    ask: Callable[[], tuple[int, str]], program: Path, tmp_path: Path
) -> None:
    os.chown(tmp_path, 4242, 4242)
    assert [remembered("version", (program,), ask)[1] for _ in range(2)] == ["1", "2"]
    assert not (tmp_path / "cache").exists()
