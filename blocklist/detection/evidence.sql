-- Compares each host with its peers in each stage, and charges failed tasks to hosts. See docs/evidence/detection.md.
--
-- Only tasks of one kind are compared: of the same stage, with the same locality, and of about the same size; the rest of
-- a size difference is divided out. The first tasks of an executor, which load classes and fill caches, and speculative
-- copies are excluded. So skewed data, a cold cache or distance from the data do not make a host slow. Nor do slow
-- partitions that run on it in each stage, because it holds their data: over the stages of an application, a partition
-- on a host is one observation.
--
-- `facts`: FACTS. `ignored`: hosts whose stages before `until` do not count.

-- Successful tasks that started after another task had ended on their executor; `compute` is their work in ms.
--
-- Event logs do not tell from which host a task waits for blocks: a host that is slow to fetch the code of a stage is slow
-- to serve blocks too, so all hosts wait, and only the code shows for which: `network_ms` is the time of both.
CREATE OR REPLACE TEMP TABLE comparable AS
SELECT * FROM (
    SELECT *, launched >= min(time) OVER (PARTITION BY app, executor) AS warm,
        greatest(run_ms - coalesce(gc_ms, 0) - coalesce(fetch_wait_ms, 0), $min_work_ms) AS compute,
        CASE WHEN remote_bytes >= $min_bytes THEN greatest(fetch_wait_ms, 1) / remote_bytes END AS network,
        CASE WHEN written_bytes >= $min_bytes THEN greatest(write_ms, 1) / written_bytes END AS disk,
        CASE WHEN deserialize_ms IS NOT NULL THEN greatest(deserialize_ms, $min_start_ms) END AS start,
        deserialize_ms + coalesce(fetch_wait_ms, 0) AS network_ms,
        coalesce(input_bytes, 0) + coalesce(shuffle_bytes, 0) + 1 AS size,
        coalesce(input_records, 0) + coalesce(shuffle_records, 0) + 1 AS records,
        floor(ln(size) / ln(2)) AS bucket, coalesce(locality, 'ANY') AS near
    FROM facts WHERE kind = 'task'
) WHERE outcome = 'Success' AND NOT speculative AND warm AND run_ms IS NOT NULL;

-- What stands for each host's tasks of one kind: medians; of an executor's times to start the longest, as only its first
-- task fetches anything.
CREATE OR REPLACE TEMP TABLE kinds AS
SELECT app, stage, attempt, near, bucket, host, count(*) AS tasks,
    median(compute) AS compute, median(network) AS network, median(disk) AS disk,
    median(start) AS start,
    median(size) AS size, median(records) AS records,
    sum(run_ms) AS run_ms, sum(gc_ms) AS gc_ms, sum(fetch_wait_ms) AS fetch_wait_ms, sum(write_ms) AS write_ms,
    sum(network_ms) AS network_ms, min(launched) AS first, max(time) AS last
FROM (
    SELECT * REPLACE (max(start) OVER (PARTITION BY app, stage, attempt, near, bucket, host, executor) AS start) FROM comparable
) GROUP BY ALL;

-- The host's median time over the median of the other hosts, divided by how much larger its tasks were.
CREATE OR REPLACE TEMP TABLE slowdowns AS
WITH measures AS (
    SELECT *, 'compute' AS metric, compute AS work, run_ms AS time_ms FROM kinds
    UNION ALL SELECT *, 'network', network, fetch_wait_ms FROM kinds
    UNION ALL SELECT *, 'disk', disk, write_ms FROM kinds
    UNION ALL SELECT *, 'start', start, network_ms FROM kinds
), placed AS (
    SELECT *, list_sort(list(work) OVER kind) AS works,
        row_number() OVER (PARTITION BY app, stage, attempt, near, bucket, metric ORDER BY work) AS place,
        greatest(size / median(size) OVER kind, records / median(records) OVER kind, 1.0) AS larger
    FROM measures WHERE work > 0
    WINDOW kind AS (PARTITION BY app, stage, attempt, near, bucket, metric)
)
SELECT *, work / list_median(list_concat(works[1:place - 1], works[place + 1:]))
    / CASE WHEN metric = 'compute' THEN larger ELSE 1.0 END AS slowdown
FROM placed WHERE len(works) > 1;

