"""Fitted estimators as ONNX graphs, for runtimes without Python.

The graph standardises the rows first, as the model does, and computes in float64, so that features
with means far from zero lose no digits. It uses core operators only, and LabelEncoder of
`ai.onnx.ml` where columns hold text.
"""

import json
import os
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils.validation import check_is_fitted

from quadlin.core.arrays import to_numpy
from quadlin.core.version import __version__
from quadlin.data.columns import TableEncoder
from quadlin.estimators.classifier import SecondOrderClassifier
from quadlin.files.atomic import atomic_write
from quadlin.files.model_file import parts_of
from quadlin.solve.fits.fit_state import FitState

TAKEN = ("", "y", "label", "probabilities")  # names of outputs
OPSET, ML_OPSET, IR_VERSION = 17, 2, 8  # of 2022: every runtime since then reads them


def to_onnx(
    estimator: Any, path: str | os.PathLike[str] | None = None, *, dtype: Any = None
) -> Any:
    """Return a fitted estimator as an ONNX model, and write it to a file if one is named.

    Parameters
    ----------
    estimator : SecondOrderRegressor, FactorizationMachineRegressor, SecondOrderRegressorCV, \
    SecondOrderClassifier or FactorizationMachineClassifier
        Fitted.
    path : path or None, default=None
        The file, usually named ``*.onnx``. An existing file is replaced once the new one is
        complete; a device or a pipe is written to.
    dtype : {"float64", "float32"} or None, default=None
        Type of the inputs and outputs. None takes the type of the fitted rows.

    Returns
    -------
    onnx.ModelProto
        With one input "X" of shape [rows, features]. A model fitted to a table with text columns
        has an input of shape [rows] for each column, under its name: strings for text, numbers for
        the others; a level that `fit` did not see counts as none of the known ones. The output
        "y" has shape [rows]. A classifier has the outputs "label", of shape [rows], strings or
        integers, and "probabilities", of shape [rows, classes]. Names of features are in the
        metadata, as JSON under "feature_names".

    Notes
    -----
    The graph computes what `predict` computes, up to rounding. Rows are not checked,
    and NaN gives NaN; but if the model has a `fill_`, because it was fitted to rows with missing
    numbers, NaN is replaced by it, as by the command line and by `predict` with ``missing="mean"``.
    Pass values of categorical columns as text, such as "7" for 7, and missing text as "missing".
    The weights of a level are looked up, so that time and memory do not grow with the levels.

    Examples
    --------
    >>> from quadlin import SecondOrderRegressor
    >>> from quadlin.datasets import make_second_order
    >>> data = make_second_order(300, 4, rank=1, random_state=0)
    >>> model = SecondOrderRegressor(rank=1, random_state=0).fit(data.X, data.y)
    >>> graph = to_onnx(model).graph
    >>> [node.name for node in graph.input], [node.name for node in graph.output]
    (['X'], ['y'])
    """
    try:
        import onnx
    except ImportError as error:
        raise ImportError('ONNX models need onnx: pip install "quadlin[onnx]".') from error
    check_is_fitted(estimator)
    if not hasattr(estimator, "fitted_"):
        raise TypeError(f"A {type(estimator).__name__} has no ONNX graph. Use save and load.")
    parts = parts_of(estimator)
    fitted = parts[0]
    if fitted.draws is not None:
        raise ValueError(
            "The predictions are means over draws, which an ONNX graph cannot hold. "
            "Fit without `draws`: the variational fit can be exported."
        )
    state, encoder, fill = fitted.state, fitted.columns.encoder, fitted.columns.fill
    precision = to_numpy(state.model.w).dtype
    kind = np.dtype(precision if dtype is None else dtype)
    if kind not in (np.float32, np.float64):
        raise ValueError(f'dtype={dtype!r} must be "float64" or "float32".')
    graph = _Graph(onnx, kind)
    names = list(fitted.names)
    reach, clips = fitted.reach, estimator.extrapolation == "clip"
    limits = (to_numpy(reach.low), to_numpy(reach.high)) if clips else None
    if encoder is not None:
        numbers, places, codes = _columns(graph, encoder, fill)
    else:
        X, places, codes = graph.input("X", kind, len(names)), np.arange(len(names)), []
        numbers = X if fill is None else graph.filled(X, [fill[name] for name in names])
    if numbers and kind != precision:  # the model computes in the precision it was fitted in
        numbers = graph.cast(numbers, precision)
    if numbers:
        numbers = graph.cast(numbers, np.dtype(np.float64))
        if limits is not None:
            numbers = graph.clipped(numbers, *(limit[places] for limit in limits))
    rows = _Inputs(numbers, places, codes, limits)
    joint = getattr(estimator.fitted_, "joint", ())
    columns = [_predicted(graph, rows, part.state) for part in joint or parts]
    if isinstance(estimator, SecondOrderClassifier):
        _classified(graph, columns, estimator.classes_, precision, bool(joint))
    else:
        y = columns[0]
        if fitted.loss.linked:  # the logarithms of means, none of which is zero
            least = np.log(float(np.finfo(precision).smallest_normal))
            if limits is not None and fitted.largest_mean < np.inf:
                most = np.log(fitted.largest_mean)
                y = graph.node("Min", y, graph.constant(np.array(most)))
            y = graph.node("Exp", graph.node("Max", y, graph.constant(np.array(least))))
        y = graph.cast(graph.cast(y, precision), kind, "y")
        graph.output(y, kind)
    model = graph.model()
    model.producer_name, model.producer_version = "quadlin", __version__
    about = {"feature_names": json.dumps(names), "class": type(estimator).__name__}
    onnx.helper.set_model_props(model, about)
    onnx.checker.check_model(model)
    if path is not None:
        with atomic_write(path) as file:
            file.write(model.SerializeToString())
    return model


