import java.util.concurrent.locks.LockSupport;
import org.apache.flink.api.common.RuntimeExecutionMode;
import org.apache.flink.api.common.functions.MapFunction;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.serialization.SimpleStringEncoder;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.functions.KeySelector;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.ExecutionOptions;
import org.apache.flink.connector.file.sink.FileSink;
import org.apache.flink.core.fs.Path;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.datastream.KeyedStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.sink.filesystem.rollingpolicies.OnCheckpointRollingPolicy;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.util.Collector;

/**
 * Counts the numbers below n by their remainder, slowly, and writes `key,count,number` for each: a lost or repeated
 * number is visible. Written for Janino, which knows neither lambdas nor the inference of generic types.
 *
 * Arguments: STREAMING or BATCH, n, microseconds for each number in the first and in the second stage, parallelism, folder
 * of the results, name, and options as key=value; with second.pipeline the job has another one that is not connected.
 */
public class CountJob {
  public static class Slow implements MapFunction {
    private final long nanos;

    public Slow(long micros) {
      this.nanos = micros * 1000L;
    }

    public Object map(Object value) {
      if (nanos > 0) LockSupport.parkNanos(nanos);
      return value;
    }
  }

  public static class Remainder implements KeySelector {
    public Object getKey(Object value) {
      return Long.valueOf(((Long) value).longValue() % 97L);
    }
  }

  public static class Count extends KeyedProcessFunction {
    private final long nanos;
    private transient ValueState count;

    public Count(long micros) {
      this.nanos = micros * 1000L;
    }

    public void open(OpenContext context) {
      count = getRuntimeContext().getState(new ValueStateDescriptor("count", Types.LONG));
    }

    public void processElement(Object value, KeyedProcessFunction.Context context, Collector out) throws Exception {
      if (nanos > 0) LockSupport.parkNanos(nanos);
      long before = count.value() == null ? 0L : ((Long) count.value()).longValue();
      count.update(Long.valueOf(before + 1L));
      out.collect(context.getCurrentKey() + "," + (before + 1L) + "," + value);
    }
  }

  public static void main(String[] args) throws Exception {
    Configuration conf = new Configuration();
    for (int i = 7; i < args.length; i++) {
      int at = args[i].indexOf('=');
      conf.setString(args[i].substring(0, at), args[i].substring(at + 1));
    }
    conf.set(ExecutionOptions.RUNTIME_MODE, RuntimeExecutionMode.valueOf(args[0]));
    StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment(conf);
    env.setParallelism(Integer.parseInt(args[4]));
    DataStream slow = env.fromSequence(0L, Long.parseLong(args[1]) - 1L).map(new Slow(Long.parseLong(args[2])))
      .returns(Types.LONG).name("slow").uid("slow");
    KeyedStream keyed = slow.keyBy(new Remainder(), Types.LONG);
    DataStream counted = keyed.process(new Count(Long.parseLong(args[3])), Types.STRING).name("count").uid("count");
    FileSink.DefaultRowFormatBuilder builder = FileSink.forRowFormat(new Path(args[5]), new SimpleStringEncoder());
    builder.withRollingPolicy(OnCheckpointRollingPolicy.build());
    counted.sinkTo(builder.build()).name("sink").uid("sink");
    if (conf.containsKey("second.pipeline")) {
      // Not connected with the first one: its tasks share slots with those, but restart separately.
      DataStream second = env.fromSequence(0L, Long.parseLong(args[1]) - 1L).map(new Slow(Long.parseLong(args[2])))
        .returns(Types.LONG).name("second").uid("second");
      second.sinkTo(new DiscardingSink()).name("discarding").uid("discarding");
    }
    env.executeAsync(args[6]);
  }
}
