"""A new format of files needs one module, and no change of those that are there."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from quadlin import open_source
from quadlin.data.reader import Reader
from quadlin.data.source import FORMATS, Feed, FileUnit, Format


@dataclass(frozen=True)
class Words(FileUnit):
    """Lines of numbers in words."""

    def read(self, columns, rows):
        names = ["zero", "one", "two", "three", "four"]
        yield (
            np.array([[names.index(word)] for word in Path(self.file.path).read_text().split()]),
        )


def test_a_format_is_a_unit_and_an_entry_of_a_table(tmp_path, monkeypatch):
    def opened(files, options):
        reader = Reader.of_array(1, np.float64, False, False, options.missing)
        return Feed([Words(file) for file in files.files], files.title), reader

    monkeypatch.setitem(FORMATS, "words", Format((".words",), opened, "Words"))
    (tmp_path / "t.words").write_text("three one four one")
    (chunk,) = open_source(tmp_path / "t.words")
    np.testing.assert_array_equal(chunk.X, [[3], [1], [4], [1]])
