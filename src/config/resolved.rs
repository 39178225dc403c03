//! Settings that are fixed for the life of the process.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use saturnmq_storage::config::{FlushMode, StoreConfig};

use super::address::{Advertised, pick_address};
use super::keys::parse_levels;
use super::live::LiveConfig;
use super::network::Network;
use super::raw::{ConfigError, RawConfig, Remarks};
use super::timers::TimerConfig;
use super::values::Values;
use crate::filter::registered::FilterSettings;
use crate::light::LightConfig;
use crate::name_server::limits::Limits;
use crate::topics::SystemTopics;

/// Cores that are used without being told, at most.
const DEFAULT_CORES_MAX: usize = 8;
/// From this many CPUs on the writer has one of its own.
const PINNED_FROM_CPUS: usize = 4;

/// What the command line says, over the file.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// `-c`.
    pub conf: Option<PathBuf>,
    /// `--data-dir`.
    pub data_dir: Option<PathBuf>,
    /// `--listen`: an address, with or without a port.
    pub listen: Option<String>,
    /// `--name-server-port`.
    pub name_server_port: Option<String>,
    /// `--advertise`.
    pub advertise: Option<String>,
    /// `--cores`.
    pub cores: Option<usize>,
    /// `--set`, in order.
    pub set: Vec<String>,
}

/// Where to listen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortChoice {
    /// Not at all.
    Off,
    /// On any free port.
    Any,
    /// On this port.
    Port(u16),
}

impl PortChoice {
    fn from_number(port: u16) -> Self {
        if port == 0 {
            Self::Any
        } else {
            Self::Port(port)
        }
    }

    /// The number to bind, unless it is off; 0 is any free port.
    pub fn number(self) -> Option<u16> {
        match self {
            Self::Off => None,
            Self::Any => Some(0),
            Self::Port(port) => Some(port),
        }
    }
}

/// Settings that are fixed for the life of the process.
#[derive(Debug, Clone)]
pub struct Config {
    /// The broker.conf that was read.
    pub conf_file: Option<PathBuf>,
    /// `brokerClusterName`.
    pub cluster: String,
    /// `brokerName`; the host's name if not set.
    pub broker_name: String,
    /// Always 0: there is no slave.
    pub broker_id: i64,
    /// Address that is listened on.
    pub bind: IpAddr,
    /// `listenPort`; 0 is any free port.
    pub listen_port: PortChoice,
    /// `fastListenPort`: listenPort − 2 if not set. `None`: to be derived from listenPort.
    pub fast_port: Option<PortChoice>,
    /// `nameServerPort`.
    pub name_server_port: PortChoice,
    /// `nameServerMaxTopics`, `nameServerMaxBrokers`, `nameServerMaxRoutes`.
    pub name_server_limits: Limits,
    /// How SQL92 selectors are written down.
    pub filters: FilterSettings,
    /// `httpPort`.
    pub http_port: PortChoice,
    /// Host that clients are sent to, as it is written into routes.
    pub advertise: String,
    /// The same as an address, as it is written into records and message ids.
    pub advertise_ip: IpAddr,
    /// Where it comes from.
    pub advertised: Advertised,
    /// Outer name servers, `host:port`.
    pub name_servers: Vec<String>,
    /// `registerNameServerPeriod`, between 10 and 60 s.
    pub register_period: Duration,
    /// `compressedRegister`.
    pub compressed_register: bool,
    /// `serverChannelMaxIdleTimeSeconds`.
    pub idle_timeout: Duration,
    /// `shutdownWaitTimeSeconds`, if `enableShutdownGracefully`: how long a stop tells clients to
    /// go elsewhere before it begins.
    pub graceful_stop: Option<Duration>,
    /// What each network core may use.
    pub network: Network,
    /// Network cores.
    pub cores: usize,
    /// CPUs of this host that may be used.
    pub cpus: Vec<usize>,
    /// CPU of each core, if threads are pinned.
    pub core_cpus: Option<Vec<usize>>,
    /// Topics of the first start.
    pub system_topics: SystemTopics,
    /// Delays of the levels, in milliseconds.
    pub delay_levels_ms: Vec<u64>,
    /// `flushConsumerOffsetInterval`.
    pub offset_flush_interval: Duration,
    /// `flushDelayOffsetInterval`.
    pub delay_flush_interval: Duration,
    /// Messages for a time.
    pub timers: TimerConfig,
    /// Light queues.
    pub light: LightConfig,
    /// `cleanResourceInterval`.
    pub retention_interval: Duration,
    /// What the store is opened with.
    pub store: StoreConfig,
}

