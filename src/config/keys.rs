//! The table of configuration keys: what each takes, its default, and what may be done with it.
//!
//! Everything about a key is decided here: whether its value is legal, whether it promises what
//! this broker does not keep, and whether it may change while the broker runs
//! (docs/operations.md, Configuration keys).

use std::collections::HashMap;
use std::sync::LazyLock;

use Kind::{Choice, Flag, Hours, Levels, Number, Port, Range, Text};

use super::apache_keys::APACHE_KEYS;

/// What the value of a key looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false`, in any case.
    Flag,
    /// A whole number.
    Number,
    /// A whole number between two limits, both included.
    Range(i64, i64),
    /// Any text.
    Text,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A port number, 0 for any free port, or `off`.
    Port,
    /// Hours of the day between `;`.
    Hours,
    /// Delays such as `1s 5m 2h` between blanks.
    Levels,
}

/// What a key does here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// It is obeyed.
    Used,
    /// It is accepted and kept, and has nothing to act on.
    Ignored,
    /// Only this value can be kept; any other is a promise that would be broken.
    Only(&'static str),
}

/// Whether a running broker takes a new value (request code 25).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// At once.
    Live,
    /// No: set it in broker.conf and start again.
    Restart,
    /// Never over the network: paths, ports, addresses, names of code.
    Never,
}

/// One configuration key.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// Name, as Apache or this broker spells it.
    pub name: &'static str,
    /// What its value looks like.
    pub kind: Kind,
    /// Value without configuration; empty for those found out at start.
    pub default: &'static str,
    /// What it does.
    pub effect: Effect,
    /// Whether it may change.
    pub change: Change,
}

const fn boot(name: &'static str, kind: Kind, default: &'static str) -> Key {
    Key {
        name,
        kind,
        default,
        effect: Effect::Used,
        change: Change::Restart,
    }
}

const fn live(name: &'static str, kind: Kind, default: &'static str) -> Key {
    Key {
        name,
        kind,
        default,
        effect: Effect::Used,
        change: Change::Live,
    }
}

/// A key that is checked and has nothing to act on.
const fn idle(name: &'static str, kind: Kind, default: &'static str) -> Key {
    Key {
        name,
        kind,
        default,
        effect: Effect::Ignored,
        change: Change::Live,
    }
}

const fn fixed(name: &'static str, kind: Kind, default: &'static str) -> Key {
    Key {
        name,
        kind,
        default,
        effect: Effect::Used,
        change: Change::Never,
    }
}

const fn only(name: &'static str, kind: Kind, value: &'static str) -> Key {
    Key {
        name,
        kind,
        default: value,
        effect: Effect::Only(value),
        change: Change::Never,
    }
}

const POSITIVE_MS: Kind = Range(1, i32::MAX as i64);
const COUNT: Kind = Range(0, i32::MAX as i64);
const PERCENT: Kind = Range(0, 100);
/// At least one: none would switch off what the key is about.
const SOME: Kind = Range(1, i32::MAX as i64);
/// Periods of saving and cleaning: more often is a load, more seldom is not doing it.
const PERIOD_MS: Kind = Range(100, 3_600_000);
/// The largest body, in bytes: what a frame can carry.
const BODY_MAX: i64 = saturnmq_net::frame::MAX_FRAME as i64;
/// The largest body that is taken whatever `maxMessageSize` says, in bytes: the answer to a pull
/// carries the record in one frame, beside its own header and with properties that copies get.
pub const BODY_CARRIED: usize = saturnmq_net::frame::MAX_FRAME - (128 << 10);
/// Longest delay of a level: 100 years, in milliseconds.
const DELAY_MAX_MS: u64 = 36_525 * 86_400_000;
/// Longest value of any key, in bytes: values are kept, told to clients and written to lines.
const VALUE_MAX: usize = 4096;
const ROLES: &[&str] = &["ASYNC_MASTER", "SYNC_MASTER", "SLAVE"];
const DEFAULT_LEVELS: &str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h";

