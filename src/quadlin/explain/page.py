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
.index th:first-child { width: 3rem; }
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
{# Columns are (head, key, format); names have no format, numbers are flush right. #}
{% macro table(kind, rows, columns, bars="", side="") %}
<table{% if kind %} class="{{ kind }}"{% endif %}>
<thead><tr>
{%- for head, key, form in columns %}
<th{% if form %} class="number"{% endif %}>{{ head }}</th>
{%- endfor %}
{% if bars %}<th class="bars"></th>{% endif %}</tr></thead>
<tbody>
{% set largest = rows|map(attribute=bars)|map("abs")|max if bars %}
{% for row in rows %}
<tr>
{%- for head, key, form in columns %}
<td{% if form %} class="number"{% endif %}>{{ form.format(row[key]) if form else row[key] }}</td>
{%- endfor %}
{% if bars %}{{ bar(row[bars], largest, side) }}{% endif %}</tr>
{% endfor %}
</tbody>
</table>
{% endmacro %}
{% macro bar(value, largest, side) %}
{% set signed = side != "size" %}
<td class="bars"><div class="track{{ "" if signed else " unsigned" }}">
{%- if largest and value %}
<div class="bar {{ side }}{{ ("positive" if value > 0 else "negative") if signed }}"
 style="width: {{ "%.2f"|format((50 if signed else 100) * (value|abs) / largest) }}%"></div>
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
{% set error = [("standard error", "std_error", "{:.4g}")] %}
{{ table("terms", rows, [(head, "name", ""), (value, value, "{:+.4g}")]
   + (error if rows[0].std_error is not none else [])
   + [("strength", "strength", "{:+.4g}")], "strength") }}
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
{{ table("wholes", rows, [(head, "name", ""), ("strength", "strength", "{:.4g}")],
   "strength", "size") }}
{% endfor %}
{% if effects.levels %}
<h2>Levels of categories</h2>
<p class="note">What each level adds alone, measured from {{ effects.reference }}, and the share of
the fitted rows that have it. Labels of a column of lists are measured from rows without them.</p>
{{ legend("raises the prediction", "lowers the prediction") }}
{{ table("terms", effects.levels, [("level", "name", ""), ("effect", "effect", "{:+.4g}"),
   ("of rows", "share", "{:.1%}")], "effect", "level ") }}
{% endif %}
{% endif %}
{% if found_pairs %}
<h2>Pairs of features</h2>
<p class="note">{{ words.named_pairs if model.pairs_are_named else words.found_pairs }}
{{- words.shares }}</p>
{{ table("terms", found_pairs, [("product", "name", ""), ("coefficient", "coefficient", "{:+.4g}"),
   ("std error", "std_error", "{:.4g}"), ("t", "t", "{:.1f}"), ("share", "share", "{:.1%}")]) }}
{% endif %}
{{ terms("Strongest interactions", "product", interactions, words.pairs) }}
{{ terms("Strongest slopes", "feature", slopes, words.linear, "slope") }}
<h2>{{ eigenvalues_name }}</h2>
{% if model.eigenvalues %}
{{ legend("positive", "negative") }}
{{ table("index", eigenvalues, [("", 0, "{}"), ("eigenvalue", 1, "{:+.4g}")], 1) }}
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
{{ table("", model.history, [("step", "step", "{}"), ("passes", "passes", "{}"),
   ("loss", "loss", "{:.4g}")]) }}
</details>
"""

WORDS = {
    "pairs": (
        "The coefficient multiplies the product x_i·x_j in the prediction. The strength is the "
        "coefficient for features of standard deviation 1, so that features with different units "
        "can be compared."
    ),
    "found_pairs": (
        "Products that a search added to the model, in order of entry. The pairs were chosen "
        "because they fit these rows, so weak ones look stronger than they are. "
    ),
    "named_pairs": ("Products that were added to the model by name. "),
    "shares": (
        "The share is how much R² (for labels, the explained deviance) would fall without the pair."
    ),
    "linear": (
        "The slope is how much the prediction rises per unit of a feature, with all columns at "
        "the means of the fitted rows. The strength is the rise per standard deviation."
    ),
    "levels": f" {LEVELS_ARE}",
}


def model_page(title: str, content: dict[str, Any], pictures: Sequence[Picture] = ()) -> str:
    """Return a page of what `describe` says about a model, its diagnosis as a list of lines."""
    effects = content["effects"] or {"columns": [], "pairs": [], "levels": []}
    values = {
        "model": content,
        "interactions": _named(content["interactions"]),
        "found_pairs": _named(content["found_pairs"]),
        "slopes": _named(content["linear"]),
        "effects": content["effects"] and effects | {"levels": _named(effects["levels"])},
        "wholes": [
            ("column alone", _named(effects["columns"])),
            ("pair of columns", _named(effects["pairs"])),
        ],
        "pictures": pictures,
        "eigenvalues": list(enumerate(content["eigenvalues"], 1)),
        "eigenvalues_name": eigenvalues_name(content["rank"], content["features"]).capitalize(),
        "words": WORDS,
    }
    return html_page(title, STYLE, TEMPLATE, values)


def _named(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return parts of a model with their names: features, columns, levels and products of two."""

    def name(part: dict[str, Any]) -> Any:
        if "second" in part:
            product = product_name(part["first"], part["second"])
            return f"{part['order']}. {product}" if "order" in part else product
        if "level" in part:
            return f"{part['column']}={part['level']}"
        return part["feature"] if "feature" in part else part["column"]

    return [{**part, "name": name(part)} for part in parts]
