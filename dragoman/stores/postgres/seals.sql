-- name: lock
-- Alone with the list of keys: writers of something sealed have it shared.
SELECT pg_advisory_xact_lock(1685217639, -3);

-- name: keys
SELECT id FROM vault_keys ORDER BY is_current DESC, id;

-- name: current_key
-- It stays the current one until this transaction ends.
SELECT current_key();

-- name: add_key
INSERT INTO vault_keys VALUES ($1, true);

-- name: retire_keys
UPDATE vault_keys SET is_current = false;

-- name: name_key
INSERT INTO vault_keys VALUES ($1, true) ON CONFLICT (id) DO UPDATE SET is_current = true;

-- name: drop_retired_keys
DELETE FROM vault_keys WHERE NOT is_current;

-- name: secrets
SELECT name, value FROM facts WHERE name IN ('secret', 'sealed_secret');

-- name: add_fact
INSERT INTO facts VALUES ($1, $2) ON CONFLICT DO NOTHING;

-- name: drop_clear_secret
DELETE FROM facts WHERE name = 'secret';

-- name: clear_pushes
SELECT number, task, config FROM pushes WHERE sealed IS NULL;

-- name: set_push
UPDATE pushes SET config = $1, sealed = $2 WHERE number = $3;

-- name: has_credentials
SELECT to_regclass('agent_credentials') IS NOT NULL;

-- name: secret_rows
SELECT value, 1, 0, ''::bytea FROM facts
WHERE name = 'sealed_secret' AND (1, 0) > ($1, $2) AND substr(value, 2, 8) <> $3 LIMIT $4;

-- name: reseal_secret
UPDATE facts SET value = $1 WHERE name = 'sealed_secret' AND (1, 0) = ($2, $3);

-- name: push_rows
SELECT sealed, number, task, config FROM pushes
WHERE (number, task) > ($1, $2) AND substr(sealed, 2, 8) <> $3 ORDER BY number LIMIT $4
FOR UPDATE;

-- name: reseal_push
UPDATE pushes SET sealed = $1 WHERE number = $2 AND task = $3;

-- name: note_rows
SELECT body, number, task, ''::bytea FROM notes
WHERE (number, task) > ($1, $2) AND (substr(body, 1, 1) <> '\x01' OR substr(body, 2, 8) <> $3)
ORDER BY number LIMIT $4 FOR UPDATE;

-- name: reseal_note
UPDATE notes SET body = $1 WHERE number = $2 AND task = $3;

-- name: answer_rows
SELECT body, task, seq::bigint, ''::bytea FROM withheld
WHERE (task, seq) > ($1, $2) AND (substr(body, 1, 1) <> '\x01' OR substr(body, 2, 8) <> $3)
ORDER BY task, seq LIMIT $4 FOR UPDATE;

-- name: reseal_answer
UPDATE withheld SET body = $1 WHERE task = $2 AND seq = $3;

-- name: credential_rows
SELECT body, number, 0, shown FROM agent_credentials
WHERE (number, 0) > ($1, $2) AND (substr(body, 1, 1) <> '\x01' OR substr(body, 2, 8) <> $3)
ORDER BY number LIMIT $4 FOR UPDATE;

-- name: reseal_credential
UPDATE agent_credentials SET body = $1 WHERE number = $2 AND 0 = $3;

-- name: lock_alone
-- Held by the session of a change of key.
SELECT pg_try_advisory_lock(1685217639, -4);
