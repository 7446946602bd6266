-- name: keys
SELECT id FROM vault_keys ORDER BY is_current DESC, id;

-- name: current_key
SELECT id FROM vault_keys WHERE is_current = 1;

-- name: add_key
INSERT INTO vault_keys VALUES (?, 1);

-- name: retire_keys
UPDATE vault_keys SET is_current = 0;

-- name: name_key
INSERT INTO vault_keys VALUES (?, 1) ON CONFLICT DO UPDATE SET is_current = 1;

-- name: drop_retired_keys
DELETE FROM vault_keys WHERE is_current = 0;

-- name: fact
SELECT value FROM facts WHERE name = ?;

-- name: add_fact
INSERT INTO facts VALUES (?, ?);

-- name: drop_clear_secret
DELETE FROM facts WHERE name = 'secret';

-- name: pushes
SELECT number, task, config FROM pushes;

-- name: set_push
UPDATE pushes SET config = ?, sealed = ? WHERE number = ?;

-- name: had_pushes
SELECT 1 FROM sqlite_sequence WHERE name = 'pushes' AND seq > 0;

-- name: notes
SELECT number, task, body FROM notes;

-- name: set_note
UPDATE notes SET body = ? WHERE number = ?;

-- name: credentials
SELECT number, shown, body FROM agent_credentials;

-- name: set_credential
UPDATE agent_credentials SET body = ? WHERE number = ?;

-- name: secret_rows
SELECT value, 1, 0, x'' FROM facts
WHERE name = 'sealed_secret' AND (1, 0) > (?, ?)
    AND substr(value, 2, 8) <> ? LIMIT ?;

-- name: reseal_secret
UPDATE facts SET value = ? WHERE name = 'sealed_secret' AND (1, 0) = (?, ?);

-- name: push_rows
SELECT sealed, number, task, config FROM pushes
WHERE (number, task) > (?, ?)
    AND substr(sealed, 2, 8) <> ? ORDER BY number LIMIT ?;

-- name: reseal_push
UPDATE pushes SET sealed = ? WHERE number = ? AND task = ?;

-- name: note_rows
SELECT body, number, task, x'' FROM notes
WHERE (number, task) > (?, ?)
    AND substr(body, 2, 8) <> ? ORDER BY number LIMIT ?;

-- name: reseal_note
UPDATE notes SET body = ? WHERE number = ? AND task = ?;

-- name: answer_rows
SELECT body, task, seq, x'' FROM withheld
WHERE (task, seq) > (?, ?)
    AND substr(body, 2, 8) <> ? ORDER BY task, seq LIMIT ?;

-- name: reseal_answer
UPDATE withheld SET body = ? WHERE task = ? AND seq = ?;

-- name: credential_rows
SELECT body, number, 0, shown FROM agent_credentials
WHERE (number, 0) > (?, ?)
    AND substr(body, 2, 8) <> ? ORDER BY number LIMIT ?;

-- name: reseal_credential
UPDATE agent_credentials SET body = ? WHERE number = ? AND 0 = ?;
