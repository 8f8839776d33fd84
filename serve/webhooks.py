"""Webhooks: the server sends the end of a run to an address that the run names, if the server's
operator has allowed it.

The write that ends the run also stores the delivery, so a server that is stopped or killed loses
none: the next one sends it. Delivery is at least once; a receiver recognizes a duplicate by its
`run_id`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from ..store.base import ItemChangedError
from .encode import decode, describe_error, encode
from .errors import LOG, Refused
from .json_messages import for_clients
from .records import Put, Record, Records, now, seconds_until, select
from .runs.runner import first_of

PAUSES: Final = (1.0, 5.0, 30.0, 120.0)
"""Seconds between attempts."""
TIMEOUT: Final = 20.0
"""How many seconds a delivery may take, from the search for the host to the receiver's answer."""
CLAIM: Final = 60.0
"""Seconds after which another server takes over a delivery that was begun but not finished."""
SECONDS_BETWEEN_LOOKS: Final = 5.0
"""How often a server looks for deliveries that other servers have left. It is notified of its
own."""
MOST_AT_ONCE: Final = 8
"""How many deliveries a receiver gets at once. One that does not answer delays no other."""
_PORTS: Final = {"http": 80, "https": 443}
_RETRIED: Final = (408, 425, 429)


class Address(NamedTuple):
    """The parts of a URL that decide where a request goes."""

    scheme: str
    host: str
    port: int
    path: str
    query: str


def parse(url: str) -> Address:
    """Parse a URL strictly: every parser must read it the same way.

    Raises:
        ValueError: it is not a plain http or https URL.
    """
    if not url.isascii() or not url.isprintable() or any(each in url for each in ' \\@"<>^`{|}'):
        raise ValueError("must be plain ASCII, without a user, blanks or backslashes")
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname or "#" in url:
        raise ValueError("must be http:// or https://, with a host and without a fragment")
    lower = parts.path.lower()
    if any(each in lower for each in ("%2e", "%2f", "%5c", "%00", "//")) or any(
        each in (".", "..") for each in lower.split("/")
    ):
        raise ValueError("must have a path without dots, empty or encoded parts")
    port = parts.port if parts.port is not None else _PORTS[parts.scheme]
    return Address(parts.scheme, parts.hostname, port, parts.path or "/", parts.query)


class Allowed:
    """The addresses that runs may name.

    Args:
        prefixes: URLs. An address must have the scheme, host and port of one of them, and a path
            that begins with all segments of its path.

    Raises:
        ValueError: one is not a plain URL, or has a query.
    """

    def __init__(self, prefixes: Sequence[str]) -> None:
        self.prefixes: list[Address] = []
        for prefix in prefixes:
            try:
                address = parse(prefix)
                if "?" in prefix:
                    raise ValueError("must have no query")
            except ValueError as error:
                raise ValueError(f"webhooks: {error}, got {prefix!r}") from None
            self.prefixes.append(address)

    def check(self, url: str | None) -> None:
        """Check the webhook of a run.

        Raises:
            Refused: it is not allowed.
        """
        if url is None:
            return
        if not self.prefixes:
            way_out = "the server's operator can allow some by --webhooks or webhooks="
            way_round = "or wait for the run, or join its stream"
            raise Refused(422, f"webhook: webhooks are not offered: {way_out}; {way_round}")
        try:
            address = parse(url)
        except ValueError as error:
            raise Refused(422, f"webhook: {error}, got {url!r}") from None
        if not any(_is_below(address, prefix) for prefix in self.prefixes):
            raise Refused(422, f"webhook: the server does not allow the address {url!r}")


def _is_below(address: Address, prefix: Address) -> bool:
    path = prefix.path.rstrip("/")
    is_part = address.path.rstrip("/") == path or address.path.startswith(path + "/")
    return address[:3] == prefix[:3] and is_part


def delivery_of(ended: Record, values: Any, error: Any) -> list[Put]:
    """Return what is written together with the end of a run that has a webhook: the run as clients
    see it, with its final state and its error."""
    url = ended["kwargs"].get("webhook")
    if url is None:
        return []
    shown = {key: value for key, value in select(ended, None).items() if key != "graph_id"}
    try:
        told = decode(encode({**shown, "values": for_clients(values), "error": error}))
    except Exception as wrong:  # the readers of the run get the same error
        told = decode(encode({**shown, "values": None, "error": describe_error(wrong)}))
    place = {"run_id": ended["run_id"], "thread_id": ended["thread_id"]}
    delivery = {**place, "url": url, "told": told, "tries": 0, "next_at": now()}
    return [("webhooks", ended["run_id"], delivery)]


