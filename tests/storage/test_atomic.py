"""Files are replaced when they are complete; devices and pipes are written to, never replaced."""

import os
import socket
import stat
import subprocess
import sys

import pytest

from quadlin.storage.atomic import NotRegularFileError, atomic_write, require_regular_file

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs Unix")


def write(path, data=b"complete"):
    with atomic_write(path) as file:
        file.write(data)


@pytest.fixture
def pipe(tmp_path):
    """A pipe with a reader, so that writing to it does not wait."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    yield path, descriptor
    os.close(descriptor)


def test_a_pipe_is_written_to_and_stays_a_pipe(pipe):
    path, descriptor = pipe
    write(path)
    assert os.read(descriptor, 100) == b"complete"
    assert stat.S_ISFIFO(os.stat(path).st_mode)
    assert os.listdir(path.parent) == ["pipe"]


def test_a_link_to_a_pipe_is_written_to_and_stays_a_link(pipe):
    path, descriptor = pipe
    link = path.with_name("link")
    link.symlink_to("pipe")
    write(link)
    assert os.read(descriptor, 100) == b"complete"
    assert link.is_symlink()
    assert stat.S_ISFIFO(os.stat(path).st_mode)


def test_a_failure_writes_nothing_to_a_pipe(pipe):
    path, descriptor = pipe

    def fail():
        with atomic_write(path) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    write(path, b"whole")
    assert os.read(descriptor, 100) == b"whole"


def test_what_is_written_to_a_pipe_may_be_written_in_any_order(pipe):
    path, descriptor = pipe
    with atomic_write(path) as file:
        file.write(b"....later")
        file.seek(0)
        file.write(b"soon")
    assert os.read(descriptor, 100) == b"soonlater"


def test_a_device_is_written_to_and_stays_a_device(tmp_path):
    before = os.stat("/dev/null")
    link = tmp_path / "link"
    link.symlink_to("/dev/null")
    for path in ("/dev/null", link):
        write(path)
        after = os.stat("/dev/null")
        assert stat.S_ISCHR(after.st_mode)
        assert (after.st_ino, after.st_rdev) == (before.st_ino, before.st_rdev)
    assert link.is_symlink()


def test_a_link_to_a_file_stays_a_link_also_where_the_file_is_new(tmp_path):
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "file")
    for data in (b"first", b"second"):
        write(link, data)
        assert link.is_symlink()
        assert (tmp_path / "file").read_bytes() == data


def test_sockets_and_folders_are_refused_in_words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the names of sockets must be short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        with pytest.raises(NotRegularFileError, match="Give the name of a file"):
            write("socket")
        assert stat.S_ISSOCK(os.stat("socket").st_mode)
    with pytest.raises(IsADirectoryError, match="name of a file in it"):
        write(tmp_path)
    with pytest.raises(NotRegularFileError, match="device or a pipe"):
        require_regular_file("/dev/null")


SCRIPT = "from quadlin.storage.atomic import atomic_write as a\nwith a({!r}) as f: f.write(b'new')"


@pytest.mark.skipif(not os.path.exists("/dev/stdout"), reason="needs /dev/stdout")
@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1"])
def test_the_standard_output_is_written_to_wherever_it_goes(tmp_path, name):
    command = [sys.executable, "-c", SCRIPT.format(name)]
    assert subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout == b"new"
    path = tmp_path / "log"
    path.write_bytes(b"old ")
    with path.open("ab") as file:
        subprocess.run(command, check=True, stdout=file)
        file.write(b" more")
    assert path.read_bytes() == b"old new more"
    assert os.listdir(tmp_path) == ["log"]
