"""The report for people: Markdown tables, and lines on what a reader must know."""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from bench.campaign import Run
from bench.settings import Settings
from bench.summary import GOODPUT, METRICS, TIMES, Row, Spread, summarize
from bench.workload import Workload

BUSY_SHARE = 0.5
"""Above it the generator's own work may show in the figures."""

LATE_MS = 10.0
_OFF_SHARE = 0.02
_TEMPLATE_TOKENS = 64
"""What a chat template may add to a prompt."""

_SPECIAL_TOKENS = 2

_CACHED_SHARE = 0.02
_ONE_TOKEN = 1.05
"""Tokens of an event at the most; a server that holds text back has a few more than one."""


def report(runs: Sequence[Run], settings: Settings) -> str:
    """Return a section for each workload."""
    rows = summarize(runs)
    sections = [
        _section(workload, list(of_it), settings) for workload, of_it in groupby(rows, lambda row: row.workload)
    ]
    return "\n".join(sections)


def _section(workload: Workload, rows: list[Row], settings: Settings) -> str:
    num_rounds = max(len(row.figures) for row in rows)
    lines = [f"### {workload.name}: {workload.title()}", ""]
    lines += [f"Median of {num_rounds} rounds (least to most); times in ms, p50 / p90 / p99.", ""]
    has_goodput = bool(settings.limits.ttft_ms or settings.limits.itl_ms) and workload.kind != "steady"
    head = ["server", "output tok/s", "total tok/s", *TIMES.values()]
    head += ["goodput req/s", "failed", "short"] if has_goodput else ["failed", "short"]
    lines += _table(head, [_cells(row, has_goodput) for row in rows])
    if len(rows) > 1:
        lines += ["", *_ratios(rows, has_goodput)]
    return "\n".join([*lines, *_remarks(rows, settings.is_chat)]) + "\n"


def _cells(row: Row, has_goodput: bool) -> list[str]:
    cells = [row.target.name, _spread(row.spreads.get("output tokens/s")), _spread(row.spreads.get("total tokens/s"))]
    for label in TIMES.values():
        points = [row.spreads.get(f"{label} {point}, ms") for point in ("p50", "p90", "p99")]
        cells.append(" / ".join(_number(point.median) for point in points if point) or "-")
    if has_goodput:
        share = min(each.goodput_share or 0.0 for each in row.figures)
        cells.append(f"{_spread(row.spreads.get(GOODPUT))}, {share:.0%} or more")
    return [*cells, str(sum(sum(each.errors.values()) for each in row.figures)), _shorts(row)]


def _shorts(row: Row) -> str:
    return str(sum(each.num_short for each in row.figures))


def _ratios(rows: list[Row], has_goodput: bool) -> list[str]:
    first, *others = rows
    labels = [metric.label for metric in METRICS if any(metric.label in row.ratios for row in others)]
    labels = [label for label in labels if has_goodput or label != GOODPUT]
    head = [f"ratio to {first.target.name}", *(row.target.name for row in others)]
    cells = [[label.removesuffix(", ms"), *(_ratio(row.ratios.get(label)) for row in others)] for label in labels]
    return _table(head, cells)


def _remarks(rows: list[Row], is_chat: bool) -> list[str]:
    num_rounds = max(len(row.figures) for row in rows)
    lines = [f"- {row.target.name}: {remark}" for row in rows for remark in remarks(row, is_chat)]
    fewer = [row for row in rows if len(row.figures) < num_rounds]
    lines += [f"- {row.target.name}: {len(row.figures)} of {num_rounds} rounds" for row in fewer]
    return ["", *lines] if lines else []


def remarks(row: Row, is_chat: bool) -> list[str]:
    """Return what qualifies a server's figures, one line each."""
    figures = row.figures
    found = []
    errors: Counter[str] = Counter()
    for each in figures:
        errors.update(each.errors)
    if longs := sum(each.num_longs for each in figures):
        started, done = (sum(getattr(each, f"num_longs_{name}") for each in figures) for name in ("started", "done"))
        found.append(f"long prompts: {longs} sent, {started} with a first token, {done} answered by the end")
    if dry := sum(each.num_dry for each in figures):
        found.append(f"{dry} streams had no requests left before the window ended: its figures are too low")
    if errors:
        listed = ", ".join(f"{code} {count}" for code, count in sorted(errors.items()))
        found.append(f"failed requests: {listed} (of {sum(each.num_requests for each in figures)})")
    if short := sum(each.num_short for each in figures):
        found.append(f"{short} answers have another length than asked for")
    if unsaid := sum(each.num_without_usage for each in figures):
        found.append(f"{unsaid} answers came without usage: their tokens are counted by events")
    busiest = max(each.generator_share for each in figures)
    if busiest > BUSY_SHARE:
        found.append(f"the generator itself took up to {busiest:.0%} of a core: figures may be its own")
    latest = max((each.send_lag.p99 for each in figures if each.send_lag), default=0.0)
    if latest > LATE_MS:
        found.append(f"requests were sent up to {latest:.0f} ms late (p99)")
    return found + _tokens(row) + _wrong_length(row, is_chat) + _paths(row)


def _tokens(row: Row) -> list[str]:
    """Say what makes tokens cheaper, or gaps longer, than they look."""
    found = []
    per_event = max(each.tokens_per_event for each in row.figures)
    if per_event > _ONE_TOKEN:
        found.append(f"its events carry up to {per_event:.2f} tokens: ITL is between events, TPOT compares")
    prompt = sum(each.prompt_tokens for each in row.figures)
    cached = sum(each.cached_tokens for each in row.figures)
    if prompt and cached > prompt * _CACHED_SHARE:
        found.append(f"{cached / prompt:.0%} of the prompt tokens came from its prefix cache")
    return found


def _paths(row: Row) -> list[str]:
    paths: Counter[str] = Counter()
    for each in row.figures:
        paths.update(each.paths)
    return [f"path {', '.join(f'{path} {count}' for path, count in sorted(paths.items()))}"] if paths else []


def _wrong_length(row: Row, is_chat: bool) -> list[str]:
    """Compare the server's count of prompt tokens with what was meant; a template or a BOS token adds a few."""
    num_ok = sum(each.num_ok for each in row.figures)
    if (
        row.workload.kind == "steady"
        or row.workload.trace
        or not num_ok
        or any(each.num_without_usage for each in row.figures)
    ):
        return []
    meant = row.workload.shared_prefix_len + row.workload.prompt_len
    counted = sum(each.prompt_tokens for each in row.figures) / num_ok
    if abs(counted - meant) <= max(meant * _OFF_SHARE, _TEMPLATE_TOKENS if is_chat else _SPECIAL_TOKENS):
        return []
    return [f"it counts {counted:.0f} tokens a prompt where {meant} were meant: is --tokenizer its model's?"]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [_line(head), "|" + "---|" * len(head), *(_line(row) for row in rows)]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _ratio(spread: Spread | None) -> str:
    return f"{spread.median:.3f} ({spread.least:.3f} to {spread.most:.3f})" if spread else "-"


def _spread(spread: Spread | None) -> str:
    if spread is None:
        return "-"
    median, least, most = (_number(value, 4) for value in (spread.median, spread.least, spread.most))
    return f"{median} ({least} to {most})"


def _number(value: float, digits: int = 3) -> str:
    """Return the value with so many significant digits, whole numbers in full."""
    if value >= 10 ** (digits - 1):
        return f"{value:.0f}"
    return f"{value:.{digits}g}"
