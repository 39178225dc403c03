package saturnmq.store;

import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/** SaturnMQ, the built program, on a store directory. */
final class Saturn implements Server {
    private static final long STOP_SECONDS = 60;

    private final Process process;
    private final List<String> banner = new ArrayList<>();

    private Saturn(Process process) {
        this.process = process;
    }

    /** Starts it on {@code store}, on free ports of {@code host}, with {@code more} settings. */
    static Saturn startAt(Path store, String host, String... more) throws Exception {
        Path log = store.resolveSibling(store.getFileName() + ".saturnmq.log");
        ProcessBuilder builder = command(store, host, more);
        Saturn saturn = new Saturn(builder
            .redirectError(ProcessBuilder.Redirect.appendTo(log.toFile())).start());
        BufferedReader lines = new BufferedReader(
            new InputStreamReader(saturn.process.getInputStream(), StandardCharsets.UTF_8));
        String line;
        while ((line = lines.readLine()) != null) {
            saturn.banner.add(line);
            if (line.startsWith("  ready")) {
                return saturn;
            }
        }
        throw new AssertionError("no start on " + store + ": " + saturn.banner
            + Files.readString(log));
    }

    static Saturn start(Path store, String... more) throws Exception {
        return startAt(store, "127.0.0.1", more);
    }

    private static ProcessBuilder command(Path store, String host, String... more) {
        return configured(List.of("serve", "--data-dir", store.toString(), "--listen", host + ":0",
            "--name-server-port", "0", "--set", "httpPort=off"), more);
    }

    private static ProcessBuilder configured(List<String> arguments, String... more) {
        List<String> command = new ArrayList<>(List.of(System.getProperty("saturnmq")));
        command.addAll(arguments);
        for (Map.Entry<String, String> setting : Settings.common().entrySet()) {
            command.add("--set");
            command.add(setting.getKey() + "=" + setting.getValue());
        }
        for (String setting : more) {
            command.add("--set");
            command.add(setting);
        }
        return new ProcessBuilder(command);
    }

    /** What it says when it refuses to start. */
    static String refusal(Path store, String... more) throws Exception {
        return said(command(store, "127.0.0.1", more), 1);
    }

    /** Fails unless every record, queue entry and index item of a closed store fits the others. */
    static void verify(Path store) throws Exception {
        said(configured(List.of("inspect", store.toString(), "--verify")), 0);
    }

    /** All that a program says that must end with this exit code. */
    private static String said(ProcessBuilder builder, int code) throws Exception {
        File file = File.createTempFile("said", ".log");
        Process process = builder.redirectErrorStream(true).redirectOutput(file).start();
        boolean ended = process.waitFor(STOP_SECONDS, TimeUnit.SECONDS);
        process.destroyForcibly();
        String text = Files.readString(file.toPath());
        Files.delete(file.toPath());
        if (!ended || process.exitValue() != code) {
            throw new AssertionError("not ended with " + code + ": " + text);
        }
        return text;
    }

    private String banner(String name) {
        return banner.stream().map(String::trim).filter(line -> line.startsWith(name))
            .map(line -> line.substring(name.length()).trim().split(" ")[0])
            .findFirst().orElseThrow(() -> new AssertionError(name + " in " + banner));
    }

    /** The whole start-up report. */
    String report() {
        return String.join("\n", banner);
    }

    @Override
    public String nameServer() {
        return banner("name server");
    }

    @Override
    public String address() {
        return banner("broker");
    }

    void kill() throws Exception {
        process.destroyForcibly();
        process.waitFor();
    }

    @Override
    public void close() throws Exception {
        if (!process.isAlive()) {
            return;
        }
        process.destroy();
        boolean ended = process.waitFor(STOP_SECONDS, TimeUnit.SECONDS);
        process.destroyForcibly();
        if (!ended || process.exitValue() != 0) {
            throw new AssertionError("SaturnMQ did not stop in order: " + process);
        }
    }
}
