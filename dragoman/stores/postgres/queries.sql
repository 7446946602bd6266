-- name: add_scopes
INSERT INTO scopes (agent, tenant, owner)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[]) ON CONFLICT DO NOTHING;

-- name: scopes
SELECT number, agent, tenant, owner FROM scopes
WHERE (agent, tenant, owner) IN (SELECT * FROM unnest($1::text[], $2::text[], $3::text[]));

-- name: scope_parts
SELECT number, agent, tenant, owner FROM scopes WHERE number = ANY ($1::int[]);

-- name: take_block
SELECT take_block($1, $2);

-- name: write_group
SELECT write_group($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18,
    $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34, $35);

-- name: known
-- Each by itself, so that the plan is the same however few keys there are at first.
SELECT place, id, reply FROM unnest($1::int[], $2::bytea[]) WITH ORDINALITY
    AS asked (scope, key, place)
CROSS JOIN LATERAL (
    SELECT tasks.id, keys.reply FROM keys LEFT JOIN tasks ON tasks.number = keys.task
    WHERE keys.scope = asked.scope AND keys.key = asked.key LIMIT 1
) AS known;

-- name: head
SELECT tasks.number, id, context, scope, state, status_at, last_seq, fence, holder
FROM tasks JOIN scopes ON scopes.number = scope
WHERE id = $4 AND agent = $1 AND tenant = $2 AND owner = $3;

-- name: at_rest
SELECT place, rested.* FROM unnest($1::int[], $2::text[]) WITH ORDINALITY AS asked (scope, id, place)
CROSS JOIN LATERAL (
    SELECT tasks.number, last_seq, head, artifacts
    FROM tasks LEFT JOIN snapshots ON snapshots.task = tasks.number AND seq = last_seq
    WHERE tasks.id = asked.id AND tasks.scope = asked.scope LIMIT 1
) AS rested;

-- name: read
SELECT last, n, bodies FROM (
    SELECT last, n, bodies,
        sum(octet_length(bodies)) OVER (ORDER BY last) - octet_length(bodies) AS before
    FROM events WHERE task = $1 AND last > $2 AND kind <= $3 ORDER BY last LIMIT $4
) AS batch WHERE before < $5 ORDER BY last;

-- name: read_many
SELECT place, last, n, bodies FROM unnest($1::bigint[], $2::int[]) WITH ORDINALITY
    AS asked (task, after, place)
CROSS JOIN LATERAL (
    SELECT last, n, bodies,
        sum(octet_length(bodies)) OVER (ORDER BY last) - octet_length(bodies) AS before
    FROM events WHERE events.task = asked.task AND last > asked.after ORDER BY last LIMIT $3
) AS batch WHERE before < $4 ORDER BY place, last;

-- name: last_seqs
SELECT number, last_seq FROM tasks WHERE number = ANY ($1::bigint[]);

-- name: snapshot
SELECT seq, head, artifacts FROM snapshots WHERE task = $1;

-- name: snapshot_head
SELECT seq, head, '[]'::bytea FROM snapshots WHERE task = $1;

-- name: withheld
SELECT seq, body FROM withheld WHERE task = $1;

-- name: page
SELECT number, id, context, scope, state, status_at, last_seq, fence, holder FROM tasks
WHERE scope = $1 AND status_at >= $2 AND (status_at, number) < ($3, $4)
ORDER BY status_at DESC, number DESC LIMIT $5;

-- name: page_of_state
SELECT number, id, context, scope, state, status_at, last_seq, fence, holder FROM tasks
WHERE scope = $1 AND status_at >= $2 AND (status_at, number) < ($3, $4) AND state = $6
ORDER BY status_at DESC, number DESC LIMIT $5;

-- name: page_of_context
SELECT number, id, context, scope, state, status_at, last_seq, fence, holder FROM tasks
WHERE scope = $1 AND status_at >= $2 AND (status_at, number) < ($3, $4) AND context = $7
    AND ($6::smallint IS NULL OR state = $6)
