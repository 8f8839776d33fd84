"""`stategraph.testing`: our savers pass it, wrong ones fail it by the check that is meant for their bug, and it can be
used as its README says. `make test ARGS="tests/checkpoint/test_conformance.py"`; more with STATEGRAPH_CHECKS_SCALE=20."""

import asyncio
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from kit.saver_suites import LONG, Ours
from kit.saver_suites import TestInMemorySaver as TestInMemorySaver
from kit.saver_suites import TestPostgresSaver as TestPostgresSaver
from kit.saver_suites import TestSqliteSaver as TestSqliteSaver

from stategraph.checkpoint import BaseCheckpointSaver, InMemorySaver, Serializer
from stategraph.checkpoint.base import CONTROL_WRITES, CheckpointConflictError, address, coordinates
from stategraph.checkpoint.builtin import BuiltinSaver
from stategraph.checkpoint.integrity import DIGEST_SIZE, Integrity
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.testing import CHECKS, CheckFailed, SaverChecks, check_saver
from stategraph.testing.conformance import GROUPS

# -- ours -------------------------------------------------------------------------------------------------------


@pytest.mark.trial
class TestSqliteSaverInMemory(Ours):
    durable = False

    def open(self, folder):
        return SqliteSaver.from_conn_string(":memory:")


# -- wrong ones -------------------------------------------------------------------------------------------------


class Wrong(SaverChecks):
    """Opens a wrong saver; other processes can find it."""

    def __init__(self, saver):
        self.saver = saver
        self.durable = not issubclass(saver, InMemorySaver)

    def open(self, folder):
        if issubclass(self.saver, InMemorySaver):
            return self.saver()
        return self.saver.from_conn_string(str(folder / "threads.db"), synchronous="off")

    damage = TestSqliteSaver.damage
    size = TestSqliteSaver.size
    full = TestSqliteSaver.full


BUGS = []


def caught_by(*checks):
    """Plant a bug, and name the checks of which each must fail."""

    def plant(saver):
        for check in checks:
            marks = [pytest.mark.trial] if check in LONG else []
            BUGS.append(pytest.param(saver, check, id=f"{saver.__name__}-{check}", marks=marks))
        return saver

    return plant


@caught_by("only_the_head_can_be_moved_on", "one_of_many_threads_wins_each_head", "a_run_overtaken_by_another_is_told")
class NoSwap(InMemorySaver):
    """Commits whatever head the run had seen."""

    def commit(self, commits):
        super().commit([replace(commit, head=self.head(address(commit.thread_id, commit.checkpoint_ns))) for commit in commits])


@caught_by("a_commit_requires_the_heads_of_other_namespaces")
class RequiresNothing(InMemorySaver):
    """Checks the head of a commit's own namespace only."""

    def commit(self, commits):
        super().commit([replace(commit, requires=()) for commit in commits])


@caught_by("commits_of_several_namespaces_are_stored_together")
class OneByOne(SqliteSaver):
    """Stores several commits in a transaction each."""

    def commit(self, commits):
        for commit in commits:
            super().commit([commit])


@caught_by("one_of_many_threads_wins_each_head", "one_of_many_processes_wins_each_head")
class CheckThenAct(SqliteSaver):
    """Looks at the head, and moves it a moment later."""

    def commit(self, commits):
        commit = commits[-1]
        place = address(commit.thread_id, commit.checkpoint_ns)
        head = self.head(place)
        if head != commit.head:
            raise CheckpointConflictError(commit.thread_id, commit.checkpoint_ns, commit.head, head)
        time.sleep(0.001)  # makes the gap wide enough to be met in few rounds
        for _ in range(20):
            try:
                super().commit([replace(commit, head=self.head(place)) for commit in commits])
                break
            except CheckpointConflictError:
                pass


@caught_by("the_latest_is_what_was_committed_last_whatever_the_time")
class LatestByClock(InMemorySaver):
    def get_tuple(self, config):
        if coordinates(config)[2] is not None:
            return super().get_tuple(config)
        return max(self.list(config), key=lambda found: found.checkpoint["ts"], default=None)


@caught_by("newest_is_what_was_committed_last", "the_latest_is_what_was_committed_last_whatever_the_time")
class OrderById(InMemorySaver):
    def list(self, config, **options):
        return iter(sorted(super().list(config, **options), key=lambda found: found.checkpoint["id"], reverse=True))


