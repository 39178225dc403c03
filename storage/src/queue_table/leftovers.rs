//! Files of removed topics: thousands may take seconds, in which nobody waits for them.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::medium;

/// The directory of removed files. Every start empties it.
#[derive(Debug)]
pub(crate) struct Leftovers {
    directory: PathBuf,
    /// Whether a thread is at it.
    sweeping: Arc<AtomicBool>,
}

impl Leftovers {
    /// What is in `directory`, if there is one.
    pub(crate) fn new(directory: PathBuf) -> Leftovers {
        Leftovers {
            directory,
            sweeping: Arc::default(),
        }
    }

    /// Has everything in the directory removed by a thread that ends then.
    pub(crate) fn sweep(&self) {
        let is_swept = !has_entries(&self.directory);
        if is_swept || self.sweeping.swap(true, Ordering::SeqCst) {
            return;
        }
        let (directory, sweeping) = (self.directory.clone(), Arc::clone(&self.sweeping));
        let spawned = thread::Builder::new()
            .name("saturnmq-sweep".into())
            .spawn(move || {
                loop {
                    let removed = remove_entries(&directory);
                    sweeping.store(false, Ordering::SeqCst);
                    if let Err(error) = removed {
                        let path = directory.display();
                        tracing::warn!(%error, "cannot remove files of removed topics in {path}");
                        return;
                    }
                    // What came after the look was left to this thread.
                    if !has_entries(&directory) || sweeping.swap(true, Ordering::SeqCst) {
                        return;
                    }
                }
            });
        if let Err(error) = spawned {
            self.sweeping.store(false, Ordering::SeqCst);
            tracing::warn!(%error, "files of removed topics stay until the next start");
        }
    }
}

fn has_entries(directory: &Path) -> bool {
    std::fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_some())
}

fn remove_entries(directory: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => medium::remove_tree(&entry.path())?,
            false => medium::remove_file(&entry.path())?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn what_a_former_run_left_is_removed_and_what_comes_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        let (kept, aside) = (dir.path().join("kept"), dir.path().join("aside"));
        std::fs::create_dir(&aside).unwrap();
        let leftovers = Leftovers::new(aside.clone());
        leftovers.sweep();
        for number in 0..50 {
            let topic = kept.join(number.to_string());
            std::fs::create_dir_all(topic.join("0")).unwrap();
            std::fs::write(topic.join("0/00000000000000000000"), b"entries").unwrap();
            std::fs::rename(&topic, aside.join(number.to_string())).unwrap();
            leftovers.sweep();
        }
        let end = Instant::now() + Duration::from_secs(20);
        while has_entries(&aside) {
            assert!(Instant::now() < end, "files are left");
            thread::sleep(Duration::from_millis(1));
        }
    }
}
