import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from matplotlib.image import imread

from quadlin.cli import main
from quadlin.explain.displays import LevelDisplay
from quadlin.paper import report, results, runner
from quadlin.paper.laws import law
from quadlin.paper.problems import tables
from quadlin.paper.report import write_report
from quadlin.paper.runner import TaskFailedError, UnknownNameError, reproduce
from quadlin.paper.studies import panels, studies
from quadlin.paper.studies.panels import OverviewDisplay
from quadlin.paper.study import SIZES, About, Study, Verdict

ONLY = "a,b,c,d,nuclear"


def run(folder, only=ONLY, **options):
    messages = []
    outcome = reproduce("tiny", only, folder, progress=False, say=messages.append, **options)
    return outcome, "\n".join(messages)


def numbers(folder):
    """What must be the same in every run: all columns but those that are measured."""
    hashes = {}
    for path in sorted(folder.glob("*.parquet")):
        frame = pd.read_parquet(path)
        hashes[path.stem] = frame[[c for c in frame if not c.startswith(("seconds", "bytes"))]]
    return hashes


def assert_same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        pd.testing.assert_frame_equal(a[name], b[name])


@pytest.fixture
def toy(monkeypatch):
    """A study of three tasks whose run can be changed."""
    calls = []

    def task_rows(task, device):
        calls.append(task["trial"])
        return [{"value": np.float64(task["trial"]), "seconds": 0.0}]

    def put(body=task_rows):
        study = Study(
            "toy",
            About("A <toy> & title", "a < b", "none"),
            lambda size: [{"trial": t, "seed": t} for t in range(3)],
            body,
            lambda frame: {"values": LevelDisplay({"v": (frame["trial"], frame["value"])})},
            lambda frame: Verdict("<b>measured</b>", "yes", "words"),
        )
        monkeypatch.setattr(runner, "studies", lambda: {"toy": study})
        monkeypatch.setattr("quadlin.paper.report.studies", lambda: {"toy": study})
        return calls

    put.rows = task_rows
    return put


def test_every_study_runs_and_says_what_it_saw(whole):
    for study in studies().values():
        frame = pd.read_parquet(whole / f"{study.name}.parquet")
        verdict = study.verdict(frame)
        assert verdict.holds in ("yes", "no", "in part")
        assert verdict.measured
        assert verdict.words
        for size in SIZES:
            tasks = study.tasks(size)
            assert len({results.slug(task) for task in tasks}) == len(tasks)
            assert json.loads(json.dumps([dict(task) for task in tasks]))


def test_two_runs_give_the_same_numbers(whole, tmp_path):
    run(tmp_path)
    mine = numbers(tmp_path)
    assert_same(mine, {name: frame for name, frame in numbers(whole).items() if name in mine})


