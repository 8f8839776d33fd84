"""Bugs planted into declared effects: the rules of `test_effect` and the kills notice each of them."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from kit.effect_kills import KINDS, PLACES, WAYS, in_a_process, run

import stategraph.graph.effects as effects
from stategraph.graph.effects import _Call

pytestmark = pytest.mark.trial


def no_record_before(patch):
    """An irreversible call is not recorded before it is made."""
    record = _Call._record

    def missing(self, what):
        found = record(self, what)
        return SimpleNamespace(known=(), save=str) if "begun" in what else found

    patch.setattr(_Call, "_record", missing)


def asks_after_the_record(patch):
    """The record of the result is not looked up."""
    record = _Call._record

    def unread(self, what):
        found = record(self, what)
        return found if what else SimpleNamespace(known=(), save=found.save)

    patch.setattr(_Call, "_record", unread)


def key_of_the_process(patch):
    """The key is another one in each process."""
    make = effects.effect_id
    patch.setattr(effects, "effect_id", lambda *parts: make(*parts) + str(os.getpid()))


def taken_as_not_done(patch):
    """An unknown outcome counts as one that has not happened."""

    def find_out(self, *given):
        return effects._TRY_AGAIN
        yield

    patch.setattr(_Call, "_find_out", find_out)


def notices(folder, patch):
    """The cells of the crash matrix in which keyed and irreversible effects are not had once, or are asked for in vain."""
    for way in WAYS:
        for kind in KINDS[2:]:
            for place in PLACES:
                own = folder / f"{way} {kind} {place}"
                own.mkdir()

                def planted(place, way=way, kind=kind, own: Path = own):
                    patch()
                    return run(way, kind, own, place)

                in_a_process(partial(planted, place))
                came = in_a_process(partial(planted, None))[1]
                wanted = int(kind == "irreversible" and place != PLACES[3])
                if came["effects"] != 1 or came["questions"] != wanted:
                    yield json.dumps([way, kind, place, came])


@pytest.mark.parametrize("bug", [None, no_record_before, asks_after_the_record, key_of_the_process, taken_as_not_done])
def test_the_kills_notice_a_planted_bug(tmp_path, bug):
    found = next(notices(tmp_path, lambda: None if bug is None else bug(pytest.MonkeyPatch())), None)
    assert (found is not None) == (bug is not None), found
