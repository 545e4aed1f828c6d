// SPDX-License-Identifier: GPL-2.0

//! The table of the objects that an open file has made.
//!
//! A handle (`logic/handle.rs`) finds an object in the file that made it, and nowhere else. The
//! file's lock protects the table. A lookup returns a reference to the object, which may be used
//! inside the device's gate.

use crate::{
    limits::UserCharge,
    logic::{
        handle::{
            Handle,
            Kind,
            MAX_OBJECTS, //
        },
        numbered, //
    },
    rdma::cgroup::Charge, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            AtomicFlag,
            Relaxed, //
        },
        Arc, //
    }, //
};

/// An object of a table.
pub(crate) trait Stored {
    /// Returns its kind.
    fn kind(&self) -> Kind;

    /// Returns how many other objects use it.
    fn use_count(&self) -> u32;
}

/// The charges for an object: to the rdma cgroup, one for each verbs object, and to the user.
pub(crate) struct ObjectCharges {
    _verbs: KVVec<Charge>,
    _user: UserCharge,
    /// The number of objects of the file that were destroyed, and whose charges are held yet.
    lingering: Arc<Atomic<u32>>,
    /// Whether the object is one of them.
    is_destroyed: AtomicFlag,
}

impl ObjectCharges {
    /// Makes the charges of an object of the file that has the counter `lingering`.
    pub(crate) fn new(
        verbs: KVVec<Charge>,
        user: UserCharge,
        lingering: &Arc<Atomic<u32>>,
    ) -> Result<Charges> {
        let this = Self {
            _verbs: verbs,
            _user: user,
            lingering: lingering.clone(),
            is_destroyed: AtomicFlag::new(false),
        };
        Ok(Arc::new(this, GFP_KERNEL_ACCOUNT)?)
    }

    /// Counts the object, whose handle is gone, until nothing holds the charges any more.
    pub(crate) fn note_destroyed(&self) {
        self.is_destroyed.store(true, Relaxed);
        let _ = self.lingering.fetch_add(1, Relaxed);
    }
}

impl Drop for ObjectCharges {
    fn drop(&mut self) {
        if self.is_destroyed.load(Relaxed) {
            let _ = self.lingering.fetch_sub(1, Relaxed);
        }
    }
}

/// What holds the charges for an object.
pub(crate) type Charges = Arc<ObjectCharges>;

struct TableEntry<O> {
    generation: u16,
    /// The next free entry, when this one is.
    next: u16,
    object: Option<O>,
    charges: Option<Charges>,
    /// The handle, once user space knows it.
    known: Option<u32>,
}

/// The table.
pub(crate) struct Table<O> {
    entries: KVVec<TableEntry<O>>,
    /// Free entries, the longest unused first.
    first_free: u16,
    last_free: u16,
    free: u32,
    used: u32,
    limit: u32,
}

impl<O: Stored> Table<O> {
    /// Makes an empty table for at most `limit` objects.
    pub(crate) fn new(limit: u32) -> Self {
        Self {
            entries: KVVec::new(),
            first_free: 0,
            last_free: 0,
            free: 0,
            used: 0,
            limit: limit.min(MAX_OBJECTS),
        }
    }

    /// Adds `object`, with its charges, and returns its handle. The handle finds nothing before
    /// [`Self::alloc_commit`].
    ///
    /// Returns [`EMFILE`] when the table is full. May sleep.
    pub(crate) fn alloc_begin(&mut self, object: O, charges: Charges) -> Result<u32> {
        if self.used >= self.limit {
            return Err(EMFILE);
        }
        let kind = object.kind();
        let index = if self.free > 0 {
            let index = self.first_free;
            let entry = self.entries.get_mut(usize::from(index)).ok_or(EMFILE)?;
            self.first_free = entry.next;
            self.free = self.free.saturating_sub(1);
            entry.object = Some(object);
            entry.charges = Some(charges);
            index
        } else {
            let index = u16::try_from(self.entries.len()).map_err(|_| EMFILE)?;
            let entry = TableEntry {
                generation: 0,
                next: 0,
                object: Some(object),
                charges: Some(charges),
                known: None,
            };
            self.entries.push(entry, GFP_KERNEL_ACCOUNT)?;
            index
        };
        self.used = self.used.saturating_add(1);
        let generation = self
            .entries
            .get(usize::from(index))
            .map_or(0, |entry| entry.generation);
        Ok(Handle {
            kind,
            index,
            generation,
        }
        .to_raw())
    }