/// What a configuration came to.
#[derive(Debug, Clone)]
pub struct Resolved {
    /// Fixed settings.
    pub config: Config,
    /// Settings that may change.
    pub live: LiveConfig,
    /// What is worth saying.
    pub remarks: Remarks,
}

impl Config {
    /// Reads the file and the command line.
    ///
    /// # Errors
    /// [`ConfigError`], one sentence.
    pub fn resolve(options: &Options) -> Result<Resolved, ConfigError> {
        let mut raw = match &options.conf {
            Some(path) => RawConfig::read_file(path)?,
            None => RawConfig::default(),
        };
        overlay(&mut raw, options)?;
        let remarks = raw.check()?;
        let values = Values::new(&raw);
        let mut config = fixed(&raw, &values)?;
        config.cores = cores(&config, options.cores, values.number("networkCores"))?;
        pin(&mut config);
        config.check_ports()?;
        config.store.check().map_err(ConfigError::Contradiction)?;
        let mut shown = values;
        shown.set("brokerName", config.broker_name.clone());
        shown.set("brokerIP1", config.advertise.clone());
        if shown.text("brokerIP2").is_empty() {
            shown.set("brokerIP2", config.advertise.clone());
        }
        shown.set("storePathRootDir", config.store.root.display().to_string());
        Ok(Resolved {
            live: LiveConfig::new(shown),
            config,
            remarks,
        })
    }

    /// Offset of `listenPort` − 2 for the given port, unless `fastListenPort` says otherwise.
    pub fn fast_port_for(&self, listen_port: u16) -> PortChoice {
        let derived = match listen_port.checked_sub(2) {
            Some(port) if port > 0 => PortChoice::Port(port),
            _ => PortChoice::Any,
        };
        self.fast_port.unwrap_or(derived)
    }

    /// One port is not two servers'. Found before anything listens: who connects to the first one
    /// would be hung up on when the second fails.
    fn check_ports(&self) -> Result<(), ConfigError> {
        let fast = match self.listen_port {
            PortChoice::Port(port) => self.fast_port_for(port),
            _ => self.fast_port.unwrap_or(PortChoice::Off),
        };
        let fast_key = match self.fast_port {
            Some(_) => "fastListenPort",
            None => "fastListenPort (listenPort - 2)",
        };
        let ports = [
            ("listenPort", self.listen_port),
            (fast_key, fast),
            ("nameServerPort", self.name_server_port),
            ("httpPort", self.http_port),
        ];
        for (number, (key, choice)) in ports.iter().enumerate() {
            let PortChoice::Port(port) = choice else {
                continue;
            };
            if let Some((other, _)) = ports[..number].iter().find(|(_, other)| other == choice) {
                return Err(ConfigError::Contradiction(format!(
                    "{other} and {key} are both {port}: each needs a port of its own"
                )));
            }
        }
        Ok(())
    }

    /// Root of the store.
    pub fn root(&self) -> &std::path::Path {
        &self.store.root
    }
}

fn overlay(raw: &mut RawConfig, options: &Options) -> Result<(), ConfigError> {
    for pair in &options.set {
        raw.set_pair(pair)?;
    }
    // Before the options go over it: a value of the wrong form is not forgiven for being unused.
    raw.check()?;
    if let Some(dir) = &options.data_dir {
        raw.set("storePathRootDir", &dir.to_string_lossy());
    }
    if let Some(listen) = &options.listen {
        let (host, port) = split_listen(listen)?;
        raw.set("bindAddress", &host.to_string());
        if let Some(port) = port {
            raw.set("listenPort", &port.to_string());
        }
    }
    if let Some(port) = &options.name_server_port {
        raw.set("nameServerPort", port);
    }
    if let Some(host) = &options.advertise {
        raw.set("brokerIP1", host);
    }
    Ok(())
}

