"""What a fitted model has learned, as data and as a page of HTML."""

import math
from typing import Any

import numpy as np

from quadlin.core.arrays import to_numpy
from quadlin.explain.html import html_page

STYLE = """
h2 { margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--line); text-align: left;
  vertical-align: baseline; }
th { vertical-align: bottom; overflow-wrap: normal; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
th.number { white-space: normal; }
.bars { width: 30%; min-width: 4.5rem; }
.index { width: 3rem; }
.track { position: relative; height: .8rem; }
.track::before { content: ""; position: absolute; left: 50%; top: -.2rem; bottom: -.2rem;
  border-left: 1px solid currentColor; opacity: .5; }
.bar { position: absolute; top: 0; bottom: 0; }
.positive { left: 50%; background: #2c7fb8; }
.negative { right: 50%; background: #d95f0e; }
.legend { font-size: .85rem; margin: .4rem 0; }
.key { display: inline-block; width: .8rem; height: .8rem; margin: 0 .3rem 0 .8rem; }
.legend .key:first-child { margin-left: 0; }
@media (max-width: 30rem) {
  body { padding: .5rem .75rem 2rem; }
  table { font-size: .78rem; }
  th, td { padding: .25rem .25rem; }
  .terms tr { display: flex; flex-wrap: wrap; border-bottom: 1px solid var(--line); }
  .terms th, .terms td { flex: 1; border: 0; }
  .terms th:first-child, .terms td:first-child { flex: 1 0 100%; }  /* a name on its own line */
  .terms .bars { align-self: center; }
  .terms th { align-self: end; }
}
"""
TEMPLATE = """
{% macro bar(value, largest) %}
<td class="bars"><div class="track">
{%- if largest and value %}
<div class="bar {{ "positive" if value > 0 else "negative" }}"
 style="width: {{ "%.2f"|format(50 * (value|abs) / largest) }}%"></div>
{%- endif %}
</div></td>
{% endmacro %}
{% macro legend(above, below) %}
<p class="legend"><span class="key" style="background: #d95f0e"></span>{{ below }}
<span class="key" style="background: #2c7fb8"></span>{{ above }}</p>
{% endmacro %}
{% macro terms(heading, head, rows) %}
<h2>{{ heading }}</h2>
{% if rows %}
{{ legend("raises the prediction", "lowers the prediction") }}
<table class="terms">
<thead><tr><th>{{ head }}</th><th class="number">coefficient</th>
{% if rows[0].std_error is not none %}
<th class="number">standard error</th>
{% endif %}
<th class="number">strength</th><th class="bars"></th></tr></thead>
<tbody>
{% set largest = rows|map(attribute="strength")|map("abs")|max %}
{% for row in rows %}
<tr><td>{{ row.name }}</td><td class="number">{{ "%+.4g"|format(row.coefficient) }}</td>
{% if row.std_error is not none %}
<td class="number">{{ "%.4g"|format(row.std_error) }}</td>
{% endif %}
<td class="number">{{ "%+.4g"|format(row.strength) }}</td>
{{ bar(row.strength, largest) }}</tr>
{% endfor %}
</tbody>
</table>
{% else %}
<p>None.</p>
{% endif %}
{% endmacro %}
<h1>{{ title }}</h1>
<p>y = b + xᵀw + xᵀMx, with M of low rank. A strength is the effect of one standard deviation of
each feature, so that features of different units can be compared.</p>
<dl>
<dt>rows</dt><dd>{{ "{:,}".format(model.rows) }}</dd>
<dt>features</dt><dd>{{ "{:,}".format(model.features) }}</dd>
<dt>rank of M</dt><dd>{{ model.rank }}
{%- if model.pairs %}, beside {{ model.pairs|length }} pair{{ "s" if model.pairs|length > 1 }}
{%- endif %}</dd>
<dt>intercept</dt><dd>{{ "%.4g"|format(model.intercept) }}</dd>
{% if model.noise is not none %}
<dt>noise (sd)</dt><dd>{{ "%.4g"|format(model.noise) }}</dd>
{% endif %}
<dt>status</dt><dd>{{ model.status }}. {{ model.advice }}</dd>
</dl>
{{ terms("Strongest interactions", "product", interactions) }}
{{ terms("Strongest linear terms", "feature", linear) }}
<h2>Eigenvalues of the low-rank part of M</h2>
{% if model.eigenvalues %}
{{ legend("positive", "negative") }}
<table>
<thead><tr><th class="number index"></th><th class="number">eigenvalue</th><th class="bars"></th>
</tr></thead>
<tbody>
{% set largest = model.eigenvalues|map("abs")|max %}
{% for value in model.eigenvalues %}
<tr><td class="number">{{ loop.index }}</td><td class="number">{{ "%+.4g"|format(value) }}</td>
{{ bar(value, largest) }}</tr>
{% endfor %}
</tbody>
</table>
{% else %}
<p>None{{ ": the model is linear" if not model.pairs }}.</p>
{% endif %}
<h2>Diagnosis</h2>
<ul>
{% for line in model.diagnosis %}
<li>{{ line }}</li>
{% endfor %}
</ul>
<h2>History</h2>
<details{{ " open" if model.history|length <= 12 else "" }}>
<summary>{{ model.history|length }} steps</summary>
<table>
<thead><tr><th class="number">step</th><th class="number">passes</th><th class="number">loss</th>
</tr></thead>
<tbody>
{% for record in model.history %}
<tr><td class="number">{{ record.step }}</td><td class="number">{{ record.passes }}</td>
<td class="number">{{ "%.4g"|format(record.loss) }}</td></tr>
{% endfor %}
</tbody>
</table>
</details>
"""


