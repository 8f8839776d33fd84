"""What was measured, as tables in Markdown that read well as they are. Pure: samples in, text
out."""

from __future__ import annotations

from goals import CASES, OTHERS, Samples, goal_text, in_unit, middle, reached

Failures = dict[str, dict[str, str]]
"""case → engine → why there is no number"""
HEAD = "case,what,unit,ours,±,peer,±,floor,peer ÷ ours,ours ÷ floor,must / aim,reached"


def shown(value: float | None, unit: str) -> str:
    """A number as it stands in the table."""
    if value is None:
        return "-"
    value = in_unit(value, unit)
    return f"{value:,.2f}" if value < 10 else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def spread(values: list[float]) -> str:
    """Half the distance between best and worst, in percent of the median."""
    if len(values) < 2:
        return "-"
    ordered = sorted(values)
    return f"{(ordered[-1] - ordered[0]) / 2 / abs(ordered[len(ordered) // 2] or 1):.0%}"


def ratio(above: float | None, below: float | None) -> str:
    """How many times; nothing of a difference that is below zero."""
    return f"{above / below:.1f}x" if above is not None and below and above / below > 0 else "-"


def rows(samples: Samples, failures: Failures) -> list[list[str]]:
    """Us, the peer and the floor, the head first."""
    found = middle(samples)
    return [
        HEAD.split(","),
        *(row(name, samples[name], failures.get(name, {}), found) for name in samples),
    ]


def row(
    name: str,
    samples: dict[str, list[float]],
    failed: dict[str, str],
    found: dict[str, dict[str, float]],
) -> list[str]:
    """One case."""
    case, mine = CASES[name], found[name]
    value, verdict = reached(name, found)
    if verdict and case.goal.against in CASES:
        verdict += f" ({value:.2f}x)"
    cells = {
        e: "failed" if e in failed else shown(mine.get(e), case.unit)
        for e in ("ours", "peer", "floor")
    }
    spreads = {engine: spread(samples.get(engine, [])) for engine in ("ours", "peer")}
    ours = mine.get("ours")
    return [
        *(
            name,
            case.text,
            case.unit,
            cells["ours"],
            spreads["ours"],
            cells["peer"],
            spreads["peer"],
            cells["floor"],
        ),
        *(
            ratio(mine.get("peer"), ours),
            ratio(ours, mine.get("floor")),
            goal_text(case.goal),
            verdict,
        ),
    ]


def other_rows(samples: Samples, failures: Failures) -> list[list[str]]:
    """All engines, for the cases that more than the peer has; each with how many times our time it
    takes."""
    found = middle(samples)
    result = [["case", "what", "unit", "ours", "LangGraph", *OTHERS.values()]]
    for name, mine in found.items():
        case = CASES[name]
        if not set(case.engines) & set(OTHERS):
            continue
        cells = []
        for engine in ("peer", *OTHERS):
            if engine in failures.get(name, {}):
                cells.append("failed")
            elif engine in mine:
                cells.append(
                    f"{shown(mine[engine], case.unit)} ({ratio(mine[engine], mine.get('ours'))})"
                )
            else:
                cells.append("-")
        result.append([name, case.text, case.unit, shown(mine.get("ours"), case.unit), *cells])
    return result


def markdown(cells: list[list[str]]) -> str:
    """The rows as a table."""
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    padded = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in cells]
    lines = [f"| {' | '.join(row)} |" for row in padded]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines) + "\n"


def told(failures: Failures) -> str:
    """Every failure in a line; empty if there is none."""
    return "".join(
        f"- {name}, {engine}: {why}\n"
        for name, them in failures.items()
        for engine, why in them.items()
    )


def lost(samples: Samples) -> list[str]:
    """In which cases another engine needs less than we do, which musts are missed, and which
    aims."""
    found = middle(samples)
    slower, missed, short = [], [], []
    for name, mine in found.items():
        case = CASES[name]
        head = f"- **{name}** ({case.text}): "
        if "ours" in mine and case.unit not in ("x", "commits"):
            for engine, value in mine.items():
                if engine not in ("ours", "floor") and 0 < value < mine["ours"]:
                    who = {"peer": "LangGraph", **OTHERS}[engine]
                    theirs, own = shown(value, case.unit), shown(mine["ours"], case.unit)
                    slower.append(f"{head}{who} needs {theirs} {case.unit}, we {own}.\n")
        value, verdict = reached(name, found)
        goal = goal_text(case.goal)
        if verdict == "no":
            missed.append(f"{head}{value:.3g}, where the goal is {goal}.\n")
        elif verdict == "must" and (case.goal.aim or case.goal.aim_floor):
            short.append(f"{head}{value:.3g} reaches the must, not the aim: {goal}.\n")
    return [*slower, *missed, *short]


def put(text: str, mark: str, content: str) -> str:
    """`text` with what stands between `<!-- mark -->` and `<!-- /mark -->` replaced."""
    first, last = f"<!-- {mark} -->\n", f"<!-- /{mark} -->\n"
    before, _, rest = text.partition(first)
    return before + first + content + last + rest.partition(last)[2]
