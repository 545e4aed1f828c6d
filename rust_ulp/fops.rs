// SPDX-License-Identifier: GPL-2.0

//! The file operations that the kernel calls.

use crate::{
    cmd::{
        self,
        uring, //
    },
    device::{
        AttachedFile,
        Registry, //
    },
    ext::{
        area::Area,
        chardev::{
            chardev,
            events,
            FileOperations, //
        },
        errno::ebadfd,
        timer::to_task_ns,
        uring::{
            Canceling,
            IssueResult,
            UringCmd, //
        }, //
    },
    file::UlpFile,
    object::Object,
    uapi::abi, //
};
use kernel::{
    fs::File,
    prelude::*,
    seq_file::SeqFile,
    seq_print,
    sync::{
        poll::PollTable,
        Arc,
        ArcBorrow, //
    },
    transmute::AsBytes,
    uaccess::UserSliceWriter, //
};

// For root, unless a rule of udev says otherwise.
chardev!(UlpFile, c"rust_ulp", 0o600);

impl FileOperations for UlpFile {
    type Shared = Registry;

    fn open(registry: &Arc<Registry>) -> Result<Arc<Self>> {
        Self::new(registry)
    }

    fn release(this: Arc<Self>) {
        Self::release(this);
    }

    fn ioctl(this: ArcBorrow<'_, Self>, cmd: u32, arg: usize) -> Result<isize> {
        cmd::dispatch(this, cmd, arg)?;
        Ok(0)
    }

    fn read(this: ArcBorrow<'_, Self>, block: bool, mut to: UserSliceWriter) -> Result<usize> {
        let room = to.len();
        this.device()?;
        let size = this.event_size();
        if room < size {
            return Err(EINVAL);
        }
        let mut block = block;
        while to.len() >= size {
            let before = to.len();
            let event = match this.events().take(block) {
                Ok(event) => event,
                Err(err) if before == room => return Err(err),
                Err(_) => break,
            };
            let seen = abi::Event {
                time_ns: to_task_ns(event.time_ns),
                ..event
            };
            let known = seen.as_bytes().get(..size).ok_or(EINVAL)?;
            if let Err(err) = to.write_slice(known) {
                this.events().put_back(event);
                return match room.saturating_sub(before) {
                    0 => Err(err),
                    done => Ok(done),
                };
            }
            // Only the first record is waited for.
            block = false;
        }
        Ok(room.saturating_sub(to.len()))
    }

    fn uring_issue(this: ArcBorrow<'_, Self>, cmd: UringCmd<'_>) -> IssueResult {
        uring::issue(&this, cmd)
    }

    fn uring_cancel(this: ArcBorrow<'_, Self>, command: Canceling<'_>) {
        uring::cancel(&this, &command);
    }

    fn mmap(this: ArcBorrow<'_, Self>, area: &Area<'_>, offset: u64) -> Result {
        let _device = this.enter()?;
        let (handle, at) = this.mmap_offsets().find(offset).ok_or(ENOENT)?;
        let table = this.table().read();
        // No reference to the object, which the last one ends.
        let pages = match table.get(handle)? {
            Object::Cq(cq) => cq.ring().pages().clone(),
            Object::Buffer(buffer) => buffer.pages().clone(),
            _ => return Err(ebadfd()),
        };
        drop(table);
        pages.map(area, at)
    }

    fn poll(this: ArcBorrow<'_, Self>, file: &File, table: PollTable<'_>) -> u32 {
        table.register_wait(file, &this.events().wait);
        let Ok(device) = this.device() else {
            return events::ERR;
        };
        let readable = if this.events().is_readable() {
            events::IN
        } else {
            0
        };
        if device.is_gone() {
            readable | events::HUP | events::ERR
        } else {
            readable
        }
    }

    fn show_fdinfo(this: ArcBorrow<'_, Self>, m: &SeqFile) {
        let device = match this.enter() {
            Ok(_guard) => return this.show(m),
            Err(err) if err == ENXIO => "none",
            Err(_) => "gone",
        };
        seq_print!(
            m,
            "rust_ulp-file:\t{}\nrust_ulp-device:\t{}\n",
            this.id(),
            device
        );
    }
}
