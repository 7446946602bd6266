-- name: add
INSERT INTO workers (expires, lease) VALUES (?, ?) RETURNING number;

-- name: renew
INSERT OR REPLACE INTO workers VALUES (?, ?, ?);

-- name: remove
DELETE FROM workers WHERE number = ?;

-- name: is_listed
SELECT 1 FROM workers WHERE number = ?;

-- name: numbers
SELECT number FROM workers;

-- name: others
SELECT number FROM workers WHERE number <> ?;

-- name: lease
SELECT expires, lease FROM workers WHERE number = ?;

-- name: release_tasks
UPDATE tasks SET holder = 0 WHERE holder = ? AND state IN (1, 2);

-- name: release_pushes
UPDATE pushes SET holder = 0 WHERE holder = ? AND is_open = 1;

-- name: release_duties
DELETE FROM duties WHERE worker = ?;

-- name: leader
SELECT worker FROM duties WHERE name = ?;

-- name: take_duty
INSERT OR REPLACE INTO duties VALUES (?, ?);
