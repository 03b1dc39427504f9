"""The files that a command is going to write, checked before anything is computed."""

import os
from pathlib import Path
from typing import Any

from quadlin.cli.options import STANDARD, UsageError
from quadlin.cli.reading import MODEL_SUFFIX
from quadlin.data import SourceError
from quadlin.data.sources.files import find, format_of

FOREIGN_MODELS = (".pkl", ".pickle", ".joblib", ".json", ".h5", ".pt", ".pth", ".skops")


def check_output(path: Path, *inputs: Any) -> Path:
    """Refuse an output that cannot be written, before an hour is spent on its content."""
    if str(path) == STANDARD:
        raise UsageError("This command writes to a file, not to the standard output. Name a file.")
    folder = path.parent
    if path.is_dir():
        raise SourceError(f"{path} is a folder. Give the name of a file in it.")
    if not folder.is_dir():
        raise SourceError(f"There is no folder {folder} to write {path.name} to. Create it first.")
    if not os.access(folder, os.W_OK):
        raise SourceError(f"The folder {folder} is not writable. Choose another one for {path}.")
    for given in inputs:
        if any(_same(path, other) for other in _files(str(given))):
            raise UsageError(f"{path} is an input of this command, so it cannot be the output too.")
    return path


def check_model_output(path: Path, *inputs: Any) -> None:
    """Refuse a name that promises another format than that of a model file."""
    check_output(path, *inputs)
    suffix = path.suffix.lower()
    if suffix == ".onnx":
        raise UsageError(
            f"-o {path}: fit writes .safetensors files. Save such a file first, then use quadlin "
            "export for ONNX."
        )
    if suffix in FOREIGN_MODELS or format_of(path.name) is not None:
        raise UsageError(
            f"-o {path}: a model is written in the safetensors format, so its name cannot end in "
            f"{suffix}. Use -o {path.with_suffix(MODEL_SUFFIX)}."
        )


def _files(given: str) -> list[Path]:
    """Return the files that an argument of a command stands for."""
    try:
        return [Path(file.path) for file in find(given, None).files]
    except SourceError:  # reported when it is opened
        return [Path(given)]


def _same(path: Path, other: Path) -> bool:
    if path.exists() and other.exists():
        return path.samefile(other)
    return path.resolve() == other.resolve()
