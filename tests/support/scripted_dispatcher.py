"""A dispatcher that says what a test wrote down, and a small model to say it with."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from gateway.chat_template import ChatTemplate
from gateway.generation import Generation, Journey, Try, Update
from gateway.health import Health
from gateway.mailbox import Mailbox
from gateway.served_model import ServedModel
from gateway.tokenizer import TextTokenizer
from protocol.sampling import TokenLogprob

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
EOS_ID = 2
NO_TOKEN = -1
MAX_AHEAD = 1024
"""Tokens after which a script waits for its reader at each step."""

CORPUS = (
    "The capital of France is Paris. The quick brown fox jumps over the lazy dog.",
    "You are a helpful assistant. user assistant system\n",
    "ABCDEFGHIJKL abc xyz 0123456789 hello world",
)

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n'"
    " + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

Step = Update | Exception | asyncio.Event
Script = Callable[[Generation], Iterable[Step]]


@cache
def small_tokenizer() -> TextTokenizer:
    """A byte-level BPE of a few hundred entries; characters beyond ASCII take several tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[AddedToken(text, special=True) for text in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return TextTokenizer(tokenizer)


def small_model(max_model_len: int = 512, template: str | None = TEMPLATE) -> ServedModel:
    """A model named `toy` with the small tokenizer."""
    tokenizer = small_tokenizer()
    return ServedModel(
        name="toy",
        tokenizer=tokenizer,
        template=ChatTemplate(template, {"eos_token": SPECIAL[EOS_ID]}) if template else None,
        eos_ids=(EOS_ID,),
        vocab_size=tokenizer.vocab_size,
        max_model_len=max_model_len,
        created=1_700_000_000,
    )


def ids_of(text: str) -> tuple[int, ...]:
    """Return the small tokenizer's ids."""
    return small_tokenizer().encode(text, add_special_tokens=False)


def scored(token_id: int, num_top: int) -> TokenLogprob:
    """Return a log probability told by the id alone, with `num_top` alternatives after it."""
    ids = tuple((token_id + step) % small_tokenizer().vocab_size for step in range(num_top))
    return TokenLogprob(-1.0, ids, tuple(-1.0 - step for step in range(num_top)))


def says(
    text: str | Sequence[int],
    *,
    choice: int = 0,
    finish_reason: str = "length",
    end: int | None = None,
    num_top: int | None = None,
    per_update: int = 1,
) -> list[Update]:
    """Updates that say `text`; `end` is a token that follows and ends it (`finish_reason` stop)."""
    ids = [*(ids_of(text) if isinstance(text, str) else text), *([] if end is None else [end])]
    updates = []
    for first in range(0, len(ids), per_update):
        part = tuple(ids[first : first + per_update])
        last = first + len(part) == len(ids)
        updates.append(
            Update(
                choice=choice,
                first_index=first,
                token_ids=part,
                logprobs=() if num_top is None else tuple(scored(each, num_top) for each in part),
                finish_reason=("" if not last else finish_reason if end is None else "stop"),
                stop_token=NO_TOKEN if end is None or not last else end,
            )
        )
    return updates


def late(*steps: Step, after_s: float = 0.02) -> Script:
    """Say `steps` after a while."""

    def script(generation: Generation) -> Iterator[Step]:
        gate = asyncio.Event()
        asyncio.get_running_loop().call_later(after_s, gate.set)
        yield gate
        yield from steps

    return script


def never_ends(text: str) -> Iterator[Update]:
    """Say `text` again and again, all of it at a time."""
    ids, first = ids_of(text), 0
    while True:
        yield Update(0, first, ids, (), "", NO_TOKEN)
        first += len(ids)


@dataclass
class ScriptedStream:
    """One request of the twin. `stopped` are (choice, num_tokens), `cancelled` the reasons."""

    request_id: str
    generation: Generation
    steps: Iterable[Step]
    path: str = "split"
    num_cached_tokens: int = 0
    num_attempts: int = 1
    tries: tuple[Try, ...] = (Try("split", "prefill-1", "decode-1", ""),)
    stopped: list[tuple[int, int]] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    cancel_seen: asyncio.Event = field(default_factory=asyncio.Event)
    num_given: int = 0

    def __post_init__(self) -> None:
        self.mailbox = Mailbox()
        self._room = asyncio.Event()
        self._telling = asyncio.ensure_future(self._tell())

    @property
    def over(self) -> bool:
        """The script has ended."""
        return self.mailbox.over

    def on_news(self, callback: Callable[[], None]) -> None:
        """Call back after each step."""
        self.mailbox.on_news = callback

    def take(self) -> list[Update]:
        """What was said since the last call."""
        self._room.set()
        return self.mailbox.take()

    async def _tell(self) -> None:
        try:
            async for update in self._said():
                self.mailbox.put(update)
                if self.num_given >= MAX_AHEAD:  # some scripts have no end
                    self._room.clear()
                    await self._room.wait()
        except Exception as error:
            self.mailbox.close(error)  # type: ignore[arg-type]
        else:
            self.mailbox.close(None)

    async def _said(self) -> AsyncIterator[Update]:
        """Say the script; a choice that was stopped says no more."""
        open_choices = set(range(self.generation.num_choices))
        for step in self.steps:
            await asyncio.sleep(0)
            if isinstance(step, asyncio.Event):
                await step.wait()
            elif isinstance(step, Exception):
                raise step
            elif step.choice in open_choices:
                self.num_given += len(step.token_ids)
                if step.finish_reason:
                    open_choices.discard(step.choice)
                yield step
                open_choices -= {choice for choice, _ in self.stopped}
            if not open_choices:
                return

    def journey(self) -> Journey:
        """Return `tries`."""
        return Journey(self.request_id, self.tries, {"queue": 0.5, "prefill": 20.0})

    def stop(self, choice: int, num_tokens: int) -> None:
        """Note it."""
        self.stopped.append((choice, num_tokens))

    def cancel(self, reason: str) -> None:
        """Note it, and say no more."""
        self.cancelled.append(reason)
        self.cancel_seen.set()
        self._telling.cancel()


class ScriptedDispatcher:
    """Gives each generation the steps that `script` returns for it."""

    def __init__(self, script: Script | Sequence[Step]) -> None:
        self._script: Script = script if callable(script) else lambda generation: script
        self.streams: list[ScriptedStream] = []
        self.refusal: Exception | None = None
        self.num_cached_tokens = 0
        self.state = Health("ok", ("split",), 1, 1)
        self.longest = 0

    @property
    def generations(self) -> list[Generation]:
        """What was submitted."""
        return [stream.generation for stream in self.streams]

    async def submit(self, generation: Generation) -> ScriptedStream:
        """Take it, or raise `refusal`."""
        await asyncio.sleep(0)
        if self.refusal is not None:
            raise self.refusal
        stream = ScriptedStream(f"req{len(self.streams)}", generation, self._script(generation))
        stream.num_cached_tokens = self.num_cached_tokens
        self.streams.append(stream)
        return stream

    def context_len(self) -> int:
        """Return `longest`."""
        return self.longest

    def health(self) -> Health:
        """Return `state`."""
        return self.state
