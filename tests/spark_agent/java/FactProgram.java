package blocklist.spark;

import java.io.IOException;
import java.lang.reflect.Field;
import java.lang.reflect.Proxy;
import java.net.ServerSocket;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Timer;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.Semaphore;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import org.apache.spark.ExceptionFailure;
import org.apache.spark.SparkConf;
import org.apache.spark.Success$;
import org.apache.spark.TaskEndReason;
import org.apache.spark.TaskResultLost$;
import org.apache.spark.scheduler.AccumulableInfo;
import org.apache.spark.scheduler.ExecutorDecommissionState;
import org.apache.spark.scheduler.SparkListenerTaskEnd;
import org.apache.spark.scheduler.SparkListenerTaskStart;
import org.apache.spark.scheduler.TaskInfo;
import org.apache.spark.scheduler.TaskLocality;
import org.apache.spark.scheduler.TaskScheduler;
import scala.Option;
import scala.collection.immutable.List$;

/* Facts of the agent's classes, those in the arguments: a line for each, its name, a tab, and `true` or what is wrong. */
public final class FactProgram {
  public static void main(String[] arguments) throws Exception {
    for (int i = 0; i < arguments.length; i++) System.out.println("FACT\t" + arguments[i] + "\t" + result(arguments[i]));
    System.exit(0);
  }

  private static String result(String fact) {
    try {
      return String.valueOf(holds(fact));
    } catch (Throwable t) {
      t.printStackTrace();
      return t.toString();
    }
  }

  private static boolean holds(String fact) throws Exception {
    if (fact.equals("a report starts no lookup of a lost host")) return reportStartsNoLookup();
    if (fact.equals("a client is made while a name server hangs")) return makesClient();
    if (fact.equals("a refusal stands until the next table is judged")) return refusalStands();
    if (fact.equals("a pod whose executor has registered is not unbound")) return registeredIsBound();
    if (fact.equals("a wait of five minutes is not accepted")) return waitsHalfAMinute();
    if (fact.equals("a name that a hanging server looks up is unknown before it is given up")) return unknownWhileLookedUp();
    if (fact.equals("an agent that observes says what it would do, and refuses nothing")) return saysWhatItWouldDo();
    if (fact.equals("an agent that is off acknowledges nothing")) return Report.acknowledged(snapshot(Mode.OFF)) == -1 && Report.acknowledged(snapshot(Mode.OBSERVE)) == 5;
    if (fact.equals("a slip in the mode does less, not more")) return modes();
    if (fact.equals("what fails on an executor that is being decommissioned blames nobody"))
      return Observed.ignoresDecommissioned();
    if (fact.equals("a task is slow once its copy has ended first")) return Observed.copyEndsFirst();
    if (fact.equals("an Error while an error is reported ends no loop and reaches nobody")) return survivesErrors();
    if (fact.equals("a copy of the settings of a running application starts with excludeOnFailure")) return forgetsLimits();
    if (fact.equals("a service that cannot be reached knows no application that leaves")) return knowsOnlyIfReached();
    throw new IllegalArgumentException(fact);
  }

  /* Two hosts of which one is to be evacuated; of the other, the last, the block is refused. */
  private static Snapshot snapshot(Mode mode) {
    Map<String, Table.Entry> entries = new HashMap<>();
    entries.put("n1", new Table.Entry(1, Long.MAX_VALUE, Table.Entry.EVACUATE, "n1", "disk"));
    entries.put("n2", new Table.Entry(2, Long.MAX_VALUE, Table.Entry.MARK, "n2", "disk"));
    Table table = new Table(5, entries);
    List<LiveHost> hosts = new ArrayList<>();
    for (String name : new String[] {"n1", "n2"}) hosts.add(new LiveHost(name, name, true, new String[] {name}, LiveHost.LONG_AGO));
    Plan plan = Plan.make(table, hosts, new Plan.Requirements(1, 0, 0, false), 0);
    List<Executor> executors = Collections.singletonList(new Executor("1", "n1", "n1", 3));
    return new Snapshot(5, table, plan, plan.refused, executors, null, mode);
  }

  private static boolean saysWhatItWouldDo() {
    Map<String, String> fields = Report.fields("app", snapshot(Mode.OBSERVE));
    String would = fields.get("would");
    return fields.get("refused").equals("{}") && fields.get("mode").equals("\"observe\"") && would.contains("\"n1\":\"would close host n1 and kill its 3 running tasks.\"")
      && would.contains("\"n2\":\"would refuse: ") && Report.fields("app", snapshot(Mode.APPLY)).get("would").equals("{}");
  }

