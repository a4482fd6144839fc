"""What every HTTP route works with."""

from dataclasses import dataclass, replace

from gateway.access_log import RequestRecord
from gateway.generation import Dispatcher
from gateway.grammars.checking import Grammars
from gateway.http_settings import HttpSettings
from gateway.keys import Key
from gateway.limiter import Limiter, Stay
from gateway.limits import too_many
from gateway.metrics import HttpMetrics
from gateway.requests import Job
from gateway.served_model import ServedModel


@dataclass(frozen=True, slots=True)
class Services:
    """One per app."""

    dispatcher: Dispatcher
    folder_model: ServedModel
    settings: HttpSettings
    metrics: HttpMetrics
    limiter: Limiter
    grammars: Grammars

    @property
    def model(self) -> ServedModel:
        """The model as it can be served now: with small pools the context is shorter than the model's."""
        longest = self.dispatcher.context_len()
        if not 0 < longest < self.folder_model.max_model_len:
            return self.folder_model
        return replace(self.folder_model, max_model_len=longest)

    async def enter(self, record: RequestRecord, key: Key, *, only_looks: bool = False) -> None:
        """Let a key's request in, which takes a slot if the key has limits. Raises ``GatewayError`` (429).

        One that ``only_looks`` at what is there counts as a request, and asks for neither slot nor tokens: what holds
        them may be what it looks after.
        """
        record.key, record.owner = key.name, key.owner
        if only_looks:
            key = replace(key, limits=replace(key.limits, concurrency=0, tokens_per_minute=0))
        if key.limits.any:
            record.stay = await self.limiter.enter(key)
            self._check(record.stay)

    async def reserve(self, record: RequestRecord, job: Job) -> None:
        """Charge a limited key with the most that the job can cost. Raises ``GatewayError`` (429) if it hasn't that."""
        num_choices = len(job.prompts) * job.num_choices
        await self.reserve_tokens(record, job.num_prompt_tokens + num_choices * job.sampling.max_tokens)

    async def reserve_tokens(self, record: RequestRecord, num_tokens: int) -> None:
        """Charge a limited key with so many tokens. Raises ``GatewayError`` (429) if it hasn't that."""
        if record.stay is None:
            return
        await self.limiter.take(record.stay, num_tokens)
        self._check(record.stay)

    async def settle(self, record: RequestRecord) -> None:
        """Charge what was used instead, and free the key's slot, unless something runs on. Idempotent."""
        if record.stay is not None and not record.handed_over:
            await self.limiter.leave(record.stay, record.num_charged_tokens)

    def _check(self, stay: Stay) -> None:
        """Raise ``GatewayError`` (429) if the key has had enough."""
        if stay.verdict.refused_by:
            self.metrics.limited(stay.verdict.refused_by)
            raise too_many(stay.key.limits, stay.verdict)
