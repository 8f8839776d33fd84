"""The tables of the queue and all its statements: constants, no code. Tables are changed by adding
a migration.

One row per job, one per worker. A job is claimed if its row names a worker, and a worker is alive
as long as its session holds its advisory lock. Postgres releases the lock when the connection ends,
so no clock decides which worker is dead. docs/explanation/scaling.md has the figures that rule out
a lock per job, or a transaction held open while it runs.

Any role of the database may take any advisory lock, so taking one must gain it nothing: the key of
a worker's lock is random, nobody ever waits for it, and it counts only if held by the backend that
registered the worker.
"""

from __future__ import annotations

from ..checkpoint.sql.postgres_wire import SERVER_ALIVE
from .chunk_tables import CHUNK_MIGRATIONS, CHUNK_STATEMENTS
from .timed_tables import TIMED_MIGRATIONS, TIMED_STATEMENTS
from .version_tables import IS_MINE, NEWEST, VERSION_MIGRATIONS, VERSION_STATEMENTS

# Existing queues keep these names. `lane` is a hash of the thread's name, a short index key
# (`hash_name`): if two threads share one, they merely wait for each other. `awaited`: somebody
# waits for the job, so its end is notified. `begun` is false while a worker holds a job back to run
# it alone. `mark` is the thread's progress when its worker died. Texts are bytes, because a
# Postgres text cannot hold a NUL, except `state`, whose values are our own. A job that is `delayed`
# or `sleeping` waits for its `run_at`: it is in no index that a claim reads, so claims cost the
# same however many there are.
MIGRATIONS = (
    (
        """
        CREATE TABLE stategraph_jobs (
            id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            graph BYTEA NOT NULL,
            lane BIGINT NOT NULL,
            thread_id BYTEA NOT NULL,
            run_id BYTEA NOT NULL,
            priority BIGINT NOT NULL,
            state TEXT NOT NULL DEFAULT 'waiting',
            attempt BIGINT NOT NULL DEFAULT 0,
            deaths BIGINT NOT NULL DEFAULT 0,
            worker BIGINT,
            begun BOOLEAN NOT NULL DEFAULT false,
            unwanted BOOLEAN NOT NULL DEFAULT false,
            awaited BOOLEAN NOT NULL DEFAULT false,
            mark BYTEA,
            task BYTEA NOT NULL,
            outcome BYTEA,
            submitted TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
            ended TIMESTAMPTZ
        ) WITH (fillfactor = 80)
        """,
        "CREATE UNIQUE INDEX stategraph_jobs_by_run ON stategraph_jobs (sha256(run_id))",
        "CREATE INDEX stategraph_jobs_by_thread ON stategraph_jobs (lane, id)",
        """
        CREATE INDEX stategraph_jobs_waiting
            ON stategraph_jobs (graph, priority DESC, id) WHERE state = 'waiting'
        """,
        """
        CREATE INDEX stategraph_jobs_live ON stategraph_jobs (lane)
            WHERE state IN ('waiting', 'running', 'parked')
        """,
        """
        CREATE INDEX stategraph_jobs_running
            ON stategraph_jobs (graph, worker) WHERE state = 'running'
        """,
        """
        CREATE UNIQUE INDEX stategraph_jobs_one_a_lane
            ON stategraph_jobs (lane) WHERE state = 'running'
        """,
        """
        CREATE TABLE stategraph_workers (
            id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            graph BYTEA NOT NULL,
            name BYTEA NOT NULL,
            backend BIGINT NOT NULL,
            leaving BOOLEAN NOT NULL DEFAULT false,
            since TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
        )
        """,
        "CREATE TABLE stategraph_limits (graph BYTEA PRIMARY KEY, most BIGINT NOT NULL)",
    ),
    (
        "ALTER TABLE stategraph_workers ADD COLUMN key BIGINT NOT NULL DEFAULT 0",
        "DROP INDEX stategraph_jobs_by_run",
        """
        CREATE UNIQUE INDEX stategraph_jobs_by_run
            ON stategraph_jobs (sha256(run_id), sha256(thread_id))
        """,
    ),
    *TIMED_MIGRATIONS,
    *CHUNK_MIGRATIONS,
    (
        "ALTER TABLE stategraph_jobs ADD COLUMN fairness_key BYTEA NOT NULL DEFAULT ''",
        "ALTER TABLE stategraph_jobs ADD COLUMN turn BIGINT NOT NULL DEFAULT 0",
        "DROP INDEX stategraph_jobs_waiting",
        """
        CREATE INDEX stategraph_jobs_waiting
            ON stategraph_jobs (graph, priority DESC, turn, id) WHERE state = 'waiting'
        """,
        """
        CREATE INDEX stategraph_jobs_fair
            ON stategraph_jobs (graph, sha256(fairness_key), priority, turn)
            WHERE state = 'waiting' AND fairness_key <> ''
        """,
    ),
    *VERSION_MIGRATIONS,
)

