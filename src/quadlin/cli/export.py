"""`quadlin export`: a model for runtimes without Python."""

from pathlib import Path
from typing import Literal

from quadlin.cli.model_rows import load_model
from quadlin.cli.options import OutputOptions, OutputPath, UsageError
from quadlin.cli.outputs import check_output
from quadlin.cli.printing import print_answer
from quadlin.files.onnx import to_onnx


def export(
    model: Path,
    *,
    output: OutputPath = Path("model.onnx"),
    dtype: Literal["float32", "float64"] | None = None,
    answer: OutputOptions = OutputOptions(),
) -> None:
    """Write a model as an ONNX graph.

      quadlin export model.safetensors -o model.onnx

    Parameters
    ----------
    model
        A model file written by quadlin fit.
    output
        The ONNX file. An existing one is replaced when the new one is complete.
    dtype
        Type of the inputs and outputs. Default: the type of the fitted rows.
    """
    if output.suffix.lower() != ".onnx":
        raise UsageError(f"-o {output} must end in .onnx.")
    check_output(output, model)
    graph = to_onnx(load_model(model), output, dtype=dtype).graph
    inputs = [node.name for node in graph.input]
    content = {"output": str(output), "inputs": inputs, "outputs": [n.name for n in graph.output]}
    shown = ", ".join(inputs[:8]) + (" …" if len(inputs) > 8 else "")
    outputs = " and ".join(content["outputs"])
    lines = [] if answer.quiet else [f"{output}: from {shown} to {outputs}"]
    print_answer(content, lines, answer.json)
