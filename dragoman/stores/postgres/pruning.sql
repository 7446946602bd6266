-- name: may_prune
-- Whether we have the duty, which no other gets before the transaction ends: two that count what is
-- too much would each delete as many.
SELECT CASE WHEN take_duty($1, 'prune') THEN holds_duty($1, 'prune') ELSE false END;

-- name: doomed_by_age
SELECT number, scope, state FROM tasks
WHERE state IN (3, 4, 5, 7) AND status_at < $1
    AND NOT EXISTS (SELECT 1 FROM pushes WHERE task = tasks.number AND is_open)
ORDER BY number LIMIT $2 FOR UPDATE SKIP LOCKED;

-- name: ended
SELECT coalesce(sum(n), 0)::bigint FROM counts WHERE state IN (3, 4, 5, 7);

-- name: doomed_by_number
SELECT number, scope, state FROM tasks
WHERE state IN (3, 4, 5, 7) AND NOT EXISTS (SELECT 1 FROM pushes WHERE task = tasks.number AND is_open)
ORDER BY number LIMIT $1 FOR UPDATE SKIP LOCKED;

-- name: forget_events
DELETE FROM events WHERE task = ANY ($1::bigint[]);

-- name: forget_snapshots
DELETE FROM snapshots WHERE task = ANY ($1::bigint[]);

-- name: forget_notes
DELETE FROM notes WHERE task = ANY ($1::bigint[]);

-- name: forget_deadlines
DELETE FROM deadlines WHERE task = ANY ($1::bigint[]);

-- name: forget_withheld
DELETE FROM withheld WHERE task = ANY ($1::bigint[]);

-- name: forget_letters
DELETE FROM dead_letters WHERE push IN (SELECT number FROM pushes WHERE task = ANY ($1::bigint[]));

-- name: forget_pushes
DELETE FROM pushes WHERE task = ANY ($1::bigint[]);

-- name: forget_tasks
DELETE FROM tasks WHERE number = ANY ($1::bigint[]);

-- name: uncount
INSERT INTO counts (scope, state, shard, n)
SELECT scope, state, 0, -count(*) FROM unnest($1::int[], $2::smallint[]) AS gone (scope, state)
GROUP BY scope, state ORDER BY scope, state
ON CONFLICT (scope, state, shard) DO UPDATE SET n = counts.n + excluded.n;

-- name: forget_keys
DELETE FROM keys WHERE made_at < $1
    AND (task IS NULL OR NOT EXISTS (SELECT 1 FROM tasks WHERE number = keys.task));

-- name: forget_withheld_of_ended
DELETE FROM withheld WHERE task IN (
    SELECT withheld.task FROM withheld JOIN tasks ON tasks.number = withheld.task
    WHERE state IN (3, 4, 5, 7));

-- name: closed
-- Partitions in which no task can come to be any more: all of their blocks were given, and none to
-- a worker that may still fill it. Blocks are given under the lock that is taken first.
SELECT part FROM (
    SELECT substr(relname, 8)::bigint AS part FROM pg_inherits JOIN pg_class ON oid = inhrelid
    WHERE inhparent = 'events'::regclass
) AS parts
WHERE part < (SELECT last_value * 4096 >> 20 FROM blocks)
    AND part NOT IN (SELECT unnest(ARRAY[block >> 20, before >> 20]) FROM workers
        WHERE gone_at IS NULL AND block > 0)
ORDER BY part;

-- name: lock_blocks
SELECT pg_advisory_xact_lock(1685217639, -1);

-- name: has_others
-- Whether a partition has a task that is to stay.
SELECT (SELECT number FROM tasks WHERE number >= $1::bigint << 20 AND number < ($1 + 1) << 20
    AND (state NOT IN (3, 4, 5, 7) OR status_at >= $2
        OR EXISTS (SELECT 1 FROM pushes WHERE task = tasks.number AND is_open))
    ORDER BY number LIMIT 1) IS NOT NULL;

-- name: has_tasks
SELECT coalesce((SELECT number FROM tasks WHERE number >= $1::bigint << 20 ORDER BY number LIMIT 1)
    < ($1 + 1) << 20, false);

-- name: fold_counts
-- What workers counted that are gone becomes one number.
WITH gone AS (
    DELETE FROM counts WHERE shard > 0
        AND shard NOT IN (SELECT number FROM workers WHERE gone_at IS NULL)
    RETURNING scope, state, n
)
INSERT INTO counts (scope, state, shard, n)
SELECT scope, state, 0, sum(n) FROM gone GROUP BY scope, state ORDER BY scope, state
ON CONFLICT (scope, state, shard) DO UPDATE SET n = counts.n + excluded.n;

-- name: forget_workers
-- Those that were gone long enough to have asked what became of their last group.
WITH forgotten AS (
    DELETE FROM workers WHERE gone_at < clock_timestamp() - $1::interval
        AND NOT EXISTS (SELECT 1 FROM tasks WHERE holder = workers.number AND state IN (1, 2))
        AND NOT EXISTS (SELECT 1 FROM pushes WHERE holder = workers.number AND is_open)
    RETURNING number
)
DELETE FROM beats WHERE worker IN (SELECT number FROM forgotten);

-- name: drop_part
DROP TABLE events_{part}, snapshots_{part};