/// Keys with an effect, keys that are checked without having one, and keys that may only have one
/// value.
#[rustfmt::skip]
const KEYS: &[Key] = &[
    // Identity and network.
    boot("brokerClusterName", Text, "DefaultCluster"),
    boot("brokerName", Text, ""),
    boot("brokerId", Range(0, i64::MAX), "0"),
    fixed("brokerIP1", Text, ""),
    fixed("brokerIP2", Text, ""),
    fixed("bindAddress", Text, "0.0.0.0"),
    fixed("listenPort", Range(0, 65_535), "10911"),
    fixed("fastListenPort", Port, ""),
    fixed("nameServerPort", Port, "9876"),
    boot("nameServerMaxTopics", Range(1, i32::MAX as i64), "100000"),
    boot("nameServerMaxBrokers", Range(1, i32::MAX as i64), "10000"),
    boot("nameServerMaxRoutes", Range(1, i32::MAX as i64), "1000000"),
    fixed("httpPort", Port, "8080"),
    fixed("namesrvAddr", Text, ""),
    boot("registerNameServerPeriod", Range(10_000, 60_000), "30000"),
    live("registerBrokerTimeoutMills", Range(100, i32::MAX as i64), "24000"),
    idle("forceRegister", Flag, "true"),
    boot("compressedRegister", Flag, "false"),
    live("brokerPermission", Choice(&["2", "4", "6"]), "6"),
    boot("serverChannelMaxIdleTimeSeconds", Range(1, i32::MAX as i64), "120"),
    boot("enableShutdownGracefully", Flag, "false"),
    boot("shutdownWaitTimeSeconds", Range(0, 3600), "30"),
    boot("spinMicros", Range(0, 10_000), "0"),
    boot("frameMaxLength", Range(1 << 20, 16_777_216), "16777216"),
    boot("connectionsPerCore", Range(1, 16_777_215), "65536"),
    boot("writeBufferHighWaterMark", Range(0, 1 << 30), "0"),
    idle("serverSocketSndBufSize", COUNT, "0"),
    idle("serverSocketRcvBufSize", COUNT, "0"),
    idle("serverSocketBacklog", Range(1, 65_535), "1024"),
    boot("networkCores", Range(0, 63), "0"),
    // Topics, groups, clients.
    live("autoCreateTopicEnable", Flag, "true"),
    boot("defaultTopicQueueNums", Range(1, 65_536), "8"),
    boot("clusterTopicEnable", Flag, "true"),
    boot("brokerTopicEnable", Flag, "true"),
    live("autoCreateSubscriptionGroup", Flag, "true"),
    live("enableCreateSysGroup", Flag, "true"),
    live("rejectTransactionMessage", Flag, "false"),
    live("transactionTimeOut", POSITIVE_MS, "6000"),
    live("transactionCheckMax", Range(1, i32::MAX as i64), "15"),
    live("transactionCheckInterval", POSITIVE_MS, "30000"),
    live("rejectPullConsumerEnable", Flag, "false"),
    boot("traceTopicEnable", Flag, "false"),
    boot("msgTraceTopicName", Text, "RMQ_SYS_TRACE_TOPIC"),
    live("traceOn", Flag, "true"),
    live("regionId", Text, "DefaultRegion"),
    live("enablePropertyFilter", Flag, "false"),
    live("filterSupportRetry", Flag, "false"),
    boot("filterDataCleanTimeSpan", Range(0, i64::MAX), "86400000"),
    boot("expectConsumerNumUseFilter", Range(1, 1_000_000), "32"),
    boot("maxErrorRateOfBloomFilter", Range(1, 99), "20"),
    boot("enableCalcFilterBitMap", Flag, "false"),
    boot("enableConsumeQueueExt", Flag, "false"),
    boot("mappedFileSizeConsumeQueueExt", Range(40_960, i32::MAX as i64), "50331648"),
    live("notifyConsumerIdsChangedEnable", Flag, "true"),
    idle("realTimeNotifyConsumerChange", Flag, "true"),
    live("channelExpiredTimeout", Range(1000, i32::MAX as i64), "120000"),
    idle("subscriptionExpiredTimeout", POSITIVE_MS, "600000"),
    live("validateSystemTopicWhenUpdateTopic", Flag, "true"),
    live("enableMixedMessageType", Flag, "false"),
    live("clearRetryTopicWhenDeleteTopic", Flag, "true"),
    live("startAcceptSendRequestTimeStamp", Range(0, i64::MAX), "0"),
    // Pulling.
    live("longPollingEnable", Flag, "true"),
    live("shortPollingTimeMills", POSITIVE_MS, "1000"),
    live("maxTransferBytesOnMessageInMemory", SOME, "262144"),
    live("maxTransferCountOnMessageInMemory", SOME, "32"),
    live("maxTransferBytesOnMessageInDisk", SOME, "65536"),
    live("maxTransferCountOnMessageInDisk", SOME, "8"),
    live("accessMessageInMemoryMaxRatio", PERCENT, "40"),
    live("maxFilterMessageSize", Range(20, i32::MAX as i64), "16000"),
    boot("flushConsumerOffsetInterval", PERIOD_MS, "5000"),
    live("useServerSideResetOffset", Flag, "true"),
    idle("disableConsumeIfConsumerReadSlowly", Flag, "false"),
    idle("consumerFallbehindThreshold", Range(0, i64::MAX), "17179869184"),
    live("storeReplyMessageEnable", Flag, "true"),
    // Store.
    fixed("storePathRootDir", Text, ""),
    fixed("storePathCommitLog", Text, ""),
    boot("mappedFileSizeCommitLog", Range(4096, i32::MAX as i64), "1073741824"),
    boot("mappedFileSizeConsumeQueue", Range(20, i32::MAX as i64), "6000000"),
    boot("flushDiskType", Choice(&["SYNC_FLUSH", "ASYNC_FLUSH"]), "SYNC_FLUSH"),
    boot("flushIntervalCommitLog", Range(1, 60_000), "500"),
    live("maxMessageSize", Range(10, BODY_MAX), "4194304"),
    boot("messageIndexEnable", Flag, "true"),
    boot("maxHashSlotNum", Range(1, i32::MAX as i64), "5000000"),
    boot("maxIndexNum", Range(2, i32::MAX as i64), "20000000"),
    boot("enableLmq", Flag, "false"),
    boot("enableMultiDispatch", Flag, "false"),
    boot("maxLmqConsumeQueueNum", Range(0, 1_000_000), "20000"),
    live("maxMsgsNumBatch", Range(1, 10_000), "64"),
    live("defaultQueryMaxNum", Range(1, 10_000), "32"),
    live("deleteWhen", Hours, "04"),
    live("fileReservedTime", Range(0, 1_000_000), "72"),
    live("diskMaxUsedSpaceRatio", PERCENT, "75"),
    live("diskSpaceCleanForciblyRatio", PERCENT, "85"),
    live("diskSpaceWarningLevelRatio", PERCENT, "90"),
    live("cleanFileForciblyEnable", Flag, "true"),
    boot("cleanResourceInterval", PERIOD_MS, "10000"),
    live("deleteFileBatchMax", Range(1, 10_000), "10"),
    boot("checkCRCOnRecover", Flag, "true"),
    boot("tailCacheBytes", Range(1 << 20, 1 << 32), "67108864"),
    // Delay.
    boot("messageDelayLevel", Levels, DEFAULT_LEVELS),
    boot("flushDelayOffsetInterval", PERIOD_MS, "10000"),
    boot("timerWheelEnable", Flag, "true"),
    boot("timerPrecisionMs", Range(100, 1000), "1000"),
    boot("timerRollWindowSlot", Range(2, 604_740), "172800"),
    boot("timerFlushIntervalMs", Range(100, 60_000), "1000"),
    boot("mappedFileSizeTimerLog", Range(4096, i32::MAX as i64), "104857600"),
    live("timerMaxDelaySec", Range(1, i32::MAX as i64), "259200"),
    live("timerCongestNumEachSlot", Range(1, i32::MAX as i64), "2147483647"),
    live("timerStopEnqueue", Flag, "false"),
    live("timerStopDequeue", Flag, "false"),
    live("recallMessageEnable", Flag, "false"),
    live("allowRecallWhenBrokerNotWriteable", Flag, "true"),
    boot("reviveQueueNum", Range(1, 1024), "8"),
    // Promises that are not kept here.
    only("aclEnable", Flag, "false"),
    only("authenticationEnabled", Flag, "false"),
    only("authorizationEnabled", Flag, "false"),
    only("useTLS", Flag, "false"),
    only("brokerRole", Choice(ROLES), "ASYNC_MASTER"),
    only("enableDLegerCommitLog", Flag, "false"),
    only("enableControllerMode", Flag, "false"),
    only("enableSlaveActingMaster", Flag, "false"),
    only("duplicationEnable", Flag, "false"),
    only("inSyncReplicas", Number, "1"),
    only("minInSyncReplicas", Number, "1"),
    only("storeType", Text, "default"),
    only("configManagerVersion", Text, "v1"),
    only("isInBrokerContainer", Flag, "false"),
    only("isBrokerContainer", Flag, "false"),
    only("messageStorePlugIn", Text, ""),
];

