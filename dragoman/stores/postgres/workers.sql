-- name: join
INSERT INTO workers (release, schema, lease) VALUES ($1, $2, $3) RETURNING number;

-- name: lock
SELECT pg_try_advisory_lock(1685217639, $1);

-- name: end_former
-- A session of ours that the server takes for alive keeps our lock.
SELECT pg_terminate_backend(pid, 1000) FROM pg_locks
WHERE locktype = 'advisory' AND classid = 1685217639 AND objid = $1::int::oid AND objsubid = 2
    AND granted AND pid <> pg_backend_pid()
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database());

-- name: beat
-- Waits for no disk: what a crash of the server loses of it, it loses of all workers. Tells whether
-- we are a worker, and whether our session has our lock.
WITH quick AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true)
), mine AS MATERIALIZED (
    SELECT EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND classid = 1685217639
        AND objid = $1::int::oid AND objsubid = 2 AND granted AND pid = pg_backend_pid()) AS locked
), beat AS (
    INSERT INTO beats (worker, at, steady_since, timeline)
    SELECT $1, clock_timestamp(), clock_timestamp(), CASE WHEN locked THEN timeline() ELSE '' END
    FROM mine
    ON CONFLICT (worker) DO UPDATE SET at = excluded.at, timeline = excluded.timeline, steady_since =
        CASE WHEN beats.at < excluded.at - $2::interval THEN excluded.at
        ELSE beats.steady_since END)
SELECT EXISTS (SELECT 1 FROM workers WHERE number = $1 AND gone_at IS NULL), locked, now_ms()
FROM quick, mine;

-- name: is_live
SELECT EXISTS (SELECT 1 FROM workers WHERE number = $1 AND gone_at IS NULL);

-- name: absent
-- The others without a session, and when each was last heard.
SELECT number, coalesce(at, joined_at) FROM workers LEFT JOIN beats ON worker = number
WHERE gone_at IS NULL AND number <> $1 AND number NOT IN (
    SELECT objid::bigint FROM pg_locks
    WHERE locktype = 'advisory' AND classid = 1685217639 AND objsubid = 2 AND granted
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database()));

-- name: bury_absent
-- Not while it writes: that ends by itself, and the next look comes soon.
WITH dead AS MATERIALIZED (
    SELECT number FROM workers WHERE number = ANY ($1::int[]) AND gone_at IS NULL
        AND NOT has_session(number) AND ($2 OR had_session(number))
    FOR UPDATE SKIP LOCKED)
SELECT number, bury(number) FROM dead;

-- name: reap
SELECT reap($1, $2);

-- name: leave
SELECT leave($1);

-- name: leads
SELECT EXISTS (SELECT 1 FROM duties WHERE name = $1 AND worker = $2
    AND EXISTS (SELECT 1 FROM workers WHERE number = $2 AND gone_at IS NULL)),
    EXISTS (SELECT 1 FROM duties JOIN workers ON number = worker
    WHERE name = $1 AND gone_at IS NULL);

-- name: lead
SELECT take_duty($2, $1);
