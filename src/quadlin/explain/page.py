"""The page of a model: what is known about it as HTML, readable on a telephone."""

from collections.abc import Sequence
from typing import Any

from quadlin.explain.html import html_page
from quadlin.explain.pictures import Picture
from quadlin.explain.summary import LEVELS_ARE
from quadlin.explain.tables import eigenvalues_name, product_name

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
.wholes { table-layout: fixed; margin-bottom: 1.2rem; }
.wholes .number { width: 6rem; }
.size { left: 0; background: #5b7083; }
.track.unsigned::before { left: 0; }
.formula { font-size: 1.1rem; }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr));
  gap: 1.5rem; }
figure { margin: 0; min-width: 0; }
figure img { display: block; width: 100%; max-width: 38rem; height: auto; background: #fff;
  border-radius: .3rem; }
figcaption, .note { font-size: .85rem; margin: .4rem 0; }
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
{% macro size(value, largest) %}
<td class="bars"><div class="track unsigned">
{%- if largest and value %}
<div class="bar size" style="width: {{ "%.2f"|format(100 * value / largest) }}%"></div>
{%- endif %}
</div></td>
{% endmacro %}
{% macro bar(value, largest, kind="") %}
<td class="bars"><div class="track">
{%- if largest and value %}
<div class="bar {{ kind }}{{ "positive" if value > 0 else "negative" }}"
 style="width: {{ "%.2f"|format(50 * (value|abs) / largest) }}%"></div>
{%- endif %}
</div></td>
{% endmacro %}
{% macro legend(above, below) %}
<p class="legend"><span class="key" style="background: #d95f0e"></span>{{ below }}
<span class="key" style="background: #2c7fb8"></span>{{ above }}</p>
{% endmacro %}
{% macro terms(heading, head, rows, about, value="coefficient") %}
<h2>{{ heading }}</h2>
{% if rows %}
<p class="note">{{ about }}{{ words.levels if effects and effects.are_centred }}
{%- if model.std_errors %} Standard errors are {{ model.std_errors }}.{% endif %}</p>
{{ legend("raises the prediction", "lowers the prediction") }}
<table class="terms">
<thead><tr><th>{{ head }}</th><th class="number">{{ value }}</th>
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
<p class="formula">{{ model.formula }}</p>
<dl>
{% if model.target %}
<dt>target</dt><dd>{{ model.target }}</dd>
{% endif %}
<dt>{{ model.score }}</dt><dd>
{%- if model.r2 is not none %}
{{ "at least " if model.r2_is_bound }}{{ "%.4f"|format(model.r2) }} {% endif %}
{{ model.r2_of }}</dd>
<dt>rows</dt><dd>{{ "{:,}".format(model.rows) }}</dd>
<dt>features</dt><dd>{{ "{:,}".format(model.features) }}</dd>
<dt>rank of M</dt><dd>{{ model.rank_in_words }}</dd>
<dt>penalty</dt><dd>
{%- if model.alpha[0] or model.alpha[1] %}{{ "%.3g for w, %.3g for M"|format(*model.alpha) }}
{%- else %}none{% endif %}</dd>
<dt>intercept</dt><dd>{{ "%.4g"|format(model.intercept) }}</dd>
{% if model.noise is not none %}
<dt>noise (sd)</dt><dd>{{ "%.4g"|format(model.noise) }}</dd>
{% endif %}
<dt>status</dt><dd>{{ model.status }}. {{ model.advice }}</dd>
<dt>made by</dt><dd>quadlin {{ model.version }}, {{ model.class }}</dd>
</dl>
{% if pictures %}
<div class="pictures">
{% for picture in pictures %}
<figure><h2>{{ picture.heading }}</h2>
<img src="{{ picture.source }}" alt="{{ picture.words }}">
<figcaption>{{ picture.words }}</figcaption></figure>
{% endfor %}
</div>
{% else %}
<p class="note">Pictures need matplotlib: pip install "quadlin[plot]".</p>
{% endif %}
{% if effects %}
<h2>Columns and pairs of columns</h2>
<p class="note">The strength of a column, or of a pair of columns, is the standard deviation of what
it adds to the prediction, over {{ effects.rows }}. It is measured from {{ effects.reference }}.</p>
{% for head, rows in wholes if rows %}
<table class="wholes">
<thead><tr><th>{{ head }}</th><th class="number">strength</th><th class="bars"></th></tr></thead>
<tbody>
{% set largest = rows|map(attribute="strength")|max %}
{% for row in rows %}
<tr><td>{{ row.name }}</td><td class="number">{{ "%.4g"|format(row.strength) }}</td>
{{ size(row.strength, largest) }}</tr>
{% endfor %}
</tbody>
</table>
{% endfor %}
{% if effects.levels %}
<h2>Levels of categories</h2>
<p class="note">What a level adds alone, measured from {{ effects.reference }}, with the share of
the fitted rows that have it. A label of a column of lists is measured from rows without it.</p>
{{ legend("raises the prediction", "lowers the prediction") }}
<table class="terms">
<thead><tr><th>level</th><th class="number">effect</th><th class="number">of rows</th>
<th class="bars"></th></tr></thead>
<tbody>
{% set largest = effects.levels|map(attribute="effect")|map("abs")|max %}
{% for row in effects.levels %}
<tr><td>{{ row.column }}={{ row.level }}</td>
<td class="number">{{ "%+.4g"|format(row.effect) }}</td>
<td class="number">{{ "%.1f%%"|format(100 * row.share) }}</td>
{{ bar(row.effect, largest, "level ") }}</tr>
{% endfor %}
</tbody>
</table>
{% endif %}
{% endif %}
{% if found_pairs %}
<h2>Pairs of features</h2>
<p class="note">{{ words.named_pairs if model.pairs_are_named else words.found_pairs }}
{{- words.shares }}</p>
<table class="terms">
<thead><tr><th>product</th><th class="number">coefficient</th>
<th class="number">std error</th><th class="number">t</th><th class="number">share</th></tr></thead>
<tbody>
{% for pair in found_pairs %}
<tr><td>{{ pair.order }}. {{ pair.name }}</td>
<td class="number">{{ "%+.4g"|format(pair.coefficient) }}</td>
<td class="number">{{ "%.2g"|format(pair.std_error) }}</td>
<td class="number">{{ "%.1f"|format(pair.t) }}</td>
<td class="number">{{ "%.1f%%"|format(100 * pair.share) }}</td></tr>
{% endfor %}
</tbody>
</table>
{% endif %}
{{ terms("Strongest interactions", "product", interactions, words.pairs) }}
{{ terms("Strongest slopes", "feature", linear, words.linear, "slope") }}
<h2>{{ eigenvalues }}</h2>
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
<p>None{{ ": the model is linear" if not model.found_pairs }}.</p>
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