class _Inputs(NamedTuple):
    """The columns of a graph: numbers as they are, and the codes of levels, −1 for unseen ones."""

    numbers: str  # (rows, numbers), clipped; "" without numbers
    places: np.ndarray  # (numbers,), their features
    codes: list[tuple[str, np.ndarray]]  # of each text column, with the features of its levels
    limits: tuple[np.ndarray, ...] | None  # (d,) each, the least and largest values of features


def _predicted(graph: "_Graph", rows: _Inputs, state: FitState) -> str:
    r"""Add the nodes of `model.predict`: :math:`c + z^\top w + \sum_k s_k (z^\top u_k)^2`.

    A text column adds the row of its level to :math:`z^\top [w, U]`, from a table of all levels.
    """
    model, units, constant = state.model, state.units, graph.constant
    U, s, w, free, mean, scale, rest = (
        to_numpy(a).astype(np.float64)
        for a in (model.U, model.s, model.w, model.free, units.mean, units.scale, units.rest)
    )
    m, W = (U * U) @ s, np.column_stack([w, U])
    left_out = (1 - free) * m  # squares that are not in the model

    def standardised(value: float, j: np.ndarray) -> np.ndarray:
        x = value if rows.limits is None else np.clip(value, *(limit[j] for limit in rows.limits))
        return np.asarray((x - mean[j]) * scale[j] - rest[j])

    terms = []
    if rows.numbers:
        j = rows.places
        Z = graph.node(
            "Mul", graph.node("Sub", rows.numbers, constant(mean[j])), constant(scale[j])
        )
        Z = graph.node("Sub", Z, constant(rest[j])) if np.any(rest[j]) else Z
        terms.append(graph.node("MatMul", Z, constant(W[j])))
        if np.any(left_out[j]):
            minus = np.zeros_like(W[j])
            minus[:, 0] = -left_out[j]
            terms.append(graph.node("MatMul", graph.node("Mul", Z, Z), constant(minus)))
    for code, j in rows.codes:
        absent, present = standardised(0.0, j), standardised(1.0, j)
        table = np.zeros((len(j) + 1, W.shape[1]))  # the last row is that of an unseen level
        table[:-1] = (present - absent)[:, None] * W[j]
        table[:-1, 0] -= left_out[j] * (present**2 - absent**2)
        table += absent @ W[j]
        table[:, 0] -= left_out[j] @ absent**2
        terms.append(graph.node("Gather", constant(table), code))
    A = terms[0] if len(terms) == 1 else graph.node("Sum", *terms)
    first, sizes = np.eye(W.shape[1])[:, :1], np.append(0.0, s)[:, None]
    f = graph.node("MatMul", A, constant(first))
    f = graph.node("Add", f, constant(np.asarray(model.c - np.sum(free * m))))
    if len(s):
        squares = graph.node("MatMul", graph.node("Mul", A, A), constant(sizes))
        f = graph.node("Add", f, squares)
    f = graph.node("Mul", f, constant(np.asarray(float(units.target.scale))))
    f = graph.node("Add", f, constant(np.asarray(float(units.target.mean))))
    return graph.node("Squeeze", f, constant(np.asarray([1])))


