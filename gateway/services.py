"""What every HTTP route works with."""

from dataclasses import dataclass

from gateway.generation import Dispatcher
from gateway.http_settings import HttpSettings
from gateway.metrics import HttpMetrics
from gateway.served_model import ServedModel


@dataclass(frozen=True, slots=True)
class Services:
    """One per app."""

    dispatcher: Dispatcher
    model: ServedModel
    settings: HttpSettings
    metrics: HttpMetrics
