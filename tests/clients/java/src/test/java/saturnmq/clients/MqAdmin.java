package saturnmq.clients;

import java.io.File;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;

/** Apache's mqadmin tool, one process per command as users run it. */
final class MqAdmin {
    private static final Path HOME = Path.of(System.getProperty("user.home"), "mqadmin");

    private MqAdmin() {
    }

    /** 4.x insists on a logging configuration below its home. */
    private static synchronized void writeLogConfiguration() throws Exception {
        Path file = HOME.resolve("conf/logback_tools.xml");
        if (!Files.exists(file)) {
            Files.createDirectories(file.getParent());
            Files.writeString(file, "<configuration><root level=\"OFF\"/></configuration>");
        }
    }

    /** Runs one command and returns what it printed. Fails when it does not end in 60 s. */
    static String run(String... arguments) throws Exception {
        writeLogConfiguration();
        List<String> command = new ArrayList<>(List.of(
            System.getProperty("java.home") + "/bin/java", "-Xmx256m", "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1", "-Duser.home=" + HOME, "-Drocketmq.home.dir=" + HOME,
            "-cp", System.getProperty("java.class.path"),
            "org.apache.rocketmq.tools.command.MQAdminStartup"));
        command.addAll(List.of(arguments));
        command.addAll(List.of("-n", Cluster.NAME_SERVER));
        File output = File.createTempFile("mqadmin", ".out");
        try {
            // Some commands leave files where they run.
            Process process = new ProcessBuilder(command).directory(HOME.toFile())
                .redirectErrorStream(true)
                .redirectOutput(output).start();
            if (!process.waitFor(60, TimeUnit.SECONDS)) {
                process.destroyForcibly();
                throw new AssertionError("mqadmin " + arguments[0] + " did not end: "
                    + Files.readString(output.toPath(), StandardCharsets.UTF_8));
            }
            return Files.readString(output.toPath(), StandardCharsets.UTF_8);
        } finally {
            Files.deleteIfExists(output.toPath());
        }
    }
}
