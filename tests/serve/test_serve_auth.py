"""What `auth` may return: a user's id or None. Anything else is a server error, and the request is refused."""

import asyncio

import httpx
import pytest
from in_process import asking
from serving import flow_app


def ask_with(returned):
    """What a server answers whose `auth` returns this."""

    async def ask():
        async def auth_later(_):
            return returned

        answers = []
        for auth in (lambda _: returned, auth_later):
            async with asking(flow_app(auth=auth)) as client:
                answers.append(await client.post("/threads", json={}))
        assert answers[0].status_code == answers[1].status_code
        return answers[0]

    return asyncio.run(ask())


class Id(str):
    """A user's id of a class of its own."""


@pytest.mark.parametrize("returned", ["ann", Id("ann")])
def test_a_text_is_a_user(returned):
    assert ask_with(returned).status_code == 200


@pytest.mark.parametrize("returned", [None, ""])
def test_a_request_unknown_to_auth_gets_401(returned):
    refused = ask_with(returned)
    assert refused.status_code == 401
    assert refused.json() == {"detail": "auth does not know the sender of this request"}


@pytest.mark.parametrize("returned", [{"identity": "ann"}, 7, ("ann", "bob"), True, False, {}, 0, b"ann"])
def test_an_invalid_user_id_from_auth_is_a_server_error(returned):
    answered = ask_with(returned)
    assert answered.status_code == 500 and "ann" not in answered.text


def test_the_fault_says_what_auth_must_return():
    async def ask():
        app = flow_app(auth=lambda _: {"identity": "s3cret"})  # type: ignore[arg-type, return-value]
        transport = httpx.ASGITransport(app)  # a fault is raised, as a server that logs it sees it
        async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport) as client:
            await client.post("http://localhost/threads", json={})

    with pytest.raises(TypeError, match="auth must return the user's id as a str, or None .*, got dict$"):
        asyncio.run(ask())


@pytest.mark.parametrize("auth", ["users.py:auth", object()])
def test_auth_that_cannot_be_called_is_refused_at_once(auth):
    with pytest.raises(TypeError, match="auth must be a function that takes a request"):
        flow_app(auth=auth)
