"""The runner of studies: what is done is kept, what is damaged is made again."""

import os
import signal
import time

import pandas as pd
import pytest

from quadlin.paper import runner
from quadlin.paper.displays import LevelDisplay
from quadlin.paper.report import write_report
from quadlin.paper.runner import FolderError, TaskFailedError, reproduce
from quadlin.paper.settings import Settings
from quadlin.paper.study import About, Study, Verdict


@pytest.fixture
def toy(monkeypatch):
    """Put a study of three tasks in place of all others; return the tasks that were run."""

    def put(body=lambda trial: float(trial)):
        calls = []

        def rows(task, device):
            calls.append(task["trial"])
            return [{"value": body(task["trial"])}]

        study = Study(
            "toy",
            About("A <toy> & title", "a < b", "none"),
            lambda size: [{"trial": t, "seed": t} for t in range(3)],
            rows,
            lambda frame: {"values": LevelDisplay({"v": (frame["trial"], frame["value"])})},
            lambda frame: Verdict("<b>measured</b>", "yes", "words"),
        )
        monkeypatch.setattr(runner, "studies", lambda: {"toy": study})
        monkeypatch.setattr("quadlin.paper.report.studies", lambda: {"toy": study})
        return calls

    return put


def run(folder, size="tiny"):
    messages = []
    outcome = reproduce(size, None, folder, progress=False, say=messages.append)
    assert outcome.complete == ["toy"]
    return pd.read_parquet(folder / "toy.parquet"), "\n".join(messages)


def parts(folder):
    return sorted(folder.glob("parts/toy/*.json"))


@pytest.mark.parametrize("damage", [b"", b'{"task": {"tri', b"[1, 2]", b'{"size": "tiny"}'])
def test_a_damaged_part_is_kept_aside_and_made_again(toy, tmp_path, damage):
    toy()
    before, _ = run(tmp_path)
    (tmp_path / "toy.parquet").unlink()
    part = parts(tmp_path)[0]
    part.write_bytes(damage)
    calls = toy()
    after, said = run(tmp_path)
    assert len(calls) == 1
    assert part.name in said
    assert part.with_name(part.name + ".damaged-1").read_bytes() == damage
    pd.testing.assert_frame_equal(before, after)


def test_a_table_is_made_of_its_parts_and_needs_none_once_it_is_whole(toy, tmp_path):
    toy()
    before, _ = run(tmp_path)
    path = tmp_path / "toy.parquet"
    path.write_bytes(path.read_bytes()[:-50])
    calls = toy()
    pd.testing.assert_frame_equal(run(tmp_path)[0], before)
    for part in parts(tmp_path):
        part.unlink()
    run(tmp_path)
    assert calls == []


def test_a_task_that_fails_costs_no_other(toy, tmp_path):
    toy(lambda trial: 1 / (trial - 1))
    with pytest.raises(TaskFailedError, match="division"):
        run(tmp_path)
    assert len(parts(tmp_path)) == 2
    calls = toy()
    run(tmp_path)
    assert calls == [1]


def test_an_interrupt_that_a_solver_swallows_ends_the_run(toy, tmp_path):
    def swallows(trial):
        try:
            if trial == 1:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(5)
        except KeyboardInterrupt:
            pass
        return 1.0

    toy(swallows)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    assert len(parts(tmp_path)) == 1
    toy()
    assert len(run(tmp_path)[0]) == 3


def test_results_of_two_sizes_or_settings_are_not_mixed(toy, tmp_path):
    toy()
    run(tmp_path)
    (tmp_path / "about.json").unlink()
    with pytest.raises(FolderError, match="tiny"):
        run(tmp_path, "full")
    assert Settings().folder("quick") != Settings(rank=1).folder("quick")


def test_the_report_escapes_words_and_leaves_out_what_it_cannot_read(toy, tmp_path):
    toy()
    run(tmp_path)
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "A &lt;toy&gt; &amp; title" in page
    assert "&lt;b&gt;measured&lt;/b&gt;" in page
    (tmp_path / "toy.parquet").write_bytes(b"junk")
    assert "toy" in write_report(tmp_path).read_text(encoding="utf-8")
