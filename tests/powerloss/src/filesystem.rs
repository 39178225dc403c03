//! The FUSE side: the kernel's requests, answered from the disk.
//!
//! FUSE_ASYNC_DIO is not offered: with it the kernel never sends the sync of a write that io_uring
//! makes with RWF_DSYNC. Nor is a write-back cache: writes come as they are made.

use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    AccessFlags, BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs,
    ReplyWrite, Request, TimeOrNow, WriteFlags,
};

use crate::disk::{Node, What};
use crate::power::{Damage, Operation, Power, Shared, Verdict};
use crate::unnamed::LARGEST;

/// How long the kernel may keep attributes: nobody else changes them.
const KEPT: Duration = Duration::from_secs(3600);
/// Unit of allocation.
const BLOCK: u64 = 4096;

/// The mounted disk.
pub struct Mounted {
    shared: Arc<Shared>,
}

impl Mounted {
    /// A filesystem over that disk.
    pub fn new(shared: Arc<Shared>) -> Mounted {
        Mounted { shared }
    }

    /// Does `work` if the operation is to be done, cuts the power after it if it is time.
    fn operate<T>(
        &self,
        operation: Operation,
        number: u64,
        work: impl FnOnce(&mut Power) -> Result<T, i32>,
    ) -> Result<T, Errno> {
        let mut power = self.shared.lock();
        let result = match power.judge(operation, number) {
            Verdict::Go => work(&mut power),
            Verdict::GoAndCut => {
                let _ = work(&mut power);
                power.cut_now();
                Err(libc::EIO)
            }
            Verdict::Fail(Damage::Short) => Err(libc::EIO),
            Verdict::Fail(Damage::Error(error)) => Err(error),
        };
        drop(power);
        if result.is_err() {
            self.shared.tell();
        }
        result.map_err(Errno::from_i32)
    }

    /// Puts something new or known under a name.
    fn entry(
        &self,
        parent: INodeNo,
        work: impl FnOnce(&mut Power) -> Result<u64, i32>,
    ) -> Result<FileAttr, Errno> {
        self.operate(Operation::Naming, parent.0, |power| {
            let number = work(power)?;
            attributes(power, number).ok_or(libc::EIO)
        })
    }

    fn unname(&self, parent: INodeNo, name: &OsStr) -> Result<(), Errno> {
        self.operate(Operation::Naming, parent.0, |power| {
            let number = power.disk.look_up(parent.0, name).ok_or(libc::ENOENT)?;
            if power
                .disk
                .entries(number)
                .is_some_and(|names| !names.is_empty())
            {
                return Err(libc::ENOTEMPTY);
            }
            power.disk.name(vec![(parent.0, name.to_owned(), None)]);
            Ok(())
        })
    }
}

fn attributes(power: &Power, number: u64) -> Option<FileAttr> {
    let inode = power.disk.inode(number)?;
    let (kind, size, used) = match &inode.node {
        Node::File { live, .. } => (FileType::RegularFile, live.size, live.used()),
        Node::Directory { .. } => (FileType::Directory, BLOCK, BLOCK),
    };
    Some(FileAttr {
        ino: INodeNo(number),
        size,
        blocks: used / 512,
        atime: inode.modified,
        mtime: inode.modified,
        ctime: inode.modified,
        crtime: inode.modified,
        kind,
        perm: inode.mode,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: BLOCK as u32,
        flags: 0,
    })
}