@caught_by("a_commit_stores_checkpoint_writes_and_head")
class LostWrites(InMemorySaver):
    def commit(self, commits):
        super().commit([replace(commit, writes=[]) for commit in commits])


@caught_by("sending_writes_again_keeps_the_first", "writes_recorded_early_and_again_in_the_commit_count_once")
class LastWriteCounts(InMemorySaver):
    def get_tuple(self, config):
        found = super().get_tuple(config)
        if found is None:
            return None
        _, space = coordinates(found.config)[:2], self._threads[coordinates(config)[0]][coordinates(config)[1]]
        tasks = [task for record in space.writes.get(found.checkpoint["id"], []) for task in record]
        last = {(t.task_id, channel): self.serde.loads(blob) for t in tasks for channel, blob in t.writes}
        return found._replace(pending_writes=[(task, channel, value) for (task, channel), value in last.items()])


@caught_by("control_writes_replace_also_beside_ordinary_ones")
class ReplacesByCall(InMemorySaver):
    """Only a call with nothing but control writes replaces."""

    def put_writes(self, config, writes, task_id, task_path=""):
        found = self.get_tuple(config)
        known = {channel for task, channel, _ in (found.pending_writes if found else ()) if task == task_id}
        if not all(channel in CONTROL_WRITES for channel, _ in writes):
            writes = [each for each in writes if each[0] not in known or each[0] not in CONTROL_WRITES]
        super().put_writes(config, writes, task_id, task_path)


@caught_by("writes_are_ordered_by_path_task_and_place")
class OrderOfArrival(InMemorySaver):
    def get_tuple(self, config):
        found = super().get_tuple(config)
        if found is None or not found.pending_writes:
            return found
        tasks = [task.task_id for task in self._threads["t"][""].writes[found.checkpoint["id"]]]
        return found._replace(pending_writes=sorted(found.pending_writes, key=lambda write: tasks.index(write[0])))


@caught_by("what_stays_after_prune_reads_back_and_goes_on")
class PruneBreaksDeltas(SqliteSaver):
    """Deletes rows on which others build."""

    def prune(self, thread_ids=None, *, keep_last=None, older_than=None):
        execute = self._database.connection.execute
        edge = "SELECT seq FROM checkpoints ORDER BY seq DESC LIMIT 1 OFFSET ?"
        last = execute(edge, (keep_last or 1,)).fetchone()
        for table, column in (("checkpoints", "seq"), ("channel_values", "owner")):
            execute(f"DELETE FROM {table} WHERE {column} <= ?", last)


@caught_by("copy_and_source_share_nothing")
class CopyShares(InMemorySaver):
    def copy_thread(self, source, target):
        self._threads[target] = self._threads[source]


@caught_by("copy_thread_copies_everything")
class CopiesTheHeadOnly(InMemorySaver):
    def copy_thread(self, source, target):
        for name in self._threads[source]:
            found = self.get_tuple(address(source, name))
            self.put(address(target, name), found.checkpoint, found.metadata, {})


@caught_by("a_commit_that_fails_leaves_nothing")
class HalfDoneOnError(InMemorySaver):
    def commit(self, commits):
        commit = commits[-1]
        if commit.writes:
            self.record((commit.thread_id, commit.checkpoint_ns), None, {commit.parent_id: commit.writes})
        self.serde.dumps(commit.metadata)
        super().commit([replace(commit, writes=[]) for commit in commits])


class Listing(Serializer):
    """Gives lists for tuples, as JSON does."""

    def loads(self, blob):
        return _listed(super().loads(blob))


def _listed(value):
    if isinstance(value, (list, tuple)):
        return [_listed(each) for each in value]
    return {key: _listed(each) for key, each in value.items()} if type(value) is dict else value


@caught_by("values_come_back_equal_and_of_the_same_type", "a_run_leaves_the_same_history_as_in_memory")
class TuplesBecomeLists(InMemorySaver):
    def __init__(self):
        super().__init__(serde=Listing())


@caught_by("history_does_not_change_with_what_it_was_made_of")
class KeepsLiveValues(InMemorySaver):
    def put(self, config, checkpoint, metadata, new_versions):
        self.live = checkpoint
        return super().put(config, checkpoint, metadata, new_versions)

    def get_tuple(self, config):
        found = super().get_tuple(config)
        return found and found._replace(checkpoint=self.live)