fn split_listen(listen: &str) -> Result<(IpAddr, Option<u16>), ConfigError> {
    if let Ok(ip) = listen.parse::<IpAddr>() {
        return Ok((ip, None));
    }
    listen
        .parse::<SocketAddr>()
        .map(|a| (a.ip(), Some(a.port())))
        .map_err(|_| {
            ConfigError::Contradiction(format!(
                "--listen {listen} is no address: it takes an IP address such as 0.0.0.0, with or \
             without :port"
            ))
        })
}

fn fixed(raw: &RawConfig, v: &Values) -> Result<Config, ConfigError> {
    let bind = bind_address(raw, v)?;
    let (advertise, advertise_ip, advertised) = advertise(v, bind)?;
    let broker_name = match v.text("brokerName") {
        "" => host_name(),
        name => name.to_string(),
    };
    let cluster = v.text("brokerClusterName").to_string();
    check_name("brokerName", &broker_name)?;
    check_name("brokerClusterName", &cluster)?;
    check_name("msgTraceTopicName", v.text("msgTraceTopicName"))?;
    let store = store(raw, v)?;
    let seconds = |key| Duration::from_secs(v.number(key));
    let millis = |key| Duration::from_millis(v.number(key));
    Ok(Config {
        conf_file: raw.file.clone(),
        bind,
        listen_port: PortChoice::from_number(v.number("listenPort")),
        fast_port: raw
            .get("fastListenPort")
            .filter(|t| !t.is_empty())
            .map(port_choice),
        name_server_port: name_server_port(raw, v),
        name_server_limits: Limits {
            topics: v.number("nameServerMaxTopics"),
            brokers: v.number("nameServerMaxBrokers"),
            routes: v.number("nameServerMaxRoutes"),
        },
        filters: FilterSettings {
            error_percent: v.number("maxErrorRateOfBloomFilter"),
            expected_groups: v.number("expectConsumerNumUseFilter"),
            marks: v.flag("enableCalcFilterBitMap") && v.flag("enableConsumeQueueExt"),
            kept_ms: v.number("filterDataCleanTimeSpan"),
        },
        http_port: port_choice(v.text("httpPort")),
        advertise,
        advertise_ip,
        advertised,
        name_servers: name_servers(v)?,
        register_period: millis("registerNameServerPeriod"),
        compressed_register: v.flag("compressedRegister"),
        idle_timeout: seconds("serverChannelMaxIdleTimeSeconds"),
        graceful_stop: v
            .flag("enableShutdownGracefully")
            .then(|| seconds("shutdownWaitTimeSeconds")),
        network: Network::new(v),
        cores: 0,
        cpus: crate::host::cpus(),
        core_cpus: None,
        system_topics: system_topics(v, &cluster, &broker_name, store.delay_levels_ms.len()),
        delay_levels_ms: store.delay_levels_ms.clone(),
        offset_flush_interval: millis("flushConsumerOffsetInterval"),
        delay_flush_interval: millis("flushDelayOffsetInterval"),
        timers: TimerConfig::new(v),
        light: light(v)?,
        retention_interval: millis("cleanResourceInterval"),
        broker_id: 0,
        cluster,
        broker_name,
        store,
    })
}

fn light(v: &Values) -> Result<LightConfig, ConfigError> {
    let light = LightConfig {
        enabled: v.flag("enableLmq"),
        dispatch: v.flag("enableMultiDispatch"),
        most: v.number("maxLmqConsumeQueueNum"),
    };
    if light.dispatch && !light.enabled {
        let why = "enableMultiDispatch=true needs enableLmq=true: messages enter light queues, \
                   and no other queues than their own";
        return Err(ConfigError::Contradiction(why.into()));
    }
    Ok(light)
}