-- Without stages of which too few tasks have succeeded: their slow tasks may still be running.
CREATE OR REPLACE TEMP TABLE host_stages AS
WITH hosts AS (
    SELECT app, stage, attempt, host, metric, sum(tasks) AS tasks, sum(time_ms) AS time_ms, sum(run_ms) AS run_ms,
        sum(gc_ms) / nullif(sum(run_ms), 0) AS gc_share, sum(fetch_wait_ms) / nullif(sum(run_ms), 0) AS fetch_wait_share,
        min(first) AS first, max(last) AS last, exp(sum(tasks * ln(slowdown)) / sum(tasks)) AS slowdown
    FROM slowdowns GROUP BY ALL
), compared AS (
    SELECT *, slowdown >= $threshold AND coalesce(time_ms, 0) >= $min_time_share * run_ms AS slow FROM hosts
), enough AS (
    SELECT *, count(*) OVER stage_ AS hosts, sum(slow::INT) OVER stage_ AS slow_hosts
    FROM compared
    WINDOW stage_ AS (PARTITION BY app, stage, attempt, metric)
    QUALIFY count(*) OVER stage_ >= $min_hosts AND sum(tasks) OVER stage_ >= $min_tasks
), incomplete AS (
    SELECT app, stage, attempt FROM facts WHERE kind IN ('stage', 'task') GROUP BY ALL
    HAVING count_if(outcome = 'Success') < $min_completed * max(tasks)
)
FROM enough ANTI JOIN incomplete USING (app, stage, attempt) ANTI JOIN ignored ON ignored.host = enough.host AND first < until;

-- The slowdown of each task, in proportion. A start depends on the executor, not on the partition.
CREATE OR REPLACE TEMP VIEW task_slowdowns AS
WITH tasks AS (
    SELECT *, 'compute' AS metric, compute AS value FROM comparable
    UNION ALL SELECT *, 'network', network FROM comparable
    UNION ALL SELECT *, 'disk', disk FROM comparable
)
SELECT app, stage, attempt, host, metric, partition, value / work * slowdown AS slowdown
FROM tasks JOIN slowdowns USING (app, stage, attempt, near, bucket, host, metric)
SEMI JOIN host_stages USING (app, stage, attempt, host, metric);

CREATE OR REPLACE TEMP TABLE host_partitions AS
SELECT app, host, metric, partition, median(slowdown) AS slowdown FROM task_slowdowns GROUP BY ALL;

CREATE OR REPLACE TEMP TABLE host_applications AS
WITH partitions AS (SELECT app, host, metric, median(slowdown) AS over_partitions FROM host_partitions GROUP BY ALL)
SELECT app, host, metric, count(*) AS stages, count_if(slow) AS slow_stages,
    least(median(slowdown), any_value(over_partitions)) AS slowdown,
    trunc(coalesce(sum(CASE WHEN slow THEN time_ms * (1 - 1 / slowdown) END), 0))::BIGINT AS lost_ms,
    coalesce(min(CASE WHEN slow THEN first END), min(first)) AS first,
    coalesce(max(CASE WHEN slow THEN last END), max(last)) AS last,
    min(first) AS earliest, max(first) AS latest
FROM host_stages LEFT JOIN partitions USING (app, host, metric)
GROUP BY app, host, metric;

-- `is_unexplained`: not said to be the machine's failure.
CREATE OR REPLACE TEMP TABLE failed AS
SELECT *, failure IN ('out of memory', 'user exception', 'other') AS is_unexplained FROM (
    SELECT *, CASE
        WHEN outcome = 'FetchFailed' THEN 'fetch failure'
        WHEN regexp_matches(concat_ws(' ', error, message), $disk_full) THEN 'disk full'
        WHEN regexp_matches(concat_ws(' ', error, message), $io_error) THEN 'I/O error'
        WHEN regexp_matches(concat_ws(' ', error, message), $memory) THEN 'out of memory'
        WHEN outcome = 'ExecutorLostFailure' THEN 'lost executor'
        WHEN outcome = 'ExceptionFailure' THEN 'user exception' ELSE 'other' END AS failure
    FROM facts WHERE kind = 'task' AND outcome NOT IN ('Success', 'TaskKilled', 'TaskCommitDenied', 'Resubmitted')
);

-- What looks like the application's own failure may be the host's: its memory may be bad, or a device missing. So a
-- partition that failed on one host only, and succeeded on another one, counts against the host. One that failed on
-- several hosts, in one stage or in several, or never succeeded, counts against nobody.
CREATE OR REPLACE TEMP TABLE bad_partitions AS
SELECT app, partition FROM failed WHERE is_unexplained AND partition IS NOT NULL
GROUP BY ALL HAVING count(DISTINCT stage) >= $bad_partition_stages AND count(DISTINCT host) > 1;

CREATE OR REPLACE TEMP TABLE only_there AS
SELECT app, stage, attempt, partition FROM (
    SELECT app, stage, attempt, partition, min(host) AS host FROM failed
    WHERE is_unexplained GROUP BY ALL HAVING count(DISTINCT host) = 1
) AS own WHERE (app, partition) NOT IN (FROM bad_partitions) AND EXISTS (
    SELECT * FROM facts WHERE facts.app = own.app AND facts.stage = own.stage AND facts.attempt = own.attempt
        AND facts.partition = own.partition AND facts.outcome = 'Success' AND facts.host <> own.host
);

