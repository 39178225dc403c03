package saturnmq.clients;

import java.time.Duration;
import java.util.concurrent.Callable;

/** Waits for a condition instead of for a time. */
final class Await {
    /** Long enough for a busy two-core machine, short enough to notice a stuck broker. */
    static final Duration LIMIT = Duration.ofSeconds(30);
    private static final long POLL_MS = 20;

    private Await() {
    }

    /** Returns once {@code condition} holds. Fails with {@code what} after {@link #LIMIT}. */
    static void until(String what, Callable<Boolean> condition) throws Exception {
        until(what, LIMIT, condition);
    }

    /**
     * Returns once {@code condition} holds. An exception of the condition counts as "not yet" and
     * is reported when the limit passes.
     */
    static void until(String what, Duration limit, Callable<Boolean> condition) throws Exception {
        long end = System.nanoTime() + limit.toNanos();
        Exception last = null;
        while (true) {
            try {
                if (condition.call()) {
                    return;
                }
                last = null;
            } catch (InterruptedException interrupted) {
                throw interrupted;
            } catch (Exception failure) {
                last = failure;
            }
            if (System.nanoTime() > end) {
                throw new AssertionError("not within " + limit.toSeconds() + " s: " + what, last);
            }
            Thread.sleep(POLL_MS);
        }
    }
}
