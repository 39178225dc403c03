//! Whether the disk is told of syncs, and keeps what they promise and no more: asked before every
//! run, since a kernel that keeps a sync to itself would make all cuts look harmless or harmful.

use std::ffi::c_void;
use std::fs::{self, File, OpenOptions};
use std::num::NonZeroUsize;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use std::ptr::NonNull;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use io_uring::{IoUring, opcode, types};
use nix::sys::mman::{MapFlags, MsFlags, ProtFlags, mmap, msync, munmap};

use crate::mount::Mount;
use crate::power::Shared;

const PAGE: usize = 4096;

/// One way to write four kilobytes: its name, the way, and whether they must survive a cut.
type Way = (&'static str, fn(&File) -> Result<()>, bool);

const WAYS: [Way; 8] = [
    (
        "an O_DIRECT write of io_uring with RWF_DSYNC",
        write_dsync,
        true,
    ),
    ("an O_DIRECT write of io_uring", write_ring, false),
    (
        "a write and fsync",
        |file| Ok(write(file)?.sync_all()?),
        true,
    ),
    (
        "a write and fdatasync",
        |file| Ok(write(file)?.sync_data()?),
        true,
    ),
    (
        "a write and io_uring's fdatasync",
        write_and_ring_sync,
        true,
    ),
    ("a write", |file| write(file).map(|_| ()), false),
    ("a mapping and msync", |file| store(file, true), true),
    ("a mapping", |file| store(file, false), false),
];

/// Tries every way to write and to name on a disk of its own; what it found, in a sentence.
pub fn run(work: &Path) -> Result<String> {
    let shared = Arc::new(Shared::new(1));
    let directory = work.join("selftest");
    fs::create_dir_all(&directory)?;
    let mount = Mount::new(&directory, &shared)?;
    let unnamed = make(&directory)?;
    mount.end()?;
    // Whatever the kernel kept it has handed over by now; nothing but a sync makes it last.
    shared.lock().cut_now();
    shared.restore();
    let mount = Mount::new(&directory, &shared)?;
    let checked = check(&directory);
    mount.end()?;
    checked?;
    Ok(format!("syncs reach the disk; unnamed files: {unnamed}"))
}

/// Writes all files and names; how unnamed files fare.
fn make(directory: &Path) -> Result<&'static str> {
    for (index, (name, way, _)) in WAYS.iter().enumerate() {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .custom_flags(if name.contains("O_DIRECT") {
                libc::O_DIRECT
            } else {
                0
            })
            .open(directory.join(index.to_string()))?;
        file.set_len(PAGE as u64)?;
        file.sync_all()?;
        File::open(directory)?.sync_all()?;
        way(&file).with_context(|| (*name).to_owned())?;
    }
    let unnamed = make_unnamed(directory)?;
    fs::write(directory.join("old"), b"new")?;
    File::open(directory.join("old"))?.sync_all()?;
    fs::rename(directory.join("old"), directory.join("renamed and synced"))?;
    fs::hard_link(directory.join("0"), directory.join("linked and synced"))?;
    File::open(directory)?.sync_all()?;
    fs::rename(
        directory.join("renamed and synced"),
        directory.join("renamed"),
    )?;
    fs::hard_link(directory.join("0"), directory.join("linked"))?;
    Ok(unnamed)
}

/// Writes a file that has no name yet and links it; how that fares.
fn make_unnamed(directory: &Path) -> Result<&'static str> {
    let unnamed = OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_TMPFILE)
        .open(directory);
    let Ok(file) = unnamed else {
        return Ok("refused, so that a store names its files from the beginning");
    };
    write(&file)?.sync_all()?;
    let from = format!("/proc/self/fd/{}", file.as_raw_fd());
    let (here, to) = (nix::fcntl::AT_FDCWD, directory.join("unnamed and synced"));
    let follow = nix::fcntl::AtFlags::AT_SYMLINK_FOLLOW;
    nix::unistd::linkat(here, from.as_str(), here, &to, follow)?;
    File::open(directory)?.sync_all()?;
    Ok("linked when they are durable")
}

