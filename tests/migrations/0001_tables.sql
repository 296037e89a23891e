-- Rows of the schema 0001_tables, as the service writes them.

UPDATE log_head SET history = 'c0ffee07', revision = 14, compacted = 4, timeline = '00000001';

INSERT INTO changes
    (revision, type, at_ms, created_by, forced, source, node_id, action, start_ms, end_ms, cause, claims)
VALUES
    (5, 'blocked', 1700000005000, 'anna', NULL, 'request', 'worker-1', 'MARK_BLOCKED', 1700000005000, 9223372036854775807, 'Disk «sdb» – raté, 磁盘 🔥: it''s "5 %" of C:\x; -- no', NULL),
    (6, 'narrowed', 1700000006000, 'anna', NULL, 'request', 'old-2', 'MARK_BLOCKED_AND_EVACUATE_TASKS', 1700000003000, 9223372036854775807, 'a,b', '[{"owner":"anna","author":"anna","action":"MARK_BLOCKED","start":1700000003000,"end":9223372036854775807,"cause":"a"},{"owner":"alertmanager/809c736d","author":"alertmanager","action":"MARK_BLOCKED_AND_EVACUATE_TASKS","start":1700000003400,"end":9223372036854775807,"cause":"b"}]'),
    (7, 'unblocked', 1700000007000, 'Zoë O''Neil', NULL, 'page', 'old-3', 'MARK_BLOCKED', 1700000004000, 1700090000000, 'x', NULL),
    (8, 'blocked', 1700000008000, NULL, NULL, 'request', '10.0.0.7', 'MARK_BLOCKED_AND_EVACUATE_TASKS', 1700000008000, 9223372036854775807, 'Hot', NULL),
    (9, 'unblocked', 1700000009000, 'anna', NULL, 'request', '10.0.0.7', 'MARK_BLOCKED_AND_EVACUATE_TASKS', 1700000008000, 9223372036854775807, 'Hot', NULL),
    (10, 'blocked', 1700000010000, 'alertmanager', NULL, 'alertmanager', 'short', 'MARK_BLOCKED', 1700000010000, 1700000010500, 'Alert', NULL),
    (11, 'expired', 1700000011000, NULL, NULL, 'time', 'short', 'MARK_BLOCKED', 1700000010000, 1700000010500, 'Alert', NULL),
    (12, 'blocked', 1700000012000, 'anna', NULL, 'request', 'fe80::1', 'MARK_BLOCKED', 1700000012000, 1700000060000, 'Ends while nobody serves', NULL),
    (13, 'merged', 1700000013000, 'anna', 'The rack burns; 火', 'request', 'worker-1', 'MARK_BLOCKED_AND_EVACUATE_TASKS', 1700000005000, 9223372036854775807, 'Disk «sdb» – raté, 磁盘 🔥: it''s "5 %" of C:\x; -- no,Second', NULL),
    (14, 'blocked', 1700000014000, 'anna', NULL, 'request', 'Zz_9.-', 'MARK_BLOCKED', 1700000014000, 9223372036854775807, 'x', NULL);

INSERT INTO blocked_nodes
    (id, action, start_ms, end_ms, cause, created_by, revision, claims)
VALUES
    ('Zz_9.-', 'MARK_BLOCKED', 1700000014000, 9223372036854775807, 'x', 'anna', 14, NULL),
    ('fe80::1', 'MARK_BLOCKED', 1700000012000, 1700000060000, 'Ends while nobody serves', 'anna', 12, NULL),
    ('old-1', 'MARK_BLOCKED', 1700000002000, 9223372036854775807, 'Before the log begins', 'anna', 2, NULL),
    ('old-2', 'MARK_BLOCKED_AND_EVACUATE_TASKS', 1700000003000, 9223372036854775807, 'a,b', 'anna', 6, '[{"owner":"anna","author":"anna","action":"MARK_BLOCKED","start":1700000003000,"end":9223372036854775807,"cause":"a"},{"owner":"alertmanager/809c736d","author":"alertmanager","action":"MARK_BLOCKED_AND_EVACUATE_TASKS","start":1700000003400,"end":9223372036854775807,"cause":"b"}]'),
    ('worker-1', 'MARK_BLOCKED_AND_EVACUATE_TASKS', 1700000005000, 9223372036854775807, 'Disk «sdb» – raté, 磁盘 🔥: it''s "5 %" of C:\x; -- no,Second', 'anna', 13, NULL);

