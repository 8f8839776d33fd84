"""Who may use the servers: whoever has the token."""

import hmac
import os
from typing import Any


def auth(request: Any) -> str | None:
    """Return the user's id, or None to refuse the request."""
    given = request.headers.get("authorization", "")
    return "ann" if hmac.compare_digest(given, f"Bearer {os.environ['API_TOKEN']}") else None
