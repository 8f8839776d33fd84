"""Joins and deferred nodes as a table: a graph in one line, and its supersteps."""

from __future__ import annotations

import warnings
from types import MappingProxyType
from typing import NamedTuple

from kit.flow_graphs import Script, build
from stategraph import (
    START,
    Send,
)


class Case(NamedTuple):
    graph: str
    steps: str
    script: Script = MappingProxyType({})


W = Send("w", {"log": []})
AB = ["a", "b"]
CASES = {
    1: Case("S>a S>b [a,b]any>d", "a b / d(a+b)"),
    2: Case("S>a S>b1>b [a,b]any>d", "a b1 / b d(a)"),
    3: Case("S>a S>b1>b2>b3>b [a,b]any>d", "a b1 / b2 d(a) / b3 / b"),
    4: Case("S>a S>b1>b S>c1>c2>c [a,b,c]2>d", "a b1 c1 / b c2 / c d(a+b)"),
    5: Case("r:S=a|b|c [a,b,c]2>d", "a", {START: ["a"]}),
    6: Case("r:S=a|b|c [a,b,c]reachable>d", "a c / d(a+c)", {START: [["a", "c"]]}),
    7: Case("r:S=a1|b|c a1>a2>a [a,b,c]reachable>d", "a1 b / a2 / a / d(a+b)", {START: [["a1", "b"]]}),
    8: Case("S>a S>x>y r:y=* [a,b]reachable>d", "a x / y / d(a)"),
    9: Case(
        "S>a S>b [a,b]any>d r:d=a|b", "a b / d(a+b) / a b / d(a+b) / a b / d(a+b)", {"d": [AB, AB, []]}
    ),
    10: Case(
        "S>a [a,b]any>d r:d=a|b",
        "a / d(a) / b / d(b) / a / d(a) / b / d(b)",
        {"d": ["b", "a", "b", []]},
    ),
    11: Case(
        "S>a S>b1>b2>b3>b4>b [a,b]any>d r:d=a",
        "a b1 / b2 d(a) / a b3 / b4 d(a) / a b / d(a)",
        {"d": ["a", "a", []]},
    ),
    12: Case("S>a S>b1>b2>b [a,b]2>d r:a=a", "a b1 / a b2 / b / d(a+b)", {"a": ["a", []]}),
    13: Case("r:S=* [w,v]any>d", "w w w / d(w)", {START: [[W, W, W]]}),
    14: Case("S>a S>x x~b [a,b]reachable>d", "a x / b / d(a+b)", {"x": ["b"]}),
    15: Case("S>a S>x x~b|e [a,b]reachable>d", "a x / d(a) e", {"x": ["e"]}),
    16: Case("S>a S>b1>b [a,b]any>d handle:a", "b1 / b / d(b)", {"a": ["fail"]}),
    17: Case("S>a S>b [a,b]reachable>d handle:a", "b / d(b)", {"a": ["fail"]}),
    18: Case("[a,b]reachable>d [d,e,c]reachable>f S>a S>b1>b S>e", "a b1 e / b / d(a+b) / f(d+e)"),
    19: Case("S>a S>x>b S>y>y2 defer:x [a,b]reachable>d", "a y / y2 / x / b / d(a+b)"),
    20: Case("S>a>y S>x>y defer:x,y", "a / x / y"),
    21: Case("S>x r:x=a|b [a,b]2>d", "x"),
    22: Case("S>a S>b1>b2>b S>d [a,b]reachable>d", "a b1 d / b2 / b / d(a+b)"),
    23: Case(
        "S>a S>b S>c1>c2>c3>c4>c [a,b,c]2>d r:d=a|b",
        "a b c1 / c2 d(a+b) / a b c3 / c4 d(a+b) / a b c / d(a+b)",
        {"d": [AB, AB, []]},
    ),
    24: Case("S>w r:w=* [w,v]any>d", "w / d(w) w / w", {"w": [[W], [W], []]}),
    25: Case("S>a S>b1>b2>b r:a=a [a,b]reachable>d", "a b1 / a b2 / a b / a / d(a+b)", {"a": ["a", "a", "a", []]}),
    26: Case("S>a S>b [a,b]any>d", "a b / d(a+b)", {"a": ["ask", None]}),
    # Joins at which somebody has come stay under way when nobody comes in a step: these wait for each other.
    27: Case(
        "S>a S>c S>y0>y r:y=d|z d>e [c,e]reachable>b [a,b]reachable>d",
        "a c y0 / y / z / b(c) d(a) / e",
        {"y": ["z"]},
    ),
}


def compiled(case: Case | str, script: Script | None = None, saver=None, **options):
    graph, script = (case.graph, case.script) if isinstance(case, Case) else (case, script)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what compile says of such graphs is tested where it is said
        return build(graph, script).compile(saver, **options)