WORDS = {
    "pairs": (
        "A coefficient is that of the product x_i·x_j in the prediction. Its strength is the same "
        "for features of standard deviation 1, so that features of different units can be compared."
    ),
    "found_pairs": (
        "Products that a search took into the model beside its low-rank part, in the order of "
        "entry, each with the coefficient of the pair alone; the coefficients of interactions "
        "further down are those of products as wholes. They were chosen because they fit these "
        "rows, so weak ones look stronger than they are. "
    ),
    "named_pairs": (
        "Products that were named to be in the model beside its low-rank part, each with the "
        "coefficient of the pair alone; the coefficients of interactions further down are those "
        "of products as wholes. "
    ),
    "shares": (
        "The share is by how much R² (of labels: "
        "the explained deviance) would fall without the pair. Standard errors are robust (HC3)."
    ),
    "linear": (
        "A slope is by how much the prediction rises with a feature where all columns have the "
        "means of the fitted rows. Its strength is the same for one standard deviation."
    ),
    "levels": f" {LEVELS_ARE}",
}


def model_page(title: str, content: dict[str, Any], pictures: Sequence[Picture] = ()) -> str:
    """Return a page of what `describe` says about a model, its diagnosis as a list of lines."""
    effects = content["effects"] or {"columns": [], "pairs": [], "levels": []}
    values = {
        "model": content,
        "interactions": [
            {**pair, "name": product_name(pair["first"], pair["second"])}
            for pair in content["interactions"]
        ],
        "found_pairs": [
            {**pair, "name": product_name(pair["first"], pair["second"])}
            for pair in content["found_pairs"]
        ],
        "linear": [
            {**term, "name": term["feature"], "coefficient": term["slope"]}
            for term in content["linear"]
        ],
        "effects": content["effects"],
        "wholes": [
            ("column alone", [{**e, "name": e["column"]} for e in effects["columns"]]),
            (
                "pair of columns",
                [{**e, "name": product_name(e["first"], e["second"])} for e in effects["pairs"]],
            ),
        ],
        "pictures": pictures,
        "eigenvalues": eigenvalues_name(content["rank"], content["features"]).capitalize(),
        "words": WORDS,
    }
    return html_page(title, STYLE, TEMPLATE, values)