  /* A class of its own: it needs Spark's, which one of the JVMs does not have. */
  private static final class Observed {
    /* Of three tasks on the host h1 that were speculated: one has a copy that ended first, one ends first, one's copy fails. */
    static boolean copyEndsFirst() {
      SparkObserver observer = new SparkObserver(true);
      for (int index = 0; index < 3; index++) {
        observer.onTaskStart(new SparkListenerTaskStart(7, 0, task(index, "h1", false)));
        observer.onTaskStart(new SparkListenerTaskStart(7, 0, task(index, "h2", true)));
      }
      boolean started = observer.drain().isEmpty();
      observer.onTaskEnd(ended(Success$.MODULE$, task(0, "h2", true)));
      observer.onTaskEnd(ended(Success$.MODULE$, task(1, "h1", false)));
      observer.onTaskEnd(ended(Success$.MODULE$, task(1, "h2", true)));
      observer.onTaskEnd(ended(TaskResultLost$.MODULE$, task(2, "h2", true)));
      return started && observer.drain().equals(Collections.singletonList(new EvidenceCollector.Observation(EvidenceCollector.Observation.SLOW, "h1", "7.0", 0)));
    }

    static boolean ignoresDecommissioned() throws InterruptedException {
      FailureListener one = swallowing("1");
      FailureListener none = swallowing("2");
      Thread.sleep(FailureJudge.LASTING + 10);
      return one.findings(host -> host).isEmpty() && none.findings(host -> host).keySet().equals(Collections.singleton("bad"));
    }

    /* Each task fails on the executor 1 and succeeds elsewhere; this executor is being decommissioned. */
    private static FailureListener swallowing(String decommissioned) {
      TaskScheduler scheduler = (TaskScheduler) Proxy.newProxyInstance(TaskScheduler.class.getClassLoader(), new Class<?>[] {TaskScheduler.class},
        (proxy, method, arguments) -> Option.apply(arguments[0].equals(decommissioned) ? new ExecutorDecommissionState(0, Option.empty()) : null));
      FailureListener listener = new FailureListener(false, scheduler);
      for (int index = 0; index < 4; index++) {
        listener.onTaskEnd(ended(new ExceptionFailure(new IOException("wanted"), List$.MODULE$.<AccumulableInfo>empty(), false), task(index, "bad", false)));
        listener.onTaskEnd(ended(Success$.MODULE$, task(index, index % 2 == 0 ? "h2" : "h3", false)));
      }
      return listener;
    }

    /* One after the other; the executor has the number of the host. */
    private static TaskInfo task(int index, String host, boolean speculative) {
      TaskInfo task = new TaskInfo(index, index, 0, index, 10 * index, host.equals("bad") ? "1" : host, host, TaskLocality.ANY(), speculative);
      task.finishTime_$eq(10 * index);
      return task;
    }

    private static SparkListenerTaskEnd ended(TaskEndReason reason, TaskInfo task) {
      return new SparkListenerTaskEnd(7, 0, "ResultTask", reason, task, null, null);
    }
  }

  private static boolean modes() {
    Map<String, String> settings = new HashMap<>();
    Mode none = Settings.of(settings).mode;
    settings.put("mode", "obsrve");
    return none == Mode.APPLY && Settings.of(settings).mode == Mode.OBSERVE && Mode.APPLY.weaker(Mode.OFF) == Mode.OFF && Mode.OFF.weaker(Mode.APPLY) == Mode.OFF;
  }

  /* As after the jar has been overwritten: classes cannot be loaded any more. The job ends the JVM on each uncaught error. */
  private static boolean survivesErrors() throws Exception {
    final Semaphore runs = new Semaphore(0);
    final Semaphore uncaught = new Semaphore(0);
    Thread.setDefaultUncaughtExceptionHandler((thread, error) -> uncaught.release());
    Loop loop = new Loop("blocklist-test", "be tested") {
      long runOnce() {
        runs.release();
        throw new NoClassDefFoundError();
      }

      void onFailure() {
        throw new NoClassDefFoundError();
      }

      void onEnd() {
        throw new NoClassDefFoundError();
      }
    };
    loop.start();
    boolean again = runs.tryAcquire(2, 120, TimeUnit.SECONDS);
    loop.close();
    loop.join(120000);
    return again && !uncaught.tryAcquire();
  }

  private static boolean knowsOnlyIfReached() throws Exception {
    ServerSocket server = new ServerSocket(0);
    boolean ifReached = isKnown(server.getLocalPort(), () -> {
      server.accept().close();
      return null;
    });
    server.close();
    return ifReached && !isKnown(server.getLocalPort(), () -> null);
  }

