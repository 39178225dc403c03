package saturnmq.store;

import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/** Copies, damages and compares store directories. */
final class Stores {
    private static final int RECORD = 0xDAA320A7;
    private static final int BLANK = 0xCBD43194;

    private Stores() {
    }

    static Path copy(Path from, Path to) throws IOException {
        try (Stream<Path> all = Files.walk(from)) {
            for (Path path : all.collect(Collectors.toList())) {
                Path target = to.resolve(from.relativize(path).toString());
                if (Files.isDirectory(path)) {
                    Files.createDirectories(target);
                } else {
                    Files.copy(path, target, StandardCopyOption.COPY_ATTRIBUTES);
                }
            }
        }
        return to;
    }

    static void delete(Path root) throws IOException {
        if (!Files.exists(root, LinkOption.NOFOLLOW_LINKS)) {
            return;
        }
        try (Stream<Path> all = Files.walk(root)) {
            for (Path path : all.sorted((a, b) -> b.compareTo(a)).collect(Collectors.toList())) {
                Files.delete(path);
            }
        }
    }

    /** Log files in order. */
    static List<Path> logFiles(Path store) throws IOException {
        return files(store.resolve("commitlog"));
    }

    static List<Path> files(Path directory) throws IOException {
        try (Stream<Path> all = Files.walk(directory)) {
            return all.filter(Files::isRegularFile).sorted().collect(Collectors.toList());
        }
    }

    /** Log offset and size of the last record. */
    static long[] lastRecord(Path store) throws IOException {
        long[] last = {-1, 0};
        for (Path path : logFiles(store)) {
            long base = Long.parseLong(path.getFileName().toString());
            try (RandomAccessFile file = new RandomAccessFile(path.toFile(), "r")) {
                long at = 0;
                while (at + 8 <= file.length()) {
                    file.seek(at);
                    int size = file.readInt();
                    int magic = file.readInt();
                    if (magic == BLANK) {
                        break;
                    }
                    if (magic != RECORD) {
                        return last;
                    }
                    last[0] = base + at;
                    last[1] = size;
                    at += size;
                }
            }
        }
        return last;
    }

    /** Zeroes the second half of the last record, as a crash can leave it; returns its place. */
    static long tear(Path store) throws IOException {
        long[] last = lastRecord(store);
        String name = String.format("%020d", last[0] - last[0] % Settings.LOG_FILE);
        Path path = store.resolve("commitlog").resolve(name);
        try (RandomAccessFile file = new RandomAccessFile(path.toFile(), "rw")) {
            int half = (int) last[1] / 2;
            file.seek(last[0] % Settings.LOG_FILE + half);
            file.write(new byte[(int) last[1] - half]);
        }
        return last[0];
    }

    /** Every file below {@code directory} with its bytes, by relative name. */
    static Map<String, Integer> contents(Path directory) throws IOException {
        Map<String, Integer> contents = new TreeMap<>();
        for (Path path : files(directory)) {
            String name = directory.relativize(path).toString();
            contents.put(name, Arrays.hashCode(Files.readAllBytes(path)));
        }
        return contents;
    }

    /** The bytes of index files in order; their names are times of creation. */
    static List<Integer> indexContents(Path store) throws IOException {
        List<Integer> contents = new ArrayList<>();
        for (Path path : files(store.resolve("index"))) {
            contents.add(Arrays.hashCode(Files.readAllBytes(path)));
        }
        return contents;
    }
}
