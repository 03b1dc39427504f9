"""Which columns of a table are features, and whether they can be."""

from collections.abc import Mapping, Sequence
from typing import Any

import narwhals as nw

from quadlin.core.messages import Message, Option
from quadlin.data.columns.columns import is_category, is_text
from quadlin.data.columns.errors import ColumnError, SourceError
from quadlin.data.columns.levels import may_be_numbers
from quadlin.data.columns.names import did_you_mean, shortened
from quadlin.data.sources.options import OpenOptions


def feature_columns(available: list[Any], options: OpenOptions, title: str) -> list[Any]:
    """Return the columns that are the features, of those in the table."""
    _check_roles(available, options, title)
    columns = options.columns if options.encoder is None else options.encoder.input_names
    if columns is None:
        others = (options.target, options.weight, *options.keep, *options.exclude)
        left = [name for name in available if name not in others]
        if not left:
            raise SourceError(
                "{title} has no columns left for features: it has {names}. {advice}.",
                title=title,
                names=shortened(available),
                advice=Message("Leave out {exclude=}, or name fewer columns")
                if options.exclude
                else "Give a table with at least one more column",
            )
        return left
    columns = [columns] if isinstance(columns, str) else list(columns)
    _check_features(columns, available, options, title)
    return columns


def _check_roles(available: list[Any], options: OpenOptions, title: str) -> None:
    """Refuse columns that options name and the table does not have."""
    for role, name in (("target", options.target), ("weight", options.weight)):
        if name is not None and not isinstance(name, str | int):
            raise SourceError(f"{title}: name the column of the {role} instead of giving an array.")
        if name is not None and name not in available:
            remedy = Message("Name one of them with {option}.", option=Option(role))
            raise SourceError(_no_column(title, name, f" for the {role}", available, remedy))
    if options.target is not None and options.target == options.weight:
        raise SourceError(
            "{name!r} cannot be both the target and the weight. Name another {weight=}.",
            name=options.target,
        )
    for option in ("exclude", "categorical_features", "multi_hot"):
        for name in getattr(options, option):
            if name not in available:
                where = Message(" of {o}", o=Option(option))
                raise SourceError(_no_column(title, name, where, available, _correct(option)))


def _check_features(
    columns: list[Any], available: list[Any], options: OpenOptions, title: str
) -> None:
    """Refuse features that are not in the table, named twice, or the target or weight as well."""
    if gone := [name for name in columns if name not in available]:
        given = Message("Correct {columns=}, or give rows with that column.")
        remedy = given if options.encoder is None else "Give rows with the columns of the model."
        raise SourceError(_no_column(title, gone[0], "", available, remedy))
    if not columns:
        raise SourceError(Message("{columns=} is empty: name at least one column."))
    if twice := [name for i, name in enumerate(columns) if name in columns[:i]]:
        raise SourceError(_twice("columns", twice[0]))
    for role, name in (("target", options.target), ("weight", options.weight)):
        if name is not None and name in columns:
            chosen = options.encoder is None
            remedy = "Leave it out of {option}." if chosen else "Name another {option}."
            raise SourceError(
                "{name!r} cannot be both a feature and the {role}. " + remedy,
                name=name,
                role=role,
                option=Option("columns" if chosen else role),
            )


def columns_to_keep(sample: nw.DataFrame[Any], keep: Sequence[Any], title: str) -> Any:
    """Return a frame without rows of the columns that are passed on."""
    available = list(sample.columns)
    if gone := [name for name in keep if name not in available]:
        raise SourceError(_no_column(title, gone[0], " to keep", available, _correct("keep")))
    if twice := [name for i, name in enumerate(keep) if name in keep[:i]]:
        raise SourceError(_twice("keep", twice[0]))
    return sample.select(list(keep)).head(0).to_native() if keep else None


def _twice(option: str, name: Any) -> Message:
    return Message("{option} names {name!r} twice.", option=Option(option), name=name)


def _correct(option: str) -> Message:
    return Message("Correct {option}.", option=Option(option))


def _no_column(title: str, name: Any, purpose: str, available: list[Any], remedy: str) -> Message:
    """Say that a table has no such column, which ones it has, and what to do."""
    return Message(
        "{title} has no column {name!r}{purpose}{columns}",
        title=title,
        name=name,
        purpose=purpose,
        columns=_has(name, available, remedy),
    )


def _has(name: Any, available: list[Any], remedy: str) -> str:
    """List the columns of the table, and say where a missing one may hide."""
    listing = f"; it has {shortened(available)}."
    for separator, shown in ((";", ";"), ("\t", r"\t"), ("|", "|"), (" ", " ")):
        split = (str(column).split(separator) for column in available if separator in str(column))
        if str(name) in (part.strip('" ') for parts in split if parts[0] for part in parts):
            return Message(
                "{columns} If '{shown}' separates them, give {delimiter=}.",
                columns=listing,
                shown=shown,
                delimiter=shown,
            )
    if len(available) == 1:
        return Message(
            "{columns} If that is several columns, say what separates them with {delimiter=}.",
            columns=listing,
        )
    return Message.joined([listing + did_you_mean(name, available), remedy])


def refuse_commas(commas: Mapping[Any, str], wanted: list[Any], title: str) -> None:
    """Refuse numbers such as 1,5 that would be text: a level for each number is never meant."""
    for name in wanted:
        if name in commas:
            told = Message(
                "{title}: column {name!r} {reason}", title=title, name=name, reason=commas[name]
            )
            error = SourceError(told)
            error.remedy = getattr(commas[name], "values", {}).get("remedy")
            raise error


def text_columns(
    sample: nw.DataFrame[Any], columns: list[Any], options: OpenOptions, title: str
) -> set[Any]:
    """Return the features that are categories: those that an encoder has levels of, if given."""
    given = {*options.categorical_features, *options.multi_hot}
    declared = {name for name in columns if name in given}
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


def is_label(column: nw.Series[Any], role: str, classify: bool, title: str) -> bool:
    """Tell whether a column is text that can be classified; refuse it if it must be numeric."""
    try:
        text = is_text(column)
    except ColumnError:
        text, classify = True, False
    if text and not classify:
        raise SourceError(
            "{title}: the {role} {name!r} has dtype {dtype}, but must be numbers. Choose a "
            "numeric column with {option}, or replace its values by numbers.",
            title=title,
            role=role,
            name=column.name,
            dtype=str(column.dtype),
            option=Option(role),
        )
    return text
