// SPDX-License-Identifier: GPL-2.0

//! Asynchronous events of devices, ports, queue pairs and queues.

use super::device::Device;
use crate::bindings;
use kernel::{
    prelude::*,
    sync::{
        aref::ARef,
        Arc, //
    },
    types::Opaque, //
};

/// An asynchronous event: a number of `enum ib_event_type`.
///
/// ```
/// fn is_failure_of_qp(event: Event) -> bool {
///     matches!(event, Event::QP_FATAL | Event::QP_REQ_ERR | Event::QP_ACCESS_ERR)
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event(u32);

impl Event {
    /// A completion queue overflowed or failed.
    pub(crate) const CQ_ERR: Self = Self(bindings::IB_EVENT_CQ_ERR);
    /// A queue pair failed.
    pub(crate) const QP_FATAL: Self = Self(bindings::IB_EVENT_QP_FATAL);
    /// A queue pair received a request that it does not support.
    pub(crate) const QP_REQ_ERR: Self = Self(bindings::IB_EVENT_QP_REQ_ERR);
    /// A queue pair received a request without the right to perform it.
    pub(crate) const QP_ACCESS_ERR: Self = Self(bindings::IB_EVENT_QP_ACCESS_ERR);
    /// A queue pair takes no more requests from its shared receive queue.
    pub(crate) const QP_LAST_WQE_REACHED: Self = Self(bindings::IB_EVENT_QP_LAST_WQE_REACHED);

    /// Returns the event that `raw` describes.
    pub(super) fn new(raw: &bindings::ib_event) -> Self {
        Self(raw.event)
    }

    /// Returns the number of the event.
    pub(crate) fn number(self) -> u32 {
        self.0
    }
}

/// The owner of a [`Registration`] for the events of a device and its ports.
///
/// ```
/// struct Ports;
///
/// impl Handler for Ports {
///     fn event(&self, event: Event, port: u32) {
///         if port != 0 {
///             pr_info!("port {port}: event {}\n", event.number());
///         }
///     }
/// }
/// ```
pub(crate) trait Handler: Send + Sync + 'static {
    /// The device raised `event`; `port` is 0 when it concerns no port. Process context; may sleep.
    /// The core may hold `rtnl_lock`.
    fn event(&self, event: Event, port: u32);
}

/// The registration of a handler. Dropping it waits for the handler, which sleeps.
///
/// ```
/// struct Log;
///
/// impl Handler for Log {
///     fn event(&self, event: Event, port: u32) {
///         pr_info!("event {} of port {port}\n", event.number());
///     }
/// }
///
/// fn log(device: &device::Device) -> Result<Pin<KBox<Registration<Log>>>> {
///     let handler = Arc::new(Log, GFP_KERNEL)?;
///     KBox::pin_init(Registration::new(device, handler), GFP_KERNEL)
/// }
/// ```
///
/// # Invariants
///
/// `raw` is registered with `_device`.
#[pin_data(PinnedDrop)]
pub(crate) struct Registration<H: Handler> {
    #[pin]
    raw: Opaque<bindings::ib_event_handler>,
    handler: Arc<H>,
    _device: ARef<Device>,
}

// SAFETY: The core changes its list of handlers under `event_handler_rwsem`
// (drivers/infiniband/core/device.c:ib_register_event_handler); the handler is `Send` and `Sync`.
unsafe impl<H: Handler> Send for Registration<H> {}
// SAFETY: As above.
unsafe impl<H: Handler> Sync for Registration<H> {}

impl<H: Handler> Registration<H> {
    /// Registers `handler` with `device`. Sleeps.
    pub(crate) fn new(device: &Device, handler: Arc<H>) -> impl PinInit<Self, Error> + use<'_, H> {
        try_pin_init!(Self {
            handler,
            _device: device.into(),
            // Initialized last: the callback uses the other fields.
            raw <- Opaque::ffi_init(move |slot: *mut bindings::ib_event_handler| {
                // SAFETY: `slot` is memory for a handler, which is pinned from here on. `drop`
                // unregisters it.
                unsafe {
                    bindings::rust_ulp_h_register_events(slot, device.as_raw(), Some(Self::event))
                }
            }),
        }? Error)
    }

    /// # Safety
    ///
    /// Called by the RDMA core for a registered handler of this type.
    unsafe extern "C" fn event(
        raw: *mut bindings::ib_event_handler,
        event: *mut bindings::ib_event,
    ) {
        // SAFETY: By the requirement. Unregistering waits for callbacks.
        let this = unsafe { &*kernel::container_of!(Opaque::cast_from(raw), Self, raw) };
        // SAFETY: The core passes an event that is valid during the call.
        let raw = unsafe { &*event };
        let event = Event::new(raw);
        let port = match raw.event {
            bindings::IB_EVENT_PORT_ACTIVE
            | bindings::IB_EVENT_PORT_ERR
            | bindings::IB_EVENT_LID_CHANGE
            | bindings::IB_EVENT_PKEY_CHANGE
            | bindings::IB_EVENT_SM_CHANGE
            | bindings::IB_EVENT_CLIENT_REREGISTER
            | bindings::IB_EVENT_GID_CHANGE => {
                // SAFETY: Events of these types have a port.
                unsafe { raw.element.port_num }
            }
            _ => 0,
        };
        this.handler.event(event, port);
    }
}

#[pinned_drop]
impl<H: Handler> PinnedDrop for Registration<H> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: Registered, by the type invariant. Waits for callbacks.
        unsafe { bindings::ib_unregister_event_handler(self.raw.get()) };
    }
}
