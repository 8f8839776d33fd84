"""The tables and statements for several versions of a graph in one fleet. Constants only; `tables`
includes them.

A job belongs to the version whose worker has claimed it, and so does a thread that its job has left
paused. Everything else is free: the newest version that a worker serves takes it, or the share of
the threads that `ramp` gives it.
"""

from __future__ import annotations

# `version` of a job is empty if the job is free, and NULL if a worker of the version to which it
# was free could not run it: then any version may. `former` is what it was before its worker claimed
# it. `versions` of a worker are its own and those it serves as well; [''] if its graph has none.
# `since`: when a worker of the version was first seen. `share`: how many of 100 free threads the
# newest version takes.
VERSION_MIGRATIONS = (
    (
        """
        ALTER TABLE stategraph_jobs
            ADD COLUMN version BYTEA DEFAULT ''::bytea, ADD COLUMN former BYTEA DEFAULT ''::bytea
        """,
        "ALTER TABLE stategraph_workers ADD COLUMN versions BYTEA[] NOT NULL DEFAULT '{}'",
        """
        CREATE TABLE stategraph_versions (
            graph BYTEA NOT NULL,
            version BYTEA NOT NULL,
            since TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
            share BIGINT NOT NULL DEFAULT 100,
            PRIMARY KEY (graph, version)
        )
        """,
    ),
)

NEWEST = """
    SELECT version, share FROM stategraph_versions AS known
    WHERE graph = $1 AND EXISTS (
        SELECT FROM stategraph_workers AS w
        WHERE w.graph = $1 AND w.versions[1] = known.version AND NOT w.leaving
    )
    ORDER BY since DESC LIMIT 1
"""
# The version of a job, or of its thread; empty if both are free. Cancelled jobs that nobody has
# claimed say nothing of their thread.
_BOUND = """
    coalesce(nullif(job.version, ''), (
        SELECT CASE WHEN last.state = 'paused' THEN last.version END FROM stategraph_jobs AS last
        WHERE last.lane = job.lane AND last.thread_id = job.thread_id AND last.graph = job.graph
            AND last.id < job.id AND last.attempt > 0
        ORDER BY last.id DESC LIMIT 1
    ), ''::bytea)
"""
# Whether a worker that serves the versions $6 may claim a job. A queue without versions pays for
# one look at an empty table per claim.
IS_MINE = f"""
    CASE
        WHEN job.version IS NULL
            OR NOT EXISTS (SELECT FROM stategraph_versions WHERE graph = $1) THEN true
        ELSE (
            SELECT bound = ANY($6::bytea[]) OR (bound = '' AND (
                SELECT (newest.version = ($6::bytea[])[1])
                    = ((job.lane % 100 + 100) % 100 < newest.share) FROM newest
            )) FROM (SELECT {_BOUND} AS bound) AS thread
        )
    END
"""

VERSION_STATEMENTS = {
    "ramp": f"""
        UPDATE stategraph_versions SET share = $2
        WHERE graph = $1 AND version = (SELECT version FROM ({NEWEST}) AS newest)
        RETURNING version
    """,
    # A paused thread waits for its version as much as an open job does.
    "versions": f"""
        WITH open AS (
            SELECT graph, {_BOUND} AS version, state = 'paused' AS paused,
                extract(epoch FROM now() - coalesce(ended, submitted))::float8 AS age
            FROM stategraph_jobs AS job
            WHERE state IN ('waiting', 'delayed', 'running', 'sleeping', 'parked')
                OR (state = 'paused' AND NOT EXISTS (
                    SELECT FROM stategraph_jobs AS later
                    WHERE later.lane = job.lane AND later.thread_id = job.thread_id
                        AND later.graph = job.graph AND later.id > job.id
                        AND (later.attempt > 0 OR later.state <> 'cancelled')
                ))
        )
        SELECT graph, version, count(*) FILTER (WHERE NOT paused), count(*) FILTER (WHERE paused),
            coalesce(max(age), 0), (
                SELECT count(*) FROM stategraph_workers AS w
                WHERE w.graph = found.graph AND found.version = ANY(w.versions) AND NOT w.leaving
            ), share
        FROM (
            SELECT * FROM stategraph_versions FULL JOIN open USING (graph, version)
        ) AS found
        WHERE version <> ''::bytea
        GROUP BY graph, version, since, share ORDER BY graph, since DESC NULLS LAST
    """,
}