def test_a_killed_run_goes_on_where_it_was(whole, tmp_path):
    code = "import sys; from quadlin.paper.runner import reproduce; reproduce(*sys.argv[1:])"
    command = [sys.executable, "-c", code, "tiny", ONLY, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 120
        while len(list(tmp_path.glob("parts/*/*.json"))) < 2 and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
    kept = {p: p.stat().st_mtime_ns for p in tmp_path.glob("parts/*/*.json")}
    assert 2 <= len(kept) <= 6
    run(tmp_path)
    assert all(p.stat().st_mtime_ns == then for p, then in kept.items())
    mine = numbers(tmp_path)
    assert set(mine) == set(ONLY.split(","))
    assert_same(mine, {name: frame for name, frame in numbers(whole).items() if name in mine})


@pytest.mark.parametrize("damage", [b"", b'{"task": {"tri', b"[1, 2]", b'{"size": "tiny"}'])
def test_a_damaged_part_is_kept_aside_and_made_again(toy, tmp_path, damage):
    calls = toy()
    run(tmp_path, None)
    (tmp_path / "toy.parquet").unlink()
    part = sorted(tmp_path.glob("parts/toy/*.json"))[0]
    part.write_bytes(damage)
    calls.clear()
    outcome, messages = run(tmp_path, None)
    assert len(calls) == 1
    assert "damaged" in messages
    assert part.with_name(part.name + ".damaged-1").read_bytes() == damage
    assert outcome.complete == ["toy"]


def test_a_damaged_parquet_file_is_made_again_from_the_parts(toy, tmp_path):
    calls = toy()
    run(tmp_path, None)
    before = numbers(tmp_path)
    path = tmp_path / "toy.parquet"
    path.write_bytes(path.read_bytes()[:-50])
    calls.clear()
    _, messages = run(tmp_path, None)
    assert not calls
    assert "toy.parquet" in messages
    assert (tmp_path / "toy.parquet.damaged-1").exists()
    assert_same(before, numbers(tmp_path))


def test_a_whole_parquet_file_needs_no_parts(toy, tmp_path):
    calls = toy()
    run(tmp_path, None)
    for part in tmp_path.glob("parts/toy/*.json"):
        part.unlink()
    calls.clear()
    assert run(tmp_path, None)[0].complete == ["toy"]
    assert not calls


def test_wrong_names_are_refused_before_anything_is_written(tmp_path):
    folder = tmp_path / "new"
    for options, words in (
        ({"only": "a,zebra"}, "no study 'zebra'. Choose from: a, b"),
        ({"only": " , "}, "No study is named"),
        ({"size": "huge"}, "no size 'huge'"),
        ({"device": "toaster"}, "'toaster' cannot be used"),
    ):
        with pytest.raises(UnknownNameError, match=re.escape(words)):
            reproduce(**{"size": "tiny", "folder": folder, "progress": False, **options})
    assert not folder.exists()


def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(results.FolderError, match="another `folder`"):
        run(tmp_path / "file" / "results")


@pytest.mark.parametrize("about", [True, False])
def test_results_of_two_sizes_are_not_mixed(toy, tmp_path, about):
    toy()
    run(tmp_path, None)
    if not about:
        (tmp_path / results.ABOUT).unlink()
    with pytest.raises(results.FolderError, match="holds results of size 'tiny', not 'full'"):
        reproduce("full", None, tmp_path, progress=False)


def test_an_interrupt_that_a_solver_swallows_ends_the_run(toy, tmp_path):
    def swallows(task, device):
        if task["trial"] == 1:
            try:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(5)
            except KeyboardInterrupt:
                pass
        return [{"value": 1.0}]

    toy(swallows)
    messages = []
    with pytest.raises(KeyboardInterrupt):
        reproduce("tiny", None, tmp_path, progress=False, say=messages.append)
    assert "the same command continues" in messages[-1]
    assert len(list(tmp_path.glob("parts/toy/*.json"))) == 1
    toy()
    assert run(tmp_path, None)[0].complete == ["toy"]


def test_a_task_that_fails_costs_no_other(toy, tmp_path):
    def fails(task, device):
        if task["trial"] == 1:
            raise ArithmeticError("no such luck")
        return toy.rows(task, device)

    toy(fails)
    with pytest.raises(TaskFailedError, match="no such luck"):
        run(tmp_path, None)
    assert len(list(tmp_path.glob("parts/toy/*.json"))) == 2
    calls = toy()
    calls.clear()
    run(tmp_path, None)
    assert calls == [1]


def test_rows_that_do_not_match_are_an_error_in_words(toy, tmp_path):
    toy(lambda task, device: [{"value": "word" if task["trial"] else 1.0}])
    with pytest.raises(TaskFailedError, match="Could not convert"):
        run(tmp_path, None)
    assert len(list(tmp_path.glob("parts/toy/*.json"))) == 3


def test_a_study_whose_library_is_missing_is_left_with_a_word(toy, tmp_path):
    def misses(task, device):
        raise ImportError('pip install "quadlin[reproduce]"')

    toy(misses)
    outcome, messages = run(tmp_path, None)
    assert "toy" in outcome.left
    assert "quadlin[reproduce]" in messages


def test_tasks_run_without_the_libraries_of_the_report(tmp_path):
    """Where there is only torch, numpy, scipy and scikit-learn, the parts are made and kept."""
    code = f"""
import sys
for name in ("pandas", "pyarrow", "matplotlib", "rich", "cvxpy"):
    sys.modules[name] = None
from quadlin.paper.runner import reproduce
outcome = reproduce("tiny", "a,nuclear", {str(tmp_path)!r})
assert not outcome.complete, outcome
assert "pyarrow" in outcome.left["a"], outcome
assert "cvxpy" in outcome.left["nuclear"], outcome
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert len(list(tmp_path.glob("parts/a/*.json"))) == 1
    assert run(tmp_path, "a")[0].complete == ["a"]


def test_the_report_stands_alone(whole, tmp_path):
    reported = [*panels.PANELS, "dimension", "risk"]  # enough of both kinds: pictures take long
    for name in reported:
        table = pq.read_table(whole / f"{name}.parquet")
        if name in "efgh":
            table = table.filter(pc.equal(table["noise"], 0.0))
        pq.write_table(table, tmp_path / f"{name}.parquet")
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert not re.search(r"https?:|<script|<link|@import|url\(", page)
    assert set(re.findall(r'src="([^,"]*)', page)) == {"data:image/svg+xml;base64"}
    targets = set(re.findall(r'id="([^"]*)"', page))
    assert set(re.findall(r'href="#([^"]*)"', page)) <= targets
    assert set(reported) <= targets
    pictures = {path.name for path in (tmp_path / "figures").iterdir()}
    assert {"a-passes-noise0.png", "a-passes-noise0.svg"} <= pictures
    assert {"panels-together.png", "panels-by-passes.png"} <= pictures
    # On a phone, 390 pixels wide, letters of 10 points on 6.4 inches are 8 pixels high.
    sizes = {
        name: imread(tmp_path / "figures" / name).shape[:2]
        for name in pictures
        if name.endswith(".png")
    }
    assert {width for _, width in sizes.values()} == {round(6.4 * report.DPI)}


def test_the_report_escapes_words(toy, tmp_path):
    toy()
    run(tmp_path, None)
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "A &lt;toy&gt; &amp; title" in page
    assert "&lt;b&gt;measured&lt;/b&gt;" in page


def test_the_report_leaves_out_what_it_cannot_read(toy, tmp_path):
    toy()
    run(tmp_path, None)
    (tmp_path / "toy.parquet").write_bytes(b"junk")
    assert "cannot be read and are left out: toy" in write_report(tmp_path).read_text("utf-8")
    with pytest.raises(results.FolderError, match="no results"):
        write_report(tmp_path / "parts")


def test_the_command_line_speaks_in_words(toy, tmp_path, capsys):
    toy()
    command = ["reproduce", "--jobs", "1", "--folder", str(tmp_path / "out")]
    assert main([*command, "--only", "zebra"]) == 2
    assert "no study 'zebra'" in capsys.readouterr().err
    assert main([*command, "--report-only"]) == 1
    assert "no results" in capsys.readouterr().err
    assert main(command) == 0
    assert "report.html" in capsys.readouterr().err
    assert main([*command, "--report-only"]) == 0
    assert main([*command, "--full"]) == 1
    assert "Choose another --folder" in capsys.readouterr().err


def test_rows_do_not_depend_on_the_number_of_cores(monkeypatch):
    features = law("truncated", 0.1)
    first = tables(features, (300, 50), 7, 2, seed=5)
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    for a, b in zip(first, tables(features, (300, 50), 7, 2, seed=5), strict=True):
        assert np.array_equal(a.X, b.X)
        assert np.array_equal(a.f, b.f)
        assert np.array_equal(a.noise, b.noise)


def test_rows_are_those_of_section_5():
    (rows,) = tables(law("truncated", 0.1), (20_000,), 5, 2, seed=0)
    assert rows.X.dtype == np.float32
    assert rows.X.max() == np.float32(0.1)
    assert abs(float(np.mean(rows.X > 0.0999)) - 0.460) < 0.01  # P(x > 0.1)
    (rows,) = tables(law("bernoulli", 0.1), (20_000,), 5, 2, seed=0)
    assert set(np.unique(rows.X)) == {0, 1}
    assert abs(rows.X.mean() - 0.1) < 0.01
    alone = rows.X.sum(axis=1) == 1  # a single one: no product, so y is that feature's w
    assert len(np.unique(rows.f[alone].round(5))) == 5


def last(whole, panel, noise=0.0):
    frame = pd.read_parquet(whole / f"{panel}.parquet")
    frame = frame[frame["noise"] == noise]
    return frame.sort_values("iteration").groupby("solver")["nmse_clean"].last()


@pytest.mark.parametrize("panel", ["a", "e", "h"])
def test_ours_finds_the_optimum_that_gradient_descent_is_far_from(whole, panel):
    end = last(whole, panel)
    assert end["guarded"] < 1e-6
    assert end["polished"] < 1e-6
    assert end["gd_standardised"] > 10 * end["guarded"]
    assert end["gd_printed"] > 1e-3
    assert end["literal"] > 100 * end["guarded"]  # it stalls


def test_ours_contracts_at_every_iteration(whole):
    frame = pd.read_parquet(whole / "a.parquet")
    error = frame[frame["solver"] == "guarded"].sort_values("iteration")["train"].to_numpy()
    assert all(error[1:] < 0.5 * error[:-1])


def test_noise_is_met_at_its_own_level(whole):
    frame = pd.read_parquet(whole / "b.parquet")
    end = last(whole, "b", 1.0)
    power = frame["power"].iloc[0]
    # 1 + 24 + 48 − 1 = 72 parameters, 1440 rows: excess risk 0.05, with an sd of a sixth of it.
    assert 0.5 < end["guarded"] * power / 0.05 < 2.0


def test_torch_gives_the_same_curves():
    study = panels.study(panels.PANELS["a"])
    task = study.tasks("tiny")[0]
    ours, theirs = (pd.DataFrame(study.run(task, device)) for device in ("cpu", "cpu:0"))
    for solver in ("literal", "guarded", "gd_printed", "gd_standardised", "gd_centred"):
        a, b = (f[f["solver"] == solver]["nmse"].to_numpy()[:8] for f in (ours, theirs))
        assert np.allclose(a, b, rtol=1e-2, atol=1e-9)


def test_the_report_changes_no_result(toy, tmp_path):
    toy()
    run(tmp_path, None)

    def contents():
        files = [p for p in tmp_path.rglob("*") if p.is_file() and "figures" not in p.parts]
        return {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in files if p.suffix != ".html"}

    before = contents()
    assert main(["reproduce", "--report-only", "--folder", str(tmp_path)]) == 0
    assert contents() == before


def test_the_eight_panels_are_one_figure_too(whole):
    frames = {name: pd.read_parquet(whole / f"{name}.parquet") for name in panels.PANELS}
    for x in ("iteration", "passes"):
        display = OverviewDisplay(frames, x).plot()
        titles = [ax.get_title() for ax in display.figure_.axes]
        assert [title[:3] for title in titles] == [f"({name})" for name in "abcdefgh"]
        assert display.figure_.axes[-1].get_xlabel() == panels.VIEWS[x]
