package saturnmq.store;

import java.util.LinkedHashMap;
import java.util.Map;

/** What both brokers are configured with: small files, so that all kinds of them roll. */
final class Settings {
    static final String BROKER_NAME = "store";
    static final long LOG_FILE = 1 << 20;
    static final int QUEUE_FILE = 400;
    static final int INDEX_SLOTS = 100;
    static final int INDEX_ITEMS = 300;
    /** Level 2 becomes due while a store changes hands, 3 and 4 never during a test. */
    static final String DELAY_LEVELS = "1s 8s 1h 2h";

    private Settings() {
    }

    static Map<String, String> common() {
        Map<String, String> settings = new LinkedHashMap<>();
        settings.put("brokerName", BROKER_NAME);
        settings.put("mappedFileSizeCommitLog", Long.toString(LOG_FILE));
        settings.put("mappedFileSizeConsumeQueue", Integer.toString(QUEUE_FILE));
        settings.put("maxHashSlotNum", Integer.toString(INDEX_SLOTS));
        settings.put("maxIndexNum", Integer.toString(INDEX_ITEMS));
        settings.put("maxMessageSize", Integer.toString(1 << 18));
        settings.put("messageDelayLevel", DELAY_LEVELS);
        settings.put("diskMaxUsedSpaceRatio", "95");
        // Nobody asks for an open transaction while two servings of a store are compared.
        settings.put("transactionTimeOut", "600000");
        return settings;
    }
}
