-- name: parts
SELECT CAST(substr(name, 7) AS INTEGER) FROM sqlite_schema
WHERE name GLOB 'words_[0-9]*' AND sql GLOB 'CREATE VIRTUAL TABLE*' ORDER BY 1 DESC;

-- name: make_part
-- No text is kept, only which tasks have a word. Words were told apart before.
CREATE VIRTUAL TABLE words_{part} USING fts5(
    body, content = '', contentless_delete = 1, detail = none, tokenize = 'ascii');

-- name: drop_part
DROP TABLE words_{part};

-- name: unindexed_first
SELECT number, id, context, scope, state, status_at, last_seq, fence, holder FROM tasks
WHERE number > coalesce((SELECT value FROM facts WHERE name = 'indexed_number'), 0)
ORDER BY number LIMIT ?;

-- name: unindexed_last
SELECT number, id, context, scope, state, status_at, last_seq, fence, holder FROM tasks
WHERE number > coalesce((SELECT value FROM facts WHERE name = 'indexed_number'), 0)
ORDER BY number DESC LIMIT ?;

-- name: finished_since
SELECT number, id, context, scope, state, status_at, last_seq, fence, holder
FROM unfinished_words CROSS JOIN tasks ON tasks.number = unfinished_words.task
WHERE state IN (3, 4, 5, 7) LIMIT ?;

-- name: set_words
-- A word of the scope keeps a search of one owner to its own tasks.
INSERT OR REPLACE INTO words_{part} (rowid, body)
SELECT number, '§' || scope || ' ' || ? FROM tasks WHERE number = ?;

-- name: add_unfinished
INSERT OR IGNORE INTO unfinished_words SELECT number FROM tasks WHERE number = ?;

-- name: drop_unfinished
DELETE FROM unfinished_words WHERE task = ?;

-- name: move_cursor
INSERT INTO facts (name, value) VALUES ('indexed_number', ?1)
ON CONFLICT DO UPDATE SET value = max(value, ?1);

-- name: matches
SELECT rowid FROM words_{part} WHERE words_{part} MATCH ? AND rowid < ?
ORDER BY rowid DESC LIMIT ?;

-- name: rows
SELECT number, id, context, scope, state, status_at, last_seq, fence, holder FROM tasks
WHERE number IN (SELECT value FROM json_each(?)) ORDER BY number DESC;

-- name: forget_words
DELETE FROM words_{part} WHERE rowid = ?;

-- name: lowest_number
SELECT min(number) FROM tasks;
