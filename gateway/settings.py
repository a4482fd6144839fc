"""Settings of the gateway."""

from dataclasses import dataclass
from pathlib import Path

from gateway import origins
from gateway.tool_calls.formats import AUTO, NONE, READERS, REASONING_MARKERS
from runtime import units
from runtime.service_settings import ServiceSettings
from runtime.settings import SettingsError, flag_of, parse_bool, setting

MAX_GATEWAY_WORKERS = 64

_SECONDS = units.seconds(0.05, 7 * 24 * 3600.0)


def _keys(value: str) -> tuple[str, ...]:
    """At least one: a variable that was empty in somebody's command line mustn't open the API."""
    keys = units.texts(value)
    if not keys:
        raise ValueError("holds no key; leave it out to ask for none")
    return keys


def _keys_file(value: str) -> str:
    path = units.text(value)
    if not path:
        raise ValueError("names no file; leave it out to have none")
    return path


def _template_file(value: str) -> str:
    """Take the path of a file that can be read; relative ones count from here."""
    path = Path(units.text(value)).absolute()
    try:
        path.open("rb").close()
    except OSError as error:
        raise ValueError(f"can't be read ({error.strerror})") from None
    return str(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings(ServiceSettings):
    """What the gateway is told at start; tokenizer and template are read from `model`."""

    host: str = setting(
        units.text,
        "127.0.0.1",
        "address to listen on. Any other than loopback opens the API to the network: set --api-key",
        metavar="ADDRESS",
    )
    port: int = setting(units.integer(0, 65535), 8000, "port to listen on", metavar="PORT")
    api_key: tuple[str, ...] = setting(
        _keys,
        (),
        "key that clients must send as a bearer token; may be repeated, any of them is taken "
        "(better in the variable, comma-separated: command lines can be read by everyone on the "
        "host)",
        metavar="KEY",
        secret=True,
        repeat=True,
    )
    keys_file: str = setting(
        _keys_file,
        "",
        "file of keys with their limits, one a line, as `kvferry key` writes it; read anew within a second when it "
        "changes. Each key in it opens the API, as those of --api-key do",
        metavar="FILE",
    )
    gateway_id: str = setting(
        units.text,
        "",
        "name of this gateway, unique in the deployment; `gateway-` is put in front where it is missing. Default: host "
        "and process id",
        metavar="ID",
    )
    allowed_origins: tuple[str, ...] = setting(
        origins.origins,
        (),
        "origins whose web pages may use the API from a browser (CORS), comma-separated or a JSON list; may be "
        "repeated; * is every origin. Default: none, and no such header in any answer. Each one more is trusted "
        "with what its visitors' browsers can reach here",
        metavar="ORIGIN",
        repeat=True,
    )
    allowed_methods: tuple[str, ...] = setting(
        origins.methods,
        (origins.ANY,),
        "methods that those pages may use, in the same forms",
        metavar="METHOD",
        repeat=True,
    )
    allowed_headers: tuple[str, ...] = setting(
        origins.headers,
        (origins.ANY,),
        "request headers that those pages may send, in the same forms",
        metavar="HEADER",
        repeat=True,
    )
    allow_credentials: bool = setting(
        parse_bool,
        False,
        "let those pages send cookies and the browser's own credentials along, which a proxy before the gateway may "
        "ask for; the API's own keys don't need it. Not with --allowed-origins *",
    )
    chat_template: str = setting(
        _template_file,
        "",
        "file with a Jinja chat template to use instead of the model's",
        metavar="FILE",
    )
    trust_request_chat_template: bool = setting(
        parse_bool,
        False,
        "take chat templates from requests (chat_template). They run in a sandbox, but without a bound on time and "
        "memory: only where every client is trusted not to stall or exhaust the gateway",
    )
    tool_call_parser: str = setting(
        units.one_of(AUTO, *READERS),
        AUTO,
        "format in which the model writes tool calls; auto: the one that its chat template speaks of, hermes where it "
        "knows no tools. Tools are always on, so --enable-auto-tool-choice isn't needed",
    )
    reasoning_parser: str = setting(
        units.one_of(AUTO, NONE, *REASONING_MARKERS),
        AUTO,
        "format in which the model writes what it says to itself before it answers; auto: the one that its chat "
        "template speaks of; none: all is the answer",
    )
    strict: bool = setting(
        parse_bool,
        False,
        "refuse a body with a field that isn't known, by its name, instead of ignoring it: finds misspelled fields, "
        "and turns clients away that send fields of their own",
    )
    gateway_workers: int = setting(
        units.integer(1, MAX_GATEWAY_WORKERS),
        1,
        "processes that serve the port, more than one for more than one core; they share --max-connections and "
        "--max-waiting evenly, and need Redis. Each costs about 150 MB of memory",
        metavar="N",
    )
    max_waiting: int = setting(
        units.integer(1, 1 << 20),
        1024,
        "requests that may wait here before new ones get 429. Raising it lengthens the wait",
        metavar="N",
    )
    max_body_bytes: int = setting(
        units.num_bytes,
        8 << 20,
        "longest request body. Raising it lets one client hold more memory",
        metavar="SIZE",
    )
    body_timeout: float = setting(
        _SECONDS,
        60.0,
        "seconds in which a request's body must have come. Raising it lets slow clients hold connections longer",
        metavar="SECONDS",
    )
    max_header_bytes: int = setting(
        units.num_bytes,
        32 << 10,
        "longest request line and headers together. Raising it lets clients hold more memory before they show a key",
        metavar="SIZE",
    )
    header_timeout: float = setting(
        _SECONDS,
        10.0,
        "seconds in which a request line and headers must have come, and a body that was refused must have ended. "
        "Raising it lets slow clients hold connections longer",
        metavar="SECONDS",
    )
    max_connections: int = setting(
        units.integer(1, 1 << 20),
        2048,
        "connections that may be open at once; more get a 503. Each waiting or streaming request needs one. "
        "Raising it needs more file descriptors and memory",
        metavar="N",
    )
    queue_timeout: float = setting(
        _SECONDS,
        120.0,
        "seconds a request may wait for its workers. Raising it keeps clients waiting longer under overload",
        metavar="SECONDS",
    )
    prefill_timeout: float = setting(
        _SECONDS,
        300.0,
        "seconds from the start of prefill to the first token. Raising it holds blocks of stuck requests longer",
        metavar="SECONDS",
    )
    first_byte_hold: float = setting(
        units.seconds(0.0, 3600.0),
        10.0,
        "seconds that a stream's status waits for the first token; then it is 200, and what goes wrong is an event. "
        "Raising it tells more errors by their status, and keeps proxies waiting that expect a first byte",
        metavar="SECONDS",
    )
    transfer_timeout: float = setting(
        _SECONDS,
        30.0,
        "seconds from the first token until the decode worker has the blocks. Raising it holds "
        "blocks on both sides longer",
        metavar="SECONDS",
    )
    request_timeout: float = setting(
        units.seconds(0.0, 7 * 24 * 3600.0),
        0.0,
        "seconds that a whole request may take, from its arrival, before it ends in a 504; 0: no limit. "
        "Clients may ask for less with the header x-kvferry-deadline-ms, never for more. Raising it lets "
        "requests that nobody waits for any more go on",
        metavar="SECONDS",
    )
    shutdown_timeout: float = setting(
        units.seconds(0.0, 3600.0),
        30.0,
        "seconds that open requests may go on after the gateway was told to end; new ones get a 503 meanwhile. "
        "Raising it makes an orderly end take longer",
        metavar="SECONDS",
    )
    decode_timeout: float = setting(
        _SECONDS,
        3600.0,
        "seconds from adoption to the last token. Raising it holds blocks of endless requests longer",
        metavar="SECONDS",
    )

    response_ttl: float = setting(
        units.seconds(1.0, 30 * 24 * 3600.0),
        6 * 3600.0,
        "seconds that answers of /v1/responses are kept for whoever asked, unless they say store false: in Redis, else "
        "in this gateway's memory. Raising it keeps clients' texts longer",
        metavar="SECONDS",
    )
    response_store_bytes: int = setting(
        units.num_bytes,
        64 << 20,
        "space for kept answers, of all gateways together in Redis; the oldest go first. Raising it takes as much "
        "memory there",
        metavar="SIZE",
    )

    def __post_init__(self) -> None:
        """Raise ``SettingsError`` for settings that mustn't come together."""
        if self.allow_credentials and origins.ANY in self.allowed_origins:
            raise SettingsError(
                "--allowed-origins * with --allow-credentials would let any web page act under its visitors' names: "
                "name the origins, or leave --allow-credentials out"
            )
        if self.gateway_workers == 1:
            return
        if not self.redis_url:
            raise SettingsError(
                f"--gateway-workers {self.gateway_workers} needs --redis-url: without Redis each process would keep "
                "answers of /v1/responses, and count limits of keys, for itself alone"
            )
        for name in ("max_connections", "max_waiting"):
            if getattr(self, name) < self.gateway_workers:
                raise SettingsError(
                    f"{flag_of(name)} {getattr(self, name)} is less than one for each of the "
                    f"{self.gateway_workers} --gateway-workers"
                )
