"""The tables and statements of `SqliteSaver`. Constants only; user text never becomes SQL."""

from __future__ import annotations

from .sqlite_database import Column

# `seq` orders all checkpoints of the file. A value belongs to the checkpoint that wrote it
# (`owner`), and stays as long as any checkpoint builds on it. `link` and `base` name what a row is
# a change of; NULL if it is complete.
SCHEMA = (
    """
    CREATE TABLE IF NOT EXISTS spaces (
        id INTEGER PRIMARY KEY,
        thread_id TEXT NOT NULL,
        checkpoint_ns TEXT NOT NULL,
        head INTEGER,
        head_id TEXT,
        stamp INTEGER NOT NULL DEFAULT 0,
        size INTEGER NOT NULL DEFAULT 0,
        UNIQUE (thread_id, checkpoint_ns)
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS checkpoints (
        seq INTEGER PRIMARY KEY,
        space INTEGER NOT NULL,
        checkpoint_id TEXT NOT NULL,
        parent_id TEXT,
        link INTEGER,
        run_id TEXT,
        body BLOB NOT NULL
    )
    """,
    "CREATE UNIQUE INDEX IF NOT EXISTS checkpoints_by_id ON checkpoints (space, checkpoint_id)",
    "CREATE INDEX IF NOT EXISTS checkpoints_by_space ON checkpoints (space)",
    "CREATE INDEX IF NOT EXISTS checkpoints_by_run ON checkpoints (run_id) "
    "WHERE run_id IS NOT NULL",
    """
    CREATE TABLE IF NOT EXISTS channel_values (
        space INTEGER NOT NULL,
        owner INTEGER NOT NULL,
        channel TEXT NOT NULL,
        base INTEGER,
        data BLOB NOT NULL
    )
    """,
    "CREATE UNIQUE INDEX IF NOT EXISTS channel_values_by_owner "
    "ON channel_values (space, owner, channel)",
    """
    CREATE TABLE IF NOT EXISTS writes (
        seq INTEGER PRIMARY KEY,
        space INTEGER NOT NULL,
        checkpoint_id TEXT NOT NULL,
        data BLOB NOT NULL
    )
    """,
    "CREATE INDEX IF NOT EXISTS writes_by_checkpoint ON writes (space, checkpoint_id)",
    # The head up to which the labels of a namespace are in the index; see `label_index`. A version
    # without labels moves the head and does not change this.
    Column("spaces", "labelled", "ALTER TABLE spaces ADD COLUMN labelled INTEGER"),
    "CREATE INDEX IF NOT EXISTS spaces_unlabelled ON spaces (id) WHERE labelled IS NOT head",
    """
    CREATE TABLE IF NOT EXISTS labels (
        label INTEGER NOT NULL,
        space INTEGER NOT NULL
    )
    """,
    "CREATE UNIQUE INDEX IF NOT EXISTS labels_by_label ON labels (label, space)",
    "CREATE INDEX IF NOT EXISTS labels_by_space ON labels (space)",
    # AUTOINCREMENT: the id of a post that was taken is not reused.
    """
    CREATE TABLE IF NOT EXISTS posts (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        thread_id TEXT NOT NULL,
        data BLOB NOT NULL
    )
    """,
    "CREATE INDEX IF NOT EXISTS posts_by_thread ON posts (thread_id)",
    # The id of a deleted namespace is not reused either: a list that goes on would take the new
    # one's rows for its own. Not AUTOINCREMENT, which files of earlier releases lack.
    "CREATE TABLE IF NOT EXISTS dropped_spaces (id INTEGER PRIMARY KEY)",
    """
    CREATE TRIGGER IF NOT EXISTS remember_dropped_space AFTER DELETE ON spaces BEGIN
        INSERT OR IGNORE INTO dropped_spaces VALUES (old.id);
        DELETE FROM dropped_spaces WHERE id < (SELECT max(id) FROM dropped_spaces);
    END
    """,
)
SPACE = "SELECT id, thread_id, checkpoint_ns, head, head_id, stamp, size FROM spaces"
ROW = "SELECT space, seq, checkpoint_id, parent_id, link, run_id, body FROM checkpoints"
# Some values, by owner and channel, and those that they build on.
_FOUND_VALUES = """
    WITH RECURSIVE found (id, owner, channel, base) AS (
        SELECT v.rowid, v.owner, v.channel, v.base FROM json_each(?2) AS wanted
        CROSS JOIN channel_values AS v ON v.space = ?1
            AND v.owner = json_extract(wanted.value, '$[0]')
            AND v.channel = json_extract(wanted.value, '$[1]')
        UNION
        SELECT v.rowid, v.owner, v.channel, v.base FROM found CROSS JOIN channel_values AS v
            ON v.space = ?1 AND v.owner = found.base AND v.channel = found.channel{0}
    )
"""
# A namespace, and one of its checkpoints with those it builds on, a row each; then, behind as many
# NULLs, what its tasks wrote. Long columns are left out of the recursion, which would copy them.
_LOOK = """
    WITH RECURSIVE chain (space, seq, link) AS (
        SELECT s.id, c.seq, c.link FROM spaces AS s LEFT JOIN checkpoints AS c
            ON c.space = s.id AND c.checkpoint_id = {0}
        WHERE s.thread_id = ?1 AND s.checkpoint_ns = ?2
        UNION ALL
        SELECT chain.space, b.seq, b.link FROM chain CROSS JOIN checkpoints AS b
            ON b.seq = chain.link AND chain.link < chain.seq AND b.space = chain.space
        ORDER BY 2 DESC
    )
    SELECT s.id, s.thread_id, s.checkpoint_ns, s.head, {4}, s.stamp, s.size,
        c.space, c.seq, c.checkpoint_id, c.parent_id, c.link, c.run_id, c.body{1}
    FROM chain CROSS JOIN spaces AS s ON s.id = chain.space
        LEFT JOIN checkpoints AS c ON c.seq = chain.seq {2}
    UNION ALL
    SELECT {3}, w.seq, w.data
    FROM spaces AS s CROSS JOIN writes AS w ON w.space = s.id AND w.checkpoint_id = {0}
    WHERE s.thread_id = ?1 AND s.checkpoint_ns = ?2
"""
# NULL if the newest checkpoint is missing.
_STORED_HEAD = """(
            SELECT checkpoint_id FROM checkpoints
            WHERE space = s.id AND checkpoint_id = s.head_id AND seq = s.head
        )"""
