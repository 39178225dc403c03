package saturnmq.store;

import java.util.concurrent.Callable;

/** Waits for a condition instead of for a time. */
final class Await {
    /** Long enough for a busy two-core machine, short enough to notice a stuck broker. */
    private static final long LIMIT_SECONDS = 60;
    private static final long POLL_MS = 20;

    private Await() {
    }

    /** Returns once {@code condition} holds; its exceptions count as "not yet". */
    static void until(String what, Callable<Boolean> condition) throws Exception {
        long end = System.nanoTime() + LIMIT_SECONDS * 1_000_000_000L;
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
                throw new AssertionError("not within " + LIMIT_SECONDS + " s: " + what, last);
            }
            Thread.sleep(POLL_MS);
        }
    }
}