# Whether the backend that registered the worker `w` holds the worker's lock. Another session that
# holds the same key, or gets it when the worker dies, is another backend.
_ALIVE = """
    EXISTS (
        SELECT FROM pg_locks AS l
        WHERE l.pid = w.backend AND l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
            AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
            AND l.classid = (w.key >> 32)::oid AND l.objid = (w.key & 4294967295)::oid
    )
"""
# Returns a job to the queue when its worker gives it up.
_GIVEN_BACK = """
    worker = NULL, ended = CASE WHEN unwanted THEN now() END,
    state = CASE WHEN unwanted THEN 'cancelled' ELSE 'waiting' END
"""
# A thread's jobs run one after the other: a job may start if no other job of its thread is running
# or parked, and none that waits or sleeps goes before it. Of one priority, a job that has begun
# goes first, as after the death of its worker: the input of another would drop what it has left to
# do. A sleeping job has begun; a delayed one has not, and holds up nobody. A claim leaves out the
# jobs that the worker has left to others ($5). It also returns the thread's head and whether the
# run has stored a checkpoint, which saves reads when the run begins.
_PICKED = f"""
    WITH newest AS MATERIALIZED ({NEWEST}),
    picked AS MATERIALIZED (
        SELECT id FROM stategraph_jobs AS job
        WHERE graph = $1 AND state = 'waiting' AND {{condition}} AND id <> ALL($5::bigint[])
            AND {IS_MINE} AND NOT EXISTS (
            SELECT FROM stategraph_jobs AS other
            WHERE other.lane = job.lane AND other.id <> job.id
                AND other.state IN ('waiting', 'running', 'parked', 'sleeping')
                AND (other.state IN ('running', 'parked')
                    OR (other.priority, other.attempt > 0, job.id)
                        > (job.priority, job.attempt > 0, other.id))
        )
        ORDER BY priority DESC, turn, id LIMIT {{room}} FOR UPDATE SKIP LOCKED
    )
    UPDATE stategraph_jobs
    SET state = 'running', worker = $2, attempt = attempt + 1, begun = deaths < $4,
        former = version, version = ($6::bytea[])[1]
    WHERE id = ANY(ARRAY(SELECT id FROM picked))
    RETURNING id, attempt, begun, graph, thread_id, run_id, task, priority, (
        SELECT head_id FROM stategraph_spaces AS place
        WHERE sha256(place.thread_id) = sha256(stategraph_jobs.thread_id)
            AND sha256(place.checkpoint_ns) = sha256('')
    ) AS head, (
        SELECT true FROM stategraph_checkpoints AS stored
        WHERE stored.run_id IS NOT NULL AND sha256(stored.run_id) = sha256(stategraph_jobs.run_id)
        LIMIT 1
    ) AS was_delivered
"""
# The turn of a new job: behind the jobs of its fairness key that wait, and not before the turn that
# is served. So the first job of a key waits for one job of each other key, not for all of them.
_TURN = """
    CASE WHEN given.fairness_key = '' THEN 0 ELSE greatest(0, (
        SELECT turn FROM stategraph_jobs
        WHERE graph = $1 AND state = 'waiting' AND priority = given.priority
        ORDER BY turn LIMIT 1
    ), (
        SELECT turn + 1 FROM stategraph_jobs AS own
        WHERE graph = $1 AND state = 'waiting' AND priority = given.priority
            AND sha256(own.fairness_key) = sha256(given.fairness_key) AND own.fairness_key <> ''
        ORDER BY turn DESC LIMIT 1
    )) - 1 + row_number() OVER (PARTITION BY given.fairness_key, given.priority) END
"""
# A claim need not survive a crash of the server, since the worker's lock does not: alone, it
# commits without waiting for the disk.
_UNSYNCED = ", set_config('synchronous_commit', 'off', true)"
_UNLIMITED = "NOT EXISTS (SELECT FROM stategraph_limits AS l WHERE l.graph = $1)"
_COLUMNS = (
    "id, graph, thread_id, run_id, priority, state, attempt, deaths, "
    "extract(epoch FROM run_at)::float8, outcome"
)
_PROGRESS = """
    SELECT convert_to(max(head) || '.' || sum(stamp) || '.' || sum(size), 'UTF8'), sum(size)
    FROM stategraph_spaces AS space
    WHERE sha256(space.thread_id) = sha256(job.thread_id)
"""

