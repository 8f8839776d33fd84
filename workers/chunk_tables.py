"""The tables and statements for the streams of jobs. Constants, no code; they are a part of
`tables`."""

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
    # Only until another claim: a run of which the job was taken adds nothing then. Chunks wait for
    # no disk; the job's end, which is stored after them, does.
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
    # How the job stands, and what follows a chunk: seen at one moment, so a job that has ended adds
    # nothing any more.
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