/// Promises made by values rather than by one wrong value.
const ENFORCED_TLS: [&str; 2] = ["tls.server.mode", "tlsServerMode"];

/// Keys without effect that still may not be set over the network, besides every path and port.
const NEVER: [&str; 9] = [
    "rocketmqHome",
    "configBlackList",
    "brokerConfigPath",
    "filterServerNums",
    "haMasterAddress",
    "controllerAddr",
    "socksProxyConfig",
    "rmqAddressServerDomain",
    "metricsGrpcExporterTarget",
];

const MORE_IGNORED: [(&str, Kind, &str); 9] = [
    ("configBlackList", Text, "configBlackList;brokerConfigPath"),
    ("fetchNamesrvAddrByAddressServer", Flag, "false"),
    ("metricsExporterType", Text, "DISABLE"),
    ("rocketmqHome", Text, ""),
    ("tls.config.file", Text, ""),
    ("tls.enable", Flag, "false"),
    ("tls.server.mode", Text, "permissive"),
    ("tls.test.mode.enable", Flag, "true"),
    ("tlsServerMode", Text, "permissive"),
];

fn ignored(name: &'static str, kind: Kind, default: &'static str) -> Key {
    let never = NEVER.contains(&name)
        || ["Path", "Port", "Provider", "Host", "tls."]
            .iter()
            .any(|part| name.contains(part));
    let change = if never { Change::Never } else { Change::Live };
    Key {
        name,
        kind,
        default,
        effect: Effect::Ignored,
        change,
    }
}