fn check_name(key: &str, name: &str) -> Result<(), ConfigError> {
    let legal = |c: char| c.is_ascii_alphanumeric() || "%|_-.".contains(c);
    if name.is_empty() || name.len() > 127 || name.starts_with('.') || !name.chars().all(legal) {
        return Err(ConfigError::Contradiction(format!(
            "{key}={name:?} cannot be a topic name, which it must be: it takes at most 127 of the \
             characters a-z A-Z 0-9 % | _ - ."
        )));
    }
    Ok(())
}

/// Loopback without a configuration; all addresses with one.
fn bind_address(raw: &RawConfig, v: &Values) -> Result<IpAddr, ConfigError> {
    if raw.get("bindAddress").is_none() && raw.file.is_none() {
        return Ok(Ipv4Addr::LOCALHOST.into());
    }
    let text = v.text("bindAddress");
    text.parse().or_else(|_| resolve_host("bindAddress", text))
}

fn resolve_host(key: &str, host: &str) -> Result<IpAddr, ConfigError> {
    let addresses = (host, 0).to_socket_addrs().map(Iterator::collect::<Vec<_>>);
    let addresses = addresses.unwrap_or_default();
    let chosen = addresses.iter().find(|a| a.is_ipv4()).or(addresses.first());
    chosen.map(SocketAddr::ip).ok_or_else(|| {
        ConfigError::Contradiction(format!(
            "{key}={host} is neither an address nor a host name that can be looked up"
        ))
    })
}

fn advertise(v: &Values, bind: IpAddr) -> Result<(String, IpAddr, Advertised), ConfigError> {
    let text = v.text("brokerIP1");
    if !text.is_empty() {
        let ip: IpAddr = text.parse().or_else(|_| resolve_host("brokerIP1", text))?;
        if ip.is_unspecified() || ip.is_multicast() {
            return Err(ConfigError::Contradiction(format!(
                "brokerIP1={text} is no address that clients can connect to: it takes one of this \
                 host's"
            )));
        }
        return Ok((text.to_string(), ip, Advertised::Configured));
    }
    if bind.is_unspecified() {
        let ip = pick_address();
        return Ok((ip.to_string(), ip, Advertised::Picked));
    }
    Ok((bind.to_string(), bind, Advertised::Bound))
}

fn port_choice(text: &str) -> PortChoice {
    match text.trim().parse() {
        Ok(port) => PortChoice::from_number(port),
        Err(_) => PortChoice::Off,
    }
}

/// With outer name servers the embedded one only runs when it is asked for.
fn name_server_port(raw: &RawConfig, v: &Values) -> PortChoice {
    let outer = !v.text("namesrvAddr").is_empty();
    match raw.get("nameServerPort") {
        None if outer => PortChoice::Off,
        _ => port_choice(v.text("nameServerPort")),
    }
}

fn name_servers(v: &Values) -> Result<Vec<String>, ConfigError> {
    let all = v
        .text("namesrvAddr")
        .split(';')
        .map(str::trim)
        .filter(|t| !t.is_empty());
    all.map(|address| {
        let port = address
            .rsplit_once(':')
            .and_then(|(_, port)| port.parse::<u16>().ok());
        match port {
            Some(port) if port > 0 => Ok(address.to_string()),
            _ => Err(ConfigError::Contradiction(format!(
                "namesrvAddr={address} is no host:port; several are separated by semicolons"
            ))),
        }
    })
    .collect()
}

fn host_name() -> String {
    let name = nix::unistd::gethostname()
        .ok()
        .and_then(|n| n.into_string().ok());
    name.filter(|n| check_name("", n).is_ok())
        .unwrap_or_else(|| "DEFAULT_BROKER".to_string())
}

fn system_topics(v: &Values, cluster: &str, broker: &str, levels: usize) -> SystemTopics {
    SystemTopics {
        cluster: cluster.to_string(),
        broker: broker.to_string(),
        auto_create: v.flag("autoCreateTopicEnable"),
        default_queues: v.number("defaultTopicQueueNums"),
        cluster_topic: v.flag("clusterTopicEnable"),
        broker_topic: v.flag("brokerTopicEnable"),
        trace_topic: v
            .flag("traceTopicEnable")
            .then(|| v.text("msgTraceTopicName").to_string()),
        delay_levels: i32::try_from(levels).unwrap_or(i32::MAX),
        revive_queues: v.number("reviveQueueNum"),
        timer: v.flag("timerWheelEnable"),
    }
}

