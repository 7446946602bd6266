-- name: last_event
SELECT number, hash FROM trust_events ORDER BY number DESC LIMIT 1;

-- name: add_events
INSERT INTO trust_events VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: after
SELECT body FROM trust_events WHERE number > ? ORDER BY number LIMIT ?;

-- name: lines
SELECT body, lower(hex(hash)), agent, type, task, at FROM trust_events ORDER BY number;

-- name: unobserved
SELECT errands.*, (SELECT group_concat(type) FROM trust_events
        WHERE trust_events.task = errands.task AND trust_events.task > 0),
    (SELECT rating FROM ratings WHERE ratings.task = errands.task),
    (SELECT outcome FROM disputes WHERE disputes.task = errands.task)
FROM errands WHERE ended_at > 0 AND is_observed = 0 ORDER BY task LIMIT ?;

-- name: ended_orders
SELECT * FROM errands WHERE ended_at > 0 ORDER BY task;

-- name: set_observed
UPDATE errands SET is_observed = 1
WHERE is_observed = 0 AND (task, charged) IN (
    SELECT value ->> 0, value ->> 1 FROM json_each(?));

-- name: add_day
INSERT INTO trust_days VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET completed = completed + excluded.completed,
    failed = failed + excluded.failed, response_ms = response_ms + excluded.response_ms,
    ratings = ratings + excluded.ratings, rating_sum = rating_sum + excluded.rating_sum;

-- name: days
SELECT * FROM trust_days;

-- name: add_payer
INSERT OR IGNORE INTO payers VALUES (?);

-- name: payers
SELECT requester FROM payers;

-- name: agents_of
SELECT DISTINCT agent FROM trust_days WHERE requester = ?;

-- name: observed_agents
SELECT agent FROM trust_days UNION SELECT agent FROM trust_events WHERE type = 'violation';

-- name: sums
-- Always about named agents: only so the index by agent is used.
SELECT agent, sum(completed), sum(total - completed), sum(response_ms), sum(ratings),
    sum(rating_sum), sum(iif(day > :recent, completed, 0)),
    sum(iif(day > :recent, total - completed, 0)), sum(iif(day > :active, total, 0)), max(day)
FROM (SELECT agent, day,
        iif(total <= :cap, completed * :unit, completed * :unit * :cap / total) AS completed,
        min(total, :cap) * :unit AS total,
        iif(total <= :cap, response_ms,
            response_ms / total * :cap + response_ms % total * :cap / total) AS response_ms,
        min(ratings, :cap) * :unit AS ratings,
        iif(ratings <= :cap, rating_sum * :unit, rating_sum * :unit * :cap / ratings) AS rating_sum
    FROM (SELECT *, completed + failed AS total FROM trust_days
        WHERE is_own = 0 AND agent IN (SELECT value FROM json_each(:agents))
            AND (requester = '' OR requester IN (SELECT requester FROM payers))))
GROUP BY agent;

-- name: violations
SELECT agent, at FROM trust_events
WHERE type = 'violation' AND agent IN (SELECT value FROM json_each(:agents));

-- name: totals
SELECT ifnull(sum(completed), 0), ifnull(sum(failed), 0), 0, ifnull(sum(ratings), 0),
    ifnull(sum(rating_sum), 0)
FROM trust_days WHERE agent = ?;

-- name: history
SELECT body FROM trust_events WHERE agent = ? ORDER BY number DESC LIMIT ? OFFSET ?;

-- name: history_total
SELECT count(*) FROM trust_events WHERE agent = ?;

-- name: comments
SELECT task, comment FROM ratings
WHERE comment <> '' AND task IN (SELECT value FROM json_each(?));

-- name: put_rating
INSERT INTO ratings SELECT ?, ?, ?, ?, ?, ?
WHERE (SELECT outcome FROM disputes WHERE task = ?) IS ?;

-- name: put_dispute
INSERT INTO disputes (task, agent, requester, reason, opened_at) VALUES (?, ?, ?, ?, ?);

-- name: decide_dispute
UPDATE disputes SET outcome = ?, note = ?, resolved_at = ? WHERE task = ? AND outcome = '';

-- name: disputes
SELECT errands.task, errands.task_id, disputes.agent, disputes.requester, reason, opened_at
FROM disputes JOIN errands ON errands.task = disputes.task
WHERE outcome = '' AND disputes.task > ? ORDER BY disputes.task LIMIT ?;

-- name: disputes_total
SELECT count(*) FROM disputes WHERE outcome = '';

-- name: disputed
SELECT task FROM disputes WHERE outcome = '';

-- name: registered
SELECT id, name, body FROM agents ORDER BY name;
