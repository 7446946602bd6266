-- name: lock_blocks
SELECT pg_advisory_xact_lock(1685217639, -1);

-- name: add_blocks
INSERT INTO unindexed_blocks SELECT first, upto FROM blocks_to_index ON CONFLICT DO NOTHING;

-- name: drop_blocks
-- Those in which no task can come to be any more, once all of theirs are indexed.
DELETE FROM unindexed_blocks AS done
WHERE first < (SELECT max(first) FROM unindexed_blocks)
    AND first NOT IN (SELECT unnest(ARRAY[block, before]) FROM workers WHERE gone_at IS NULL)
    AND NOT EXISTS (SELECT 1 FROM tasks WHERE number > upto AND number < first + 4096);

-- name: unindexed_first
SELECT fresh.* FROM blocks_to_index CROSS JOIN LATERAL (
    SELECT number, id, context, scope, state, status_at, last_seq, fence, holder FROM tasks
    WHERE number > upto AND number < first + 4096 ORDER BY number LIMIT $1
) AS fresh ORDER BY number LIMIT $1;

-- name: unindexed_last
SELECT fresh.* FROM blocks_to_index CROSS JOIN LATERAL (
    SELECT number, id, context, scope, state, status_at, last_seq, fence, holder FROM tasks
    WHERE number > upto AND number < first + 4096 ORDER BY number DESC LIMIT $1
) AS fresh ORDER BY number DESC LIMIT $1;

-- name: finished_since
SELECT number, id, context, scope, state, status_at, last_seq, fence, holder
FROM task_words JOIN tasks ON tasks.number = task_words.task
WHERE NOT is_final AND state IN (3, 4, 5, 7) LIMIT $1;

-- name: set_words
-- A word of the scope keeps a search of one owner to its own tasks. The lock: a task that is being
-- forgotten gets no words.
INSERT INTO task_words
SELECT number, is_final, array_to_tsvector(string_to_array('§' || scope || ' ' || words, ' '))
FROM unnest($1::bigint[], $2::boolean[], $3::text[]) AS given (task, is_final, words)
JOIN tasks ON tasks.number = given.task
ORDER BY number FOR KEY SHARE OF tasks
ON CONFLICT (task) DO UPDATE SET is_final = excluded.is_final, words = excluded.words;

-- name: set_final
UPDATE task_words SET is_final = true WHERE task = ANY ($1::bigint[]) AND NOT is_final;

-- name: move_cursors
UPDATE unindexed_blocks SET upto = greatest(upto, reached.number)
FROM (SELECT number / 4096 * 4096 AS block, max(number) AS number
    FROM unnest($1::bigint[]) AS given (number) GROUP BY 1) AS reached
WHERE first = reached.block;

-- name: scopes
SELECT number FROM scopes
WHERE ($1 = '' OR agent = $1) AND ($2::text IS NULL OR tenant = $2)
    AND ($3::text IS NULL OR owner = $3)
    AND ($5::text IS NULL OR (tenant = $4 AND owner = $5) OR owner = $6)
LIMIT $7;

-- name: matches
SELECT task FROM task_words WHERE words @@ $1::text::tsquery AND task < $2
ORDER BY task DESC LIMIT $3;

-- name: rows
SELECT number, id, context, scope, state, status_at, last_seq, fence, holder FROM tasks
WHERE number = ANY ($1::bigint[]) ORDER BY number DESC;
