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
        WITH given AS MATERIALIZED (
            SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bytea[])
                WITH ORDINALITY AS given (job, attempt, data, place)
        ),
        mine AS MATERIALIZED (
            SELECT job.id, job.awaited, before.seq
            FROM (SELECT DISTINCT job, attempt FROM given) AS claim
            JOIN stategraph_jobs AS job ON job.id = claim.job AND job.attempt = claim.attempt
            CROSS JOIN LATERAL (
                SELECT coalesce(max(seq), 0) AS seq FROM stategraph_chunks AS chunk
                WHERE chunk.job = job.id
            ) AS before
            WHERE job.state IN ('running', 'waiting')
        ),
        made AS (
            INSERT INTO stategraph_chunks (job, seq, data)
            SELECT mine.id, mine.seq + row_number() OVER (PARTITION BY mine.id ORDER BY place), data
            FROM given JOIN mine ON mine.id = given.job
            RETURNING job, seq
        )
        SELECT made.job, max(made.seq), set_config('synchronous_commit', 'off', true),
            (SELECT count(pg_notify('stategraph_chunks', id::text)) FROM mine WHERE awaited)
        FROM made GROUP BY made.job
    """,
    "trim_chunks": "DELETE FROM stategraph_chunks WHERE job = $1 AND seq <= $2",
    # Each job's status and its next chunks, in one snapshot: if the job has ended, no chunks can
    # follow.
    "chunks": """
        SELECT given.place, job.state, chunk.seq, chunk.data
        FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS given (job, after, place)
        JOIN stategraph_jobs AS job ON job.id = given.job
        LEFT JOIN LATERAL (
            SELECT seq, data FROM stategraph_chunks
            WHERE job = given.job AND seq > given.after ORDER BY seq LIMIT $3
        ) AS chunk ON true
        ORDER BY given.place, chunk.seq
    """,
    "last_chunk": "SELECT coalesce(max(seq), 0) FROM stategraph_chunks WHERE job = $1",
    "listen_for_chunks": "LISTEN stategraph_chunks",
}
