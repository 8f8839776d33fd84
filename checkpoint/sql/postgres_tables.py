"""The tables of `PostgresSaver` and all its statements: constants, no code. Tables are changed by
adding a migration."""

from __future__ import annotations

# Names are bytes, because a Postgres text cannot hold a NUL, and are found by their hash, because
# an index cannot hold long ones. For the rest see `sqlite_tables`.
MIGRATIONS = (
    (
        """
        CREATE TABLE stategraph_spaces (
            id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            thread_id BYTEA NOT NULL,
            checkpoint_ns BYTEA NOT NULL,
            head BIGINT,
            head_id BYTEA,
            stamp BIGINT NOT NULL DEFAULT 0,
            size BIGINT NOT NULL DEFAULT 0
        ) WITH (fillfactor = 50)
        """,
        """
        CREATE UNIQUE INDEX stategraph_spaces_by_name
            ON stategraph_spaces (sha256(thread_id), sha256(checkpoint_ns))
        """,
        "CREATE SEQUENCE stategraph_order",
        """
        CREATE TABLE stategraph_checkpoints (
            seq BIGINT PRIMARY KEY DEFAULT nextval('stategraph_order'),
            space BIGINT NOT NULL,
            checkpoint_id BYTEA NOT NULL,
            parent_id BYTEA,
            link BIGINT,
            run_id BYTEA,
            body BYTEA NOT NULL
        )
        """,
        """
        CREATE UNIQUE INDEX stategraph_checkpoints_by_id
            ON stategraph_checkpoints (space, sha256(checkpoint_id))
        """,
        "CREATE INDEX stategraph_checkpoints_by_space ON stategraph_checkpoints (space, seq)",
        """
        CREATE INDEX stategraph_checkpoints_by_run
            ON stategraph_checkpoints (sha256(run_id)) WHERE run_id IS NOT NULL
        """,
        """
        CREATE TABLE stategraph_values (
            space BIGINT NOT NULL,
            owner BIGINT NOT NULL,
            channel BYTEA NOT NULL,
            base BIGINT,
            data BYTEA NOT NULL
        )
        """,
        """
        CREATE UNIQUE INDEX stategraph_values_by_owner
            ON stategraph_values (space, owner, sha256(channel))
        """,
        """
        CREATE TABLE stategraph_writes (
            seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            space BIGINT NOT NULL,
            checkpoint_id BYTEA NOT NULL,
            data BYTEA NOT NULL
        )
        """,
        "CREATE INDEX stategraph_writes_by_checkpoint "
        "ON stategraph_writes (space, sha256(checkpoint_id))",
    ),
    # Existing namespaces have no labels yet; see `label_index`. The column's default is false,
    # since a program of the previous version may still be creating namespaces; ours set it.
    (
        "ALTER TABLE stategraph_spaces ADD COLUMN labelled BOOLEAN NOT NULL DEFAULT false",
        "CREATE INDEX stategraph_spaces_unlabelled ON stategraph_spaces (id) WHERE NOT labelled",
        """
        CREATE TABLE stategraph_labels (
            label BIGINT NOT NULL,
            space BIGINT NOT NULL,
            PRIMARY KEY (label, space)
        )
        """,
        "CREATE INDEX stategraph_labels_by_space ON stategraph_labels (space)",
    ),
    (
        """
        CREATE TABLE stategraph_posts (
            id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            thread_id BYTEA NOT NULL,
            data BYTEA NOT NULL
        )
        """,
        "CREATE INDEX stategraph_posts_by_thread ON stategraph_posts (sha256(thread_id))",
    ),
)
_SPACE = "SELECT id, thread_id, checkpoint_ns, head, head_id, stamp, size FROM stategraph_spaces"
_NAMED = "WHERE sha256(thread_id) = sha256($1) AND sha256(checkpoint_ns) = sha256($2)"
_ROW = "SELECT space, seq, checkpoint_id, parent_id, link, run_id, body FROM stategraph_checkpoints"
_IDS = "(SELECT sha256(id) FROM unnest($2::bytea[]) AS wanted (id))"
# A commit is one statement, so it is atomic: `place` moves the head, and
# all else hangs on it. Most commits have one row, and do not pay for what the others need (P28,
# P36). `commit` takes further conditions: $12 NULL, the namespace is locked; $15, that this
# namespace of the thread $14 has the head $16, which cannot move meanwhile.
_MOVE = """
    WITH place AS (
        UPDATE stategraph_spaces
            SET head = nextval('stategraph_order'), head_id = $1, stamp = 0, size = size + 1
        WHERE id = {}::bigint AND {} RETURNING id, head
    )
"""
_AT = "head = {}::bigint AND stamp = {}::bigint"
_REQUIRED = f"""
        ($12::bigint IS NULL OR {_AT.format("$12", "$13")}) AND ($15::bytea IS NULL OR EXISTS (
            SELECT FROM stategraph_spaces
            WHERE sha256(thread_id) = sha256($14::bytea) AND sha256(checkpoint_ns) = sha256($15)
                AND head_id = $16::bytea
            FOR SHARE
        ))
"""
_ROW_AT = """
    INSERT INTO stategraph_checkpoints
        (space, seq, checkpoint_id, parent_id, link, run_id, body)
    SELECT id, head, $1::bytea, $2::bytea, CASE WHEN $3::bigint > 0 THEN $3::bigint END,
        $4::bytea, $5::bytea
    FROM place
"""
_ALL_AT = f""",
    checkpoint AS ({_ROW_AT}),
    long_values AS (
        INSERT INTO stategraph_values (space, owner, channel, base, data)
        SELECT id, head, v.channel, v.base, v.data
        FROM place, unnest($6::bytea[], $7::bigint[], $8::bytea[]) AS v (channel, base, data)
    ),
    finished AS (
        INSERT INTO stategraph_writes (space, checkpoint_id, data)
        SELECT id, $2::bytea, $9::bytea FROM place WHERE $9::bytea IS NOT NULL
    ),
    labels AS (
        INSERT INTO stategraph_labels (label, space)
        SELECT label, id FROM place, unnest($10::bigint[]) AS l (label) ON CONFLICT DO NOTHING
    )
    SELECT id, head FROM place
"""
# The first commits of a namespace, all or none. A materialized CTE is evaluated once, so each
# number is drawn once, in this order; the first commit has the lowest.
_FIRST = """
    WITH drawn AS MATERIALIZED (
        SELECT nextval('stategraph_order') AS seq, number, id, body
        FROM unnest($3::bytea[], $4::bytea[]) WITH ORDINALITY AS given (id, body, number)
    ),
    place AS (
        INSERT INTO stategraph_spaces (thread_id, checkpoint_ns, head, head_id, size, labelled)
        SELECT $1::bytea, $2::bytea, seq, id, number, true
        FROM drawn ORDER BY number DESC LIMIT 1
            ON CONFLICT DO NOTHING RETURNING id
    ),
    checkpoints AS (
        INSERT INTO stategraph_checkpoints
            (space, seq, checkpoint_id, parent_id, link, run_id, body)
        SELECT place.id, seq, drawn.id, lag(drawn.id) OVER numbered, lag(seq) OVER numbered,
            $5::bytea, body
        FROM place, drawn WINDOW numbered AS (ORDER BY number)
    )
"""
_NUMBERED = "SELECT place.id, seq FROM place, drawn ORDER BY number"
# Some values, by owner and channel, and those that they build on.
_FOUND_VALUES = """
    WITH RECURSIVE found (owner, channel, base) AS (
        SELECT v.owner, v.channel, v.base
            FROM unnest($2::bigint[], $3::bytea[]) AS wanted (owner, channel)
        JOIN stategraph_values AS v
            ON v.space = $1 AND v.owner = wanted.owner
                AND sha256(v.channel) = sha256(wanted.channel)
        UNION
        SELECT v.owner, v.channel, v.base FROM found JOIN stategraph_values AS v
            ON v.space = $1 AND v.owner = found.base
                AND sha256(v.channel) = sha256(found.channel){0}
    )
"""
STATEMENTS = {
    "namespace": f"{_SPACE} {_NAMED}",
    "lock_namespace": """
        INSERT INTO stategraph_spaces AS space (thread_id, checkpoint_ns, labelled)
        VALUES ($1, $2, true)
        ON CONFLICT (sha256(thread_id), sha256(checkpoint_ns)) DO UPDATE SET head = space.head
        RETURNING id, thread_id, checkpoint_ns, head, head_id, stamp, size
    """,
    # This head cannot move before the transaction ends; other commits may require it as well.
    "required": f"{_SPACE} {_NAMED} FOR SHARE",
    "namespaces": f"{_SPACE} WHERE sha256(thread_id) = sha256($1) ORDER BY id",
    "lock_namespaces": f"{_SPACE} WHERE sha256(thread_id) = sha256($1) ORDER BY id FOR UPDATE",
    "all_namespaces": f"{_SPACE} ORDER BY id",
    "threads": (
        "SELECT thread_id, checkpoint_ns FROM stategraph_spaces WHERE head IS NOT NULL "
        "ORDER BY head DESC NULLS LAST, id LIMIT $1"
    ),
    "namespaces_of": f"{_SPACE} WHERE id = ANY($1::bigint[])",
    "stored_bytes": " + ".join(
        f"(SELECT coalesce(sum(length({data})), 0) FROM stategraph_{table} "
        "WHERE space IN (SELECT id FROM stategraph_spaces WHERE sha256(thread_id) IN "
        "(SELECT sha256(id) FROM unnest($1::bytea[]) AS wanted (id))))"
        for table, data in (("checkpoints", "body"), ("values", "data"), ("writes", "data"))
    ).join(("SELECT ", "")),
    "labelled": "SELECT space FROM stategraph_labels WHERE label IN ($1, $2) LIMIT $3",
    "unlabelled": f"{_SPACE} WHERE NOT labelled LIMIT $1",
    "copy_labels": """
        INSERT INTO stategraph_labels (space, label)
        SELECT $2, label FROM stategraph_labels WHERE space = $1
    """,
    "copy_mark": """
        UPDATE stategraph_spaces
            SET labelled = (SELECT labelled FROM stategraph_spaces WHERE id = $1)
        WHERE id = $2
    """,
    "add_labels": """
        INSERT INTO stategraph_labels (label, space)
        SELECT label, $1 FROM unnest($2::bigint[]) AS l (label) ON CONFLICT DO NOTHING
    """,
    "has_labels": "SELECT 1 FROM stategraph_labels WHERE space = $1 LIMIT 1",
    "keep_labels": (
        "DELETE FROM stategraph_labels WHERE space = $1 AND NOT label = ANY($2::bigint[])"
    ),
    "forget_labels": "DELETE FROM stategraph_labels WHERE space = $1",
    "namespaces_after": f"{_SPACE} WHERE id > $1 ORDER BY id LIMIT $2",
    "set_head": """
        UPDATE stategraph_spaces SET head = $1, head_id = $2, stamp = $3,
            size = (SELECT count(*) FROM stategraph_checkpoints WHERE space = $4)
        WHERE id = $4
    """,
    "set_revision": "UPDATE stategraph_spaces SET stamp = $1 WHERE id = $2",
    "count": """
        SELECT size, (SELECT count(*) FROM stategraph_checkpoints WHERE space = $1)
            FROM stategraph_spaces WHERE id = $1
    """,
    "count_of": (
        "SELECT count(*) FROM stategraph_checkpoints WHERE space = $1 AND seq = ANY($2::bigint[])"
    ),
    "add_post": "INSERT INTO stategraph_posts (thread_id, data) VALUES ($1, $2)",
    "posts": (
        "SELECT id, data FROM stategraph_posts WHERE sha256(thread_id) = sha256($1) ORDER BY id"
    ),
    "take_posts": """
        DELETE FROM stategraph_posts
        WHERE sha256(thread_id) = sha256($1) AND id = ANY($2::bigint[])
    """,
    "forget_posts": "DELETE FROM stategraph_posts WHERE sha256(thread_id) = sha256($1)",
    "drop_namespace": "DELETE FROM stategraph_spaces WHERE id = $1",
    "by_id": f"{_ROW} WHERE space = $1 AND sha256(checkpoint_id) = sha256($2)",
    "by_id_unindexed": (
        "SELECT 1 FROM stategraph_checkpoints WHERE space = $1 AND checkpoint_id = $2"
    ),
    "all_rows": f"{_ROW} WHERE space = $1 ORDER BY seq",
    # Few namespaces: the newest rows of each, by index. Many (`page_of_many`): all rows backwards,
    # since most of them are wanted.
    "page": f"""
        SELECT found.* FROM unnest($1::bigint[]) AS wanted (id) CROSS JOIN LATERAL (
            {_ROW} WHERE space = wanted.id AND seq < $2 ORDER BY seq DESC LIMIT $3
        ) AS found ORDER BY seq DESC LIMIT $3
    """,
    "page_of_all": f"{_ROW} WHERE seq < $1 ORDER BY seq DESC LIMIT $2",
    "page_of_many": (
        f"{_ROW} WHERE space = ANY($1::bigint[]) AND seq < $2 ORDER BY seq DESC LIMIT $3"
    ),
    # And then the short values that it wrote, a row each.
    "next": f"""
        WITH c AS ({_ROW} WHERE space = $1 AND seq > $2 ORDER BY seq LIMIT 1)
        SELECT c.*, NULL, NULL, NULL FROM c
        UNION ALL
        SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, v.channel, v.base, v.data
        FROM c JOIN stategraph_values AS v ON v.space = c.space AND v.owner = c.seq
            AND octet_length(v.data) <= $3
        ORDER BY 2
    """,
    "chain": f"""
        WITH RECURSIVE chain AS (
            {_ROW} WHERE space = $1 AND seq = $2
            UNION ALL
            SELECT c.space, c.seq, c.checkpoint_id, c.parent_id, c.link, c.run_id, c.body
            FROM stategraph_checkpoints AS c JOIN chain ON c.seq = chain.link
                AND chain.link < chain.seq
            WHERE c.space = $1
        )
        SELECT * FROM chain ORDER BY seq DESC
    """,
    # A namespace, one of its checkpoints (the head, if $3 is NULL) with those it builds on, and
    # what its tasks wrote; then, if it is an older one, what came next, and the short values of
    # that.
    "look": f"""
        WITH RECURSIVE place AS (
            SELECT id, head, head_id, stamp, size, sha256(coalesce($3::bytea, head_id)) AS wanted
            FROM stategraph_spaces {_NAMED}
        ),
        chain AS (
            SELECT c.space, c.seq, c.checkpoint_id, c.parent_id, c.link, c.run_id, c.body
            FROM place JOIN stategraph_checkpoints AS c ON c.space = place.id
                AND sha256(c.checkpoint_id) = place.wanted
            UNION ALL
            SELECT c.space, c.seq, c.checkpoint_id, c.parent_id, c.link, c.run_id, c.body
            FROM chain JOIN stategraph_checkpoints AS c
                ON c.seq = chain.link AND c.space = chain.space AND chain.link < chain.seq
        ),
        after AS (
            {_ROW} WHERE $3 IS NOT NULL AND space = (SELECT id FROM place)
                AND seq > (SELECT max(seq) FROM chain) ORDER BY seq LIMIT 1
        )
        SELECT place.id, place.head, place.head_id, place.stamp, place.size,
            CASE WHEN sha256(chain.checkpoint_id) = place.wanted THEN (
                SELECT array_agg(w.data ORDER BY w.seq) FROM stategraph_writes AS w
                WHERE w.space = place.id AND sha256(w.checkpoint_id) = place.wanted
            ) END,
            chain.*
        FROM place LEFT JOIN chain ON true
        UNION ALL
        SELECT NULL, NULL, NULL, NULL, NULL, NULL, after.* FROM after
        UNION ALL
        SELECT NULL, NULL, NULL, NULL, NULL, NULL,
            NULL, v.owner, v.channel, NULL, NULL, NULL, v.data
        FROM after JOIN stategraph_values AS v ON v.space = after.space AND v.owner = after.seq
            AND octet_length(v.data) <= $4
        ORDER BY 1, 7, 8 DESC
    """,
    "by_run": """
        SELECT checkpoint_id FROM stategraph_checkpoints
        WHERE run_id IS NOT NULL AND sha256(run_id) = sha256($2) AND space = $1
            ORDER BY seq DESC LIMIT 1
    """,
    "limit_wait": "SELECT set_config('lock_timeout', '100ms', true)",
    "commit_row": f"{_MOVE.format('$6', _AT.format('$7', '$8'))} {_ROW_AT} RETURNING space, seq",
    "commit": f"{_MOVE.format('$11', _REQUIRED)} {_ALL_AT}",
    "create_rows": f"{_FIRST} {_NUMBERED}",
    "create_all": f"""{_FIRST},
        long_values AS (
            INSERT INTO stategraph_values (space, owner, channel, base, data)
            SELECT place.id, seq, v.channel, NULL, v.data
            FROM place, drawn JOIN unnest($6::bigint[], $7::bytea[], $8::bytea[])
                AS v (number, channel, data) USING (number)
        ),
        finished AS (
            INSERT INTO stategraph_writes (space, checkpoint_id, data)
            SELECT place.id, w.id, w.data
            FROM place, unnest($9::bytea[], $10::bytea[]) AS w (id, data)
        ),
        labels AS (
            INSERT INTO stategraph_labels (label, space)
            SELECT label, id FROM place, unnest($11::bigint[]) AS l (label)
                ON CONFLICT DO NOTHING
        )
        {_NUMBERED}
    """,
    "add_row": """
        INSERT INTO stategraph_checkpoints (space, checkpoint_id, parent_id, link, run_id, body)
        VALUES ($1, $2, $3, $4, $5, $6) RETURNING seq
    """,
    "rewrite": (
        "UPDATE stategraph_checkpoints SET parent_id = $1, link = NULL, body = $2 WHERE seq = $3"
    ),
    "drop_rows": "DELETE FROM stategraph_checkpoints WHERE space = $1 AND seq = ANY($2::bigint[])",
    "forget_rows": "DELETE FROM stategraph_checkpoints WHERE space = $1",
    "threads_of_runs": """
        SELECT DISTINCT thread_id FROM stategraph_checkpoints JOIN stategraph_spaces ON id = space
        WHERE run_id IS NOT NULL AND sha256(run_id) IN (
            SELECT sha256(run) FROM unnest($1::bytea[]) AS wanted (run)
        )
        ORDER BY thread_id
    """,
    # Only owners after $4.
    "values": f"""{_FOUND_VALUES.format(" AND found.base > $4")}
        SELECT v.owner, v.channel, v.base, v.data FROM found JOIN stategraph_values AS v
            ON v.space = $1 AND v.owner = found.owner AND sha256(v.channel) = sha256(found.channel)
    """,
    "value_chains": f"{_FOUND_VALUES.format('')} SELECT owner, channel FROM found",
    "values_of": (
        "SELECT owner, channel FROM stategraph_values "
        "WHERE space = $1 AND owner = ANY($2::bigint[])"
    ),
    "orphans": """
        SELECT owner, channel FROM stategraph_values AS v WHERE space = $1
            AND NOT EXISTS (SELECT FROM stategraph_checkpoints AS c WHERE c.seq = v.owner)
    """,
    "one_value": """
        SELECT owner, channel, base, data FROM stategraph_values
        WHERE space = $1 AND owner = $2 AND sha256(channel) = sha256($3)
    """,
    "all_values": "SELECT owner, channel, base FROM stategraph_values WHERE space = $1",
    "add_value": (
        "INSERT INTO stategraph_values (space, owner, channel, base, data) "
        "VALUES ($1, $2, $3, $4, $5)"
    ),
    "drop_values": """
        DELETE FROM stategraph_values AS v
        USING unnest($2::bigint[], $3::bytea[]) AS gone (owner, channel)
        WHERE v.space = $1 AND v.owner = gone.owner AND sha256(v.channel) = sha256(gone.channel)
    """,
    "forget_values": "DELETE FROM stategraph_values WHERE space = $1",
    "writes": f"""
        SELECT checkpoint_id, data FROM stategraph_writes
        WHERE space = $1 AND sha256(checkpoint_id) IN {_IDS} ORDER BY seq
    """,
    "all_writes": "SELECT checkpoint_id, data FROM stategraph_writes WHERE space = $1 ORDER BY seq",
    "count_writes": """
        SELECT count(*) FROM stategraph_writes WHERE space = $1
            AND sha256(checkpoint_id) = sha256($2)
    """,
    "add_writes": "INSERT INTO stategraph_writes (space, checkpoint_id, data) VALUES ($1, $2, $3)",
    "record": f"""
        WITH place AS (
            UPDATE stategraph_spaces SET stamp = stamp + 1 {_NAMED} AND head_id = $3
                AND stamp = $4 RETURNING id
        )
        INSERT INTO stategraph_writes (space, checkpoint_id, data)
            SELECT id, $3::bytea, $5::bytea FROM place
    """,
    "same_writes": """
        SELECT 1 FROM stategraph_writes WHERE space = $1
            AND sha256(checkpoint_id) = sha256($2) AND data = $3
    """,
    "drop_writes": (
        f"DELETE FROM stategraph_writes WHERE space = $1 AND sha256(checkpoint_id) IN {_IDS}"
    ),
    "forget_writes": "DELETE FROM stategraph_writes WHERE space = $1",
}
NAMES = frozenset(
    {"thread_id", "checkpoint_ns", "head_id", "checkpoint_id", "parent_id", "run_id", "channel"}
)
"""Columns that hold text."""
