"""The kernel compiles wherever there is a compiler: else numpy would take its place unnoticed."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler")
def test_the_kernel_compiles_where_there_is_a_compiler(tmp_path):
    core = Path("src/quadlin/core")
    (tmp_path / core).mkdir(parents=True)
    for file in [ROOT / "hatch_build.py", *(ROOT / core).glob("_passes*.[ch]")]:
        shutil.copy(file, tmp_path / file.relative_to(ROOT))
    subprocess.run([sys.executable, tmp_path / "hatch_build.py"], check=True)
    assert (tmp_path / core / "_passes.so").exists()