# How many checkpoints the thread had at the last death, according to its mark. Marks of an earlier
# version do not say so: they count as 2.
_SIZE_BEFORE = """
    CASE WHEN job.mark IS NULL THEN 0
        ELSE coalesce(nullif(split_part(convert_from(job.mark, 'UTF8'), '.', 3), ''), '2')::bigint
    END
"""

STATEMENTS = {
    **TIMED_STATEMENTS,
    **VERSION_STATEMENTS,
    **CHUNK_STATEMENTS,
    # -- for submitters and readers --
    # A run id is unique within its thread, as for savers. The job of a run id belongs to one graph:
    # `foreign_jobs` finds those of other graphs.
    "submit": f"""
        WITH given AS (
            SELECT * FROM unnest(
                $2::bigint[], $3::bytea[], $4::bytea[], $5::bigint[], $6::bytea[], $7::bytea[]
            ) AS given (lane, thread_id, run_id, priority, fairness_key, task)
        ),
        foreign_jobs AS MATERIALIZED (
            SELECT job.graph, job.thread_id, job.run_id FROM given JOIN stategraph_jobs AS job
                ON sha256(job.run_id) = sha256(given.run_id)
                    AND sha256(job.thread_id) = sha256(given.thread_id)
            WHERE job.graph <> $1
        ),
        made AS (
            INSERT INTO stategraph_jobs
                (graph, lane, thread_id, run_id, priority, fairness_key, task, run_at, state, turn)
            SELECT $1::bytea, given.*, due.run_at,
                CASE WHEN due.run_at > now() THEN 'delayed' ELSE 'waiting' END, {_TURN}
            FROM given, (
                SELECT coalesce(to_timestamp($9::float8), now() + make_interval(secs => $8::float8))
                    AS run_at
            ) AS due
            WHERE NOT EXISTS (SELECT FROM foreign_jobs)
            ON CONFLICT (sha256(run_id), sha256(thread_id)) DO NOTHING
        )
        SELECT graph, thread_id, run_id FROM foreign_jobs LIMIT 1
    """,
    # The jobs of a thread run one after the other, whichever graphs they are of.
    "open_of_thread": """
        SELECT id, graph, run_id FROM stategraph_jobs
        WHERE lane = $2 AND thread_id = $3
            AND (state IN ('waiting', 'running', 'sleeping', 'parked')
                OR (graph = $1 AND run_id = $4))
        ORDER BY id
    """,
    "task": """
        SELECT task FROM stategraph_jobs
        WHERE sha256(run_id) = sha256($2) AND sha256(thread_id) = sha256($3) AND graph = $1
    """,
    "notify_workers": "SELECT pg_notify('stategraph_work', $1::bigint::text)",
    "notify_waiters": """
        SELECT pg_notify('stategraph_ended', id::text)
        FROM unnest($1::bigint[]) AS ended (id)
    """,
    "listen_for_ends": "LISTEN stategraph_ended",
    "newest": f"""
        SELECT {_COLUMNS} FROM stategraph_jobs WHERE lane = $2 AND thread_id = $3 AND graph = $1
        ORDER BY id DESC LIMIT 1
    """,
    "of_run": f"""
        SELECT {_COLUMNS} FROM stategraph_jobs
        WHERE sha256(run_id) = sha256($2) AND sha256(thread_id) = sha256($3) AND graph = $1
    """,
    "named": f"""
        SELECT {_COLUMNS} FROM stategraph_jobs
        WHERE sha256(run_id) = sha256($1) ORDER BY id
    """,
    "statuses": """
        SELECT thread_id, run_id, state FROM stategraph_jobs
        WHERE sha256(run_id) IN (SELECT sha256(named) FROM unnest($1::bytea[]) AS given (named))
    """,
    "add_waiter": """
        UPDATE stategraph_jobs SET awaited = true
        WHERE id = $1 AND state IN ('waiting', 'delayed', 'running', 'sleeping') AND NOT awaited
        RETURNING state = 'waiting'
    """,
    "listed": f"""
        SELECT {_COLUMNS} FROM stategraph_jobs
        WHERE convert_to(state, 'UTF8') = ANY($1::bytea[]) ORDER BY id LIMIT $2
    """,
    "counts": """
        SELECT graph, state, count(*)
        FROM stategraph_jobs GROUP BY graph, state ORDER BY graph, state
    """,
    # Uses the partial index of open jobs, so the number of ended jobs does not matter.
    "open": """
        SELECT graph, state, count(*),
            extract(epoch FROM now() - min(greatest(submitted, run_at)))::float8
        FROM stategraph_jobs
        WHERE state IN ('waiting', 'delayed', 'running', 'sleeping', 'parked')
        GROUP BY graph, state
    """,
    "workers": """
        SELECT id, graph, name, leaving, (
            SELECT count(*) FROM stategraph_jobs
            WHERE graph = w.graph AND worker = w.id AND state = 'running'
        ) FROM stategraph_workers AS w ORDER BY id
    """,
    # A live worker stops the run and ends the job itself. Without one, the job ends here.
    "cancel": f"""
        WITH open AS (
            SELECT job.id, job.state = 'running' AND EXISTS (
                SELECT FROM stategraph_workers AS w WHERE w.id = job.worker AND {_ALIVE}
            ) AS runs
            FROM stategraph_jobs AS job
            WHERE id = $1 AND state IN ('waiting', 'delayed', 'running', 'sleeping', 'parked')
            FOR UPDATE OF job
        )
        UPDATE stategraph_jobs AS job SET unwanted = true, worker = CASE WHEN runs THEN worker END,
            ended = CASE WHEN runs THEN ended ELSE now() END,
            state = CASE WHEN runs THEN state ELSE 'cancelled' END
        FROM open WHERE job.id = open.id
        RETURNING job.id, state, awaited
    """,
    "retry": """
        UPDATE stategraph_jobs
        SET state = 'waiting', deaths = 0, mark = NULL, outcome = NULL, ended = NULL,
            version = ''::bytea
        WHERE id = $1 AND state = 'parked' RETURNING graph
    """,
    "forget": """
        DELETE FROM stategraph_jobs
        WHERE graph = $1 AND state IN ('done', 'paused', 'failed', 'cancelled')
            AND ended < now() - make_interval(secs => $2)
    """,
    "forget_thread": """
        DELETE FROM stategraph_jobs
        WHERE lane = $2 AND thread_id = $3 AND graph = $1
            AND state IN ('done', 'paused', 'failed', 'cancelled', 'parked')
    """,
    "free": f"""
        UPDATE stategraph_jobs SET {_GIVEN_BACK}
        WHERE worker = $1 AND state = 'running' RETURNING graph
    """,
    # Checks `_ALIVE`, since the backend's number may by now be that of another session.
    "evict": f"""
        SELECT pg_terminate_backend(backend::integer) FROM stategraph_workers AS w
        WHERE id = $1 AND {_ALIVE}
    """,
    "set_limit": """
        INSERT INTO stategraph_limits (graph, most) VALUES ($1, $2)
        ON CONFLICT (graph) DO UPDATE SET most = excluded.most
    """,
    "drop_limit": "DELETE FROM stategraph_limits WHERE graph = $1",
    # -- for a worker, on its own connection --
    # All its statements can use an index, whether or not the tables were analyzed, and are planned
    # once. Without `jit = off`, the one that has to read a small table whole would count as
    # expensive and be compiled, which takes seconds.
    "settle": f"""
        SELECT set_config('statement_timeout', $1::bigint::text, false),
            set_config('default_transaction_isolation', 'read committed', false), {SERVER_ALIVE},
            set_config('plan_cache_mode', 'force_generic_plan', false),
            set_config('enable_seqscan', 'off', false), set_config('jit', 'off', false)
    """,
    # Nobody sees the row before its lock is held. No row is made if another session holds this
    # lock.
    "register": """
        WITH lock AS MATERIALIZED (SELECT pg_try_advisory_lock($3) AS held),
        known AS (
            INSERT INTO stategraph_versions (graph, version)
            SELECT $1, ($4::bytea[])[1] FROM lock WHERE held AND ($4::bytea[])[1] <> ''
            ON CONFLICT DO NOTHING
        )
        INSERT INTO stategraph_workers (graph, name, key, backend, versions)
        SELECT $1, $2, $3, pg_backend_pid(), $4 FROM lock WHERE held
        RETURNING id
    """,
    "listen_for_work": "LISTEN stategraph_work",
    "rank": """
        SELECT count(*) FROM (
            SELECT FROM stategraph_workers WHERE id < $1 AND graph = $2 ORDER BY id LIMIT $3
        ) AS before
    """,
    "end_session": f"""
        SELECT pg_terminate_backend(backend::integer) FROM stategraph_workers AS w
        WHERE id = $1 AND {_ALIVE}
    """,
    "carry_over": """
        UPDATE stategraph_jobs SET worker = $3
        WHERE graph = $1 AND worker = $2 AND state = 'running'
        RETURNING id, attempt
    """,
    "leave": "UPDATE stategraph_workers SET leaving = true WHERE id = $1",
    "drop_worker": "DELETE FROM stategraph_workers WHERE id = $1",
    "give_back": f"""
        WITH worker AS (DELETE FROM stategraph_workers WHERE id = $2)
        UPDATE stategraph_jobs SET {_GIVEN_BACK}
        WHERE graph = $1 AND worker = $2 AND state = 'running'
        RETURNING id, state, awaited
    """,
    "claim": _PICKED.format(condition=_UNLIMITED, room="$3") + _UNSYNCED,
    "claim_with_ends": _PICKED.format(condition=_UNLIMITED, room="$3"),
    "still_waiting": """
        SELECT id FROM stategraph_jobs WHERE id = ANY($1::bigint[]) AND state = 'waiting'
    """,
    "lock_limit": "SELECT most FROM stategraph_limits WHERE graph = $1 FOR NO KEY UPDATE",
    "claim_within": _PICKED.format(
        condition="true",
        room="""greatest(0, least($3::bigint,
            (SELECT most FROM stategraph_limits AS l WHERE l.graph = $1) - (
                SELECT count(*) FROM stategraph_jobs AS other
                WHERE other.graph = $1 AND other.state = 'running'
            )
        ))""",
    ) + _UNSYNCED,
    # Worker and attempt are the fencing token: a worker that has lost a job to another cannot end
    # it. `state` is not a condition, or a plan might scan the index of all running jobs.
    "begin": """
        UPDATE stategraph_jobs SET begun = true
        WHERE id = $1 AND attempt = $2 AND worker = $3
    """,
    "bind": "UPDATE stategraph_jobs SET task = $4 WHERE id = $1 AND attempt = $2 AND worker = $3",
    "unwanted": """
        SELECT id FROM stategraph_jobs
        WHERE graph = $1 AND worker = $2 AND state = 'running' AND unwanted
    """,
    "end": """
        UPDATE stategraph_jobs AS job SET outcome = e.outcome, worker = NULL, ended = now(),
            run_at = coalesce(to_timestamp(e.run_at), job.run_at),
            version = CASE WHEN e.state = 'left' THEN nullif(former, '') ELSE version END,
            state = CASE
                WHEN unwanted
                    AND convert_from(e.state, 'UTF8') IN ('waiting', 'left', 'sleeping', 'delayed')
                    THEN 'cancelled'
                WHEN e.state = 'left' THEN 'waiting'
                ELSE convert_from(e.state, 'UTF8')
            END
        FROM unnest($1::bigint[], $2::bigint[], $3::bytea[], $4::bytea[], $5::float8[])
            AS e (id, attempt, state, outcome, run_at)
        WHERE job.id = e.id AND job.attempt = e.attempt AND job.worker = $6
        RETURNING job.id, awaited
    """,
    # Each worker watches the next one in the ring, so that few checks cover them all.
    "watch": f"""
        SELECT id, {_ALIVE} FROM (
            (SELECT * FROM stategraph_workers WHERE id > $1 ORDER BY id LIMIT 1)
            UNION ALL
            (SELECT * FROM stategraph_workers WHERE id < $1 ORDER BY id LIMIT 1)
            LIMIT 1
        ) AS w
    """,
    # Jobs of workers that have no row any more. Only the oldest worker of the graph looks for them.
    "sweep": f"""
        UPDATE stategraph_jobs AS job SET {_GIVEN_BACK}
        WHERE graph = $1 AND state = 'running'
            AND NOT EXISTS (
                SELECT FROM stategraph_workers AS older WHERE older.graph = $1 AND older.id < $2
            )
            AND NOT EXISTS (
                SELECT FROM stategraph_workers AS w WHERE w.graph = job.graph AND w.id = job.worker
            )
        RETURNING id, state, awaited
    """,
    # Jobs are not blamed if their worker left in good order or lost its connection because the
    # server went down, nor if the thread has progressed since the previous death. The input and
    # START alone, which may be held back, do not count as progress.
    "bury": f"""
        WITH gone AS (
            DELETE FROM stategraph_workers WHERE id = $1
            RETURNING graph, leaving OR since < pg_postmaster_start_time() AS innocent
        ),
        fate AS (
            SELECT job.id, place.mark, CASE
                WHEN gone.innocent OR NOT job.begun THEN job.deaths
                WHEN place.mark IS NOT DISTINCT FROM job.mark THEN job.deaths + 1
                WHEN place.size <= 2 AND place.size > {_SIZE_BEFORE} THEN job.deaths + 1
                ELSE 1
            END AS deaths
            FROM gone, stategraph_jobs AS job, LATERAL ({_PROGRESS}) AS place (mark, size)
            WHERE job.graph = gone.graph AND job.worker = $1 AND job.state = 'running'
        )
        UPDATE stategraph_jobs AS job SET worker = NULL, deaths = fate.deaths, mark = fate.mark,
            ended = CASE WHEN unwanted THEN now() END,
            state = CASE
                WHEN unwanted THEN 'cancelled'
                WHEN fate.deaths >= $2 THEN 'parked'
                ELSE 'waiting'
            END
        FROM fate WHERE job.id = fate.id
        RETURNING job.id, job.state, awaited
    """,
}
