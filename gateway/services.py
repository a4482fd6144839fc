"""What every HTTP route works with."""

from dataclasses import dataclass, replace

from gateway.generation import Dispatcher
from gateway.http_settings import HttpSettings
from gateway.metrics import HttpMetrics
from gateway.served_model import ServedModel


@dataclass(frozen=True, slots=True)
class Services:
    """One per app."""

    dispatcher: Dispatcher
    folder_model: ServedModel
    settings: HttpSettings
    metrics: HttpMetrics

    @property
    def model(self) -> ServedModel:
        """The model as it can be served now: with small pools the context is shorter than the model's."""
        longest = self.dispatcher.context_len()
        if not 0 < longest < self.folder_model.max_model_len:
            return self.folder_model
        return replace(self.folder_model, max_model_len=longest)
