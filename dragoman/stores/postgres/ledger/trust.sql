-- name: last_event
SELECT number, hash FROM trust_events ORDER BY number DESC LIMIT 1;

-- name: add_events
INSERT INTO trust_events (number, agent, type, task, at, body, hash)
SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bytea[],
    $7::bytea[]);

-- name: after
SELECT body FROM trust_events WHERE number > $1 ORDER BY number LIMIT $2;

-- name: lines
SELECT body, encode(hash, 'hex'), agent, type, task, at FROM trust_events ORDER BY number;

-- name: unobserved
SELECT orders.*, (SELECT string_agg(type, ',') FROM trust_events
        WHERE trust_events.task = orders.task AND trust_events.task > 0),
    (SELECT rating FROM ratings WHERE ratings.task = orders.task),
    (SELECT outcome FROM disputes WHERE disputes.task = orders.task)
FROM orders WHERE ended_at > 0 AND NOT is_observed ORDER BY task LIMIT $1;

-- name: ended_orders
SELECT * FROM orders WHERE ended_at > 0 ORDER BY task;

-- name: set_observed
UPDATE orders SET is_observed = true FROM unnest($1::bigint[], $2::bigint[]) AS seen (task, charged)
WHERE NOT is_observed AND orders.task = seen.task AND orders.charged = seen.charged;

-- name: add_day
INSERT INTO trust_days AS day VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT (agent, requester, is_own, day) DO UPDATE
SET completed = day.completed + excluded.completed, failed = day.failed + excluded.failed,
    response_ms = day.response_ms + excluded.response_ms, ratings = day.ratings + excluded.ratings,
    rating_sum = day.rating_sum + excluded.rating_sum;

-- name: days
SELECT * FROM trust_days;

-- name: add_payer
INSERT INTO payers VALUES ($1) ON CONFLICT DO NOTHING;

-- name: payers
SELECT requester FROM payers;

-- name: agents_of
SELECT DISTINCT agent FROM trust_days WHERE requester = $1;

-- name: observed_agents
SELECT agent FROM trust_days UNION SELECT agent FROM trust_events WHERE type = 'violation';

-- name: sums
SELECT agent, sum(completed)::bigint, sum(total - completed)::bigint, sum(response_ms)::bigint,
    sum(ratings)::bigint, sum(rating_sum)::bigint,
    coalesce(sum(completed) FILTER (WHERE day > $3), 0)::bigint,
    coalesce(sum(total - completed) FILTER (WHERE day > $3), 0)::bigint,
    coalesce(sum(total) FILTER (WHERE day > $4), 0)::bigint, max(day)
FROM (SELECT agent, day,
        CASE WHEN total <= $2 THEN completed * $1 ELSE completed * $1 * $2 / total END AS completed,
        least(total, $2) * $1 AS total,
        CASE WHEN total <= $2 THEN response_ms
            ELSE response_ms / total * $2 + response_ms % total * $2 / total END AS response_ms,
        least(ratings, $2) * $1 AS ratings,
        CASE WHEN ratings <= $2 THEN rating_sum * $1
            ELSE rating_sum * $1 * $2 / ratings END AS rating_sum
    FROM (SELECT *, completed + failed AS total FROM trust_days
        WHERE NOT is_own AND agent = ANY ($5::text[])
            AND (requester = '' OR requester IN (SELECT requester FROM payers))) AS counted
    ) AS weighed
GROUP BY agent;

-- name: violations
SELECT agent, at FROM trust_events
WHERE type = 'violation' AND agent = ANY ($1::text[]) ORDER BY number;

-- name: totals
SELECT coalesce(sum(completed), 0)::bigint, coalesce(sum(failed), 0)::bigint, 0,
    coalesce(sum(ratings), 0)::bigint, coalesce(sum(rating_sum), 0)::bigint
FROM trust_days WHERE agent = $1;

-- name: history
SELECT body FROM trust_events WHERE agent = $1 ORDER BY number DESC LIMIT $2 OFFSET $3;

-- name: history_total
SELECT count(*) FROM trust_events WHERE agent = $1;

-- name: comments
SELECT task, comment FROM ratings WHERE comment <> '' AND task = ANY ($1::bigint[]);

-- name: put_rating
INSERT INTO ratings SELECT $1, $2, $3, $4, $5, $6
WHERE (SELECT outcome FROM disputes WHERE task = $1) IS NOT DISTINCT FROM $7;

-- name: put_dispute
INSERT INTO disputes (task, agent, requester, reason, opened_at) VALUES ($1, $2, $3, $4, $5);

-- name: decide_dispute
UPDATE disputes SET outcome = $1, note = $2, resolved_at = $3 WHERE task = $4 AND outcome = '';

-- name: disputes
SELECT orders.task, orders.task_id, disputes.agent, disputes.requester, reason, opened_at
FROM disputes JOIN orders ON orders.task = disputes.task
WHERE outcome = '' AND disputes.task > $1 ORDER BY disputes.task LIMIT $2;

-- name: disputes_total
SELECT count(*) FROM disputes WHERE outcome = '';

-- name: disputed
SELECT task FROM disputes WHERE outcome = '';

-- name: registered
SELECT id, name, body FROM agents ORDER BY name;