ORDER BY status_at DESC, number DESC LIMIT $5;

-- name: page_of_agent
SELECT number, id, context, scope, tasks.state, status_at, last_seq, fence, holder
FROM tasks JOIN orders ON orders.task = tasks.number
WHERE scope = $1 AND status_at >= $2 AND (status_at, number) < ($3, $4)
    AND ($6::smallint IS NULL OR tasks.state = $6) AND ($7 = '' OR context = $7)
    AND orders.agent = $8
ORDER BY status_at DESC, number DESC LIMIT $5;

-- name: total
SELECT coalesce(sum(n), 0)::bigint FROM counts
WHERE scope = $1 AND ($2::smallint IS NULL OR state = $2);

-- name: total_since
SELECT count(*) FROM tasks
WHERE scope = $1 AND status_at >= $3 AND ($2::smallint IS NULL OR state = $2);

-- name: total_of_context
SELECT count(*) FROM tasks WHERE scope = $1 AND context = $4 AND status_at >= $3
    AND ($2::smallint IS NULL OR state = $2);

-- name: total_of_agent
SELECT count(*) FROM tasks JOIN orders ON orders.task = tasks.number
WHERE scope = $1 AND status_at >= $3 AND ($2::smallint IS NULL OR tasks.state = $2)
    AND ($4 = '' OR context = $4) AND orders.agent = $5;

-- name: bodies
-- Until they have so many bytes.
SELECT place, seq, head, artifacts FROM (
    SELECT place, seq, head, CASE WHEN $4 THEN artifacts ELSE '[]'::bytea END AS artifacts,
        sum(octet_length(head) + CASE WHEN $4 THEN octet_length(artifacts) ELSE 0 END)
            OVER (ORDER BY place)
            - octet_length(head) - CASE WHEN $4 THEN octet_length(artifacts) ELSE 0 END AS before
    FROM unnest($1::bigint[], $2::int[]) WITH ORDINALITY AS asked (number, last, place)
    JOIN snapshots ON snapshots.task = asked.number AND seq = asked.last
) AS batch WHERE before < $3;

-- name: survey
-- By scope, since that is how the indexes go.
SELECT found.number, id, context, scope, state, status_at, last_seq, fence, holder
FROM scopes CROSS JOIN LATERAL (
    SELECT number, id, context, scope, state, status_at, last_seq, fence, holder
    FROM tasks WHERE scope = scopes.number AND (status_at, number) < ($1, $2) AND status_at >= $3
    ORDER BY status_at DESC, number DESC LIMIT $4
) AS found
WHERE ($5 = '' OR agent = $5) AND ($6::text IS NULL OR tenant = $6)
    AND ($7::text IS NULL OR owner = $7)
    AND ($9::text IS NULL OR (tenant = $8 AND owner = $9) OR owner = $10)
ORDER BY status_at DESC, found.number DESC LIMIT $4;

-- name: survey_of_state
-- A state that no task of a scope has is known without looking at its tasks.
SELECT found.number, id, context, scope, state, status_at, last_seq, fence, holder
FROM scopes CROSS JOIN LATERAL (
    SELECT number, id, context, scope, state, status_at, last_seq, fence, holder
    FROM tasks WHERE scope = scopes.number AND (status_at, number) < ($1, $2) AND status_at >= $3
        AND state = $11
    ORDER BY status_at DESC, number DESC LIMIT $4
) AS found
WHERE ($5 = '' OR agent = $5) AND ($6::text IS NULL OR tenant = $6)
    AND ($7::text IS NULL OR owner = $7)
    AND ($9::text IS NULL OR (tenant = $8 AND owner = $9) OR owner = $10)
    AND (SELECT sum(n) FROM counts WHERE counts.scope = scopes.number AND counts.state = $11) > 0
ORDER BY status_at DESC, found.number DESC LIMIT $4;

