"""Which columns of a table are features, and whether they can be."""

from collections.abc import Sequence
from typing import Any

import narwhals as nw

from quadlin.data.columns.columns import is_category, is_text
from quadlin.data.columns.errors import ColumnError, SourceError
from quadlin.data.columns.level_codes import NUMBER
from quadlin.data.columns.levels import may_be_numbers
from quadlin.data.columns.names import did_you_mean, shortened
from quadlin.data.sources.options import OpenOptions


def feature_columns(available: list[Any], options: OpenOptions, title: str) -> list[Any]:
    """Return the columns of the table that are features."""
    _check_roles(available, options, title)
    columns = options.columns if options.encoder is None else options.encoder.input_names
    if columns is None:
        others = (options.target, options.weight, *options.keep, *options.exclude)
        features = [name for name in available if name not in others]
        if not features:
            raise SourceError(
                "{title} has no columns left for features: it has {names}. {advice}.".format(
                    title=title,
                    names=shortened(available),
                    advice=(
                        "Leave out `exclude`, or name fewer columns"
                        if options.exclude
                        else "Give a table with at least one more column"
                    ),
                )
            )
        return features
    columns = [columns] if isinstance(columns, str) else list(columns)
    _check_features(columns, available, options, title)
    return columns


def _check_roles(available: list[Any], options: OpenOptions, title: str) -> None:
    """Refuse columns that the options name but the table does not have."""
    for role, name in (("target", options.target), ("weight", options.weight)):
        if name is not None and not isinstance(name, str | int):
            raise SourceError(f"{title}: name the column of the {role} instead of giving an array.")
        if name is not None and name not in available:
            remedy = f"Name one of them with `{role}`."
            raise SourceError(_no_column(title, name, f" for the {role}", available, remedy))
    if options.target is not None and options.target == options.weight:
        raise SourceError(
            f"{options.target!r} cannot be both the target and the weight. Name another `weight`."
        )
    for option in ("exclude", "categorical_features"):
        for name in getattr(options, option):
            if name not in available:
                where = f" of `{option}`"
                raise SourceError(_no_column(title, name, where, available, _correct(option)))


def _check_features(
    columns: list[Any], available: list[Any], options: OpenOptions, title: str
) -> None:
    """Refuse features that are not in the table, are named twice, or are the target or weight."""
    if absent := [name for name in columns if name not in available]:
        correct = "Correct `columns`, or give rows with that column."
        remedy = correct if options.encoder is None else "Give rows with the columns of the model."
        raise SourceError(_no_column(title, absent[0], "", available, remedy))
    if not columns:
        raise SourceError("`columns` is empty: name at least one column.")
    if repeated := [name for i, name in enumerate(columns) if name in columns[:i]]:
        raise SourceError(_named_twice("columns", repeated[0]))
    for role, name in (("target", options.target), ("weight", options.weight)):
        if name is not None and name in columns:
            chosen = options.encoder is None
            remedy = "Leave it out of {option}." if chosen else "Name another {option}."
            raise SourceError(
                ("{name!r} cannot be both a feature and the {role}. " + remedy).format(
                    name=name, role=role, option=f"`{'columns' if chosen else role}`"
                )
            )


def columns_to_keep(sample: nw.DataFrame[Any], keep: Sequence[Any], title: str) -> Any:
    """Return an empty frame with the columns that are passed on."""
    available = list(sample.columns)
    if absent := [name for name in keep if name not in available]:
        raise SourceError(_no_column(title, absent[0], " to keep", available, _correct("keep")))
    if repeated := [name for i, name in enumerate(keep) if name in keep[:i]]:
        raise SourceError(_named_twice("keep", repeated[0]))
    return sample.select(list(keep)).head(0).to_native() if keep else None


def _named_twice(option: str, name: Any) -> str:
    text = "{option} names {name!r} twice. Name it once."
    return text.format(option=f"`{option}`", name=name)


def _correct(option: str) -> str:
    return f"Correct `{option}`."


def _no_column(title: str, name: Any, purpose: str, available: list[Any], remedy: str) -> str:
    """Return a message that a table has no such column, with its columns and advice."""
    return f"{title} has no column {name!r}{purpose}{_has(name, available, remedy)}"


def _has(name: Any, available: list[Any], remedy: str) -> str:
    """Return a list of the columns of the table, and where the missing one may be."""
    listing = f"; it has {shortened(available)}."
    for separator, shown in ((";", ";"), ("\t", r"\t"), ("|", "|"), (" ", " ")):
        split = (str(column).split(separator) for column in available if separator in str(column))
        if str(name) in (part.strip('" ') for parts in split if parts[0] for part in parts):
            return f"{listing} If '{shown}' separates them, give delimiter={shown!r}."
    if all(NUMBER.fullmatch(str(column)) for column in available):
        return f"{listing} If the first row holds data, give header=False."
    if len(available) == 1:
        return f"{listing} If these are several columns, give their separator with `delimiter`."
    return " ".join([listing + did_you_mean(name, available), remedy])


def text_columns(
    sample: nw.DataFrame[Any], columns: list[Any], options: OpenOptions, title: str
) -> set[Any]:
    """Return the features that are categorical: with an encoder, those that it has levels of."""
    declared = set(columns) & set(options.categorical_features)
    encoder = options.encoder
    encoded = {} if encoder is None else dict(zip(encoder.input_names, encoder.levels, strict=True))

    def is_level(name: Any) -> bool:
        return is_category(sample.get_column(name), encoded.get(name) is not None)

    try:
        text = {name for name in columns if name in declared or is_level(name)}
    except ValueError as error:
        raise SourceError.about(title, error) from None
    if encoder is None:
        return text
    for name in columns:
        levels = encoded[name]
        if name in text if levels is None else not (name in text or may_be_numbers(levels)):
            raise SourceError(
                f"{title}: column {name!r} holds {'text' if name in text else 'numbers'}, but it "
                f"held {'numbers' if levels is None else 'text'} during the fit. Convert it."
            )
    return {name for name in columns if encoded[name] is not None}


def is_label(column: nw.Series[Any], role: str, classify: bool, title: str, is_csv: bool) -> bool:
    """Return whether a column is text that can be classified; refuse text that must be numeric."""
    try:
        text = is_text(column)
    except ColumnError:
        text, classify = True, False
    if text and not classify:
        comma = ' If it has decimal commas, give decimal=",".' if is_csv else ""
        raise SourceError(
            f"{title}: the {role} {column.name!r} has dtype {column.dtype}, but must be numbers. "
            f"Choose a numeric column with `{role}`, or replace its values by numbers.{comma}"
        )
    return text
