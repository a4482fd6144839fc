"""Requests whose grammar isn't compiled yet: they hold what they have, and no step takes them."""

from __future__ import annotations

import logging
from concurrent.futures import Future

from engine.api import Broken, Result
from engine.book import Book
from engine.guide import GrammarError, Guide
from engine.guides import Guides
from engine.intake import BAD_REQUEST, MISMATCH
from engine.request import Request

log = logging.getLogger("engine")


class NoGuidesError(GrammarError):
    """This worker can't follow any grammar; another one may."""


class Guidance:
    """One engine's waiting for its grammars."""

    def __init__(self, book: Book, guides: Guides | None) -> None:
        """Without ``guides`` nothing with a grammar can be served."""
        self._book = book
        self._guides = guides
        self._pending: list[tuple[Request, Future[list[Guide]]]] = []

    def prepare(self) -> None:
        """Nobody waits: do now what the first grammar would wait for."""
        if self._guides is not None:
            try:
                self._guides.prepare()
            except GrammarError as error:
                log.warning("no_grammars reason=%s", error)
                self._guides = None

    @property
    def waits(self) -> bool:
        """Whether something isn't compiled yet."""
        return bool(self._pending)

    @property
    def has_news(self) -> bool:
        """Whether ``settle`` would let somebody go on, or end."""
        return any(future.done() for _, future in self._pending)

    def ask(self, request: Request) -> None:
        """``request`` is new here; if it has a grammar, it waits from now on."""
        sampling = request.sampling
        if not sampling.grammar:
            return
        request.unguided = True
        if self._guides is None:
            future: Future[list[Guide]] = Future()
            future.set_exception(NoGuidesError("this worker can't follow grammars: see its log"))
        else:
            outputs = [choice.output for choice in request.choices]
            future = self._guides.begin(sampling.grammar, sampling.eos_ids, outputs)
        self._pending.append((request, future))

    def settle(self) -> list[Result]:
        """Give guides to whom they are for; what can't be compiled ends."""
        if not self._pending:
            return []
        results: list[Result] = []
        pending, self._pending = self._pending, []
        for request, future in pending:
            if not future.done():  # asked once: it may be done any moment
                self._pending.append((request, future))
                continue
            if self._book.requests.get(request.key) is not request:
                continue  # it has ended meanwhile
            try:
                for choice, guide in zip(request.choices, future.result(), strict=True):
                    choice.guide = guide
                request.unguided = False
            except GrammarError as error:
                self._book.forget(request.key)
                code = MISMATCH if isinstance(error, NoGuidesError) else BAD_REQUEST
                results.append(Broken(request.key, str(error), code))
        return results