INSERT INTO log_base
    (id, action, start_ms, end_ms, cause, created_by, revision, claims)
VALUES
    ('old-1', 'MARK_BLOCKED', 1700000002000, 9223372036854775807, 'Before the log begins', 'anna', 2, NULL),
    ('old-2', 'MARK_BLOCKED_AND_EVACUATE_TASKS', 1700000003000, 9223372036854775807, 'a,b,c', 'anna', 3, '[{"owner":"anna","author":"anna","action":"MARK_BLOCKED","start":1700000003000,"end":9223372036854775807,"cause":"a"},{"owner":"alertmanager/809c736d","author":"alertmanager","action":"MARK_BLOCKED_AND_EVACUATE_TASKS","start":1700000003400,"end":9223372036854775807,"cause":"b"},{"owner":"evidence","author":"evidence","action":"MARK_BLOCKED","start":1700000003500,"end":1700000006000,"cause":"c"}]'),
    ('old-3', 'MARK_BLOCKED', 1700000004000, 1700090000000, 'x', 'Zoë O''Neil', 4, NULL);

INSERT INTO automatic_blocks
    (revision, node_id, begin_ms, end_ms, is_claimed)
VALUES
    (10, 'short', 1700000010000, 1700000010500, TRUE),
    (13, 'worker-1', 1700000013000, NULL, FALSE);

INSERT INTO dismissals
    (node_id, owner, at_ms, dismissed_by, revision)
VALUES
    ('10.0.0.7', 'alertmanager/809c736d29768b8c', 1700000009000, 'anna', 9),
    ('old-3', 'detection', 1700000007000, NULL, 7);

INSERT INTO alerts
    (owner, started_ms, ended_ms, resolved_ms, revision, seen_ms)
VALUES
    ('alertmanager/809c736d29768b8c', 1700000008000, 1700000009100, 1700000009200, 9, 1700000009200),
    ('alertmanager/d4782649c84de0e7', NULL, NULL, NULL, 0, 1700000010000);

INSERT INTO listeners
    (id, role, session, former, callback_url, lease_ms, acked, lapsed_ms, secret, old_secret, old_secret_until_ms, min_nodes, lease_end_ms, since_ms, owner, version, principal, confirmed, cluster, product, product_version, platform, mode)
VALUES
    ('job-gone', 'JOB_MASTER', 'attempt-1', '[]', 'http://127.0.0.1:9/told', 1000, 3, 1700003500000, 'whsec_MTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTE=', NULL, 0, 0, 1700003400000, 1700003300000, '0badcafe', 2, NULL, TRUE, NULL, NULL, NULL, NULL, 'apply'),
    ('job-live', 'JOB_MASTER', 'attempt-2', '["attempt-0", "attempt-1"]', NULL, 3600000, 12, NULL, 'whsec_MjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjI=', NULL, 0, 3, 1700007000000, 1700003000000, NULL, 5, 'anna', TRUE, 'yarn-a', 'blocklist-spark', '0.1.0', 'Spark 4.3.0, Java 17', 'observe'),
    ('yarn', 'RESOURCE_MANAGER', 'rm-1', '[]', NULL, 50000, NULL, NULL, 'whsec_MzMzMzMzMzMzMzMzMzMzMzMzMzMzMzMzMzMzMzMzMzM=', 'whsec_NDQ0NDQ0NDQ0NDQ0NDQ0NDQ0NDQ0NDQ0NDQ0NDQ0NDQ=', 1700007000000, 0, NULL, 0, NULL, 0, 'oidc:Zoë; 7', FALSE, 'yarn-a', 'blocklist-yarn', '0.1.0', NULL, 'apply');