  /* Whether the service may know an application whose registration has failed. */
  private static boolean isKnown(int port, Callable<Void> serve) throws Exception {
    final Semaphore failed = new Semaphore(0);
    ReportSource agent = (ReportSource) Proxy.newProxyInstance(FactProgram.class.getClassLoader(), new Class<?>[] {ReportSource.class}, (proxy, method, arguments) -> {
      if (method.getName().equals("onMode")) failed.release();
      return method.getName().equals("minNodes") ? (Object) 0 : method.getName().equals("mode") ? Mode.APPLY : null;
    });
    Map<String, String> settings = Collections.singletonMap("url", "http://127.0.0.1:" + port);
    ReportLoop loop = new ReportLoop(new ServiceClient(Settings.of(settings), "test", new Timer(true)), agent, "app", "s1", TreeMap::new);
    loop.start();
    serve.call();
    if (!failed.tryAcquire(120, TimeUnit.SECONDS)) throw new IllegalStateException("it has not failed");
    Field known = ReportLoop.class.getDeclaredField("known");
    known.setAccessible(true);
    boolean found = known.getBoolean(loop);
    loop.close();
    return found;
  }

  private static boolean forgetsLimits() {
    String own = String.valueOf(Integer.MAX_VALUE);
    SparkConf conf = new SparkConf(false).set("spark.excludeOnFailure.task.maxTaskAttemptsPerNode", String.valueOf(Integer.MAX_VALUE - 1));
    conf.set("spark.excludeOnFailure.stage.maxFailedExecutorsPerNode", own);
    TrackerSlot.forgetLimits(conf);
    return !conf.contains("spark.excludeOnFailure.task.maxTaskAttemptsPerNode") && conf.get("spark.excludeOnFailure.stage.maxFailedExecutorsPerNode").equals(own);
  }

  private static boolean reportStartsNoLookup() throws Exception {
    final Semaphore resolved = new Semaphore(0);
    HostResolver resolver = new HostResolver(resolved::release);
    resolver.names("127.0.0.1");
    resolver.retain(Collections.singleton("127.0.0.1"));
    if (!resolved.tryAcquire(120, TimeUnit.SECONDS)) return false;
    Executor lost = new Executor("1", "127.0.0.2", "127.0.0.2", -1);
    Snapshot snapshot = new Snapshot(1, Table.EMPTY, Plan.EMPTY, new TreeMap<>(), Collections.singletonList(lost), null, Mode.APPLY);
    NodeReport.described(snapshot, resolver);
    Field pool = HostResolver.class.getDeclaredField("pool");
    pool.setAccessible(true);
    return ((ThreadPoolExecutor) pool.get(resolver)).getTaskCount() == 1;
  }

  /* The hosts file of this JVM is a pipe that nobody writes. */
  private static boolean makesClient() throws Exception {
    Map<String, String> settings = new HashMap<>();
    settings.put("url", "http://service.example:8224");
    final Settings given = Settings.of(settings);
    final Semaphore made = new Semaphore(0);
    Thread thread = new Thread() {
      public void run() {
        try {
          new ServiceClient(given, "test", new Timer(true));
          made.release();
        } catch (Exception e) {
          e.printStackTrace();
        }
      }
    };
    thread.setDaemon(true);
    thread.start();
    return made.tryAcquire(20, TimeUnit.SECONDS);
  }

  private static boolean refusalStands() throws Exception {
    Map<String, Table.Entry> entries = new HashMap<>();
    entries.put("n1", new Table.Entry(1, Long.MAX_VALUE, Table.Entry.MARK, "n1", "disk"));
    Table before = new Table(5, entries);
    Table next = new Table(6, entries);
    Placement.Status status = new Placement.Status(before, Collections.emptySet(), true, null, Collections.singletonMap("n1", "why"));
    return status.refused(next, 0).equals(Collections.singletonMap("n1", "why")) && status.refused(new Table(7, new HashMap<>()), 0).isEmpty()
      && !status.isInForce(next, Plan.EMPTY, 0);
  }

  private static boolean waitsHalfAMinute() {
    ServiceClient.HttpException error = new ServiceClient.HttpException("GET /blocklist/table", new ServiceClient.Response<>(503, null, null, 300, 0, null));
    return error.retryAfter == 30 && new ServiceClient.HttpException("", new ServiceClient.Response<>(503, null, null, 7, 0, null)).retryAfter == 7;
  }

  /* The hosts file of this JVM is a pipe that nobody writes. Another host, should this JVM stand still too long. */
  private static boolean unknownWhileLookedUp() throws Exception {
    HostResolver resolver = new HostResolver(() -> {});
    for (int i = 0; i < 5; i++) {
      String host = "n" + i + ".example";
      if (resolver.names(host) != null || !resolver.isPending(host)) return false;
      while (resolver.overdue(host) == 0) Thread.sleep(20);
      if (resolver.isPending(host)) return true;
    }
    return false;
  }

  private static boolean registeredIsBound() {
    ExecutorPods.Pod pod = new ExecutorPods.Pod(7, "exec-7", null, new String[0], new String[0], false, false, null);
    return pod.isUnbound(new HashSet<>()) && !pod.isUnbound(Collections.singleton("7"));
  }
}