fn check(directory: &Path) -> Result<()> {
    for (index, (name, _, lasts)) in WAYS.iter().enumerate() {
        let bytes = fs::read(directory.join(index.to_string())).context(*name)?;
        let there = bytes == [7; PAGE];
        let gone = bytes == [0; PAGE];
        ensure!(there || gone, "{name}: neither all nor nothing is left");
        if there != *lasts {
            let what = if there { "is left" } else { "is lost" };
            bail!("{name}: what was written {what} after a cut");
        }
    }
    for (name, lasts) in [
        ("renamed and synced", true),
        ("linked and synced", true),
        ("renamed", false),
        ("linked", false),
        ("old", false),
    ] {
        ensure!(
            directory.join(name).exists() == lasts,
            "the name \"{name}\""
        );
    }
    Ok(())
}

fn write(file: &File) -> Result<&File> {
    file.write_all_at(&[7; PAGE], 0)?;
    Ok(file)
}

fn write_dsync(file: &File) -> Result<()> {
    ring_write(file, libc::RWF_DSYNC)
}

fn write_ring(file: &File) -> Result<()> {
    ring_write(file, 0)
}

fn ring_write(file: &File, flags: i32) -> Result<()> {
    // A page of its own, for O_DIRECT.
    let page = Page::new(None)?;
    page.fill();
    let write = opcode::Write::new(
        types::Fd(file.as_raw_fd()),
        page.at.as_ptr().cast(),
        PAGE as u32,
    );
    let result = submit(write.rw_flags(flags).build())?;
    ensure!(result == PAGE as i32, "the write ended with {result}");
    Ok(())
}

fn write_and_ring_sync(file: &File) -> Result<()> {
    write(file)?;
    let sync = opcode::Fsync::new(types::Fd(file.as_raw_fd()));
    let result = submit(sync.flags(types::FsyncFlags::DATASYNC).build())?;
    ensure!(result == 0, "the sync ended with {result}");
    Ok(())
}

fn submit(entry: io_uring::squeue::Entry) -> Result<i32> {
    let mut ring = IoUring::new(4)?;
    // SAFETY: what the request names, a descriptor and a page, is alive until its completion,
    // which is waited for below.
    unsafe { ring.submission().push(&entry)? };
    ring.submit_and_wait(1)?;
    let completion = ring.completion().next().context("no completion")?;
    Ok(completion.result())
}

/// A mapped page.
struct Page {
    at: NonNull<c_void>,
}

impl Page {
    fn new(file: Option<&File>) -> Result<Page> {
        let len = NonZeroUsize::new(PAGE).context("a page")?;
        let rights = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let at = match file {
            // SAFETY: a new mapping of a file of at least this size, that this value alone knows.
            Some(file) => unsafe { mmap(None, len, rights, MapFlags::MAP_SHARED, file, 0)? },
            // SAFETY: new anonymous memory.
            None => unsafe {
                nix::sys::mman::mmap_anonymous(None, len, rights, MapFlags::MAP_PRIVATE)?
            },
        };
        Ok(Page { at })
    }

    fn fill(&self) {
        // SAFETY: the page is mapped for writing and nobody else uses it.
        unsafe { self.at.as_ptr().cast::<u8>().write_bytes(7, PAGE) };
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own. A failure would only leave the page mapped.
        let _ = unsafe { munmap(self.at, PAGE) };
    }
}

/// Has another process write through a mapping: unmapping waits for the kernel's write with the
/// memory of the process locked, and this process has to answer that write.
fn store(file: &File, sync: bool) -> Result<()> {
    let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    let status = Command::new(std::env::current_exe()?)
        .arg("--map")
        .arg(path)
        .args(sync.then_some("--msync"))
        .status()?;
    ensure!(status.success(), "the other process ended with {status}");
    Ok(())
}

/// What that process does.
pub fn store_through_mapping(path: &Path, sync: bool) -> Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let page = Page::new(Some(&file))?;
    page.fill();
    if sync {
        // SAFETY: the range is one mapped page.
        unsafe { msync(page.at, PAGE, MsFlags::MS_SYNC)? };
    }
    Ok(())
}
