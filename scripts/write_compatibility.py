"""Write docs/compatibility.md from the newest run of tests/clients if all was green: the end of `make test-clients`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.clients.roster import CELLS, CLIENTS, EVALUATION, FEATURES, LM_EVAL, Client, cell_name  # noqa: E402
from tests.clients.setup import RESULTS  # noqa: E402

PAGE = ROOT / "docs" / "compatibility.md"

INTRO = """# Client libraries

This page is written by `make test-clients`, which runs each library in an environment of its own against a stack that
it starts (`kvferry up`: one prefill and one decode worker, the bundled model), and writes it if all cells are green.
Measured on {date}. A library's program is in `tests/clients/`, with the exact version of all it needs.
"""

MEANINGS = """
| column | green when the library |
|---|---|
| plain | gives the text that the server gives without any library, and why it ended |
| stream | gives the same text in more than three pieces |
| usage in stream | counts the same tokens as without streaming |
| two tools | offers two, one of which must be called, and gives a typed call, whole and (if it can) streamed the same |
| forced tool | gives a call of the one that was named, and text after its result was sent back, if it isn't an output |
| schema | gives a value of the caller's own model |
| n = 2 | gives two choices |
| stop | gives the text before the stop string |
| log probabilities | gives one for each token, with two alternatives |
| wrong model | raises its error for a 404, code `model_not_found` |
| too long | raises its own error for a prompt beyond the context where it has one, else that of a 400 |
| abort | stops reading after three pieces, lives on, and nothing is left running (`/metrics`, `/debug/ledger`) |

What the model answers isn't judged: calls are forced, outputs follow grammars.
"""

SCORES = """
## Evaluation

lm-eval {version} (`--model local-completions`) scores a small task of our own with it: 80 log probabilities of given
ends and 8 generations, in float32. Split or `--role both`, prompts as ids or as text: scores are the same to the last
bit, and those of Hugging Face Transformers within 1e-4.

```sh
lm_eval --model local-completions --tasks TASK \\
  --model_args model=NAME,base_url=http://HOST:PORT/v1/completions,tokenizer=FOLDER_OR_HUB_ID,num_concurrent=8
```
"""

ADVICE = """
## Good to know

- Point each at `http://HOST:PORT/v1`, with any key where the server has none. LiteLLM: `api_base`, and a model named
  `openai/NAME`; `LITELLM_LOCAL_MODEL_COST_MAP=True` keeps it from asking the internet for prices. LlamaIndex:
  `is_chat_model=True` and `is_function_calling_model=True`, which are off by default. AI SDK: `includeUsage` and
  `supportsStructuredOutputs`, without which there is no usage in streams and no schema, only JSON.
- Close objects (`additionalProperties: false`; Pydantic: `extra="forbid"`). The official clients do it by themselves,
  Instructor and others send open objects, which by the rules of JSON Schema take properties that nobody asked for: a
  small model may go on with such until `max_tokens`.
- Bound strings and lists too (`maxLength`, `maxItems`) and leave room in `max_tokens`: an answer that is cut off
  (`finish_reason` `length`) isn't a value of the schema.
- Leaving a stream: use `with`, or call `close()` of what streams; LiteLLM's runs on without. LlamaIndex keeps streams
  in cycles: the request ends when Python collects them (`gc.collect()`), not by `close()`.
- LiteLLM and LangChain tell a prompt that is too long by the words of the message, which are OpenAI's here, and after
  these Anthropic's, whose numbers its clients read (`prompt is too long: 9 tokens > 8 maximum`).
  LiteLLM's errors have no `code`. Instructor wraps errors in `InstructorRetryException`; the client's own is a cause.
- Instructor's `Iterable[A | B]` with `Mode.PARALLEL_TOOLS` leaves it to the model whether to call (`auto`);
  `extra_body={"tool_choice": "required"}` makes it.
- The Node libraries want Node 22 or newer; the tests bring their own.
"""


def row(client: Client, notes: list[str]) -> str:
    """A client's line; reasons for cells that it hasn't are added to ``notes``."""
    cells = []
    for feature in FEATURES:
        reason = client.without.get(feature)
        if reason and reason not in notes:
            notes.append(reason)
        cells.append(f"- ({notes.index(reason) + 1})" if reason else "yes")
    return f"| {client.name} | {client.version} | " + " | ".join(cells) + " |"


def render(date: str) -> str:
    """The page, measured on that day."""
    notes: list[str] = []
    head = "| library | version | " + " | ".join(FEATURES.values()) + " |"
    lines = [head, "|" + "---|" * (2 + len(FEATURES)), *(row(client, notes) for client in CLIENTS), ""]
    lines += [f"({number}) {reason}" + ("" if number == len(notes) else "  ") for number, reason in enumerate(notes, 1)]
    return (
        INTRO.format(date=date)
        + "\n"
        + "\n".join(lines)
        + "\n"
        + MEANINGS
        + SCORES.format(version=LM_EVAL.version)
        + ADVICE
    )


def main() -> None:
    """Refuses a run that left cells out."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    missing = {cell_name(*cell) for cell in (*CELLS, EVALUATION)} - set(results["green"])
    if missing:
        sys.exit("not green, or not run: " + ", ".join(sorted(missing)))
    PAGE.write_text(render(results["date"]), encoding="utf-8")


if __name__ == "__main__":
    main()
