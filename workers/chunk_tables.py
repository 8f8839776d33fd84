"""The tables and statements for the streams of jobs. Constants only; `tables` includes them."""

from __future__ import annotations

CHUNK_MIGRATIONS = (
    (
        """
        CREATE TABLE stategraph_chunks (
            job BIGINT NOT NULL REFERENCES stategraph_jobs (id) ON DELETE CASCADE,
            seq BIGINT NOT NULL,
            data BYTEA NOT NULL,
            PRIMARY KEY (job, seq)
        )
        """,
    ),
)

CHUNK_STATEMENTS = {
    # Only under the current claim: a run that has lost its job adds nothing more. Chunks are not
    # synced to disk by themselves; the job's end, which is stored after them, is.
    "add_chunks": """
        WITH mine AS MATERIALIZED (
            SELECT awaited FROM stategraph_jobs
            WHERE id = $1 AND attempt = $2 AND state IN ('running', 'waiting')
        ),
        made AS (
            INSERT INTO stategraph_chunks (job, seq, data)
            SELECT $1::bigint, before.seq + given.place, given.data
            FROM mine, unnest($3::bytea[]) WITH ORDINALITY AS given (data, place), (
                SELECT coalesce(max(seq), 0) AS seq FROM stategraph_chunks WHERE job = $1
            ) AS before
            RETURNING seq
        )
        SELECT (SELECT max(seq) FROM made), set_config('synchronous_commit', 'off', true),
            (SELECT pg_notify('stategraph_chunks', $1::bigint::text) FROM mine WHERE awaited)
    """,
    "trim_chunks": "DELETE FROM stategraph_chunks WHERE job = $1 AND seq <= $2",
    # The job's status and the next chunks, in one snapshot: if the job has ended, no chunks can
    # follow.
    "chunks": """
        SELECT job.state, chunk.seq, chunk.data
        FROM stategraph_jobs AS job LEFT JOIN LATERAL (
            SELECT seq, data FROM stategraph_chunks
            WHERE job = $1 AND seq > $2 ORDER BY seq LIMIT $3
        ) AS chunk ON true
        WHERE job.id = $1 ORDER BY chunk.seq
    """,
    "last_chunk": "SELECT coalesce(max(seq), 0) FROM stategraph_chunks WHERE job = $1",
    "listen_for_chunks": "LISTEN stategraph_chunks",
}