def _classified(
    graph: "_Graph",
    columns: list[str],
    classes: np.ndarray,
    precision: np.dtype,
    joint: bool,
) -> None:
    """Add the nodes of `predict_proba` and `predict` after those of the log-odds."""
    last = graph.constant(np.asarray([1]))
    f = [graph.node("Unsqueeze", graph.cast(column, precision), last) for column in columns]
    if len(f) == 1:
        f = [graph.node("Neg", f[0]), f[0]]
    F = graph.cast(graph.node("Concat", *f, axis=1), np.dtype(np.float64))
    P = graph.node("Softmax", F, axis=1) if joint else graph.node("Sigmoid", F)
    if len(columns) > 1 and not joint:
        P = graph.node("Div", P, graph.node("ReduceSum", P, last, keepdims=1))
    code = graph.node("ArgMax", F, axis=1, keepdims=0)
    text = classes.dtype.kind in "OU"
    if text:
        keys: dict[str, Any] = {"keys_int64s": list(range(len(classes)))}
        keys["values_strings"] = list(map(str, classes))
        label = graph.node("LabelEncoder", code, domain="ai.onnx.ml", output="label", **keys)
    else:
        values = classes.astype(np.float64 if classes.dtype.kind == "f" else np.int64)
        label = graph.node("Gather", graph.constant(values), code, output="label")
    graph.output(label, np.dtype(str) if text else values.dtype)
    graph.output(graph.cast(P, graph.kind, "probabilities"), graph.kind, len(classes))


def _columns(
    graph: "_Graph", encoder: TableEncoder, fill: dict[str, float] | None
) -> tuple[str, np.ndarray, list[tuple[str, np.ndarray]]]:
    """Add an input for each column of a table; return numbers, their features, and codes."""
    bad = [name for name in encoder.input_names if name in TAKEN or name.startswith("quadlin/")]
    if bad:
        raise ValueError(
            f"The column name {bad[0]!r} has a special meaning in the graph. Rename the column."
        )
    numbers, places, codes, start = list[str](), list[int](), list[tuple[str, np.ndarray]](), 0
    for name, levels in zip(encoder.input_names, encoder.levels, strict=True):
        if levels is None:
            last = graph.constant(np.asarray([1]))
            part = graph.node("Unsqueeze", graph.input(name, graph.kind), last)
            numbers.append(part if fill is None else graph.filled(part, [fill[name]]))
            places.append(start)
            start += 1
            continue
        keys: dict[str, Any] = {"keys_strings": list(levels)}
        keys["values_int64s"] = list(levels.values())
        text = graph.input(name, np.dtype(str))
        code = graph.node("LabelEncoder", text, domain="ai.onnx.ml", default_int64=-1, **keys)
        codes.append((code, start + np.arange(len(levels))))
        start += len(levels)
    joined = graph.node("Concat", *numbers, axis=1) if numbers else ""
    return joined, np.array(places, dtype=int), codes


class _Graph:
    """The nodes, constants and inputs of a graph that is being built, each with a name."""

    def __init__(self, onnx: Any, kind: np.dtype) -> None:
        self.onnx, self.kind = onnx, kind
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []

    def node(
        self, operator: str, *inputs: str, output: str | None = None, **attributes: Any
    ) -> str:
        name = output or f"quadlin/{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(operator, inputs, [name], **attributes))
        return name

    def cast(self, name: str, dtype: np.dtype, output: str | None = None) -> str:
        return self.node("Cast", name, output=output, to=self._type(dtype))

    def filled(self, name: str, values: list[float]) -> str:
        """Replace NaN by a value per column."""
        row = self.constant(np.asarray(values, dtype=self.kind))
        return self.node("Where", self.node("IsNaN", name), row, name)

    def clipped(self, name: str, low: np.ndarray, high: np.ndarray) -> str:
        """Limit each column to its bounds; NaN stays NaN."""
        for comparison, bound in (("Less", low), ("Greater", high)):
            constant = self.constant(bound)
            name = self.node("Where", self.node(comparison, name, constant), constant, name)
        return name

    def constant(self, value: np.ndarray) -> str:
        name = f"quadlin/constant/{len(self.constants)}"
        self.constants.append(self.onnx.numpy_helper.from_array(np.asarray(value, order="C"), name))
        return name

    def input(self, name: str, dtype: np.dtype, *sizes: int) -> str:
        self.inputs.append(self._info(name, dtype, sizes))
        return name

    def output(self, name: str, dtype: np.dtype, *sizes: int) -> None:
        self.outputs.append(self._info(name, dtype, sizes))

    def _info(self, name: str, dtype: np.dtype, sizes: tuple[int, ...]) -> Any:
        shape = ["rows", *sizes]
        return self.onnx.helper.make_tensor_value_info(name, self._type(dtype), shape)

    def model(self) -> Any:
        helper = self.onnx.helper
        graph = helper.make_graph(self.nodes, "quadlin", self.inputs, self.outputs, self.constants)
        domains = {node.domain for node in self.nodes}
        versions = {"": OPSET, **({"ai.onnx.ml": ML_OPSET} if "ai.onnx.ml" in domains else {})}
        opsets = [helper.make_opsetid(domain, version) for domain, version in versions.items()]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)

    def _type(self, dtype: np.dtype) -> int:
        if dtype.kind == "U":
            return int(self.onnx.TensorProto.STRING)
        return int(self.onnx.helper.np_dtype_to_tensor_dtype(dtype))
