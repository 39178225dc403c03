//! Asks the kernel what the network cores can use, once, before the first core starts.
//!
//! `SATURNMQ_IO` forces an engine: `uring`, `uring-plain` (what older kernels have) or `epoll`.

use std::fmt;
use std::io;

/// What a core's ring may use of io_uring.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Features {
    /// Completions run in the core's own wait (`DEFER_TASKRUN`, Linux 6.1).
    pub defer_taskrun: bool,
    /// Completions do not interrupt the core (`COOP_TASKRUN`, Linux 5.19).
    pub coop_taskrun: bool,
    /// Receive buffers are used up piece by piece (`IOU_PBUF_RING_INC`, Linux 6.12).
    pub incremental: bool,
    /// One receive request serves a connection until it is cancelled (Linux 6.0).
    pub multishot: bool,
    /// Waiting is not accounted as waiting for a disk (`IORING_ENTER_NO_IOWAIT`, Linux 6.15).
    pub no_iowait: bool,
    /// A send that the socket takes at once ends without a completion, so that the core can sleep
    /// in the system call that sends (`IOSQE_CQE_SKIP_SUCCESS`; used from Linux 6.15 on).
    pub quiet_sends: bool,
}

impl Features {
    /// Everything a recent kernel has.
    pub const FULL: Features = Features {
        defer_taskrun: true,
        coop_taskrun: true,
        incremental: true,
        multishot: true,
        no_iowait: true,
        quiet_sends: true,
    };
    /// What is left on the oldest kernel that io_uring is used on (Linux 5.19).
    pub const PLAIN: Features = Features {
        defer_taskrun: false,
        coop_taskrun: false,
        incremental: false,
        multishot: false,
        no_iowait: false,
        quiet_sends: false,
    };
}

/// What moves the bytes of a core.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Engine {
    /// A ring for each core.
    Uring(Features),
    /// No io_uring, and why.
    Epoll(String),
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Engine::Uring(features) if *features == Features::FULL => f.write_str("io_uring"),
            Engine::Uring(features) => {
                let missing = [
                    (features.defer_taskrun, "deferred completions"),
                    (features.incremental, "incremental buffers"),
                    (features.multishot, "multishot receive"),
                    (features.no_iowait, "quiet waits"),
                    (features.quiet_sends, "quiet sends"),
                ];
                let missing: Vec<&str> = missing
                    .iter()
                    .filter(|(has, _)| !has)
                    .map(|(_, name)| *name)
                    .collect();
                write!(f, "io_uring without {}", missing.join(", "))
            }
            Engine::Epoll(why) => write!(f, "epoll ({why})"),
        }
    }
}

/// The name of the environment variable that forces an engine.
pub const IO_VARIABLE: &str = "SATURNMQ_IO";

/// An unusable choice of engine.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The variable holds something else than a known name.
    #[error("{IO_VARIABLE}={0:?} is not one of uring, uring-plain, epoll")]
    Unknown(String),
    /// io_uring was demanded, but this host refuses it.
    #[error("{IO_VARIABLE}={choice} demands io_uring, but {why}")]
    Refused {
        /// The demanded engine.
        choice: String,
        /// What the host says.
        why: String,
    },
}

/// The engine for this host, or the one that `SATURNMQ_IO` names.
///
/// # Errors
/// The variable is garbled, or demands io_uring where the host refuses it.
pub fn choose() -> Result<Engine, ProbeError> {
    choose_named(std::env::var(IO_VARIABLE).ok().as_deref())
}

/// The engine of that name (see [`IO_VARIABLE`]), or the best one for this host.
///
/// # Errors
/// The name is unknown, or demands io_uring where the host refuses it.
pub fn choose_named(name: Option<&str>) -> Result<Engine, ProbeError> {
    let refused = |choice: &str, error: io::Error| ProbeError::Refused {
        choice: choice.to_owned(),
        why: refusal(&error),
    };
    match name {
        None | Some("") => Ok(best()),
        Some("uring") => match crate::ring::probe(Features::FULL) {
            Ok(features) => Ok(Engine::Uring(features)),
            Err(error) => Err(refused("uring", error)),
        },
        Some("uring-plain") => match crate::ring::probe(Features::PLAIN) {
            Ok(features) => Ok(Engine::Uring(features)),
            Err(error) => Err(refused("uring-plain", error)),
        },
        Some("epoll") => Ok(Engine::Epoll(format!("{IO_VARIABLE}=epoll"))),
        Some(other) => Err(ProbeError::Unknown(other.to_owned())),
    }
}

fn best() -> Engine {
    let engine = match crate::ring::probe(Features::FULL) {
        Ok(features) => Engine::Uring(features),
        Err(error) => Engine::Epoll(refusal(&error)),
    };
    if engine != Engine::Uring(Features::FULL) {
        tracing::warn!(%engine, "this host does not offer all of io_uring");
    }
    engine
}

/// Why io_uring is refused, in words that say what to do.
fn refusal(error: &io::Error) -> String {
    let disabled = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
    let disabled = disabled.as_deref().map(str::trim).unwrap_or("");
    match error.raw_os_error() {
        Some(libc::EPERM) if disabled == "1" || disabled == "2" => {
            format!("sysctl kernel.io_uring_disabled is {disabled}")
        }
        Some(libc::EPERM) => {
            "io_uring is not permitted here (a container's seccomp profile?)".to_owned()
        }
        Some(libc::ENOSYS) => "this kernel has no io_uring".to_owned(),
        Some(libc::ENOMEM) => "io_uring: out of locked memory (LimitMEMLOCK)".to_owned(),
        _ => format!("io_uring cannot be used: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_tells_what_it_lacks() {
        assert_eq!(Engine::Uring(Features::FULL).to_string(), "io_uring");
        let old = Features {
            incremental: false,
            ..Features::FULL
        };
        assert_eq!(
            Engine::Uring(old).to_string(),
            "io_uring without incremental buffers"
        );
        assert_eq!(
            Engine::Epoll("because".to_owned()).to_string(),
            "epoll (because)"
        );
    }

    #[test]
    fn an_unknown_engine_is_refused_by_name() {
        let error = choose_named(Some("iocp")).unwrap_err();
        assert!(
            error.to_string().contains("\"iocp\" is not one of uring"),
            "{error}"
        );
    }

    #[test]
    fn a_forced_engine_is_what_runs() {
        assert_eq!(
            choose_named(Some("epoll")).unwrap().to_string(),
            "epoll (SATURNMQ_IO=epoll)"
        );
    }
}
