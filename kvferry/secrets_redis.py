"""A Redis or Valkey server's users: one a role, each with the commands and keys that its role needs and no others."""

import hashlib
from collections.abc import Mapping

from kvferry.broker_access import OPERATOR

ROSTER = "kvferry:roster:"
LIMITS = "kvferry:limits:"
"""How the keys of `runtime.roster_store` and `gateway.redis_limits` begin; importing those would load the client."""

_CONNECT = "+auth +hello +ping +select +client|setinfo +client|setname"
"""What the client says while it connects."""

_SCRIPTS = "+eval +evalsha +time +hmget +hset +pexpire +zadd +zcard +zrem +zremrangebyscore"
"""What the script of `gateway.redis_limits` calls: it has its user's rights and no more."""

RULES: Mapping[str, str] = {
    "gateway": f"%R~{ROSTER}* ~{LIMITS}* +scan +mget {_SCRIPTS}",
    "prefill": f"~{ROSTER}prefill-* +set +del",
    "decode": f"~{ROSTER}decode-* +set +del",
    OPERATOR: f"%R~{ROSTER}* +scan +mget",
}
"""Workers keep their own last status there, and who has just started reads those of all. Gateways also count what
API keys use."""


def redis_users(passwords: Mapping[str, str], rules: Mapping[str, str] = RULES) -> str:
    """Return an ACL file with a user for each of `passwords`, which it holds as SHA-256 only.

    The default user, whom everybody is without logging in, is off. Users may do nothing but what `rules` says.
    """
    lines = ["user default off sanitize-payload resetchannels -@all"]
    for name, password in passwords.items():
        digest = hashlib.sha256(password.encode()).hexdigest()
        lines.append(f"user {name} on #{digest} sanitize-payload resetchannels -@all {_CONNECT} {rules[name]}")
    return "".join(f"{line}\n" for line in lines)
