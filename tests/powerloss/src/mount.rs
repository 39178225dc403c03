//! Mounting the disk and taking it away.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use fuser::{BackgroundSession, Config, MountOption, Session};
use nix::mount::{MntFlags, umount2};

use crate::filesystem::Mounted;
use crate::power::Shared;

/// Threads that answer the kernel: more than a broker has writes and syncs in flight.
const THREADS: usize = 8;
/// How long descriptors of a killed process may keep a mount busy.
const BUSY: Duration = Duration::from_secs(10);

/// A mounted disk.
pub struct Mount {
    path: PathBuf,
    session: Option<BackgroundSession>,
}

impl Mount {
    /// Mounts the disk on an empty directory.
    pub fn new(path: &Path, shared: &Arc<Shared>) -> Result<Mount> {
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("saturnmq-powerloss".to_owned())];
        config.n_threads = Some(THREADS);
        let session = Session::new(Mounted::new(Arc::clone(shared)), path, &config)
            .and_then(Session::spawn)
            .with_context(|| format!("cannot mount a FUSE filesystem on {}", path.display()))?;
        Ok(Mount {
            path: path.to_owned(),
            session: Some(session),
        })
    }

    /// Takes the mount away, and with it whatever the kernel kept of it.
    pub fn end(mut self) -> Result<()> {
        self.take_away()
            .with_context(|| format!("cannot unmount {}", self.path.display()))
    }

    fn take_away(&mut self) -> io::Result<()> {
        let Some(session) = self.session.take() else {
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
        // It also unmounts on its own, which finds nothing to do any more.
        session.join()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(error) = self.take_away() {
            eprintln!("cannot unmount {}: {error}", self.path.display());
        }
    }
}
