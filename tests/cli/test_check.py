"""`quadlin check`: what cannot be a feature is a finding, not the end."""

import json

import numpy as np
import pandas as pd

from quadlin.cli.app import run


def test_check_reports_dates_and_goes_on_without_them(tmp_path, capsys):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"day": pd.date_range("2024-01-01", periods=300).strftime("%m/%d/%Y")})
    table["when"] = pd.date_range("2023-01-01", periods=300)
    table["a"], table["b"] = rng.normal(size=300), rng.normal(size=300)
    table["y"] = table.a * table.b + 0.1 * rng.normal(size=300)
    table.to_parquet(tmp_path / "t.parquet")
    table.to_csv(tmp_path / "t.csv", index=False)
    for name in ("t.csv", "t.parquet"):
        assert run(["check", str(tmp_path / name), "--target", "y", "--json"]) == 0
        content = json.loads(capsys.readouterr().out)
        texts = [finding["text"] for finding in content["findings"]]
        assert any("'day' holds dates as text" in text for text in texts)
        assert any("'when'" in text for text in texts)
        assert content["features"] == 2
        assert "--exclude day,when" in content["command"] or "when,day" in content["command"]