-- name: survey_of_context
-- As above, of one context.
SELECT found.number, id, context, scope, state, status_at, last_seq, fence, holder
FROM scopes CROSS JOIN LATERAL (
    SELECT number, id, context, scope, state, status_at, last_seq, fence, holder
    FROM tasks WHERE scope = scopes.number AND (status_at, number) < ($1, $2) AND status_at >= $3
        AND context = $12 AND ($11::smallint IS NULL OR state = $11)
    ORDER BY status_at DESC, number DESC LIMIT $4
) AS found
WHERE ($5 = '' OR agent = $5) AND ($6::text IS NULL OR tenant = $6)
    AND ($7::text IS NULL OR owner = $7)
    AND ($9::text IS NULL OR (tenant = $8 AND owner = $9) OR owner = $10)
ORDER BY status_at DESC, found.number DESC LIMIT $4;

-- name: survey_of_id
SELECT tasks.number, id, context, scope, state, status_at, last_seq, fence, holder
FROM tasks JOIN scopes ON scopes.number = tasks.scope
WHERE id = $13 AND (status_at, tasks.number) < ($1, $2) AND status_at >= $3
    AND ($5 = '' OR agent = $5) AND ($6::text IS NULL OR tenant = $6)
    AND ($7::text IS NULL OR owner = $7)
    AND ($9::text IS NULL OR (tenant = $8 AND owner = $9) OR owner = $10)
    AND ($11::smallint IS NULL OR state = $11) AND ($12 = '' OR context = $12)
ORDER BY status_at DESC, tasks.number DESC LIMIT $4;

-- name: counts
SELECT state, sum(n)::bigint FROM counts GROUP BY state HAVING sum(n) > 0;

-- name: stored
SELECT coalesce(sum(octet_length(bodies)), 0)::bigint
FROM scopes JOIN tasks ON tasks.scope = scopes.number JOIN events ON events.task = tasks.number
WHERE (tenant = $1 AND owner = $2) OR owner = $3;

-- name: notes
SELECT number, body FROM notes WHERE task = $1 ORDER BY number;

-- name: noted
SELECT tasks.number, id, context, scope, state, status_at, last_seq, fence, holder
FROM tasks JOIN scopes ON scopes.number = tasks.scope
WHERE tasks.number IN (SELECT task FROM notes) AND holder = $1 AND state NOT IN (3, 4, 5, 7)
    AND agent = $2;

-- name: size
SELECT pg_database_size(current_database());

-- name: overdue
SELECT tasks.number, id, context, scope, state, status_at, last_seq, fence, holder
FROM deadlines JOIN tasks ON tasks.number = deadlines.task
JOIN scopes ON scopes.number = tasks.scope
WHERE at <= $1 AND state NOT IN (3, 4, 5, 7) AND agent = $2 ORDER BY at LIMIT 100;

-- name: drop_met_deadlines
DELETE FROM deadlines WHERE task IN (
    SELECT deadlines.task FROM deadlines JOIN tasks ON tasks.number = deadlines.task
    WHERE at <= $1 AND state IN (3, 4, 5, 7) ORDER BY deadlines.task LIMIT 5000
    FOR UPDATE OF deadlines SKIP LOCKED);

-- name: claimable
-- Tasks of an agent that no living worker holds: those that do not rest, and those with a note.
-- Most often there are none: a look without a lock.
SELECT tasks.number, fence, holder FROM tasks JOIN scopes ON scopes.number = tasks.scope
WHERE tasks.state IN (1, 2) AND agent = $1
    AND holder NOT IN (SELECT number FROM workers WHERE gone_at IS NULL)
UNION ALL
SELECT tasks.number, fence, holder FROM (SELECT DISTINCT task FROM notes) AS noted
JOIN tasks ON tasks.number = noted.task JOIN scopes ON scopes.number = tasks.scope
WHERE tasks.state IN (6, 8) AND agent = $1
    AND holder NOT IN (SELECT number FROM workers WHERE gone_at IS NULL)
LIMIT $2;

-- name: claim
SELECT * FROM claim_tasks($1, $2, $3, $4);
