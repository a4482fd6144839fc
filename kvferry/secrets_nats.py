"""A NATS server's configuration: one user a role, each with the subjects that its role needs and no others."""

from collections.abc import Mapping
from dataclasses import dataclass

from kvferry.broker_access import OPERATOR
from protocol import subjects
from protocol.subjects import OTHER, PREFIX


@dataclass(frozen=True, slots=True)
class Rights:
    """Subjects that a user may use, `*` for any one part."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


def _heartbeat(role: str) -> str:
    return f"{PREFIX}.heartbeat.{role}"


def _inboxes(role: str, sender_role: str = "*") -> str:
    return f"{PREFIX}.inbox.{role}.*.{sender_role}"


_CONTENTS = f"{PREFIX}.contents.*"

RIGHTS: Mapping[str, Rights] = {
    "gateway": Rights(
        publish=(_heartbeat("gateway"), *(_inboxes(to, "gateway") for to in ("prefill", "decode", OTHER))),
        subscribe=(subjects.HEARTBEATS, _inboxes("gateway")),
    ),
    "prefill": Rights(
        publish=(_heartbeat("prefill"), *(_inboxes(to, "prefill") for to in ("gateway", "decode")), _CONTENTS),
        subscribe=(subjects.HEARTBEATS, _inboxes("prefill")),
    ),
    "decode": Rights(
        publish=(_heartbeat("decode"), *(_inboxes(to, "decode") for to in ("gateway", "prefill"))),
        subscribe=(subjects.HEARTBEATS, _inboxes("decode"), _CONTENTS),
    ),
    OPERATOR: Rights(
        publish=(_inboxes("gateway", OTHER),),
        subscribe=(subjects.HEARTBEATS, _inboxes(OTHER)),
    ),
}
"""An operator is heard by gateways, which alone end a request; it has no heartbeat."""

_SERVER = """\
server_name: kvferry
listen: "{listen}"
# A longer message goes in numbered parts: pieces of KV blocks, hand-over records, long prompts.
max_payload: 1MB
# A worker has two connections, a gateway and an operator's command one. Each subscribes a handful of subjects.
max_connections: 1024
max_subscriptions: 256
# The longest line of ours is CONNECT.
max_control_line: 4KB
{more}authorization {{
  # Seconds to log in: enough on a host whose cores are all busy.
  timeout: 5
  users: [
{users}  ]
}}
"""

_USER = """\
    {{ user: {name}, password: "{password}", permissions: {{
        publish: {{ allow: [{publish}] }}
        subscribe: {{ allow: [{subscribe}] }}
    }} }}
"""


def nats_config(
    listen: str, passwords: Mapping[str, str], rights: Mapping[str, Rights] = RIGHTS, more: str = ""
) -> str:
    """Return the configuration of a server at `listen` with a user for each of `passwords`.

    Whoever has none of them isn't let in, and what isn't permitted is refused. JetStream is off: nothing uses
    it. `more` is lines that only one kind of server needs.
    """
    users = [
        _USER.format(
            name=name,
            password=password,
            publish=_quoted(rights[name].publish),
            subscribe=_quoted(rights[name].subscribe),
        )
        for name, password in passwords.items()
    ]
    return _SERVER.format(listen=listen, users="".join(users), more=more)


def _quoted(names: tuple[str, ...]) -> str:
    return ", ".join(f'"{name}"' for name in names)
