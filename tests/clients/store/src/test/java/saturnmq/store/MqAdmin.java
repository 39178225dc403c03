package saturnmq.store;

import java.io.ByteArrayOutputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.commons.cli.CommandLine;
import org.apache.commons.cli.Options;
import org.apache.commons.cli.PosixParser;
import org.apache.rocketmq.srvutil.ServerUtil;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import org.apache.rocketmq.tools.command.SubCommand;

/** Apache's mqadmin in this process: its commands, one at a time. */
final class MqAdmin {
    private static final PrintStream CONSOLE = System.out;
    private static final InheritableThreadLocal<OutputStream> OUTPUT =
        new InheritableThreadLocal<>();

    static {
        // What other tests print meanwhile is not a command's.
        System.setOut(new PrintStream(new OutputStream() {
            private OutputStream target() {
                OutputStream own = OUTPUT.get();
                return own == null ? CONSOLE : own;
            }

            @Override
            public void write(int letter) throws java.io.IOException {
                target().write(letter);
            }

            @Override
            public void write(byte[] bytes, int from, int count) throws java.io.IOException {
                target().write(bytes, from, count);
            }
        }, true));
    }

    private MqAdmin() {
    }

    @SuppressWarnings("unchecked")
    private static synchronized List<SubCommand> commands() throws Exception {
        Field field = MQAdminStartup.class.getDeclaredField("subCommandList");
        field.setAccessible(true);
        List<SubCommand> commands = (List<SubCommand>) field.get(null);
        if (commands.isEmpty()) {
            Method init = MQAdminStartup.class.getDeclaredMethod("initCommand");
            init.setAccessible(true);
            init.invoke(null);
        }
        return commands;
    }

    /** Of all commands. */
    static Set<String> names() throws Exception {
        return commands().stream().map(SubCommand::commandName)
            .collect(Collectors.toCollection(TreeSet::new));
    }

    /** What a command prints, and the exception that ends it, about the cluster of a server. */
    static synchronized String run(Server server, String name, String... arguments)
        throws Exception {
        // Some keep a client that they have shut down.
        SubCommand command = commands().stream().filter(one -> one.commandName().equals(name))
            .findFirst().orElseThrow(() -> new AssertionError("no command " + name)).getClass()
            .getDeclaredConstructor().newInstance();
        Options options = ServerUtil.buildCommandlineOptions(new Options());
        CommandLine line = ServerUtil.parseCmdLine("mqadmin " + name, arguments,
            command.buildCommandlineOptions(options), new PosixParser());
        System.setProperty("rocketmq.namesrv.addr", server.nameServer());
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        OUTPUT.set(printed);
        try {
            command.execute(line, options, null);
        } catch (Exception failure) {
            Throwable cause = failure;
            while (cause.getCause() != null) {
                cause = cause.getCause();
            }
            printed.write(("FAILED: " + cause).getBytes(StandardCharsets.UTF_8));
        } finally {
            System.out.flush();
            OUTPUT.remove();
            System.clearProperty("rocketmq.namesrv.addr");
        }
        return printed.toString(StandardCharsets.UTF_8);
    }
}