@caught_by("history_does_not_change_with_what_was_read")
class GivesItsOwn(InMemorySaver):
    """A cache that hands out the very objects it keeps."""

    def get_tuple(self, config):
        self.__dict__.setdefault("cache", super().get_tuple(config))
        return self.cache


@caught_by("namespaces_and_threads_are_apart")
class IgnoresCase(InMemorySaver):
    def put(self, config, checkpoint, metadata, new_versions):
        return super().put(address(*map(_lower, coordinates(config))), checkpoint, metadata, new_versions)

    def get_tuple(self, config):
        return super().get_tuple(address(*map(_lower, coordinates(config))))


def _lower(text):
    return text and text.lower()


@caught_by("hostile_texts_are_only_texts")
class FormatsSql(SqliteSaver):
    def head(self, config):
        thread_id, checkpoint_ns, _ = coordinates(config)
        where = f"thread_id = '{thread_id}' AND checkpoint_ns = '{checkpoint_ns}'"
        row = self._database.connection.execute(f"SELECT head_id FROM spaces WHERE {where}").fetchone()
        return row and row[0]


@caught_by("hostile_texts_are_only_texts")
class Pattern(InMemorySaver):
    """Finds filters by LIKE."""

    def list(self, config, *, filter=None, before=None, limit=None):
        for found in super().list(config, before=before, limit=limit if not filter else None):
            pattern = {k: re.escape(str(v)).replace("%", ".*").replace("_", ".") for k, v in (filter or {}).items()}
            if all(re.fullmatch(pattern[k], str(found.metadata.get(k))) for k in pattern):
                yield found


@caught_by("texts_that_a_database_cannot_hold_are_kept_or_refused")
class StripsNul(InMemorySaver):
    def put(self, config, checkpoint, metadata, new_versions):
        metadata = {key: value.replace("\0", "") if isinstance(value, str) else value for key, value in metadata.items()}
        return super().put(config, checkpoint, metadata, new_versions)


@caught_by("what_was_acknowledged_survives_a_kill")
class TwoTransactions(SqliteSaver):
    def commit(self, commits):
        commit = commits[-1]
        if commit.writes:
            self.record((commit.thread_id, commit.checkpoint_ns), None, {commit.parent_id: commit.writes})
        super().commit([replace(commit, writes=[]) for commit in commits])


@caught_by("what_was_acknowledged_survives_a_kill", "a_killed_run_is_resumed_as_if_it_never_stopped")
class StoresLater(SqliteSaver):
    """Returns before it has stored; stores when several wait, when somebody reads, and when it is closed."""

    def __init__(self, conn, **options):
        super().__init__(conn, **options)
        self.waiting = []

    def commit(self, commits):
        self.later(super().commit, commits)

    def record(self, *args):
        self.later(super().record, *args)

    def later(self, *call):
        self.waiting.append(call)
        if len(self.waiting) > 8:
            self.flush()

    def flush(self):
        while self.waiting:
            call, *args = self.waiting.pop(0)
            call(*args)

    def close(self):
        self.flush()
        super().close()

    def get_tuple(self, config):
        self.flush()
        return super().get_tuple(config)


@caught_by("a_paused_run_is_answered_after_the_saver_was_opened_again")
class RecordsInMemory(SqliteSaver):
    """Early writes, questions among them, are kept in this process only."""

    def record(self, where, expected, writes):
        self.__dict__.setdefault("early", InMemorySaver()).record(where, None, writes)

    def get_tuple(self, config):
        found = super().get_tuple(config)
        early = self.__dict__.get("early")
        if found is None or early is None:
            return found
        thread_id, checkpoint_ns, _ = coordinates(found.config)
        space = early._threads.get(thread_id, {}).get(checkpoint_ns)
        tasks = space.writes.get(found.checkpoint["id"], []) if space else []
        more = [(task.task_id, name, self.serde.loads(blob)) for task in tasks for name, blob in task.writes]
        return found._replace(pending_writes=[*(found.pending_writes or ()), *more])


class Blind(Integrity):
    """Looks at nothing."""

    def unprotect(self, data, place):
        return data[:-DIGEST_SIZE]


