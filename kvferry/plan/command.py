"""The command `plan`: reads, computes, prints."""

import sys
from collections.abc import Sequence

from kvferry.plan.estimate import estimate
from kvferry.plan.json_report import as_json
from kvferry.plan.report import as_text
from kvferry.plan.settings import read_question
from kvferry.plan.source import read_source
from kvtransfer.host import engine_config


def run_plan(argv: Sequence[str]) -> int:
    """Print what fits; return 0. Raises `UsageError` if nothing does."""
    question = read_question(argv)
    source = read_source(question.worker.model or None)
    found = estimate(question, source, engine_config(question.worker, ""))
    sys.stdout.write(as_json(found) if question.own.json else as_text(found))
    return 0
