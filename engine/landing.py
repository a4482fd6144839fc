"""Hand-overs on their way in: reserve counts, grant ties blocks, adopt makes them running choices."""

from __future__ import annotations

from engine.admission import Demand, demand
from engine.api import Adopt, Broken, ChoiceTail, Grant, Granted, Key, Rejected, Released, Reserve, Reserved, Result
from engine.book import Book
from engine.guidance import Guidance
from engine.intake import BAD_REQUEST, NO_SPACE, Intake
from engine.layout import BLOCK_SIZE
from engine.promises import promised_blocks, spare_blocks
from engine.request import Choice, Landing, Request, Task
from engine.sequence import Sequence


class Arrivals:
    """Obeys Reserve, Grant and Adopt on one engine's books."""

    def __init__(self, book: Book, intake: Intake, guidance: Guidance) -> None:
        """Shares them with the engine."""
        self._book = book
        self._intake = intake
        self._guidance = guidance

    def reserve(self, command: Reserve) -> Result:
        """Count a request in if its prompt and expected output fit beside all that is promised."""
        book, key = self._book, command.key
        old = book.landings.get(key)
        if key in book.requests or (old is not None and old.granted is not None):
            return Reserved(key)
        refusal = self._intake.never(command) or self._no_room(command)
        if refusal is not None:
            return refusal
        book.landings[key] = _landing(command, old)
        return Reserved(key)

    def grant(self, command: Grant) -> Result:
        """Tie blocks, and hold the leading ones that are in the cache already."""
        book, key = self._book, command.key
        old = book.landings.get(key)
        if old is not None and old.granted is not None:
            return old.granted
        if key in book.requests:
            answer = book.requests[key].granted
            return answer or Rejected(key, BAD_REQUEST, "this request is computed here already")
        refusal = self._intake.never(command)
        if refusal is None and old is None:
            refusal = self._no_room(command)
        if refusal is not None:
            return refusal
        return self._tie(command, old)

    def adopt(self, command: Adopt) -> list[Result]:
        """Let the granted choices run. Broken unless this key was granted and the tails fit the grant."""
        book, key = self._book, command.key
        if key in book.requests:
            return []
        landing = book.landings.get(key)
        if landing is None or landing.granted is None:
            book.forget(key)
            return [Broken(key, "nothing was granted to this hand-over, or it has been released")]
        fault = self._intake.fault(command) or _mismatch(landing, command)
        if fault:
            book.forget(key)
            return [Broken(key, fault)]
        return self._join(landing, landing.granted, command)

    def landed_blocks(self, key: Key) -> list[int]:
        """Blocks of a granted hand-over that were filled from outside: all but those found in the cache."""
        landing = self._book.landings.get(key)
        if landing is None or landing.granted is None:
            return []
        granted = landing.granted
        own = granted.trunk[granted.num_cached_tokens // BLOCK_SIZE :]
        return [*own, *(block for branch in granted.branches for block in branch)]

    def stop(self, key: Key, choice: int) -> None:
        """A choice ended elsewhere before its hand-over was complete: it won't be adopted."""
        landing = self._book.landings.get(key)
        if landing is not None:
            landing.stopped.add(choice)

    def _no_room(self, command: Reserve | Grant) -> Rejected | None:
        book = self._book
        wanted = _demand(command)
        promised = promised_blocks(book, but=command.key)
        room = book.pool.num_available - promised
        # Nobody else is here: whoever can run at all may come in, though it may be ended later.
        if wanted.expected <= room or (promised == 0 and wanted.least <= room):
            return None
        return Rejected(command.key, NO_SPACE, f"needs {wanted.expected} blocks, {room} are left")

    def _tie(self, command: Grant, old: Landing | None) -> Result:
        book, pool, key = self._book, self._book.pool, command.key
        wanted = _demand(command)
        cached: list[int] = []
        full = (command.num_prompt_tokens + _trunk_tail(command.tail_lens)) // BLOCK_SIZE
        for name in command.block_hashes[:full]:
            block = pool.find(name)
            if block is None:
                break
            cached.append(block)
        held = sum(pool.holds(block) > 0 for block in cached)
        room = pool.num_available - spare_blocks(book) - len(command.tail_lens)
        if wanted.tied - held > room:
            return Rejected(key, NO_SPACE, f"needs {wanted.tied - held} blocks, {room} are left")
        for block in cached:
            pool.hold(block)
        trunk = cached + [pool.take() for _ in range(wanted.trunk - len(cached))]
        branches = tuple(tuple(pool.take() for _ in range(count)) for count in wanted.branches)
        landing = _landing(command, old)
        landing.granted = Granted(key, len(cached) * BLOCK_SIZE, tuple(trunk), branches)
        book.landings[key] = landing
        return landing.granted

    def _join(self, landing: Landing, granted: Granted, command: Adopt) -> list[Result]:
        book = self._book
        request = self._intake.request(command)
        request.granted = granted
        problem = _wrong_cache(landing, granted, request)
        if problem:
            book.forget(landing.key)
            return [Broken(landing.key, problem)]
        book.requests[landing.key] = request
        self._guidance.ask(request)
        for choice in request.choices:
            if choice.number in landing.stopped:
                choice.ended = True
                continue
            self._join_choice(landing, granted, request, choice)
        del book.landings[landing.key]
        for block in landing.blocks():
            book.pool.drop(block)
        if request.live:
            return []
        book.forget(landing.key)
        return [Released(landing.key)]

    def _join_choice(self, landing: Landing, granted: Granted, request: Request, choice: Choice) -> None:
        pool = self._book.pool
        blocks = list(granted.trunk)
        branch = granted.branches[landing.choices.index(choice.number)]
        if branch:
            blocks = blocks[: request.branch_start] + list(branch)
        for block in blocks:
            pool.hold(block)
        tokens = [*request.prompt_ids, *choice.output]
        sequence = Sequence(choice.age, tokens, request.root, len(tokens) - 1, blocks)
        sequence.name_full(pool)
        choice.task = Task(request, choice, sequence, num_prefill=0)
        self._book.run(choice.task)


def _landing(command: Reserve | Grant, old: Landing | None) -> Landing:
    numbers = tuple(range(len(command.tail_lens)))
    hashes: tuple[bytes, ...] = ()
    if isinstance(command, Grant):
        numbers, hashes = command.choices or numbers, command.block_hashes
    landing = Landing(
        command.key,
        command.num_prompt_tokens,
        command.tail_lens,
        command.max_tokens,
        numbers,
        hashes,
    )
    if old is not None:
        landing.stopped = old.stopped
    return landing


def _demand(command: Reserve | Grant) -> Demand:
    return demand(command.num_prompt_tokens, command.tail_lens, command.max_tokens)


def _trunk_tail(tail_lens: tuple[int, ...]) -> int:
    """Tail tokens that the trunk covers: one choice's."""
    return tail_lens[0] if len(tail_lens) == 1 else 0


def _mismatch(landing: Landing, command: Adopt) -> str:
    """Why what arrived isn't what was granted; "" if it is."""
    if len(command.prompt_ids) != landing.num_prompt_tokens:
        return f"prompt has {len(command.prompt_ids)} tokens, granted {landing.num_prompt_tokens}"
    granted = dict(zip(landing.choices, landing.tail_lens, strict=True))

    def fits(tail: ChoiceTail) -> bool:
        return granted.get(tail.choice) == len(tail.token_ids) - 1

    if not all(fits(tail) for tail in command.tails):
        lens = {tail.choice: len(tail.token_ids) for tail in command.tails}
        return f"tails of {lens} tokens by choice, granted {granted} and one more each"
    return ""


def _wrong_cache(landing: Landing, granted: Granted, request: Request) -> str:
    """Blocks that were held by name must be those of these very tokens."""
    num_cached = granted.num_cached_tokens // BLOCK_SIZE
    tokens = list(request.prompt_ids)
    if len(landing.tail_lens) == 1:
        tokens += request.choices[0].output
    names = Sequence(0, tokens, request.root)
    for index in range(num_cached):
        if names.name(index) != landing.block_hashes[index]:
            return f"block {index} was granted from the cache under another name"
    return ""
