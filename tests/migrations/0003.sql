-- The rows of schema 0003, as the service of that time wrote them.

UPDATE log_head SET history = 'c0ffee07', revision = 14, compacted = 4;

INSERT INTO changes
    (revision, type, at_ms, created_by, forced, node_id, action, start_ms, end_ms, cause)
VALUES
    (5, 'blocked', 1700000005000, 'anna', NULL, 'worker-1', 'MARK_BLOCKED', 1700000005000, 9223372036854775807, 'Disk «sdb» – raté, 磁盘 🔥: it''s "5 %" of C:\x; -- no'),
    (6, 'merged', 1700000006000, 'anna', NULL, 'old-2', 'MARK_BLOCKED_AND_EVACUATE_TASKS', 1700000003000, 9223372036854775807, 'a,b'),
    (7, 'unblocked', 1700000007000, 'Zoë O''Neil', NULL, 'old-3', 'MARK_BLOCKED', 1700000004000, 1700090000000, 'x'),
    (8, 'blocked', 1700000008000, NULL, NULL, '10.0.0.7', 'MARK_BLOCKED_AND_EVACUATE_TASKS', 1700000008000, 9223372036854775807, 'Hot'),
    (9, 'unblocked', 1700000009000, 'anna', NULL, '10.0.0.7', 'MARK_BLOCKED_AND_EVACUATE_TASKS', 1700000008000, 9223372036854775807, 'Hot'),
    (10, 'blocked', 1700000010000, 'alertmanager', NULL, 'short', 'MARK_BLOCKED', 1700000010000, 1700000010500, 'Alert'),
    (11, 'expired', 1700000011000, NULL, NULL, 'short', 'MARK_BLOCKED', 1700000010000, 1700000010500, 'Alert'),
    (12, 'blocked', 1700000012000, 'anna', NULL, 'fe80::1', 'MARK_BLOCKED', 1700000012000, 1700000060000, 'Ends while nobody serves'),
    (13, 'merged', 1700000013000, 'anna', 'The rack burns; 火', 'worker-1', 'MARK_BLOCKED_AND_EVACUATE_TASKS', 1700000005000, 9223372036854775807, 'Disk «sdb» – raté, 磁盘 🔥: it''s "5 %" of C:\x; -- no,Second'),
    (14, 'blocked', 1700000014000, 'anna', NULL, 'Zz_9.-', 'MARK_BLOCKED', 1700000014000, 9223372036854775807, 'x');

INSERT INTO blocked_nodes
    (id, action, start_ms, end_ms, cause)
VALUES
    ('Zz_9.-', 'MARK_BLOCKED', 1700000014000, 9223372036854775807, 'x'),
    ('fe80::1', 'MARK_BLOCKED', 1700000012000, 1700000060000, 'Ends while nobody serves'),
    ('old-1', 'MARK_BLOCKED', 1700000002000, 9223372036854775807, 'Before the log begins'),
    ('old-2', 'MARK_BLOCKED_AND_EVACUATE_TASKS', 1700000003000, 9223372036854775807, 'a,b'),
    ('worker-1', 'MARK_BLOCKED_AND_EVACUATE_TASKS', 1700000005000, 9223372036854775807, 'Disk «sdb» – raté, 磁盘 🔥: it''s "5 %" of C:\x; -- no,Second');

INSERT INTO listeners
    (id, role, session, former, callback_url, lease_ms, acked, lapsed_ms, secret, old_secret, old_secret_until_ms)
VALUES
    ('job-gone', 'JOB_MASTER', 'attempt-1', '[]', 'http://127.0.0.1:9/told', 1000, 3, 1700003500000, 'whsec_MTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTE=', NULL, 0),
    ('job-live', 'JOB_MASTER', 'attempt-2', '["attempt-0", "attempt-1"]', NULL, 3600000, 12, NULL, 'whsec_MjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjI=', NULL, 0),
    ('yarn', 'RESOURCE_MANAGER', 'rm-1', '[]', NULL, 50000, NULL, NULL, 'whsec_MzMzMzMzMzMzMzMzMzMzMzMzMzMzMzMzMzMzMzMzMzM=', 'whsec_NDQ0NDQ0NDQ0NDQ0NDQ0NDQ0NDQ0NDQ0NDQ0NDQ0NDQ=', 1700007000000);