fn store_root(raw: &RawConfig, v: &Values) -> Result<PathBuf, ConfigError> {
    let text = v.text("storePathRootDir");
    if !text.is_empty() {
        return Ok(PathBuf::from(text));
    }
    if raw.file.is_none() {
        return Ok(PathBuf::from("./saturnmq-data"));
    }
    std::env::home_dir()
        .map(|home| home.join("store"))
        .ok_or_else(|| {
            ConfigError::Contradiction(
                "this user has no home directory for ~/store; set storePathRootDir or --data-dir"
                    .into(),
            )
        })
}

fn store(raw: &RawConfig, v: &Values) -> Result<StoreConfig, ConfigError> {
    let mut store = StoreConfig::new(store_root(raw, v)?);
    store.commit_log_dir = match v.text("storePathCommitLog") {
        "" => None,
        path => Some(PathBuf::from(path)),
    };
    store.commit_log_file_size = v.number("mappedFileSizeCommitLog");
    store.consume_queue_file_size = v.number("mappedFileSizeConsumeQueue");
    store.write_extensions = v.flag("enableConsumeQueueExt");
    store.extension_file_size = v.number("mappedFileSizeConsumeQueueExt");
    store.index_slots = v.number("maxHashSlotNum");
    store.index_items = v.number("maxIndexNum");
    store.message_index = v.flag("messageIndexEnable");
    store.flush = match v.text("flushDiskType") {
        "ASYNC_FLUSH" => FlushMode::Async,
        _ => FlushMode::Sync,
    };
    store.flush_interval = Duration::from_millis(v.number("flushIntervalCommitLog"));
    store.max_message_size = v.number("maxMessageSize");
    store.check_crc_on_recover = v.flag("checkCRCOnRecover");
    store.delay_levels_ms = parse_levels(v.text("messageDelayLevel")).unwrap_or_default();
    let tail: u64 = v.number("tailCacheBytes");
    store.tail_cache_bytes = usize::try_from(tail).unwrap_or(usize::MAX);
    store.retention = super::live::retention(v);
    Ok(store)
}

fn cores(config: &Config, flag: Option<usize>, key: usize) -> Result<usize, ConfigError> {
    match flag.unwrap_or(key) {
        0 => Ok(config
            .cpus
            .len()
            .saturating_sub(1)
            .clamp(1, DEFAULT_CORES_MAX)),
        cores @ 1..=63 => Ok(cores),
        cores => Err(ConfigError::Contradiction(format!(
            "--cores {cores} is not possible: it takes 1 to 63, or 0 for CPUs minus one"
        ))),
    }
}