_AFTER_COLUMNS = """,
        n.space, n.seq, n.checkpoint_id, n.parent_id, n.link, n.run_id, n.body, v.channel, v.data"""
# What came next, beside the checkpoint: once for each short value that it wrote.
_AFTER = """
        LEFT JOIN checkpoints AS n ON c.checkpoint_id = ?3 AND n.seq = (
            SELECT seq FROM checkpoints WHERE space = s.id AND seq > c.seq ORDER BY seq LIMIT 1
        )
        LEFT JOIN channel_values AS v
            ON v.space = n.space AND v.owner = n.seq AND length(v.data) <= ?4
"""
STATEMENTS = {
    "namespace": f"{SPACE} WHERE thread_id = ? AND checkpoint_ns = ?",
    "lock_namespace": f"{SPACE} WHERE thread_id = ? AND checkpoint_ns = ?",
    "required": f"{SPACE} WHERE thread_id = ? AND checkpoint_ns = ?",
    "namespaces": f"{SPACE} WHERE thread_id = ? ORDER BY id",
    "lock_namespaces": f"{SPACE} WHERE thread_id = ? ORDER BY id",
    "all_namespaces": f"{SPACE} ORDER BY id",
    "threads": (
        "SELECT thread_id, checkpoint_ns FROM spaces WHERE head IS NOT NULL "
        "ORDER BY head DESC, id LIMIT ?"
    ),
    "namespaces_of": f"{SPACE} WHERE id IN (SELECT value FROM json_each(?))",
    "stored_bytes": " + ".join(
        f"(SELECT coalesce(sum(length({data})), 0) FROM {table} "
        "WHERE space IN (SELECT id FROM spaces WHERE thread_id IN "
        "(SELECT value FROM json_each(?1))))"
        for table, data in (("checkpoints", "body"), ("channel_values", "data"), ("writes", "data"))
    ).join(("SELECT ", "")),
    "labelled": "SELECT space FROM labels WHERE label IN (?, ?) LIMIT ?",
    "unlabelled": f"{SPACE} WHERE labelled IS NOT head LIMIT ?",
    "copy_labels": """
        INSERT INTO labels (space, label) SELECT ?2, label FROM labels WHERE space = ?1
    """,
    "copy_mark": """
        UPDATE spaces SET labelled = -1 WHERE id = ?2 AND EXISTS (
            SELECT 1 FROM spaces AS source WHERE source.id = ?1
                AND source.labelled IS NOT source.head
        )
    """,
    "add_labels": "INSERT OR IGNORE INTO labels (space, label) SELECT ?, value FROM json_each(?)",
    "has_labels": "SELECT 1 FROM labels WHERE space = ? LIMIT 1",
    "keep_labels": (
        "DELETE FROM labels WHERE space = ? AND label NOT IN (SELECT value FROM json_each(?))"
    ),
    "forget_labels": "DELETE FROM labels WHERE space = ?",
    "namespaces_after": f"{SPACE} WHERE id > ? ORDER BY id LIMIT ?",
    "add_namespace": """
        INSERT INTO spaces (id, thread_id, checkpoint_ns) VALUES (1 + max(
            coalesce((SELECT max(id) FROM spaces), 0),
            coalesce((SELECT max(id) FROM dropped_spaces), 0)
        ), ?, ?)
    """,
    "set_head": """
        UPDATE spaces SET head = ?1, head_id = ?2, stamp = ?3,
            labelled = CASE WHEN labelled IS head THEN ?1 END,
            size = (SELECT count(*) FROM checkpoints WHERE space = spaces.id)
        WHERE id = ?4
    """,
    "next_head": """
        UPDATE spaces SET head = ?1, head_id = ?2, stamp = ?3, size = ?4,
            labelled = CASE WHEN labelled IS head THEN ?1 END
        WHERE id = ?5
    """,
    "set_revision": "UPDATE spaces SET stamp = ? WHERE id = ?",
    "count": (
        "SELECT size, (SELECT count(*) FROM checkpoints WHERE space = spaces.id) FROM spaces "
        "WHERE id = ?"
    ),
    "count_of": """
        SELECT count(*) FROM checkpoints
        WHERE space = ? AND seq IN (SELECT value FROM json_each(?))
    """,
    "move_head": """
        UPDATE spaces SET head = ?, head_id = ?, stamp = 0, size = size + 1,
            labelled = CASE WHEN labelled IS head THEN ? END
        WHERE id = ?
            AND head = ? AND head_id = ? AND stamp = ?
    """,
    "add_post": "INSERT INTO posts (thread_id, data) VALUES (?, ?)",
    "posts": "SELECT id, data FROM posts WHERE thread_id = ? ORDER BY id",
    "take_posts": (
        "DELETE FROM posts WHERE thread_id = ? AND id IN (SELECT value FROM json_each(?))"
    ),
    "forget_posts": "DELETE FROM posts WHERE thread_id = ?",
    "drop_namespace": "DELETE FROM spaces WHERE id = ?",
    "by_id": f"{ROW} WHERE space = ? AND checkpoint_id = ?",
    "by_id_unindexed": """
        SELECT 1 FROM checkpoints INDEXED BY checkpoints_by_space WHERE space = ?
            AND checkpoint_id = ?
    """,
    "all_rows": f"{ROW} WHERE space = ? ORDER BY seq",
    "look": _LOOK.format("s.head_id", "", "", ", ".join(["NULL"] * 12), "s.head_id"),
    "look_at": _LOOK.format("?3", _AFTER_COLUMNS, _AFTER, ", ".join(["NULL"] * 21), _STORED_HEAD),
    "page_of_one": f"{ROW} WHERE space = ? AND seq < ? ORDER BY seq DESC LIMIT ?",
    # Few namespaces: the newest rows of each, by index. Many (`page_of_many`): all rows backwards,
    # since most of them are wanted.
    "page": f"""
        {ROW} WHERE seq IN (
            SELECT c.seq FROM json_each(?1) AS wanted CROSS JOIN checkpoints AS c ON c.seq IN (
                SELECT seq FROM checkpoints WHERE space = wanted.value AND seq < ?2
                ORDER BY seq DESC LIMIT ?3
            )
            ORDER BY c.seq DESC LIMIT ?3
        )
        ORDER BY seq DESC
    """,
    "page_of_all": f"{ROW} WHERE seq < ? ORDER BY seq DESC LIMIT ?",
    "page_of_many": (
        f"{ROW} WHERE +space IN (SELECT value FROM json_each(?)) AND seq < ? "
        "ORDER BY seq DESC LIMIT ?"
    ),
    # And then the short values that it wrote, a row each.
    "next": f"""
        WITH c AS ({ROW} WHERE space = ?1 AND seq > ?2 ORDER BY seq LIMIT 1)
        SELECT c.*, NULL, NULL, NULL FROM c
        UNION ALL
        SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, v.channel, v.base, v.data
        FROM c JOIN channel_values AS v ON v.space = c.space AND v.owner = c.seq
            AND length(v.data) <= ?3
    """,
    "chain": """
        WITH RECURSIVE chain (seq, link) AS (
            SELECT seq, link FROM checkpoints WHERE space = ?1 AND seq = ?2
            UNION ALL
            SELECT c.seq, c.link FROM chain CROSS JOIN checkpoints AS c
                ON c.seq = chain.link AND chain.link < chain.seq AND c.space = ?1
        )
        SELECT c.space, c.seq, c.checkpoint_id, c.parent_id, c.link, c.run_id, c.body
        FROM chain CROSS JOIN checkpoints AS c ON c.seq = chain.seq ORDER BY c.seq DESC
    """,
    "by_run": (
        "SELECT checkpoint_id FROM checkpoints WHERE +space = ? AND run_id = ? "
        "ORDER BY seq DESC LIMIT 1"
    ),
    "add_row": """
        INSERT INTO checkpoints (space, checkpoint_id, parent_id, link, run_id, body)
            VALUES (?, ?, ?, ?, ?, ?)
    """,
    "rewrite": "UPDATE checkpoints SET parent_id = ?, link = NULL, body = ? WHERE seq = ?",
    "drop_rows": (
        "DELETE FROM checkpoints WHERE space = ? AND seq IN (SELECT value FROM json_each(?))"
    ),
    "forget_rows": "DELETE FROM checkpoints WHERE space = ?",
    "threads_of_runs": """
        SELECT DISTINCT thread_id FROM checkpoints JOIN spaces ON spaces.id = space
        WHERE run_id IN (SELECT value FROM json_each(?))
    """,
    # Only owners after ?3.
    "values": f"""{_FOUND_VALUES.format(" AND found.base > ?3")}
        SELECT v.owner, v.channel, v.base, v.data
        FROM found CROSS JOIN channel_values AS v ON v.rowid = found.id
    """,
    "value_chains": f"{_FOUND_VALUES.format('')} SELECT owner, channel FROM found",
    "values_of": """
        SELECT owner, channel FROM channel_values
        WHERE space = ? AND owner IN (SELECT value FROM json_each(?))
    """,
    "orphans": """
        SELECT owner, channel FROM channel_values
        WHERE space = ?1 AND owner NOT IN (SELECT seq FROM checkpoints WHERE space = ?1)
    """,
    "one_value": """
        SELECT owner, channel, base, data FROM channel_values WHERE space = ? AND owner = ?
            AND channel = ?
    """,
    "all_values": "SELECT owner, channel, base FROM channel_values WHERE space = ?",
    "add_value": (
        "INSERT INTO channel_values (space, owner, channel, base, data) VALUES (?, ?, ?, ?, ?)"
    ),
    "drop_values": """
        DELETE FROM channel_values WHERE rowid IN (
            SELECT v.rowid FROM (SELECT ? AS space, ? AS list) AS given
            CROSS JOIN json_each(given.list) AS gone
            CROSS JOIN channel_values AS v ON v.space = given.space
                AND v.owner = json_extract(gone.value, '$[0]')
                AND v.channel = json_extract(gone.value, '$[1]')
        )
    """,
    "forget_values": "DELETE FROM channel_values WHERE space = ?",
    "writes": """
        SELECT checkpoint_id, data FROM writes
        WHERE space = ? AND checkpoint_id IN (SELECT value FROM json_each(?)) ORDER BY seq
    """,
    "all_writes": "SELECT checkpoint_id, data FROM writes WHERE space = ? ORDER BY seq",
    "count_writes": "SELECT count(*) FROM writes WHERE space = ? AND checkpoint_id = ?",
    "add_writes": "INSERT INTO writes (space, checkpoint_id, data) VALUES (?, ?, ?)",
    "drop_writes": (
        "DELETE FROM writes WHERE space = ? AND checkpoint_id IN (SELECT value FROM json_each(?))"
    ),
    "forget_writes": "DELETE FROM writes WHERE space = ?",
}
