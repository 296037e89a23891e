import java.nio.file.{Files, Path, StandardOpenOption}
import java.util.concurrent.TimeUnit
import org.apache.spark.BarrierTaskContext
import org.apache.spark.SparkContext
import org.apache.spark.resource.{ExecutorResourceRequests, ResourceProfileBuilder, TaskResourceRequests}
import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.streaming.{StreamingQuery, Trigger}
import scala.io.Source

/**
 * ScalaRounds COMMANDS RESULTS: for each line of COMMANDS, runs a job and appends a line to RESULTS.
 *
 * A line is the name of a host (or nothing), or one of the words below with its arguments. Tasks on the named host
 * take ten minutes. It uses nothing of the blocklist.
 */
object ScalaRounds {
  private var ballast: Array[Array[Byte]] = Array.empty
  private var query: Option[StreamingQuery] = None
  private lazy val numbers = SparkContext.getOrCreate().parallelize(1 to 100000, 24).cache()
  private lazy val checkpoints = Files.createTempDirectory("checkpoints")

  def main(arguments: Array[String]): Unit = {
    val spark = SparkSession.builder().appName("scala").getOrCreate()
    for (line <- Source.fromFile(arguments(0)).getLines()) {
      val result = run(spark, line.split(" ").toList) + "\n"
      Files.write(Path.of(arguments(1)), result.getBytes, StandardOpenOption.CREATE, StandardOpenOption.APPEND)
    }
    spark.stop()
  }

  private def run(spark: SparkSession, words: List[String]): String = words match {
    case List("barrier", count, millis) => hosts(barrier(spark.sparkContext, count.toInt, millis.toLong))
    case List("profile", count) => hosts(inProfile(spark.sparkContext, count.toInt))
    case List("shuffle", number) => "ROUND " + shuffle(spark, number.toInt)
    case List("tiny", count, millis) => "ROUND " + tiny(spark.sparkContext, count.toInt, millis.toLong)
    case List("cached") => "ROUND " + cached()
    case List("fill", megabytes) => fill(megabytes.toInt)
    case List("fail", host) => hosts(failing(spark.sparkContext, host))
    case List("heap") => "ROUND " + heap()
    case List("stream") => stream(spark)
    case List("exit", code) => sys.exit(code.toInt)
    case List("streaming") => "ROUND " + progress()
    case List(slow) => hosts(plain(spark.sparkContext, slow))
    case _ => "ROUND 0"
  }

  /** YARN names the host of a container; standalone workers here have theirs in Spark's variable. */
  private def host: String = Option(System.getenv("NM_HOST")).getOrElse(System.getenv("SPARK_LOCAL_IP"))

  private def hosts(used: Array[String]): String =
    s"ROUND ${used.length} ${used.distinct.sorted.mkString(" ")}"

  private def plain(context: SparkContext, slow: String): Array[String] =
    context.parallelize(1 to 24, 24).map(_ => work(slow)).collect()

  /** Tasks fail on a host, and are tried again elsewhere. */
  private def failing(context: SparkContext, broken: String): Array[String] =
    context.parallelize(1 to 24, 24).map { _ =>
      if (host == broken) throw new IllegalStateException(s"$broken is broken")
      work("")
    }.collect()

  private def barrier(context: SparkContext, count: Int, millis: Long): Array[String] =
    context.parallelize(1 to count, count).barrier().mapPartitions { _ =>
      BarrierTaskContext.get().barrier()
      Thread.sleep(millis)
      Iterator(host)
    }.collect()

  private lazy val profile = {
    val executors = new ExecutorResourceRequests().cores(1).memory("512m")
    new ResourceProfileBuilder().require(executors).require(new TaskResourceRequests().cpus(1)).build()
  }

  /** Stage-level scheduling: tasks in executors of another resource profile. */
  private def inProfile(context: SparkContext, count: Int): Array[String] =
    context.parallelize(1 to count, count).map(_ => work("")).withResources(profile).collect()

  private def work(slow: String): String = {
    val own = host
    Thread.sleep(if (own == slow) 600000L else 50L)
    own
  }

  /** The sum, by way of a shuffle and a join, of the numbers below 6000 times `number`. */
  private def shuffle(spark: SparkSession, number: Int): Long = {
    import spark.implicits._
    val numbers = spark.range(0, 6000, 1, 12).select(($"id" * number).as("product"), ($"id" % 7).as("key"))
    val sums = numbers.groupBy("key").sum("product").withColumnRenamed("sum(product)", "total")
    numbers.select("key").distinct().join(sums.hint("merge"), "key").groupBy().sum("total").as[Long].head()
  }

  /** The milliseconds that a job of so many short tasks takes. */
  private def tiny(context: SparkContext, count: Int, millis: Long): Long = {
    val begin = System.nanoTime()
    context.parallelize(1 to count, count).foreach(_ => if (millis > 0) Thread.sleep(millis))
    TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - begin)
  }

  /** The milliseconds that a count of cached partitions takes. The first one caches them. */
  private def cached(): Long = {
    val begin = System.nanoTime()
    numbers.count()
    TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - begin)
  }

  /** Take memory until only this many megabytes of the heap are free; a large number frees it. */
  private def fill(megabytes: Int): String = {
    ballast = Array.empty
    val free = Runtime.getRuntime.maxMemory / 1000000 - heap()
    ballast = Array.fill(math.max(0, free.toInt - megabytes))(new Array[Byte](1000000))
    "ROUND " + ballast.length
  }

  /** Megabytes in use after a collection of garbage. */
  private def heap(): Long = {
    for (_ <- 1 to 2) System.gc()
    (Runtime.getRuntime.totalMemory - Runtime.getRuntime.freeMemory) / 1000000
  }

  private def stream(spark: SparkSession): String = {
    val rows = spark.readStream.format("rate").option("numPartitions", 3).option("rowsPerSecond", 30).load()
    val writer = rows.writeStream.format("noop").option("checkpointLocation", checkpoints.toString)
    query = Some(writer.trigger(Trigger.Continuous(200)).start())
    "ROUND 1"
  }

  /** 1 while the query runs and commits further epochs, else 0. */
  private def progress(): Int = {
    val before = lastCommit()
    val end = System.nanoTime() + TimeUnit.SECONDS.toNanos(30)
    while (query.get.isActive && lastCommit() == before && System.nanoTime() < end) Thread.sleep(50)
    if (query.get.isActive && lastCommit() != before) 1 else 0
  }

  private def lastCommit(): Int = {
    val names = Option(checkpoints.resolve("commits").toFile.list).getOrElse(Array.empty[String])
    (names.filter(_.forall(_.isDigit)).map(_.toInt) :+ -1).max
  }
}