    fn entry(&self, handle: Handle) -> Result<&TableEntry<O>> {
        let entry = self.entries.get(usize::from(handle.index)).ok_or(ENOENT)?;
        match &entry.object {
            Some(object)
                if entry.generation == handle.generation && object.kind() == handle.kind =>
            {
                Ok(entry)
            }
            _ => Err(ENOENT),
        }
    }

    /// Makes the handle that [`Self::alloc_begin`] returned known to lookups.
    ///
    /// Returns [`ENODEV`] when the removal of the device took the object with it.
    pub(crate) fn alloc_commit(&mut self, handle: u32) -> Result {
        let handle = Handle::from_raw(handle).ok_or(ENODEV)?;
        self.entry(handle).map_err(|_| ENODEV)?;
        let entry = self
            .entries
            .get_mut(usize::from(handle.index))
            .ok_or(ENODEV)?;
        entry.known = Some(handle.to_raw());
        Ok(())
    }

    /// Returns the object that `handle` names, or [`ENOENT`].
    pub(crate) fn get(&self, handle: u32) -> Result<&O> {
        // The low bits of a handle are its index.
        let entry = self.entries.get(usize::from(handle as u16)).ok_or(ENOENT)?;
        match &entry.object {
            Some(object) if entry.known == Some(handle) => Ok(object),
            _ => Err(ENOENT),
        }
    }

    /// Removes the object that `handle` names, and its charges, whether or not the handle was
    /// committed: [`Self::get`] says that of one from user space. Returns [`EBUSY`] while other
    /// objects use it.
    pub(crate) fn remove(&mut self, handle: u32) -> Result<(O, Option<Charges>)> {
        let handle = Handle::from_raw(handle).ok_or(ENOENT)?;
        let entry = self.entry(handle)?;
        if entry
            .object
            .as_ref()
            .is_some_and(|object| object.use_count() > 0)
        {
            return Err(EBUSY);
        }
        self.take(handle.index).ok_or(ENOENT)
    }

    fn take(&mut self, index: u16) -> Option<(O, Option<Charges>)> {
        let entry = self.entries.get_mut(usize::from(index))?;
        let object = entry.object.take()?;
        let charges = entry.charges.take();
        entry.generation = Handle::next_generation(entry.generation);
        entry.known = None;
        if self.free == 0 {
            self.first_free = index;
        } else if let Some(last) = self.entries.get_mut(usize::from(self.last_free)) {
            last.next = index;
        }
        self.last_free = index;
        self.free = self.free.saturating_add(1);
        self.used = self.used.saturating_sub(1);
        Some((object, charges))
    }

    /// Removes the next object of that kind, committed or not, from the entry `from` on, with its
    /// handle and its charges.
    pub(crate) fn take_next(
        &mut self,
        kind: Kind,
        from: &mut u32,
    ) -> Option<(u32, O, Option<Charges>)> {
        while let Some(entry) = self.entries.get(*from as usize) {
            let index = u16::try_from(*from).ok()?;
            *from = from.saturating_add(1);
            if entry.object.as_ref().map(Stored::kind) == Some(kind) {
                let handle = Handle {
                    kind,
                    index,
                    generation: entry.generation,
                };
                let (object, charges) = self.take(index)?;
                return Some((handle.to_raw(), object, charges));
            }
        }
        None
    }

    /// Returns all objects with their handles.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &O)> {
        numbered(self.entries.iter()).filter_map(|(index, entry)| {
            let object = entry.object.as_ref()?;
            let index = u16::try_from(index).ok()?;
            let handle = Handle {
                kind: object.kind(),
                index,
                generation: entry.generation,
            };
            Some((handle.to_raw(), object))
        })
    }
}