class Webhooks:
    """Sends stored deliveries.

    Args:
        allowed: checked again before each attempt, since a later server may allow less.
    """

    def __init__(self, allowed: Allowed, records: Records) -> None:
        self._allowed, self._records = allowed, records
        # By receiver, of which the operator has allowed so many: what is due, by run, and senders.
        self._due: defaultdict[str, dict[str, Record]] = defaultdict(dict)
        self._senders: Counter[str] = Counter()
        self._sending: set[asyncio.Task[None]] = set()

    async def send_for_ever(self) -> None:
        """Send deliveries when they are due, until cancelled. The next server repeats those that
        were being sent then."""
        try:
            while True:
                self._records.deliveries.clear()  # before the search, so that no delivery is missed
                seconds = SECONDS_BETWEEN_LOOKS
                try:
                    seconds = min(seconds, await self._send_due())
                except Exception:
                    LOG.exception("webhooks could not be sent; it is tried again")
                await first_of(self._records.deliveries.wait(), timeout=max(seconds, 0.0))
        finally:
            for each in self._sending:
                each.cancel()

    async def _send_due(self) -> float:
        """Start sending the deliveries that are due. Return the seconds until the next one is."""
        waits = [SECONDS_BETWEEN_LOOKS]
        for delivery in await self._records.search("webhooks"):
            seconds = seconds_until(delivery["next_at"])
            if seconds > 0:
                waits.append(seconds)
                continue
            receiver = urlsplit(delivery["url"]).netloc
            self._due[receiver][delivery["run_id"]] = delivery
            if self._senders[receiver] < MOST_AT_ONCE:
                self._senders[receiver] += 1
                task = asyncio.create_task(self._send_all(receiver))
                self._sending.add(task)
                task.add_done_callback(self._sending.discard)
        return min(waits)

    async def _send_all(self, receiver: str) -> None:
        """Send what is due to a receiver, one delivery after the other."""
        due = self._due[receiver]
        try:
            while due:
                await self._send(due.pop(next(iter(due))))
        except Exception:
            LOG.exception("a webhook could not be sent; it is tried again")
        finally:
            self._senders[receiver] -= 1

    async def _send(self, found: Record) -> None:
        """Send a delivery, unless another server does."""
        id, tries = found["run_id"], found["tries"] + 1
        delivery = {**found, "next_at": _in(CLAIM), "tries": tries}
        try:
            await self._records.replace("webhooks", id, found, delivery)
        except ItemChangedError:
            return
        wrong, may_retry = await self._try(delivery)
        again: Record | None = None
        became: Record = {"status": "delivered", "tries": tries}
        if wrong is not None and may_retry and tries <= len(PAUSES):
            again = {**delivery, "next_at": _in(PAUSES[tries - 1])}
        elif wrong is not None:
            LOG.warning("the webhook of the run %s was given up: %s", id, wrong)
            became = {"status": "failed", "tries": tries, "error": wrong}

        async def note() -> None:
            """Write what becomes of the delivery, and if that is its end, note it on the run."""
            puts: list[Put] = [("webhooks", id, again)]
            seen: list[Put] = [("webhooks", id, delivery)]
            thread_id = delivery["thread_id"]
            run = None if again else await self._records.find("runs", id, thread_id)
            if run is not None:
                puts.append(("runs", id, {**run, "webhook": became}, thread_id))
                seen.append(("runs", id, run, thread_id))
            await self._records.put(*puts, seen=seen)

        # If a parked run has ended meanwhile, its new delivery must stay and be sent.
        with suppress(ItemChangedError):
            await self._records.repeat("runs", note)

    async def _try(self, delivery: Record) -> tuple[str | None, bool]:
        """Send a delivery once. Return the error, if any, and whether another attempt may help."""
        try:
            self._allowed.check(delivery["url"])
        except Refused as refused:
            return refused.detail, False
        import httpx  # deferred: with its command line, a fifth of what a server loads

        body = encode({**delivery["told"], "webhook_sent_at": now()})
        try:
            async with asyncio.timeout(TIMEOUT):
                status = await _post(delivery["url"], body)
        except TimeoutError:
            return f"it took longer than {TIMEOUT:g} s", True
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            return f"{type(error).__name__}: {error}", not isinstance(error, httpx.InvalidURL)
        if 200 <= status < 300:
            return None, False
        return f"it answered {status}", status >= 500 or status in _RETRIED


async def _post(url: str, body: bytes) -> int:
    """Send a request and return the status of the response. Follows no redirect, uses no proxy, and
    reads no more of the response than its head.

    Raises:
        httpx.HTTPError: the receiver cannot be reached, or what it has answered is not HTTP.
        httpx.InvalidURL: it is no URL.
    """
    import httpx

    headers = {"Content-Type": "application/json", "User-Agent": "stategraph"}
    request = httpx.Request("POST", url, content=body, headers=headers)
    # Made on a thread, since it reads the certificates of all authorities.
    is_secure = request.url.scheme == "https"
    context = await asyncio.to_thread(ssl.create_default_context) if is_secure else False
    # Without a client, which would log the URL: it may hold a token.
    async with httpx.AsyncHTTPTransport(verify=context, trust_env=False) as transport:
        response = await transport.handle_async_request(request)
        await response.aclose()
        return response.status_code


def _in(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()
