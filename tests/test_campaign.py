"""A hundred random cases are held to every promise; `benchmarks/campaign.py` tries thousands."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "campaign.py"


@pytest.fixture(scope="module")
def campaign():
    spec = importlib.util.spec_from_file_location("campaign", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("first", range(0, 100, 10))
def test_random_cases_keep_every_promise(campaign, first):
    for number in range(first, first + 10):
        case, violations, _ = campaign.examine(number)
        assert not violations, f"{violations}\n{case.reproducer()}"


def test_a_broken_promise_is_noticed_and_comes_with_a_reproducer(campaign, monkeypatch):
    def never(case, model):
        campaign.require(False, "it never holds")

    monkeypatch.setattr(campaign, "ALWAYS", (never,))
    case, violations, _ = campaign.examine(4)
    assert ("never", "it never holds") in violations
    assert "case_of(4)" in case.reproducer()
