//! The block of text that a start prints: what runs where, on what, and what would make it faster.

use std::fmt::Write;
use std::net::IpAddr;

use saturnmq_net::probe::Engine;
use saturnmq_storage::config::FlushMode;
use saturnmq_storage::store::OpenReport;

use crate::broker::{Broker, address};
use crate::config::{self, Advertised};
use crate::host::{self, Facts};

/// The block for a started broker, with a line end after every line.
pub fn text(broker: &Broker, facts: &Facts, engine: &Engine, report: &OpenReport) -> String {
    let mut out = format!("SaturnMQ {}\n", env!("CARGO_PKG_VERSION"));
    // Writing into a String cannot fail.
    let mut line = |name: &str, text: String| {
        let _ = writeln!(out, "  {name:<12} {text}");
    };
    line("broker", listening(broker));
    line("name server", name_server(broker));
    if let Some(port) = broker.ports.http {
        line(
            "http",
            format!("http://{}/", address(&broker.config.bind.to_string(), port)),
        );
    }
    line("advertised", advertised(broker));
    line("store", store(broker, report));
    line("flush", flush(broker));
    line(
        "network",
        format!(
            "{}, {}",
            threads(broker.config.cores),
            host::network(engine)
        ),
    );
    line("disk", broker.store.writing().to_string());
    for note in &report.notes {
        line("disk", note.clone());
    }
    let reason = config::advertised_reason(broker.config.bind, broker.config.advertise_ip);
    if let Some(reason) = reason {
        line("warning", reason);
    }
    for limit in facts.limits() {
        let mend = limit.mend.unwrap_or_default();
        line("limit", format!("{}; lift it with: {mend}", limit.found));
    }
    if let Some(hint) = loopback_hint(broker) {
        line("note", hint);
    }
    line(
        "ready",
        format!("after {} ms", broker.started.elapsed().as_millis()),
    );
    out
}

fn listening(broker: &Broker) -> String {
    let bind = broker.config.bind.to_string();
    let mut text = address(&bind, broker.ports.broker);
    if let Some(fast) = broker.ports.fast {
        let _ = write!(text, " and {}", address(&bind, fast));
    }
    let _ = write!(
        text,
        " as {} in {}",
        broker.config.broker_name, broker.config.cluster
    );
    text
}

fn name_server(broker: &Broker) -> String {
    let bind = broker.config.bind.to_string();
    let own = broker.ports.name_server.map(|port| address(&bind, port));
    let outer = &broker.config.name_servers;
    match (own, outer.is_empty()) {
        (Some(own), true) => own,
        (Some(own), false) => format!("{own}, and registers with {}", outer.join(", ")),
        (None, false) => format!("off; registers with {}", outer.join(", ")),
        (None, true) => "off: clients find this broker only through an outer one".into(),
    }
}

fn advertised(broker: &Broker) -> String {
    let why = match broker.config.advertised {
        Advertised::Configured => "as configured",
        Advertised::Bound => "the address listened on",
        Advertised::Picked => {
            "chosen among this host's addresses; brokerIP1 or --advertise sets it"
        }
    };
    format!("{} ({why})", broker.address())
}

fn store(broker: &Broker, report: &OpenReport) -> String {
    let root = broker.config.root();
    let root = std::fs::canonicalize(root).unwrap_or_else(|_| root.to_path_buf());
    let mut text = root.display().to_string();
    if report.log_end > report.log_start {
        let _ = write!(
            text,
            ", {} queue{}, {} MiB of log",
            report.queues,
            if report.queues == 1 { "" } else { "s" },
            mib(report)
        );
    } else {
        text.push_str(", empty");
    }
    if !report.clean {
        let _ = write!(text, ", recovered after an unclean stop");
    }
    text
}

fn mib(report: &OpenReport) -> u64 {
    (report.log_end - report.log_start).div_ceil(1 << 20)
}

fn flush(broker: &Broker) -> String {
    match broker.config.store.flush {
        FlushMode::Sync => "SYNC_FLUSH: an answered send is on disk".into(),
        FlushMode::Async => format!(
            "ASYNC_FLUSH: an answered send is written, and on disk within {} ms",
            broker.config.store.flush_interval.as_millis()
        ),
    }
}

fn threads(cores: usize) -> String {
    if cores == 1 {
        "1 thread".into()
    } else {
        format!("{cores} threads")
    }
}

fn loopback_hint(broker: &Broker) -> Option<String> {
    let loopback = |ip: IpAddr| ip.is_loopback();
    (loopback(broker.config.bind) && broker.config.conf_file.is_none()).then(|| {
        "only this host can connect; open it with --listen 0.0.0.0 (there is no authentication \
         yet: use a firewall)"
            .to_string()
    })
}
