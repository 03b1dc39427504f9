"""Docstrings that stand alone: entries "As for :class:`X`" are replaced with those of X."""

import inspect
import re

import quadlin

SECTIONS = ("Parameters", "Attributes")
OTHER = re.compile(r"As for :class:`(\w+)`")
LABEL = re.compile(r":(?:ref|term):`([^`<]+?)(?: <[^>]*>)?`")
# The bars of norms, such as |w|, are not substitutions.
BARS = re.compile(r"(?<![`\\\w])\|([^|\n`]+)\|(?!`)")


def entries(lines):
    """Return the entries of a section, each a header and the lines below it."""
    found = []
    for line in lines:
        if line and not line[0].isspace():
            if found and found[-1][0].endswith("\\"):  # the list of names continues
                found[-1][0] = found[-1][0][:-1] + line
            else:
                found.append([line])
        elif found:
            found[-1].append(line)
    return found


def sections(lines):
    """Return the lines of a docstring in pieces: (title of the section or None, lines)."""
    starts = [
        i
        for i in range(len(lines) - 1)
        if lines[i].strip() and lines[i + 1] and set(lines[i + 1]) == {"-"}
    ]
    pieces = [(None, lines[: starts[0]] if starts else lines)]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        pieces.append((lines[start], lines[start + 2 : end]))
    return pieces


def entry_of(name, title, other):
    """Return the entry of a parameter or an attribute in the docstring of another class."""
    for section, lines in sections(standing_alone(other)):
        if section == title:
            for header, *text in entries(lines):
                if name in header.partition(" : ")[0].split(", "):
                    kind = header.partition(" : ")[2]
                    return [f"{name} : {kind}" if kind else name, *text]
    return None


def standing_alone(name):
    """Return the lines of the docstring of a class of quadlin, with the entries of others."""
    lines = inspect.getdoc(getattr(quadlin, name)).splitlines()
    result = []
    for title, body in sections(lines):
        result += [title, "-" * len(title)] if title else []
        if title not in SECTIONS:
            result += body
            continue
        for header, *text in entries(body):
            other = OTHER.match(text[0].strip()) if text and " : " not in header else None
            names = header.split(", ")
            found = [entry_of(each, title, other[1]) for each in names] if other else [None]
            if None in found:
                result += [header, *text]
                continue
            more = " ".join(line.strip() for line in text)[other.end() :].lstrip(". ")
            for entry in found:
                while not entry[-1].strip():
                    entry.pop()
                result += entry
            if more and len(names) > 1:
                above = f"In all of these, the class is like :class:`{other[1]}`{_joined(more)}"
                result += ["", f"    {above}"]
            elif more:
                result += ["", f"    Here{_joined(more)}"]
        result.append("")
    return result


def _joined(text):
    return text if text.startswith((",", ";")) else f". {text}"


def process(app, what, name, obj, options, lines):
    """Rewrite a docstring before numpydoc reads it."""
    if what == "class" and getattr(quadlin, obj.__name__, None) is obj:
        lines[:] = standing_alone(obj.__name__)
    if str(getattr(obj, "__module__", "")).startswith("sklearn"):
        lines[:] = [LABEL.sub(r"\1", line) for line in lines]  # labels of scikit-learn's own site
    for i, line in enumerate(lines):
        if "|" in line and "``" not in line and ":math:" not in line and "\\" not in line:
            lines[i] = BARS.sub(r"\\|\1\\|", line)


def setup(app):
    """Rewrite docstrings first of all."""
    app.connect("autodoc-process-docstring", process, priority=100)
    return {"parallel_read_safe": True}
