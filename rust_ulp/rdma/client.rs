// SPDX-License-Identifier: GPL-2.0

//! Clients of the RDMA core, which calls them for each device.

use super::{
    cq::Workers,
    device::Device, //
};
use crate::{
    bindings,
    ext::fault, //
};
use core::{
    cell::UnsafeCell,
    ptr::NonNull, //
};
use kernel::{
    error::to_result,
    ffi::{
        c_int,
        c_void, //
    },
    prelude::*,
    sync::{
        atomic::{
            AtomicFlag,
            Full, //
        },
        Arc,
        ArcBorrow, //
    },
    types::{
        ForeignOwnable,
        Opaque, //
    }, //
};

/// A client of the RDMA core: `struct ib_client`.
///
/// ```
/// # use device::Device;
/// struct Lister;
///
/// impl Client for Lister {
///     type Data = pd::Pd;
///     const NAME: &'static CStr = c"lister";
///
///     fn slot() -> &'static ClientSlot<Self> {
///         static SLOT: ClientSlot<Lister> = ClientSlot::new();
///         &SLOT
///     }
///
///     fn add(&self, device: &Device) -> Result<Arc<pd::Pd>> {
///         pd::Pd::new(device)
///     }
///
///     fn remove(&self, _device: &Device, _last: Arc<pd::Pd>) {}
/// }
///
/// fn register() -> Result<Pin<KBox<Registration<Lister>>>> {
///     KBox::pin_init(Registration::new(Arc::new(Lister, GFP_KERNEL)?), GFP_KERNEL)
/// }
/// ```
pub(crate) trait Client: Send + Sync + Sized + 'static {
    /// The data that the client keeps for each device.
    type Data: Send + Sync + 'static;

    /// The name of the client, as the core shows it.
    const NAME: &'static CStr;

    /// Returns the `static` of the implementer that holds its registered client: always the same.
    fn slot() -> &'static ClientSlot<Self>;

    /// A device was added. May sleep. When this fails, the core does not call the client for the
    /// device again.
    fn add(&self, device: &Device) -> Result<Arc<Self::Data>>;

    /// A device is removed. Every object that the client made on it must be dropped before this
    /// returns. May sleep; must end in bounded time, whatever user space does.
    fn remove(&self, device: &Device, data: Arc<Self::Data>);

    /// A device was renamed. May sleep.
    fn rename(&self, _device: &Device, _data: ArcBorrow<'_, Self::Data>) {}
}

/// Holds the registered client of a type: the core passes no pointer to it to its callbacks.
///
/// ```
/// # struct Lister;
/// fn slot() -> &'static ClientSlot<Lister> {
///     static SLOT: ClientSlot<Lister> = ClientSlot::new();
///     &SLOT
/// }
/// ```
///
/// # Invariants
///
/// Only the [`Registration`] that has set `taken` writes `client`, while no callback can run.
pub(crate) struct ClientSlot<T> {
    client: UnsafeCell<Option<(Arc<T>, NonNull<bindings::ib_client>)>>,
    taken: AtomicFlag,
}

// SAFETY: By the type invariant.
unsafe impl<T: Send + Sync> Sync for ClientSlot<T> {}

impl<T> ClientSlot<T> {
    /// Creates an empty slot.
    pub(crate) const fn new() -> Self {
        Self {
            client: UnsafeCell::new(None),
            taken: AtomicFlag::new(false),
        }
    }
}

/// The registration of a client. Dropping it removes all devices from the client, which sleeps.
///
/// ```
/// fn register<T: Client>(client: T) -> Result<Pin<KBox<Registration<T>>>> {
///     KBox::pin_init(Registration::new(Arc::new(client, GFP_KERNEL)?), GFP_KERNEL)
/// }
/// ```
///
/// # Invariants
///
/// `client` is registered, and the slot of `T` holds the client.
#[pin_data(PinnedDrop)]
pub(crate) struct Registration<T: Client> {
    #[pin]
    client: Opaque<bindings::ib_client>,
    owner: Arc<T>,
    /// Dropped after the client was unregistered, like each field.
    workers: Workers,
}

// SAFETY: The core registers and unregisters clients under `clients_rwsem`
// (drivers/infiniband/core/device.c:ib_register_client and remove_client_id); the client itself is
// `Send` and `Sync`.
unsafe impl<T: Client> Send for Registration<T> {}
// SAFETY: As above.
unsafe impl<T: Client> Sync for Registration<T> {}

