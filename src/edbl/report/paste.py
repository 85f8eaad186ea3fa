"""Tables to paste into a paper or a page: LaTeX and Markdown, one for each stream."""

import re
from collections.abc import Callable, Sequence

from edbl.report.runs import Run, by_stream, stream_name
from edbl.report.tables import BRIEF, DIGITS, best, groups, readout_name
from edbl.text import DASH, shown

HEADS = ("Method", "Classifier", "n", *(metric.title for metric in BRIEF))
LEGEND = "percent, mean and sample standard deviation over n runs; the best finished one is bold"
LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "·": r"$\cdot$",
    "…": r"\ldots{}",
    DASH: "--",
} | {letter: f"\\{letter}" for letter in "{}$&#_%"}


def latex(runs: Sequence[Run]) -> str:
    """Return a table for LaTeX, with rules of the package booktabs, for each stream."""
    parts = [f"% Needs \\usepackage{{booktabs}}. In {LEGEND}."]
    for part in by_stream(runs):
        lines = [
            f"% {shown(stream_name(part[0].record))}",
            f"\\begin{{tabular}}{{ll{'r' * (len(HEADS) - 2)}}}",
            "\\toprule",
            " & ".join(HEADS) + r" \\",
            "\\midrule",
            *(" & ".join(cells) + r" \\" for cells in _rows(part, _latex_text, _latex_number)),
            "\\bottomrule",
            "\\end{tabular}",
        ]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def markdown(runs: Sequence[Run]) -> str:
    """Return a Markdown table for each stream."""
    parts = []
    for part in by_stream(runs):
        rule = ["---", "---", *["---:"] * (len(HEADS) - 2)]
        lines = [HEADS, rule, *_rows(part, _markdown_text, _markdown_number)]
        table = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
        parts.append(f"{_markdown_text(stream_name(part[0].record))}, {LEGEND}:\n\n{table}")
    return "\n\n".join(parts) + "\n"


def _rows(runs: Sequence[Run], text: Callable[[str], str], number: Callable[[str, bool], str]) -> list[list[str]]:
    """Return the cells of each experiment and classifier; one without a finished task has none."""
    found = groups([run.record for run in runs])
    highest = {metric.key: best(found, metric) for metric in BRIEF}
    rows = []
    for group in found:
        for place, readout in enumerate(group.readouts):
            stats = {metric.key: group.metric(readout, metric.key) for metric in BRIEF}
            numbers = [
                number(stat.percent(DIGITS), group.complete and stat.mean == highest[key])
                for key, stat in stats.items()
            ]
            label = text(group.label) if not place else ""
            rows.append([label, text(readout_name(readout)), str(len(group.records)), *numbers])
    return rows


def _latex_text(name: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in shown(name))


def _latex_number(number: str, is_best: bool) -> str:
    if number == DASH:
        return LATEX[DASH]
    inner = number.replace("±", r"\pm")
    return f"$\\mathbf{{{inner}}}$" if is_best else f"${inner}$"


def _markdown_text(name: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|~$#])", r"\\\1", shown(name))


def _markdown_number(number: str, is_best: bool) -> str:
    return f"**{number}**" if is_best else number
