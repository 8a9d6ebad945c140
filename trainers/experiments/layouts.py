"""The layouts of experiments as data: which tables and figures show the results.

The yaml file of an experiment gives `layout`: a name of LAYOUTS, or the same fields itself. To add
a layout, add an entry here or write its fields into the yaml file; no code is needed.

Fields:
    tables: A list. Each table has `columns` (dataset, metric, backbone, prompt, texts, corruption,
        threshold, similarity, prompts, or a setting's key; `across` stands for the experiment's
        field of that name), `rows: swept` if labels state the values of swept settings, `per:
        texts` for a table per choice of texts, `texts: true` for a note on seeds and texts.
    figures: Names of `FIGURES` in trainers/report/figures/select.py.
    verdict: Whether methods are ranked and tested.
    study: What computes tables besides runs: complexity, theory or verify.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

BY_DATASET = {"columns": "dataset"}
BY_SETTING = {"columns": "dataset", "rows": "swept"}

LAYOUTS: Mapping[str, Mapping[str, Any]] = {
    "results": {"tables": [BY_DATASET], "verdict": True},
    "reliability": {"tables": [BY_DATASET], "figures": ["reliability"]},
    "sals": {"tables": [BY_DATASET], "figures": ["sals"], "verdict": True},
    "selective": {"tables": [{"columns": "threshold"}], "figures": ["selective"], "verdict": True},
    "class_pairs": {"tables": [{"columns": "similarity"}], "figures": ["class_pairs"]},
    "setting": {"tables": [BY_SETTING]},
    "lambda": {"tables": [BY_SETTING], "figures": ["lambda"]},
    "steps": {"tables": [BY_SETTING], "figures": ["steps"]},
    "prompts": {
        "tables": [{"columns": "prompts", "rows": "swept"}, BY_SETTING],
        "figures": ["prompts"],
    },
    "averages": {"tables": [{"columns": "across"}]},
    "family": {"tables": [{"columns": "metric"}, BY_DATASET]},
    "online": {"tables": [{"columns": "metric", "texts": True}, BY_DATASET]},
    "corruptions": {"tables": [{"columns": "corruption"}], "figures": ["severity"]},
    "streams": {
        "tables": [{"columns": "dataset", "rows": "swept", "texts": True}],
        "figures": ["streams"],
    },
    "descriptions": {
        "tables": [{"columns": "texts"}, {"columns": "dataset", "per": "texts", "texts": True}]
    },
    "complexity": {"study": "complexity"},
    "theory": {"study": "theory"},
    "verify": {"study": "verify"},
}
FIELDS = ("tables", "figures", "verdict", "study")
TABLE_FIELDS = ("columns", "rows", "per", "texts")


def layout_fields(layout: str | Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of a layout, given by its name or by the fields themselves.

    Raises:
        ValueError: If there is no such layout or field; the message names it.
    """
    if isinstance(layout, str):
        if layout not in LAYOUTS:
            raise ValueError(f"'{layout}' is none of {', '.join(LAYOUTS)}.")
        return LAYOUTS[layout]
    for name in layout:
        if name not in FIELDS:
            raise ValueError(f"'{name}' is none of {', '.join(FIELDS)}.")
    tables: Sequence[Any] = layout.get("tables") or []
    for table in tables:
        if not isinstance(table, dict) or "columns" not in table:
            raise ValueError("each of its tables must say what the columns are.")
        for name in table:
            if name not in TABLE_FIELDS:
                raise ValueError(f"'{name}' of a table is none of {', '.join(TABLE_FIELDS)}.")
    return layout