fn answer(result: Result<(), Errno>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

fn answer_entry(result: Result<FileAttr, Errno>, reply: ReplyEntry) {
    match result {
        Ok(attributes) => reply.entry(&KEPT, &attributes, Generation(0)),
        Err(error) => reply.error(error),
    }
}

fn answer_attributes(result: Result<FileAttr, Errno>, reply: ReplyAttr) {
    match result {
        Ok(attributes) => reply.attr(&KEPT, &attributes),
        Err(error) => reply.error(error),
    }
}

impl Filesystem for Mounted {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let refused = |_| io::Error::other("the size of requests cannot be limited");
        config.set_max_write(LARGEST).map(|_| ()).map_err(refused)
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let result = self.operate(Operation::Read, parent.0, |power| {
            let number = power.disk.look_up(parent.0, name).ok_or(libc::ENOENT)?;
            attributes(power, number).ok_or(libc::EIO)
        });
        answer_entry(result, reply);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let result = self.operate(Operation::Read, ino.0, |power| {
            attributes(power, ino.0).ok_or(libc::ESTALE)
        });
        answer_attributes(result, reply);
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let result = self.operate(Operation::Write, ino.0, |power| {
            if let Some(size) = size {
                power.disk.change(ino.0, 0, What::Size(size));
            }
            let inode = power.disk.inode_mut(ino.0).ok_or(libc::ESTALE)?;
            if let Some(mode) = mode {
                inode.mode = (mode & 0o7777) as u16;
            }
            match mtime {
                Some(TimeOrNow::SpecificTime(time)) => inode.modified = time,
                Some(TimeOrNow::Now) => inode.modified = SystemTime::now(),
                None => {}
            }
            attributes(power, ino.0).ok_or(libc::ESTALE)
        });
        answer_attributes(result, reply);
    }

    fn mknod(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _rdev: u32,
        reply: ReplyEntry,
    ) {
        let make = |power: &mut Power| {
            Ok(power
                .disk
                .make(parent.0, name, false, (mode & 0o7777) as u16))
        };
        answer_entry(self.entry(parent, make), reply);
    }

    fn mkdir(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let make = |power: &mut Power| {
            Ok(power
                .disk
                .make(parent.0, name, true, (mode & 0o7777) as u16))
        };
        answer_entry(self.entry(parent, make), reply);
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let made = self.entry(parent, |power| {
            Ok(power
                .disk
                .make(parent.0, name, false, (mode & 0o7777) as u16))
        });
        match made {
            Ok(attributes) => reply.created(
                &KEPT,
                &attributes,
                Generation(0),
                FileHandle(0),
                FopenFlags::empty(),
            ),
            Err(error) => reply.error(error),
        }
    }

    fn link(&self, _: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let link = |power: &mut Power| {
            power
                .disk
                .name(vec![(parent.0, name.to_owned(), Some(ino.0))]);
            Ok(ino.0)
        };
        answer_entry(self.entry(parent, link), reply);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(self.unname(parent, name), reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(self.unname(parent, name), reply);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let result = self.operate(Operation::Naming, parent.0, |power| {
            let number = power.disk.look_up(parent.0, name).ok_or(libc::ENOENT)?;
            let taken = power.disk.look_up(new_parent.0, new_name);
            if flags.contains(RenameFlags::RENAME_EXCHANGE) {
                let other = taken.ok_or(libc::ENOENT)?;
                power.disk.name(vec![
                    (parent.0, name.to_owned(), Some(other)),
                    (new_parent.0, new_name.to_owned(), Some(number)),
                ]);
                return Ok(());
            }
            if taken.is_some() && flags.contains(RenameFlags::RENAME_NOREPLACE) {
                return Err(libc::EEXIST);
            }
            power.disk.name(vec![
                (parent.0, name.to_owned(), None),
                (new_parent.0, new_name.to_owned(), Some(number)),
            ]);
            Ok(())
        });
        answer(result, reply);
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::empty());
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let result = self.operate(Operation::Read, ino.0, |power| {
            let content = power.disk.content(ino.0).ok_or(libc::ESTALE)?;
            Ok(content.read(offset, u64::from(size)))
        });
        match result {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(error),
        }
    }

    fn write(
        &self,
        request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
        open_flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let cached = flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let direct = open_flags.0 & libc::O_DIRECT != 0;
        let thread = if direct && !cached { request.pid() } else { 0 };
        match self.store(ino.0, thread, offset, data) {
            Ok(written) => reply.written(written as u32),
            Err(error) => reply.error(Errno::from_i32(error)),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(
        &self,
        request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        let pause = self.shared.lock().sync_pause;
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
        let thread = request.pid();
        let result = self.operate(Operation::Sync, ino.0, |power| {
            if !(power.lies && data_only && power.disk.path(ino.0).contains("commitlog")) {
                power.disk.sync_file(ino.0, thread, data_only);
            }
            Ok(())
        });
        if result.is_err() {
            self.shared.lock().disk.lose_changes(ino.0);
        }
        answer(result, reply);
    }

    fn fsyncdir(
        &self,
        _: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        let result = self.operate(Operation::Sync, ino.0, |power| {
            power.disk.sync_directory(ino.0);
            Ok(())
        });
        answer(result, reply);
    }

    fn readdir(
        &self,
        _: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let result = self.operate(Operation::Read, ino.0, |power| {
            let names = power.disk.entries(ino.0).ok_or(libc::ENOTDIR)?;
            let mut all = vec![
                (ino.0, FileType::Directory, OsString::from(".")),
                (ino.0, FileType::Directory, OsString::from("..")),
            ];
            for (name, number) in names {
                let directory = power.disk.entries(*number).is_some();
                let kind = if directory {
                    FileType::Directory
                } else {
                    FileType::RegularFile
                };
                all.push((*number, kind, name.clone()));
            }
            Ok(all)
        });
        let all = match result {
            Ok(all) => all,
            Err(error) => return reply.error(error),
        };
        for (index, (number, kind, name)) in all.into_iter().enumerate().skip(offset as usize) {
            if reply.add(INodeNo(number), index as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let power = self.shared.lock();
        let free = power.room.saturating_sub(power.disk.used()) / BLOCK;
        let blocks = power.room / BLOCK;
        drop(power);
        reply.statfs(
            blocks,
            free,
            free,
            1 << 20,
            1 << 20,
            BLOCK as u32,
            255,
            BLOCK as u32,
        );
    }

    fn access(&self, _: &Request, _: INodeNo, _: AccessFlags, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fallocate(
        &self,
        _: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let result = self.operate(Operation::Allocate, ino.0, |power| {
            let content = power.disk.content(ino.0).ok_or(libc::ESTALE)?;
            let (size, end) = (content.size, offset + length);
            let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            match mode {
                0 if end > size => {
                    power.disk.change(ino.0, 0, What::Size(end));
                }
                0 | libc::FALLOC_FL_KEEP_SIZE => {}
                _ if mode == punch => {
                    let what = What::Punch(offset, length);
                    power.disk.change(ino.0, 0, what);
                }
                _ => return Err(libc::EOPNOTSUPP),
            }
            Ok(())
        });
        answer(result, reply);
    }

    fn lseek(
        &self,
        _: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let result = self.operate(Operation::Read, ino.0, |power| {
            let content = power.disk.content(ino.0).ok_or(libc::ESTALE)?;
            let from = u64::try_from(offset).map_err(|_| libc::EINVAL)?;
            let data = whence == libc::SEEK_DATA;
            content.seek(from, data).ok_or(libc::ENXIO)
        });
        match result {
            Ok(at) => reply.offset(at as i64),
            Err(error) => reply.error(error),
        }
    }
}

impl Mounted {
    /// Stores what a write brings; how much of it.
    fn store(&self, number: u64, thread: u32, offset: u64, data: &[u8]) -> Result<usize, i32> {
        let mut power = self.shared.lock();
        let verdict = power.judge(Operation::Write, number);
        let taken = match verdict {
            Verdict::Fail(Damage::Error(error)) => {
                drop(power);
                self.shared.tell();
                return Err(error);
            }
            Verdict::Fail(Damage::Short) => data.len() / 2 / 512 * 512,
            Verdict::Go | Verdict::GoAndCut => data.len(),
        };
        if taken > 0 {
            let bytes = data[..taken].to_vec();
            let change = What::Write { offset, bytes };
            if !power.disk.change(number, thread, change) {
                return Err(libc::ESTALE);
            }
        }
        if verdict == Verdict::GoAndCut {
            power.cut_now();
        }
        let on = power.on;
        drop(power);
        if verdict != Verdict::Go {
            self.shared.tell();
        }
        if on { Ok(taken) } else { Err(libc::EIO) }
    }
}
