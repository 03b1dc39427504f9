"""`quadlin export`: a model for runtimes that know no Python."""

from pathlib import Path
from typing import Literal

from quadlin.cli.messages import UsageError, emit
from quadlin.cli.options import SAY, Output, Say, loaded, writable
from quadlin.export.onnx import to_onnx


def export(
    model: Path,
    *,
    output: Output = Path("model.onnx"),
    dtype: Literal["float32", "float64"] | None = None,
    say: Say = SAY,
) -> None:
    """Write a model as an ONNX graph.

      quadlin export model.safetensors -o model.onnx

    Parameters
    ----------
    model
        A file that quadlin fit wrote.
    output
        The graph's file. One that is there is replaced when the new one is complete.
    dtype
        Type of the numbers that come in and go out; that of the rows fitted by default.
    """
    if output.suffix.lower() != ".onnx":
        raise UsageError(f"-o {output} must end in .onnx.")
    writable(output, model)
    graph = to_onnx(loaded(model), output, dtype=dtype).graph
    inputs = [node.name for node in graph.input]
    content = {"output": str(output), "inputs": inputs, "outputs": [n.name for n in graph.output]}
    shown = ", ".join(inputs[:8]) + (" …" if len(inputs) > 8 else "")
    emit(content, [] if say.quiet else [f"{output}: from {shown} to y"], say.json)