def describe(model: Any, top: int) -> dict[str, Any]:
    """Return what a fitted model has learned, as plain data.

    Parameters
    ----------
    model : fitted estimator
        Its public attributes are read.
    top : int
        How many interactions and linear terms to list, the strongest first.

    Returns
    -------
    dict
        `advice` and the lines of `diagnosis` may be a `Message`, which the command line renders
        its own way.
    """
    noise = float(getattr(model, "noise_", math.nan))
    with_std = math.isfinite(noise)
    names, sd = model.interactions_.names, np.sqrt(to_numpy(model.moments_.var))
    coef = to_numpy(model.coef_).astype(float)
    errors = to_numpy(model.coef_std_) if with_std else None
    strength = coef * sd
    order = np.argsort(-np.abs(strength), kind="stable")[:top]
    linear = [
        {
            "feature": names[j],
            "coefficient": float(coef[j]),
            "strength": float(strength[j]),
            "std_error": None if errors is None else float(errors[j]),
        }
        for j in order.tolist()
        if coef[j] != 0
    ]
    interactions = []
    for first, second, coefficient, size in model.interactions_.top(top, squares=True):
        times = 1 if first == second else 2  # x_i·x_j has coefficient 2 M_ij
        interactions.append(
            {
                "first": first,
                "second": second,
                "coefficient": coefficient,
                "strength": size,
                "std_error": times * model.interaction_std(first, second) if with_std else None,
            }
        )
    return {
        "class": type(model).__name__,
        "rows": model.n_samples_seen_,
        "features": len(names),
        "rank": model.rank_,
        "intercept": float(model.intercept_),
        "eigenvalues": to_numpy(model.eigenvalues_).tolist(),
        "noise": noise if with_std else None,
        "status": model.status_.name,
        "advice": model.status_.value,
        "pairs": [] if model.pairs_ is None else [p._asdict() for p in model.pairs_.pairs],
        "interactions": interactions,
        "linear": linear,
        "history": [
            {"step": r.step, "passes": r.passes, "loss": float(r.loss)} for r in model.history_
        ],
        "diagnosis": model.diagnose(),
    }


def product_name(pair: dict[str, Any]) -> str:
    """Return the name of a product of features.

    Examples
    --------
    >>> product_name({"first": "a", "second": "b"}), product_name({"first": "a", "second": "a"})
    ('a × b', 'a²')
    """
    first, second = pair["first"], pair["second"]
    return f"{first}²" if first == second else f"{first} × {second}"


def model_page(title: str, content: dict[str, Any]) -> str:
    """Return a page of what `describe` says about a model, its diagnosis as a list of lines."""
    values = {
        "model": content,
        "interactions": [{**pair, "name": product_name(pair)} for pair in content["interactions"]],
        "linear": [{**term, "name": term["feature"]} for term in content["linear"]],
    }
    return html_page(title, STYLE, TEMPLATE, values)