-- Stages in which every task failed on one host, and none on another one: the host may have no GPU, or a wrong library.
-- It takes more tasks than any other, as each fails in a second, and may end the application before anything has
-- succeeded elsewhere. A bug of the application fails on all hosts, or in one partition. So other hosts must have been
-- there before, and the stage must have had tasks for them.
CREATE OR REPLACE TEMP TABLE all_there AS
WITH own AS (
    SELECT app, stage, attempt, min(host) AS host, min(time) AS began FROM failed
    WHERE is_unexplained
    GROUP BY ALL HAVING count(DISTINCT host) = 1 AND count(DISTINCT partition) >= $min_failed_partitions
), there AS (
    SELECT app, host, min(coalesce(launched, time)) AS since FROM facts WHERE kind IN ('task', 'executor') GROUP BY ALL
), sizes AS (
    SELECT app, stage, attempt, max(CASE WHEN kind = 'stage' THEN tasks ELSE partition + 1 END) AS partitions
    FROM facts WHERE kind IN ('stage', 'task') GROUP BY ALL
), known AS (
    SELECT own.app, own.stage, own.attempt, own.host, count(DISTINCT there.host) AS hosts
    FROM own JOIN there ON there.app = own.app AND since <= began GROUP BY ALL
)
SELECT app, stage, attempt, host FROM known JOIN sizes USING (app, stage, attempt)
WHERE hosts >= $min_hosts AND partitions >= hosts AND NOT EXISTS (
    SELECT * FROM facts WHERE facts.app = known.app AND facts.stage = known.stage AND facts.attempt = known.attempt
        AND facts.host = known.host AND facts.outcome = 'Success'
);

-- In each stage, at most one host that serves shuffle blocks slowly: all other hosts wait for its blocks; it does not,
-- because it reads them locally. A host that waits little because it fetches little is not slow: it must have fetched at
-- least half as much as usual.
CREATE OR REPLACE TEMP TABLE servers AS
WITH hosts AS (
    SELECT app, stage, attempt, host, count(*) AS own_tasks, median(fetch_wait_ms) AS wait, median(run_ms) AS run,
        median(remote_bytes) AS remote, sum(fetch_wait_ms) AS waited, max(time) AS last
    FROM comparable WHERE remote_bytes > 0 GROUP BY ALL
), placed AS (
    SELECT *, list_sort(list(wait) FILTER (wait IS NOT NULL) OVER stage_) AS waits,
        row_number() OVER (PARTITION BY app, stage, attempt ORDER BY wait NULLS FIRST, host) AS place,
        median(run) OVER stage_ AS usual_run, median(remote) OVER stage_ AS usual_remote,
        sum(own_tasks) OVER stage_ - own_tasks AS tasks, coalesce(sum(waited) OVER stage_ - waited, 0) AS lost_ms
    FROM hosts WINDOW stage_ AS (PARTITION BY app, stage, attempt)
)
SELECT app, stage, attempt, host, 'slow to serve shuffle blocks' AS failure, tasks, lost_ms, last, []::BIGINT[] AS partitions
FROM placed
WHERE place = 1 AND len(waits) >= $min_hosts AND list_median(waits[2:]) >= $min_wait_ratio * greatest(wait, 1.0)
    AND list_median(waits[2:]) >= $min_wait_share * usual_run AND remote >= usual_remote / 2;

-- The failed tasks, with the host that they are charged to: of a fetch failure the one that served.
CREATE OR REPLACE TEMP TABLE charged_tasks AS
SELECT failed.* REPLACE (
    CASE WHEN failure = 'fetch failure' THEN served_by ELSE host END AS host,
    CASE WHEN is_unexplained AND all_there.app IS NOT NULL
        THEN 'all tasks failed there and none elsewhere'
        WHEN is_unexplained AND only_there.app IS NOT NULL
        THEN 'tasks that failed only there and succeeded elsewhere' ELSE failure END AS failure)
FROM failed LEFT JOIN only_there USING (app, stage, attempt, partition)
    LEFT JOIN all_there USING (app, stage, attempt, host);

CREATE OR REPLACE TEMP TABLE failures AS
SELECT app, stage, attempt, host, failure, count(*) AS tasks, coalesce(sum(duration), 0) AS lost_ms, max(time) AS last,
    coalesce(list(DISTINCT partition) FILTER (failure IN (
        'tasks that failed only there and succeeded elsewhere', 'all tasks failed there and none elsewhere')), []) AS partitions,
    any_value(message) AS message
FROM (
    FROM charged_tasks
    -- Where every task failed, partitions that succeeded elsewhere count as such, too: in its other applications the host
    -- may have had a success in between.
    UNION ALL BY NAME
    SELECT * REPLACE ('tasks that failed only there and succeeded elsewhere' AS failure) FROM failed
    SEMI JOIN only_there USING (app, stage, attempt, partition) SEMI JOIN all_there USING (app, stage, attempt, host)
    WHERE is_unexplained
)
WHERE host IS NOT NULL GROUP BY ALL
UNION ALL SELECT *, NULL FROM servers;