@caught_by("damaged_bytes_are_never_believed")
class NoChecksum(SqliteSaver):
    def __init__(self, conn, **options):
        super().__init__(conn, integrity=Blind(), **options)


@caught_by("nothing_goes_missing_unseen")
class Lenient(SqliteSaver):
    """Takes what it finds for all there is."""

    def _newest_first(self, spaces, edge):
        return iter(self._page(spaces, edge))


@caught_by("forgetting_and_copying_are_whole_when_killed")
class CopiesOneByOne(SqliteSaver):
    def copy_thread(self, source, target):
        for found in reversed([*self.list(address(source, ""))]):
            where = address(target, "", found.parent_config and found.parent_config["configurable"]["checkpoint_id"])
            self.put(where, found.checkpoint, found.metadata, found.checkpoint["channel_versions"])


@caught_by("an_answer_is_taken_once", "an_answer_is_taken_once_by_many_processes")
class ClaimsAfterALook(SqliteSaver):
    def record(self, where, expected, writes):
        time.sleep(0.05)  # as if it had looked before
        return super().record(where, None, writes)


@caught_by("a_call_that_is_delivered_twice_is_one_run")
class KnowsNoRuns(InMemorySaver):
    def run_of(self, config, run_id):
        return None

    def get_tuple(self, config):
        found = super().get_tuple(config)
        if found is not None:
            found.metadata.pop("run_id", None)
        return found


@caught_by("a_full_storage_refuses_whole_steps_and_goes_on_when_there_is_room")
class SwallowsErrors(SqliteSaver):
    def commit(self, commits):
        try:
            super().commit(commits)
        except CheckpointConflictError:
            raise
        except Exception:
            pass


@caught_by("appending_to_a_list_takes_bytes_as_the_list_grows")
class StoresEverythingAgain(SqliteSaver):
    def __init__(self, conn, **options):
        super().__init__(conn, **options)
        self.file = Path(conn).with_name("whole")

    def commit(self, commits):
        commit = commits[-1]
        super().commit(commits)
        with open(self.file, "a") as file:
            file.write(repr(commit.whole()))


@caught_by("before_is_strict_and_limit_counts_what_is_left")
class LimitZeroIsNone(InMemorySaver):
    def list(self, config, **options):
        return super().list(config, **{**options, "limit": options.get("limit") or None})


@caught_by("filters_mean_equality_of_all_keys")
class AbsentIsNone(InMemorySaver):
    def list(self, config, *, filter=None, **options):
        found = super().list(config, **options)
        return (each for each in found if all(each.metadata.get(k) == v for k, v in (filter or {}).items()))


@caught_by("a_search_finds_what_a_thread_was_and_is")
class LabelsNewThreadsOnly(SqliteSaver):
    def _insert(self, session, namespace_id, rows):
        if session.rows("has_labels", namespace_id):
            rows.labels = []
        return super()._insert(session, namespace_id, rows)


@caught_by("a_search_finds_all_values_that_are_equal")
class FindsTextsOfNumbers(InMemorySaver):
    def list(self, config, *, filter=None, **options):
        found = super().list(config, **options)
        return (each for each in found if all(str(each.metadata.get(k, ...)) == str(v) for k, v in (filter or {}).items()))


@caught_by("the_bytes_of_a_thread_come_and_go_with_it")
class CountsCheckpointsOnly(SqliteSaver):
    """What tasks have written beside a checkpoint takes room as well."""

    def stored_bytes(self, thread_ids):
        with self._session(write=False) as session:
            ids = [row[0] for each in thread_ids for row in session.rows("namespaces", each)]
            return sum(len(row[-1]) for id in ids for row in session.rows("all_rows", id))


@caught_by("delete_thread_forgets_all_of_it_and_nothing_else")
class DeleteKeepsWrites(InMemorySaver):
    def delete_thread(self, thread_id):
        for space in self._threads.get(thread_id, {}).values():
            space.records.clear()
            space.head = None


@caught_by("only_one_run_may_bring_an_answer")
class ClaimsBlindly(InMemorySaver):
    def record(self, where, expected, writes):
        return super().record(where, None, writes)


@caught_by("only_one_run_may_bring_an_answer")
class CountsWhereItStands(InMemorySaver):
    """What is recorded beside an earlier checkpoint leaves the head as it was."""

    def record(self, where, expected, writes):
        return super().record(where, expected if expected and expected.head in writes else None, writes)


