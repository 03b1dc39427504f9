"""Warnings of rows with a level that fit did not see, or without any."""

from collections.abc import Mapping

from quadlin.core.messages import Message, Phrase, warn
from quadlin.data.columns.level_codes import Unseen


def warn_unseen(unseen: Unseen, learns: bool = False) -> None:
    """Warn of levels that the encoder does not know; if the model `learns`, say how it could."""
    sentences = []
    if unseen.missing:
        counts = _counted(unseen.missing)
        sentences.append(
            f"Missing values of columns that had none in fit count as an average level; {counts}."
        )
    if levels := {name: n for name, n in unseen.items() if name not in unseen.lists}:
        counts = _counted(levels)
        sentences.append(f"Levels that fit did not see are treated as an average level; {counts}.")
    if labels := {name: n for name, n in unseen.items() if name in unseen.lists}:
        counts = _counted(labels)
        sentences.append(f"Labels of lists that fit did not see are left out; {counts}.")
    if unseen.all_new:
        name = min(unseen.all_new)
        sentences.append(f"No row has a value of {name!r} that fit saw: is it written differently?")
    advice = Phrase(
        " To learn them from a stream, name all levels when it begins: partial_fit("
        "open_source(frame, target=..., levels={column: [...]})), and open later rows with "
        "encoder=model.encoder_."
    )
    text = " ".join(sentences)
    warn(Message("{text}{advice}", text=text, advice=advice if learns and len(unseen) else ""))


def _counted(rows: Mapping[str, int]) -> str:
    return "rows: " + ", ".join(f"{count} in {name!r}" for name, count in rows.items())
