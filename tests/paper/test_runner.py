"""The runner of studies: what is done is kept, what is damaged is made again."""

import json

import pytest

from quadlin.paper import runner
from quadlin.paper.report import write_report
from quadlin.paper.runner import RESULTS, FolderError, TaskFailedError, frames, reproduce
from quadlin.paper.studies import Curves, Study, Verdict
from quadlin.paper.studies.panels import Settings


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
            {"title": "A <toy> & title", "claim": "a < b", "setting": "none", "words": ""},
            lambda size: [{"trial": t, "seed": t} for t in range(3)],
            rows,
            lambda frame: {"values": Curves({"v": (frame["trial"], frame["value"])}, log="")},
            lambda frame: Verdict("yes", "<b>measured</b>"),
        )
        monkeypatch.setattr(runner, "studies", lambda: {"toy": study})
        monkeypatch.setattr("quadlin.paper.report.studies", lambda: {"toy": study})
        return calls

    return put


def run(folder, size="tiny", **options):
    options = {"progress": False, "jobs": 1, "say": lambda line: None, **options}
    assert reproduce(size, None, folder, **options) == ["toy"]
    return frames(folder)["toy"]


def lines(folder):
    return (folder / RESULTS).read_text().splitlines()


@pytest.mark.parametrize("damage", ['{"study": "toy", "ta', "", "[1, 2]"])
def test_a_line_that_was_cut_off_is_made_again(toy, tmp_path, damage):
    toy()
    before = run(tmp_path)
    (tmp_path / RESULTS).write_text("\n".join([*lines(tmp_path)[:-1], damage]))
    calls = toy()
    after = run(tmp_path)
    assert calls == [2]
    assert before.equals(after)


def test_what_is_done_is_not_run_again(toy, tmp_path):
    toy()
    run(tmp_path)
    calls = toy()
    run(tmp_path)
    assert calls == []
    task = json.loads(lines(tmp_path)[1])
    assert task["task"] == {"trial": 0, "seed": 0}
    assert {"quadlin", "python", "commit"} <= set(task["versions"])


def test_a_task_that_fails_costs_no_other(toy, tmp_path):
    toy(lambda trial: 1 / (trial - 1))
    with pytest.raises(TaskFailedError, match="division"):
        run(tmp_path)
    calls = toy()
    run(tmp_path)
    assert calls == [1]


def test_an_interrupt_ends_the_run_and_keeps_what_is_done(toy, tmp_path):
    def interrupted(trial):
        if trial == 1:
            raise KeyboardInterrupt
        return 1.0

    toy(interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    assert len(lines(tmp_path)) == 2  # the first task, and what the folder holds
    toy()
    assert len(run(tmp_path)) == 3


def test_progress_is_told_where_there_is_no_terminal(toy, tmp_path, capsys):
    toy()
    run(tmp_path, progress=True)
    assert capsys.readouterr().err.endswith("toy: 3 of 3 tasks\n")


def test_results_of_two_sizes_or_settings_are_not_mixed(toy, tmp_path):
    toy()
    run(tmp_path)
    with pytest.raises(FolderError, match="tiny"):
        run(tmp_path, "full")
    assert Settings(rank=1, signed=True).changed() == {"rank": 1, "signed": True}


def test_the_report_escapes_words(toy, tmp_path):
    toy()
    run(tmp_path)
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "A &lt;toy&gt; &amp; title" in page
    assert "&lt;b&gt;measured&lt;/b&gt;" in page