static TABLE: LazyLock<HashMap<&'static str, Key>> = LazyLock::new(|| {
    let others = APACHE_KEYS.iter().chain(&MORE_IGNORED);
    let mut table: HashMap<_, _> = others
        .map(|&(name, kind, default)| (name, ignored(name, kind, default)))
        .collect();
    table.extend(KEYS.iter().map(|key| (key.name, *key)));
    table
});

/// A key by its exact name.
pub fn find(name: &str) -> Option<&'static Key> {
    TABLE.get(name)
}

/// Every key, in no order.
pub fn all() -> impl Iterator<Item = &'static Key> {
    TABLE.values()
}

/// The known key that is spelled most like `name`, unless none is near.
pub fn nearest(name: &str) -> Option<&'static str> {
    let lower = name.to_ascii_lowercase();
    let near = all()
        .map(|key| (distance(&lower, &key.name.to_ascii_lowercase()), key.name))
        .min()?;
    (near.0 <= (name.len() / 3).max(1)).then_some(near.1)
}

/// Number of insertions, deletions and replacements between two short texts.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().take(200).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

impl Key {
    /// Checks a value's form; gives what was expected when it does not fit.
    pub fn check(&self, value: &str) -> Result<(), String> {
        let value = value.trim();
        if value.len() > VALUE_MAX {
            return Err(format!("at most {VALUE_MAX} bytes"));
        }
        let number = || value.parse::<i64>().ok();
        let good = match self.kind {
            // It ends up in properties and in lines of text.
            Text => !value.contains(char::is_control),
            Flag => value.eq_ignore_ascii_case("true") || value.eq_ignore_ascii_case("false"),
            Number => number().is_some(),
            Range(low, high) => number().is_some_and(|n| (low..=high).contains(&n)),
            Choice(words) => words.contains(&value),
            Port => {
                value.eq_ignore_ascii_case("off")
                    || (value.is_empty() && self.default.is_empty())
                    || value.parse::<u16>().is_ok()
            }
            Hours => value
                .split(';')
                .all(|h| h.trim().parse::<u8>().is_ok_and(|h| h < 24)),
            Levels => parse_levels(value).is_some(),
        };
        if good { Ok(()) } else { Err(self.expected()) }
    }

    fn expected(&self) -> String {
        match self.kind {
            Text => "a text without control characters".into(),
            Flag => "true or false".into(),
            Number => "a whole number".into(),
            Range(low, i64::MAX) => format!("a whole number of at least {low}"),
            Range(low, high) => format!("a whole number between {low} and {high}"),
            Choice(words) => format!("one of {}", words.join(", ")),
            Port => "a port from 1 to 65535, 0 for any free one, or off".into(),
            Hours => "hours from 0 to 23 between semicolons".into(),
            Levels => {
                "delays such as \"1s 5m 2h\" between blanks, at most 255, each at most 36525d"
                    .into()
            }
        }
    }

    /// Why a value of the right form cannot be kept.
    pub fn refusal(&self, value: &str) -> Option<String> {
        let value = value.trim();
        match self.effect {
            Effect::Only(allowed) if !value.eq_ignore_ascii_case(allowed) => {
                let allowed = if allowed.is_empty() {
                    "an empty value"
                } else {
                    allowed
                };
                Some(format!("only {}={allowed} is supported", self.name))
            }
            _ if ENFORCED_TLS.contains(&self.name) && value.eq_ignore_ascii_case("enforcing") => {
                Some("TLS is not supported yet, so it cannot be enforced".into())
            }
            _ if self.name == "storePathCommitLog" && value.contains(',') => {
                Some("only one commit log directory is supported".into())
            }
            _ => None,
        }
    }
}

