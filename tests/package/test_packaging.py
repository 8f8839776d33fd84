"""The metadata in pyproject.toml agrees with the package."""

import json
import re
import tomllib

from kit.programs import ROOT, printed

import stategraph

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_version_is_said_once_and_again():
    assert stategraph.__version__ == PROJECT["version"]


def test_the_long_description_has_no_link_that_leads_nowhere_on_another_site():
    text = (ROOT / PROJECT["readme"]).read_text()
    assert not re.findall(r"\]\((?!https://)", text)


def test_the_installed_command_is_there():
    [(name, target)] = PROJECT["scripts"].items()
    module, _, function = target.partition(":")
    code = f"import {module} as home, sys; sys.argv = ['{name}', '--version']; sys.exit(home.{function}())"
    assert printed(code) == f"stategraph {stategraph.__version__}\n"


def test_each_required_package_has_a_lowest_version():
    """`make lowest` tests with it."""
    assert all(re.fullmatch(r"[\w-]+>=[\d.]+", line) for line in PROJECT["dependencies"])


def test_the_sdist_contains_what_tests_need():
    lines = (ROOT / "MANIFEST.in").read_text().splitlines()
    grafted = {line.split()[1] for line in lines if line.startswith("graft ")}
    assert {"tests", "docs", "notebooks", "benchmarks", "changes", ".ci"} == grafted


def test_the_libraries_of_the_page_are_those_that_are_pinned():
    pinned = json.loads((ROOT / ".ci/javascript/package.json").read_text())["dependencies"]
    banners = [(ROOT / "serve/page/vendor" / name).read_text()[:120] for name in ("markdown-it.js", "purify.js")]
    said = dict(re.search(r"(markdown-it|DOMPurify) (\d+\.\d+\.\d+)", each).groups() for each in banners)  # type: ignore[union-attr]
    assert {name.lower(): version for name, version in said.items()} == pinned
