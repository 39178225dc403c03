//! Mounting the disk and taking it away.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use fuser::{BackgroundSession, Config, Session, SessionACL};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::filesystem::Mounted;
use crate::power::Shared;
use crate::unnamed::Between;

/// Threads that answer the kernel: more than a broker has writes and syncs in flight.
const THREADS: usize = 8;
/// How long descriptors of a killed process may keep a mount busy.
const BUSY: Duration = Duration::from_secs(10);

/// A mounted disk.
pub struct Mount {
    path: PathBuf,
    session: Option<(BackgroundSession, Between)>,
}

impl Mount {
    /// Mounts the disk on an empty directory.
    pub fn new(path: &Path, shared: &Arc<Shared>) -> Result<Mount> {
        let (session, between) = start(path, shared)
            .with_context(|| format!("cannot mount a FUSE filesystem on {}", path.display()))?;
        Ok(Mount {
            path: path.to_owned(),
            session: Some((session, between)),
        })
    }

    /// Takes the mount away, and with it whatever the kernel kept of it.
    pub fn end(mut self) -> Result<()> {
        self.take_away()
            .with_context(|| format!("cannot unmount {}", self.path.display()))
    }

    fn take_away(&mut self) -> io::Result<()> {
        let Some((session, between)) = self.session.take() else {
            return Ok(());
        };
        let deadline = Instant::now() + BUSY;
        loop {
            match umount2(&self.path, MntFlags::empty()) {
                Ok(()) => break,
                Err(nix::errno::Errno::EBUSY) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(error) => {
                    // Out of the way at least, for whoever cleans up.
                    let _ = umount2(&self.path, MntFlags::MNT_DETACH);
                    return Err(error.into());
                }
            }
        }
        between.end();
        // Its end is that of its device, which it calls an error.
        let _ = session.join();
        Ok(())
    }
}

fn start(path: &Path, shared: &Arc<Shared>) -> io::Result<(BackgroundSession, Between)> {
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/fuse")?;
    let options = format!(
        "fd={},rootmode=40755,user_id=0,group_id=0",
        device.as_raw_fd()
    );
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(
        Some("saturnmq-powerloss"),
        path,
        Some("fuse"),
        flags,
        Some(options.as_str()),
    )?;
    let (between, end) = Between::start(device, shared)?;
    let mut config = Config::default();
    config.n_threads = Some(THREADS);
    let mounted = Mounted::new(Arc::clone(shared));
    let session = Session::from_fd(mounted, end, SessionACL::Owner, config)?.spawn()?;
    Ok((session, between))
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(error) = self.take_away() {
            eprintln!("cannot unmount {}: {error}", self.path.display());
        }
    }
}
