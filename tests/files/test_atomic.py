"""Files are replaced when they are complete; what is sent to a pipe is sent when it is complete."""

import os

import pytest

from quadlin.files.atomic import TEMPORARY, atomic_write

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs Unix")


def stopped(path):
    with atomic_write(path) as file:
        file.write(b"half")
        raise KeyboardInterrupt


def test_a_failure_sends_nothing_to_a_pipe_and_parts_may_be_written_in_any_order(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    for path in (tmp_path / "pipe", tmp_path / "link"):
        with pytest.raises(KeyboardInterrupt):
            stopped(path)
        with atomic_write(path) as file:
            file.write(b"....later")
            file.seek(0)
            file.write(b"soon")
        assert os.read(reader, 100) == b"soonlater"
    os.close(reader)


def test_remains_of_killed_writers_are_removed_and_files_in_use_are_not(tmp_path):
    path = tmp_path / "file"
    remains = tmp_path / f".file.0123456789ab{TEMPORARY}"
    remains.write_bytes(b"half")
    os.utime(remains, times=(0, 0))  # long ago
    with atomic_write(path) as outer:
        outer.write(b"outer")
        with atomic_write(path) as inner:
            inner.write(b"inner")
        assert path.read_bytes() == b"inner"
    with pytest.raises(KeyboardInterrupt):
        stopped(path)
    assert path.read_bytes() == b"outer"
    assert os.listdir(tmp_path) == ["file"]