impl<T: Client> Registration<T> {
    /// Registers `client`, and calls `add` for each device before it returns. Sleeps. Fails with
    /// [`EBUSY`] when a client of this module is registered.
    pub(crate) fn new(client: Arc<T>) -> impl PinInit<Self, Error> {
        let (shared, owner) = (client.clone(), client);
        try_pin_init!(Self {
            workers: Workers::new()?,
            client <- Opaque::try_ffi_init(move |slot: *mut bindings::ib_client| {
                if T::slot().taken.xchg(true, Full) {
                    return Err(EBUSY);
                }
                let raw = NonNull::new(slot).ok_or(ENOMEM)?;
                // SAFETY: `taken` gives the slot to this call, and no callback runs, since nothing
                // is registered.
                unsafe { *T::slot().client.get() = Some((shared, raw)) };
                let value = bindings::ib_client {
                    name: T::NAME.as_char_ptr(),
                    add: Some(Self::add),
                    remove: Some(Self::remove),
                    rename: Some(Self::rename),
                    ..Default::default()
                };
                // SAFETY: `slot` is memory for an `ib_client`, which is pinned from here on.
                unsafe { slot.write(value) };
                let registered = fault::point().and_then(|()| {
                    // SAFETY: As above. `drop` unregisters it.
                    to_result(unsafe { bindings::ib_register_client(slot) })
                });
                registered.inspect_err(|_| Self::empty_slot())
            }),
            owner,
        }? Error)
    }

    fn empty_slot() {
        // SAFETY: Nothing is registered, so no callback runs.
        unsafe { *T::slot().client.get() = None };
        T::slot().taken.store(false, kernel::sync::atomic::Release);
    }

    /// Returns the registered client, and the core's handle of it.
    ///
    /// # Safety
    ///
    /// Called in a callback of the core; the result is not used after the callback.
    unsafe fn client<'a>() -> Option<&'a (Arc<T>, NonNull<bindings::ib_client>)> {
        // SAFETY: While a callback runs, the client is registered and its slot is not written.
        unsafe { (*T::slot().client.get()).as_ref() }
    }

    /// # Safety
    ///
    /// Called by the RDMA core for the registered client of this type.
    unsafe extern "C" fn add(device: *mut bindings::ib_device) -> c_int {
        // SAFETY: This is a callback.
        let Some((client, raw)) = (unsafe { Self::client() }) else {
            return ENODEV.to_errno();
        };
        // SAFETY: The core calls `add` with a registered device.
        match client.add(unsafe { Device::from_raw(device) }) {
            Ok(data) => {
                // SAFETY: `add` was called for this device on behalf of this client.
                unsafe { bindings::ib_set_client_data(device, raw.as_ptr(), data.into_foreign()) };
                0
            }
            Err(err) => err.to_errno(),
        }
    }

    /// # Safety
    ///
    /// Called by the RDMA core for the registered client of this type.
    unsafe extern "C" fn remove(device: *mut bindings::ib_device, data: *mut c_void) {
        if data.is_null() {
            return;
        }
        // SAFETY: `add` set it, and `remove` is called once for each `add` that succeeded.
        let data = unsafe { Arc::<T::Data>::from_foreign(data) };
        // SAFETY: This is a callback.
        if let Some((client, _)) = unsafe { Self::client() } {
            // SAFETY: The core calls `remove` while the device still has references.
            client.remove(unsafe { Device::from_raw(device) }, data);
        }
    }

    /// # Safety
    ///
    /// Called by the RDMA core for the registered client of this type.
    unsafe extern "C" fn rename(device: *mut bindings::ib_device, data: *mut c_void) {
        if data.is_null() {
            return;
        }
        // SAFETY: `add` set it, and only `remove` takes it back.
        let data = unsafe { Arc::<T::Data>::borrow(data) };
        // SAFETY: This is a callback.
        if let Some((client, _)) = unsafe { Self::client() } {
            // SAFETY: The core renames registered devices.
            client.rename(unsafe { Device::from_raw(device) }, data);
        }
    }
}

#[pinned_drop]
impl<T: Client> PinnedDrop for Registration<T> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: Registered, by the type invariant. Removes all devices; no callback runs after it
        // returns.
        unsafe { bindings::ib_unregister_client(self.client.get()) };
        Self::empty_slot();
    }
}
