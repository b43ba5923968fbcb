"""From the table of results to one self-contained HTML file. Reads rows, runs nothing."""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from .record import Row, Table
from .study import Study, TableView
from .tables import by

_STYLE = """
:root { --ink: #1c2430; --muted: #6b7480; --line: #dde1e6; --accent: #1457c8; }
* { box-sizing: border-box; }
body { margin: 0; color: var(--ink); background: #fff; font: 16px/1.55 Inter, system-ui, -apple-system, "Segoe UI",
  "Helvetica Neue", Arial, sans-serif; font-variant-numeric: tabular-nums; }
main { max-width: 940px; margin: 0 auto; padding: 56px 24px 96px; }
h1 { font-size: 34px; line-height: 1.15; letter-spacing: -.02em; margin: 0 0 6px; }
h2 { font-size: 23px; letter-spacing: -.01em; margin: 64px 0 8px; padding-top: 20px; border-top: 2px solid var(--ink); }
p { max-width: 68ch; margin: 10px 0; }
.lead { color: var(--muted); margin-bottom: 26px; }
ul.findings { padding: 0; margin: 0 0 24px; list-style: none; border-left: 3px solid var(--accent); }
ul.findings li { padding: 3px 0 3px 18px; max-width: 74ch; }
.notes { background: #fff7e8; border-left: 3px solid #e0a52a; padding: 8px 18px; margin: 20px 0; }
figure { margin: 28px 0 34px; }
figure img { width: 100%; height: auto; display: block; }
figcaption, .provenance { font-size: 13.5px; line-height: 1.5; color: var(--muted); max-width: 92ch; margin-top: 10px; }
.provenance code { font-size: 12.5px; }
h3 { font-size: 15px; margin: 28px 0 6px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 14px; width: 100%; }
th { text-align: right; font-weight: 600; color: var(--muted); border-bottom: 1.5px solid var(--ink); padding: 5px 10px;
  vertical-align: bottom; }
td { text-align: right; border-bottom: 1px solid var(--line); padding: 4px 10px; white-space: nowrap; }
th.text, td.text { text-align: left; }
th:first-child, td:first-child { padding-left: 0; }
tr.ours td { font-weight: 600; color: var(--accent); }
details summary { cursor: pointer; font-size: 15px; font-weight: 600; margin: 20px 0 8px; }
code { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
footer { margin-top: 72px; color: var(--muted); font-size: 13.5px; }
@media print { main { padding: 0; } details > * { display: block; } }
"""
_NUMBER = re.compile(r"^[\s\d.,×±%+-]*$")


def write_report(table: Table, studies: Iterable[Study], notes: Sequence[str], command: str) -> Path:
    """Draw every figure, write them as PNG and SVG into `figures/`, and the report beside the table.

    Args:
        notes: sentences on what is missing.
        command: the command that makes this report.

    Returns:
        The path of `report.html`.
    """
    folder = table.path.parent
    sections, findings = [], []
    everything = table.rows()
    for study in studies:
        rows = _of_one_machine([row for row in everything if row["study"] == study.name])
        if not rows:
            sections.append(_section(study, "<p>No run of this study has finished yet.</p>"))
            continue
        findings += study.findings(rows)
        body = "".join(_figure(plot.draw(rows), plot.name, plot.caption(rows), rows, folder) for plot in study.plots)
        body += "".join(map(_table, study.tables(rows)))
        sections.append(_section(study, body))
    path = folder / "report.html"
    text = _page(findings, notes, sections, everything, command)
    partial = path.with_suffix(".html.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
    return path


def _of_one_machine(rows: Sequence[Row]) -> list[Row]:
    """Rows of the machine that wrote the last one: times of different machines do not belong in one figure."""
    return [row for row in rows if row["machine"] == rows[-1]["machine"]]


def _section(study: Study, body: str) -> str:
    heading = f"<h2>{html.escape(study.title)}</h2><p>{html.escape(study.text)}</p>"
    return f'<section id="{study.name}">{heading}{body}</section>'


def _figure(made: Figure, name: str, caption: str, rows: Sequence[Row], folder: Path) -> str:
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    made.savefig(folder / "figures" / f"{name}.png", dpi=180)
    buffer = io.BytesIO()
    made.savefig(buffer, format="svg", metadata={"Date": None})
    plt.close(made)
    (folder / "figures" / f"{name}.svg").write_bytes(buffer.getvalue())
    image = base64.b64encode(buffer.getvalue()).decode()
    return (
        f'<figure><img alt="{html.escape(caption)}" src="data:image/svg+xml;base64,{image}">'
        f"<figcaption>{html.escape(caption)}{_provenance(rows)}</figcaption></figure>"
    )


def _provenance(rows: Sequence[Row]) -> str:
    machine = rows[-1]["machine"]
    revisions = sorted({row["revision"] or "not under git" for row in rows})
    commands = sorted({row["command"] for row in rows})
    days = sorted({row["time"][:10] for row in rows})
    return (
        f'<div class="provenance">{html.escape(_machine(machine))}. Revision {html.escape(", ".join(revisions))}, '
        f"{html.escape(days[0] if len(days) == 1 else f'{days[0]} to {days[-1]}')}. "
        f"{' '.join(f'<code>{html.escape(c)}</code>' for c in commands)}</div>"
    )


def _machine(machine: Mapping[str, Any]) -> str:
    where = machine["gpu"] or f"{machine['processor']}, {machine['threads']} of {machine['cores']} cores"
    versions = ", ".join(f"{name} {machine[name.lower()]}" for name in ("Python", "torch", "triton"))
    return f"{where}, {machine['system']}, {versions}"


def _table(view: TableView) -> str:
    left = [all(not _NUMBER.match(line[i]) or not line[i] for line in view.lines) for i in range(len(view.columns))]

    def row(cells: Sequence[str], tag: str, kind: str = "") -> str:
        inner = "".join(
            f"<{tag}{' class=text' if is_text else ''}>{html.escape(cell)}</{tag}>"
            for cell, is_text in zip(cells, left, strict=True)
        )
        return f"<tr{kind}>{inner}</tr>"

    body = "".join(row(line, "td", ' class="ours"' if "braidwork" in line else "") for line in view.lines)
    table = f'<div class="scroll"><table>{row(view.columns, "th")}{body}</table></div>'
    title = html.escape(view.title)
    return f"<details><summary>{title}</summary>{table}</details>" if view.folded else f"<h3>{title}</h3>{table}"


def _page(findings: list[str], notes: Sequence[str], sections: list[str], rows: Sequence[Row], command: str) -> str:
    said = "".join(f"<li>{html.escape(text)}</li>" for text in findings)
    warned = "".join(f"<p>{html.escape(note)}</p>" for note in notes)
    counts = ", ".join(f"{len(group)} of {name}" for name, group in by(rows, lambda row: row["study"]).items())
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><title>braidwork: results</title>'
        f"<style>{_STYLE}</style></head><body><main>"
        "<h1>braidwork: results</h1>"
        '<p class="lead">Graph networks trained through Triton kernels, beside the libraries in use, in one process.'
        "</p>"
        f'<ul class="findings">{said}</ul>'
        f"{f'<div class=notes>{warned}</div>' if warned else ''}"
        f"{''.join(sections)}"
        f"<footer><p>Every number above was written by a run into <code>table.jsonl</code>, beside this file ({counts} "
        f"rows). Made by <code>{html.escape(command)}</code>; what is in the table is not measured again unless "
        "<code>fresh=true</code> is added.</p></footer></main></body></html>"
    )