/// From four CPUs on the writer has the first one, the cores those after it; a core too many wraps
/// around among the cores' CPUs. Below, threads float.
fn pin(config: &mut Config) {
    if config.cpus.len() < PINNED_FROM_CPUS {
        return;
    }
    config.store.writer_cpu = Some(config.cpus[0]);
    let for_cores = &config.cpus[1..];
    config.core_cpus = Some(
        (0..config.cores)
            .map(|core| for_cores[core % for_cores.len()])
            .collect(),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(set: &[&str]) -> Options {
        Options {
            set: set.iter().map(ToString::to_string).collect(),
            ..Options::default()
        }
    }

    fn config(set: &[&str]) -> Config {
        Config::resolve(&options(set))
            .expect("configuration")
            .config
    }

    fn with_file(text: &str, set: &[&str]) -> Result<Config, ConfigError> {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("broker.conf");
        std::fs::write(&path, text).expect("write");
        let options = Options {
            conf: Some(path),
            ..options(set)
        };
        Config::resolve(&options).map(|resolved| resolved.config)
    }

    #[test]
    fn without_configuration_everything_is_on_loopback_and_synchronous() {
        let config = config(&[]);
        assert!(config.bind.is_loopback() && config.advertise == "127.0.0.1");
        assert_eq!(config.listen_port, PortChoice::Port(10_911));
        assert_eq!(config.fast_port_for(10_911), PortChoice::Port(10_909));
        assert_eq!(config.name_server_port, PortChoice::Port(9876));
        assert_eq!(config.store.flush, FlushMode::Sync);
        assert_eq!(config.store.root, PathBuf::from("./saturnmq-data"));
        assert!((1..=8).contains(&config.cores));
    }

    #[test]
    fn a_broker_conf_binds_and_places_the_store_as_apache_does() {
        let config = with_file("brokerName=broker-a\n", &[]).expect("configuration");
        assert!(config.bind.is_unspecified());
        assert!(config.store.root.ends_with("store"));
        let file = "storePathRootDir=/data/a\nbindAddress=127.0.0.1\nflushDiskType=ASYNC_FLUSH\n";
        let config = with_file(file, &["storePathRootDir=/data/b"]).expect("configuration");
        assert_eq!(config.store.root, PathBuf::from("/data/b"));
        assert_eq!(
            (config.store.flush, config.bind.to_string()),
            (FlushMode::Async, "127.0.0.1".into())
        );
    }

    #[test]
    fn flags_go_over_the_file() {
        let options = Options {
            listen: Some("0.0.0.0:20911".into()),
            name_server_port: Some("off".into()),
            advertise: Some("10.1.2.3".into()),
            cores: Some(3),
            ..options(&["listenPort=1", "brokerIP1=10.9.9.9"])
        };
        let config = Config::resolve(&options).expect("configuration").config;
        assert_eq!(config.listen_port, PortChoice::Port(20_911));
        assert_eq!(config.name_server_port, PortChoice::Off);
        assert_eq!((config.advertise.as_str(), config.cores), ("10.1.2.3", 3));
    }

    #[test]
    fn outer_name_servers_switch_the_embedded_one_off_unless_it_is_asked_for() {
        let outer = "namesrvAddr=10.0.0.1:9876; 10.0.0.2:9876";
        let off = config(&[outer]);
        assert_eq!(off.name_server_port, PortChoice::Off);
        assert_eq!(off.name_servers, ["10.0.0.1:9876", "10.0.0.2:9876"]);
        assert_eq!(
            config(&[outer, "nameServerPort=9876"]).name_server_port,
            PortChoice::Port(9876)
        );
    }

    #[test]
    fn any_free_port_and_off_are_understood() {
        let config = config(&["listenPort=0", "fastListenPort=off", "nameServerPort=0"]);
        assert_eq!(config.listen_port, PortChoice::Any);
        assert_eq!(config.fast_port_for(5000), PortChoice::Off);
        assert_eq!(config.name_server_port.number(), Some(0));
    }

    #[test]
    fn what_cannot_be_is_one_sentence_with_the_key() {
        for (pair, part) in [
            ("brokerName=a b", "brokerName"),
            ("brokerClusterName=../x", "brokerClusterName"),
            ("msgTraceTopicName=a/b", "msgTraceTopicName"),
            ("brokerIP1=0.0.0.0", "brokerIP1=0.0.0.0"),
            ("tailCacheBytes=2000000", "tailCacheBytes=2000000"),
            ("tailCacheBytes=4194304", "maxMessageSize=4194304"),
            ("maxIndexNum=2147483647", "maxIndexNum=2147483647"),
            ("namesrvAddr=nowhere", "namesrvAddr=nowhere"),
            (
                "mappedFileSizeCommitLog=5000",
                "mappedFileSizeCommitLog=5000",
            ),
        ] {
            let error = Config::resolve(&options(&[pair]))
                .expect_err(pair)
                .to_string();
            assert!(error.contains(part) && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn threads_are_pinned_apart_from_four_cpus_up() {
        let mut config = config(&[]);
        config.cpus = vec![0, 1, 2, 3];
        config.cores = 4;
        pin(&mut config);
        assert_eq!(config.store.writer_cpu, Some(0));
        assert_eq!(config.core_cpus, Some(vec![1, 2, 3, 1]));
        let mut small = config.clone();
        (small.cpus, small.core_cpus, small.store.writer_cpu) = (vec![0, 1], None, None);
        pin(&mut small);
        assert_eq!((small.store.writer_cpu, small.core_cpus), (None, None));
    }
}