/// Delays of `messageDelayLevel`, in milliseconds.
pub fn parse_levels(text: &str) -> Option<Vec<u64>> {
    let level = |word: &str| {
        let unit = match word.chars().last()? {
            's' => 1000,
            'm' => 60_000,
            'h' => 3_600_000,
            'd' => 86_400_000,
            _ => return None,
        };
        word[..word.len() - 1]
            .parse::<u64>()
            .ok()?
            .checked_mul(unit)
            .filter(|delay| *delay <= DELAY_MAX_MS)
    };
    let levels: Option<Vec<_>> = text.split_whitespace().map(level).collect();
    levels.filter(|l| !l.is_empty() && l.len() <= 255)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_a_legal_value() {
        for key in all().filter(|k| !k.default.is_empty() || k.kind == Text) {
            assert_eq!(key.check(key.default), Ok(()), "{}", key.name);
            assert_eq!(key.refusal(key.default), None, "{}", key.name);
        }
    }

    #[test]
    fn values_that_cannot_be_meant_are_refused_with_the_limit() {
        for (name, value, limit) in [
            ("defaultTopicQueueNums", "0", "between 1 and 65536"),
            ("diskMaxUsedSpaceRatio", "101", "between 0 and 100"),
            ("registerNameServerPeriod", "1", "between 10000 and 60000"),
            ("registerBrokerTimeoutMills", "1", "between 100 and"),
            ("channelExpiredTimeout", "1", "between 1000 and"),
            ("networkCores", "64", "between 0 and 63"),
            (
                "cleanResourceInterval",
                "3600001",
                "between 100 and 3600000",
            ),
            (
                "flushConsumerOffsetInterval",
                "99",
                "between 100 and 3600000",
            ),
            (
                "flushDelayOffsetInterval",
                "2147483647",
                "between 100 and 3600000",
            ),
            ("maxMessageSize", "16777217", "between 10 and 16777216"),
            ("maxTransferCountOnMessageInMemory", "0", "between 1 and"),
            ("maxTransferBytesOnMessageInDisk", "0", "between 1 and"),
            ("messageDelayLevel", "1s 36526d", "at most 36525d"),
            ("deleteWhen", "", "from 0 to 23"),
            ("regionId", "a\u{1}b", "without control characters"),
            (
                "regionId",
                "r".repeat(VALUE_MAX + 1).as_str(),
                "at most 4096 bytes",
            ),
            (
                "deleteWhen",
                "4;".repeat(VALUE_MAX).as_str(),
                "at most 4096 bytes",
            ),
        ] {
            let key = find(name).expect(name);
            let expected = key.check(value).expect_err(name);
            assert!(expected.contains(limit), "{name}={value}: {expected}");
        }
    }

    #[test]
    fn keys_that_nothing_reads_do_not_count_as_obeyed() {
        for name in [
            "serverSocketBacklog",
            "serverSocketSndBufSize",
            "serverSocketRcvBufSize",
            "disableConsumeIfConsumerReadSlowly",
            "consumerFallbehindThreshold",
            "realTimeNotifyConsumerChange",
            "subscriptionExpiredTimeout",
            "forceRegister",
        ] {
            assert_eq!(
                find(name).map(|key| key.effect),
                Some(Effect::Ignored),
                "{name}"
            );
        }
    }

    #[test]
    fn no_path_or_port_can_be_set_over_the_network() {
        for key in all() {
            let risky = ["Path", "Port", "Home", "PlugIn", "Provider", "namesrvAddr"];
            if risky.iter().any(|part| key.name.contains(part)) {
                assert_eq!(key.change, Change::Never, "{}", key.name);
            }
        }
    }

    #[test]
    fn a_slip_finds_the_key_that_was_meant() {
        assert_eq!(nearest("listenport"), Some("listenPort"));
        assert_eq!(
            nearest("mapedFileSizeCommitLog"),
            Some("mappedFileSizeCommitLog")
        );
        assert_eq!(nearest("flushDiskTyp"), Some("flushDiskType"));
        assert_eq!(nearest("thisIsNothingLikeAnyKeyAtAll"), None);
    }

    #[test]
    fn delay_levels_are_read_in_apaches_units() {
        assert_eq!(
            parse_levels("1s 2m 3h 1d"),
            Some(vec![1000, 120_000, 10_800_000, 86_400_000])
        );
        assert_eq!(parse_levels(""), None);
        assert_eq!(parse_levels("1x"), None);
        assert_eq!(parse_levels("99999999999999999999s"), None);
        assert_eq!(parse_levels("1ä"), None);
    }
}