@caught_by("a_kill_leaves_records_beside_all_checkpoints_or_none")
class RecordsOneByOne(SqliteSaver):
    def record(self, where, expected, writes):
        for id, tasks in writes.items():
            super().record(where, None, {id: tasks})


@caught_by("a_commit_stores_checkpoint_writes_and_head")
class DoesNotAwait(InMemorySaver):
    """Only its async face is wrong."""

    async def acommit(self, commits):
        asyncio.get_running_loop().call_later(60, self.commit, commits)


@caught_by("what_is_being_read_stays_while_the_next_step_is_stored")
class RemembersTooEarly(SqliteSaver):
    """A bug that ours had: what is being read is given to the next commit, which changes it."""

    def get_tuple(self, config):
        found = self._find(*coordinates(config))
        if found is None:
            return None
        self._remember(found.place, found.row.space, found.image)
        return self._tuple(found)


@caught_by("putting_a_checkpoint_again_keeps_the_writes_beside_it")
class PutDropsWrites(InMemorySaver):
    """Another bug that ours had."""

    def put(self, config, checkpoint, metadata, new_versions):
        thread_id, checkpoint_ns, _ = coordinates(config)
        space = self._threads.get(thread_id, {}).get(checkpoint_ns)
        if space is not None and checkpoint["id"] in space.records:
            space.writes.pop(checkpoint["id"], None)
        return super().put(config, checkpoint, metadata, new_versions)


@caught_by("reading_while_another_writes_sees_whole_steps")
class ReadsHalf(InMemorySaver):
    """Moves the values of a step one by one."""

    def get_tuple(self, config):
        one, two = super().get_tuple(config), super().get_tuple(config)
        if one is None:
            return None
        for _ in range(100):
            time.sleep(0)  # who writes has its turn
            two = super().get_tuple(config)
        one.checkpoint["channel_values"]["a"] = two.checkpoint["channel_values"]["a"]
        return one


@pytest.mark.parametrize(("saver", "check"), BUGS)
def test_a_planted_bug_is_caught_by_the_check_that_is_meant_for_it(saver, check):
    wrong = Wrong(saver)
    wrong.scale = 10 if check == "damaged_bytes_are_never_believed" else wrong.scale  # most damage shows by itself
    report = check_saver(wrong, only=[check])
    assert report.results
    assert check in report.failed, str(report)


@pytest.mark.trial
def test_wrong_savers_fail_by_their_behaviour_and_not_by_how_they_are_opened():
    for right in (InMemorySaver, SqliteSaver):
        report = check_saver(Wrong(right), only=["put", "writes", "commit", "list"])
        assert report.ok, str(report)


# -- as people use it -------------------------------------------------------------------------------------------