INSERT INTO listener_modes
    (pattern, mode, created_by, at_ms)
VALUES
    ('*', 'observe', 'Zoë O''Neil', 1700000002000),
    ('etl-1', 'off', NULL, 1700000003000);

INSERT INTO reports
    (listener, part, at_ms, said, version)
VALUES
    ('job-live', 'refused', 1700003590000, '{"old-1": "It is the last host: ''no''."}', 4),
    ('job-live', 'runningTasks', 1700003590000, '{"app-1:1": 3}', 4),
    ('job-live', 'taskManagers', 1700003590000, '{"app-1:1": "worker-1", "app-1:2": "old-2"}', 4);

INSERT INTO tokens
    (id, name, role, digest, created_ms, created_by, end_ms, revoked_ms, used_ms, owners, listeners)
VALUES
    ('0000000a', 'anna', 'admin', '0f007385b6f9d4b7eeb2748605afe1a984a0a3bfa3f014d09e2a784ce9e5cd1a', 1700000001000, 'admin', 9223372036854775807, NULL, 1700003000000, NULL, NULL),
    ('0000000b', 'Zoë O''Neil', 'operator', '412dc46cc9e3cb26f29f7c1415c556349af62904c5d15b0a2d8cfdc5cfa22b34', 1700000002000, 'anna', 9223372036854775807, 1700000020000, 1700000007000, '["alertmanager/*", "anna"]', NULL),
    ('0000000c', 'ended', 'reader', '942014af03195c97fc8a6121a03e1660b89027a538325a101eba426dacd7e587', 1700000003000, NULL, 1700000030000, NULL, NULL, NULL, NULL),
    ('0000000d', 'etl', 'listener', '1f40fc92da241694750979ee6cf582f2d5d7d28e18335de05abc54d0560e0f53', 1700000004000, 'anna', 9223372036854775807, NULL, NULL, NULL, '["etl-*"]');

INSERT INTO sessions
    (digest, csrf, address, name, role, owners, credential, end_ms, principal, created_ms, sign_in, confirmed_ms)
VALUES
    ('247610f4dedd4ab7247d07dbda19c81ca9817f85820742cad49d407ffae9e4ed', '0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a', 'testclient', 'anna', 'admin', NULL, '0000000a', 1700040000000, 'anna', 1699996800000, NULL, 0),
    ('e87ba7a0b779d8b797f86d19604504496f23b4d1e31ed4721d9dc8634172b723', '0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b', '2001:db8::9', NULL, 'operator', '["alertmanager/*"]', 'key-0123456789ab', 1700000040000, 'oidc:4711', 1699999000000, '{"issuer":"https://login.example.com"}', 1699999500000);

INSERT INTO replicas
    (id, end_ms)
VALUES
    ('0badcafe', 1700003000000);

UPDATE versions SET version = 2 WHERE topic = 'alerts';
UPDATE versions SET version = 5 WHERE topic = 'listeners';
UPDATE versions SET version = 2 WHERE topic = 'modes';
UPDATE versions SET version = 3 WHERE topic = 'tokens';

INSERT INTO audit
    (id, at_ms, kind, principal, way, address, request_id, revision, details)
VALUES
    (1, 1700000000500, 'settings', NULL, 'service', NULL, NULL, NULL, '{"version":"0.1.0","replica":"0badcafe","settings":{"auth":"tokens"}}'),
    (2, 1700000001000, 'token-created', 'admin', 'api', '127.0.0.1', '5c1e9a-1', NULL, '{"token":"0000000a","name":"anna","role":"admin"}'),
    (3, 1700000013000, 'forced', 'anna', 'command', '2001:db8::9', '5c1e9a-2', 13, '{"reason":"The rack burns; 火","change":"merged","node":"worker-1","action":"MARK_BLOCKED_AND_EVACUATE_TASKS"}');

UPDATE versions SET version = 3 WHERE topic = 'audit';
