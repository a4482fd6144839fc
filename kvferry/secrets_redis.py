"""A Redis or Valkey server's users: one a role, each with the commands and keys that its role needs and no others."""

import hashlib
from collections.abc import Mapping

from kvferry.broker_access import OPERATOR

ROSTER = "kvferry:roster:"
LIMITS = "kvferry:limits:"
RESPONSES = "kvferry:responses:"
"""How the keys of `runtime.roster_store`, `gateway.redis_limits` and `gateway.responses_api.redis_store` begin;
importing those would load the client."""

_CONNECT = "+auth +hello +ping +select +client|setinfo +client|setname"
"""What the client says while it connects."""

_SCRIPTS = (
    "+eval +evalsha +time +hmget +hset +hdel +hstrlen +pexpire"
    " +zadd +zcard +zrem +zscore +zrangebyscore +zremrangebyscore"
)
"""What the scripts of `gateway.redis_limits` and of `gateway.responses_api.redis_store` call: they have their user's
rights and no more."""

RULES: Mapping[str, str] = {
    "gateway": f"%R~{ROSTER}* ~{LIMITS}* ~{RESPONSES}* +scan +mget {_SCRIPTS}",
    "prefill": f"~{ROSTER}prefill-* +set +del",
    "decode": f"~{ROSTER}decode-* +set +del",
    OPERATOR: f"%R~{ROSTER}* +scan +mget",
}
"""Workers keep their own last status there, and who has just started reads those of all. Gateways also count what
API keys use, and keep responses."""


def redis_users(passwords: Mapping[str, str], rules: Mapping[str, str] = RULES) -> str:
    """Return an ACL file with a user for each of `passwords`, which it holds as SHA-256 only.

    The default user, whom everybody is without logging in, is off. Users may do nothing but what `rules` says.
    """
    lines = ["user default off sanitize-payload resetchannels -@all"]
    for name, password in passwords.items():
        digest = hashlib.sha256(password.encode()).hexdigest()
        lines.append(f"user {name} on #{digest} sanitize-payload resetchannels -@all {_CONNECT} {rules[name]}")
    return "".join(f"{line}\n" for line in lines)