README = (Path(__file__).parents[2] / "testing" / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.trial
def test_the_readmes_example_works_with_pytest_and_without(tmp_path):
    (tmp_path / "test_my_saver.py").write_text(EXAMPLES[0])
    pytested = [sys.executable, "-P", "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "-k", "list and async"]
    without = "from test_my_saver import *; from stategraph.testing import *; print(check_saver(TestMySaver, only=['growth', 'nothing_*']))"
    asked = [sys.executable, "-c", without]
    ended = [subprocess.run(each, cwd=tmp_path, capture_output=True, text=True, check=False) for each in (pytested, asked)]
    assert [each.returncode for each in ended] == [0, 0], [each.stdout + each.stderr for each in ended]
    assert re.search(r"\d+ passed, \d+ deselected", ended[0].stdout), ended[0].stdout
    assert "skip  damage      sync    0.00 s  nothing goes missing unseen: we restore from backups" in ended[1].stdout
    assert re.search(r"^TestMySaver: 1 ok, 0 failed, 1 skipped in .* s \(seed 0\)$", ended[1].stdout, re.MULTILINE)


def test_the_readmes_check_of_a_custom_saver_passes(tmp_path):
    names = {}
    exec(EXAMPLES[2], names)
    names["run"](tmp_path)


def test_the_readme_names_every_check_and_says_what_it_means():
    told = [
        f"### {group}: {about}\n\n| check | why |\n|---|---|\n"
        + "".join(f"| {c.name.replace('_', ' ')} | {c.about} |\n" for c in CHECKS.values() if c.group == group)
        for group, about in GROUPS.items()
    ]
    assert "\n".join(told) in README


def test_each_group_has_checks_and_most_custom_savers_need_few_of_them():
    assert {check.group for check in CHECKS.values()} == set(GROUPS)
    report = check_saver(lambda folder: Bare(), durable=False, modes=["sync"])
    assert report.ok, str(report)
    skipped = {result.case.check.group for result in report.results if result.outcome == "skipped"}
    assert skipped == {
        "commit", "delete", "prune", "copy", "engine", "growth", "concurrency", "crash", "damage", "full",
        "posts", "transactions",
    }  # fmt: skip


class Bare(BaseCheckpointSaver):
    """What a user's own saver needs at least."""

    def __init__(self):
        super().__init__()
        inner = self.inner = InMemorySaver()
        self.get_tuple, self.put, self.put_writes = inner.get_tuple, inner.put, inner.put_writes  # type: ignore[method-assign]

    def list(self, config, **options):
        return self.inner.list(config, **options)

    def delete_thread(self, thread_id):
        self.inner.delete_thread(thread_id)


def test_a_failure_shows_expected_and_actual_values_and_the_seed():
    report = check_saver(Wrong(LastWriteCounts), only=["sending_writes_again*"], seed=7, modes=["sync"])
    lines = str(report).splitlines()
    assert re.fullmatch(r"FAIL  writes      sync +\d+\.\d\d s  sending writes again keeps the first", lines[0])
    assert lines[1].strip() == CHECKS["sending_writes_again_keeps_the_first"].about
    assert lines[2].strip().startswith("-> pending of 't'[0][")
    assert "expected" in lines[2] and "got" in lines[2] and re.search(r"\(contract.py:\d+, seed 7\)$", lines[2])
    assert re.fullmatch(r"Wrong: 0 ok, 1 failed, 0 skipped in 0.\d s \(seed 7\)", lines[3])


def test_a_failure_under_pytest_carries_the_rule_as_a_note(tmp_path):
    suite = Wrong(LastWriteCounts)
    (case,) = [c for c in suite.cases(["sending_writes_again_keeps_the_first"]) if c.mode == "async"]
    with pytest.raises(CheckFailed) as caught:
        suite.run(case, tmp_path)
    assert caught.value.__notes__ == [
        "sending_writes_again_keeps_the_first (async, seed 0): A repeated call changes nothing: what another run may "
        "have read already stays."
    ]


def test_a_saver_that_cannot_be_opened_fails_every_check_and_says_why():
    report = check_saver(lambda folder: SqliteSaver(folder / "no" / "where"), only=["list"], modes=["sync"])
    assert all("cannot be opened" in text for text in report.failed.values())
    assert len(report.failed) == len(report.results)


def test_processes_are_not_started_for_a_class_they_cannot_import():
    class Local(TestSqliteSaver):
        pass

    (result,) = check_saver(Local, only=["what_was_acknowledged*"]).results
    assert (result.outcome, "top of a module" in result.text) == ("skipped", True)


def test_unknown_settings_are_refused():
    with pytest.raises(TypeError, match="unknown setting 'size'"):
        check_saver(InMemorySaver, size=3)
    with pytest.raises(TypeError, match="only must be a list"):
        check_saver(TestInMemorySaver, only="list")
    with pytest.raises(ValueError, match="only must name groups or checks, got 'lost'"):
        check_saver(TestInMemorySaver, only=["list", "lost"])
    with pytest.raises(TypeError, match="got 'mine'"):
        check_saver("mine")  # type: ignore[arg-type]


def test_every_shipped_saver_passes_the_suite_and_is_shown_in_the_readme():
    """A new one fails this until it has a suite above, and a place where readers choose a saver."""
    savers = {each.__name__ for each in leaves(BuiltinSaver) if each.__module__.startswith("stategraph.")}
    assert savers == {"InMemorySaver", "SqliteSaver", "PostgresSaver"}
    shown = (Path(__file__).parents[2] / "README.md").read_text()
    assert [name for name in savers if f"Test{name}" not in globals() or f"`{name}`" not in shown] == []


def leaves(cls):
    """The classes below one that have none below them, of those that users choose from."""
    below = [each for each in cls.__subclasses__() if each.__module__.startswith("stategraph.checkpoint.")]
    for each in below:
        yield from leaves(each)
    if not below:
        yield cls
