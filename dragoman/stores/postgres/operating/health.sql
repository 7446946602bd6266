-- What `dragoman doctor` and `dragoman store status` ask of a server.

-- name: settings
SELECT name, setting FROM pg_settings WHERE name = ANY ($1::text[]);

-- name: server
-- Connections as every user may count them: what those of others do is hidden from most.
SELECT current_setting('server_version'), pg_is_in_recovery(),
    current_setting('synchronous_standby_names') <> ''
        AND current_setting('synchronous_commit') NOT IN ('local', 'off'),
    (SELECT sum(numbackends) FROM pg_stat_database)::int,
    current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int,
    pg_has_role(current_user, 'pg_read_all_stats', 'USAGE');

-- name: database
SELECT pg_database_size(datname), (2000000000 - age(datfrozenxid))::bigint
FROM pg_database WHERE datname = current_database();

-- name: standbys
-- Without the right to see it, a row says that there is one and no more.
SELECT coalesce(application_name, ''), coalesce(sync_state, ''),
    CASE WHEN pg_is_in_recovery() THEN 0
        ELSE pg_wal_lsn_diff(pg_current_wal_lsn(), flush_lsn)::bigint END
FROM pg_stat_replication WHERE state IS DISTINCT FROM 'backup' ORDER BY application_name, pid;

-- name: waits
SELECT count(*) FILTER (WHERE wait_event = 'SyncRep')::int,
    coalesce(max(extract(epoch FROM clock_timestamp() - query_start) * 1000)
        FILTER (WHERE wait_event = 'SyncRep'), 0)::bigint,
    coalesce(max(extract(epoch FROM clock_timestamp() - xact_start))
        FILTER (WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()), 0)::int
FROM pg_stat_activity WHERE datname = current_database();

-- name: dead_rows
SELECT relname::text, n_dead_tup::float8 / greatest(n_live_tup, 1) FROM pg_stat_user_tables
WHERE n_dead_tup > 100000 ORDER BY 2 DESC LIMIT 1;

-- name: kept_log
SELECT coalesce(max(pg_wal_lsn_diff(
    CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() ELSE pg_current_wal_lsn() END,
    restart_lsn)), 0)::bigint FROM pg_replication_slots;

-- name: partitions
SELECT count(*)::int FROM pg_inherits WHERE inhparent = to_regclass('events');

-- name: has_schema
SELECT to_regclass('dragoman_schema') IS NOT NULL;

-- name: schema
SELECT version FROM dragoman_schema;

-- name: unsealed
SELECT count(*)::int, coalesce(now_ms() - min(at), 0)::bigint FROM transfers WHERE number IS NULL;

-- name: waiting_for_standby
SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep';
