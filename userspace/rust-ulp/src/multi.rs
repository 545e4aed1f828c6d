// SPDX-License-Identifier: MIT OR Apache-2.0

//! Many queue pairs, each with a completion queue and a thread that reaps it.

use crate::attr::QpAttr;
use crate::completion::Completion;
use crate::cq::Cq;
use crate::deadline::Deadline;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::qp::Qp;
use crate::state::QpState;
use crate::sync::lock;
use crate::transport::Transport;
use crossbeam_channel::{bounded, Receiver, RecvTimeoutError, SendTimeoutError, Sender};
use nix::sched::{sched_getaffinity, sched_getcpu, sched_setaffinity, CpuSet};
use nix::unistd::Pid;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// How often a thread that has nothing to do looks whether it is to end.
const SLICE: Duration = Duration::from_millis(100);

impl Device {
    /// Queue pairs with a completion thread each, one for each processor unless said otherwise.
    pub fn multi_queue_builder(&self) -> MultiQueueBuilder {
        MultiQueueBuilder::new(self.clone())
    }
}

/// How a [`MultiQueue`] is made; from [`Device::multi_queue_builder`].
#[derive(Clone, Debug)]
#[must_use = "nothing is made before `build`"]
pub struct MultiQueueBuilder {
    device: Device,
    queues: Option<usize>,
    entries: u32,
    pin: bool,
    one_stream: bool,
}

impl MultiQueueBuilder {
    pub(crate) fn new(device: Device) -> Self {
        Self {
            device,
            queues: None,
            entries: 256,
            pin: false,
            one_stream: false,
        }
    }

    /// Sets how many queue pairs there are. The default is one for each processor that this thread
    /// may run on.
    pub fn queues(mut self, n: usize) -> Self {
        self.queues = Some(n);
        self
    }

    /// Sets the entries of each completion queue. The default is 256.
    pub fn entries(mut self, n: u32) -> Self {
        self.entries = n;
        self
    }

    /// Pins each thread to one processor, in turn, of those that this thread may run on.
    pub fn pinned(mut self) -> Self {
        self.pin = true;
        self
    }

    /// Hands the completions of all queue pairs over by one channel, from which any thread takes
    /// any.
    pub fn one_stream(mut self) -> Self {
        self.one_stream = true;
        self
    }

    /// Makes the queue pairs, completion queues and threads.
    ///
    /// `connect` gets an index and a completion queue. It makes a queue pair on that completion
    /// queue and connects it. Only the thread reaps the completion queue.
    ///
    /// # Errors
    ///
    /// What `connect` says; [`Error::Range`] for no queues, [`Error::Sys`] if a thread cannot be
    /// started or pinned; as [`Device::create_cq`]. Nothing is left then but what `connect` has
    /// kept.
    pub fn build<T: Transport>(
        self,
        mut connect: impl FnMut(usize, &Cq) -> Result<Qp<T>>,
    ) -> Result<MultiQueue<T>> {
        let cpus = cpus()?;
        let count = self.queues.unwrap_or(cpus.len());
        if count == 0 {
            return Err(Error::Range {
                what: "queues",
                offset: 0,
                len: 0,
                capacity: cpus.len() as u64,
            });
        }
        // Dropped on the way out, it ends the threads.
        let control = Control(Arc::new(State::default()));
        let room = |n: usize| bounded((self.entries as usize).saturating_mul(n).max(1));
        let stream = self.one_stream.then(|| room(count));
        let vectors = self.device.info().num_comp_vectors.max(1);
        let mut queues = Vec::with_capacity(count);
        for (index, cpu) in (0..count).zip(cpus.iter().copied().cycle()) {
            // Less than there are vectors.
            let vector = (index % vectors as usize) as u32;
            let cq = |vector| {
                self.device
                    .cq_builder(self.entries)
                    .comp_vector(vector)
                    .build()
            };
            let cq = cq(vector).or_else(|error| match error.errno() {
                // The module's parameter user_vector is 0.
                Some(libc::EPERM) if vector != 0 => cq(0),
                _ => Err(error),
            })?;
            let qp = connect(index, &cq)?;
            let (to, from) = stream.clone().unwrap_or_else(|| room(1));
            let cpu = self.pin.then_some(cpu);
            start(index, cpu, cq, to, control.0.clone())?;
            queues.push(Queue {
                qp,
                cpu,
                completions: Completions {
                    from,
                    state: control.0.clone(),
                },
            });
        }
        Ok(MultiQueue { queues, control })
    }
}

/// The processors that this thread may run on.
fn cpus() -> Result<Vec<usize>> {
    let set = sched_getaffinity(Pid::from_raw(0))
        .map_err(|errno| Error::sys("sched_getaffinity", errno))?;
    let cpus = (0..CpuSet::count()).filter(|cpu| set.is_set(*cpu) == Ok(true));
    Ok(cpus.collect())
}

#[derive(Debug, Default)]
struct State {
    stop: AtomicBool,
    /// Why a thread has ended by itself.
    failure: Mutex<Option<Error>>,
}

#[derive(Debug)]
struct Control(Arc<State>);

impl Drop for Control {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Release);
    }
}

/// Starts the thread that reaps `cq`, and waits until it is pinned.
fn start(
    index: usize,
    cpu: Option<usize>,
    cq: Cq,
    to: Sender<Completion>,
    state: Arc<State>,
) -> Result<()> {
    let (ready, started) = bounded(1);
    let run = move || {
        let pinned = cpu.map_or(Ok(()), |cpu| {
            let mut set = CpuSet::new();
            set.set(cpu)?;
            sched_setaffinity(Pid::from_raw(0), &set)
        });
        let go = pinned.is_ok();
        let _ = ready.send(pinned);
        drop(ready);
        if go {
            if let Err(error) = take(&cq, &to, &state) {
                *lock(&state.failure) = Some(error);
            }
        }
    };
    let thread = thread::Builder::new().name(format!("rust-ulp-cq{index}"));
    thread.spawn(run).map_err(|error| Error::Sys {
        call: "a completion thread",
        errno: error.raw_os_error().unwrap_or(libc::EAGAIN),
    })?;
    match started.recv() {
        Ok(pinned) => pinned.map_err(|errno| Error::sys("sched_setaffinity", errno)),
        Err(_) => Err(Error::Stopped),
    }
}

/// Takes completions until it is to stop and none is left, or nobody wants them.
fn take(cq: &Cq, to: &Sender<Completion>, state: &State) -> Result<()> {
    let mut some = [Completion::EMPTY; 32];
    loop {
        // Looked at before the ring: what came before it was set is taken.
        let stop = state.stop.load(Ordering::Acquire);
        let n = cq.poll_into(&mut some)?;
        for done in some.iter().take(n) {
            let mut done = *done;
            // No thread takes completions: the completion queue fills up, and posting fails.
            while let Err(error) = to.send_timeout(done, SLICE) {
                match error {
                    SendTimeoutError::Timeout(it) if !state.stop.load(Ordering::Acquire) => {
                        done = it;
                    }
                    _ => return Ok(()),
                }
            }
        }
        if n == 0 {
            if stop {
                return Ok(());
            }
            match cq.wait_for(1, SLICE) {
                Ok(_) | Err(Error::Timeout { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// The completions of one [`Queue`], or of all.
///
/// Several threads may take completions: each one goes to one of them. They are handed over without
/// a lock. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Completions {
    from: Receiver<Completion>,
    state: Arc<State>,
}

impl Completions {
    /// Takes the oldest completion, if there is one. Does not sleep.
    ///
    /// # Errors
    ///
    /// Once nothing is left to take and the thread has ended: why, or [`Error::Stopped`] if that
    /// was told already or it was stopped.
    pub fn try_next(&self) -> Result<Option<Completion>> {
        match self.from.try_recv() {
            Ok(done) => Ok(Some(done)),
            Err(error) if error.is_empty() => Ok(None),
            Err(_) => Err(self.ended()),
        }
    }

    /// Takes the oldest completion, sleeping until there is one.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] if there is none within `timeout`; as [`Self::try_next`].
    pub fn wait(&self, timeout: Duration) -> Result<Completion> {
        let deadline = Deadline::after(timeout);
        match self.from.recv_timeout(timeout) {
            Ok(done) => Ok(done),
            Err(RecvTimeoutError::Timeout) => Err(deadline.timeout("waiting for completions")),
            Err(RecvTimeoutError::Disconnected) => Err(self.ended()),
        }
    }

    /// How many can be taken.
    pub fn ready(&self) -> usize {
        self.from.len()
    }

    fn ended(&self) -> Error {
        lock(&self.state.failure).take().unwrap_or(Error::Stopped)
    }
}

/// A queue pair of a [`MultiQueue`], with its completions.
#[derive(Debug)]
#[doc(alias = "Lane")]
pub struct Queue<T: Transport> {
    qp: Qp<T>,
    cpu: Option<usize>,
    completions: Completions,
}

impl<T: Transport> Queue<T> {
    /// Returns the queue pair, to post to. Only the thread of the queue reaps its completion queue.
    pub fn qp(&self) -> &Qp<T> {
        &self.qp
    }

    /// The processor that its thread runs on, if it is pinned.
    pub fn cpu(&self) -> Option<usize> {
        self.cpu
    }

    /// Returns its completions; those of all queues with [`MultiQueueBuilder::one_stream`].
    pub fn completions(&self) -> &Completions {
        &self.completions
    }
}

/// Queue pairs that share nothing, each with a completion queue and a thread that reaps it.
///
/// A thread that posts to one [`Queue`] and takes its completions waits for no other thread.
/// [`Self::here`] is the queue of the processor that the calling thread runs on.
///
/// If no thread takes the completions, the completion queue fills up and posting fails with
/// [`Error::QueueFull`]; no completion is lost. Dropping it with requests in flight is harmless:
/// its threads end within a tenth of a second, and the queue pairs go with their last clones.
/// [`Self::stop`] ends it in order.
#[derive(Debug)]
pub struct MultiQueue<T: Transport> {
    queues: Vec<Queue<T>>,
    control: Control,
}

impl<T: Transport> MultiQueue<T> {
    /// Returns the queues, in order.
    pub fn queues(&self) -> &[Queue<T>] {
        &self.queues
    }

    /// Returns the queue at `index` modulo the number of queues.
    pub fn queue(&self, index: usize) -> &Queue<T> {
        let queues = &self.queues;
        match queues.get(index.checked_rem(queues.len()).unwrap_or(0)) {
            Some(queue) => queue,
            // There is one queue at least.
            None => unreachable!(),
        }
    }

    /// Returns the queue whose thread is pinned to the processor that this thread runs on, or else
    /// a queue that is always the same one for this processor.
    pub fn here(&self) -> &Queue<T> {
        let cpu = sched_getcpu().unwrap_or(0);
        let pinned = self.queues.iter().find(|queue| queue.cpu == Some(cpu));
        pinned.unwrap_or_else(|| self.queue(cpu))
    }

    /// Takes all queue pairs to the state Err, waits until every request has completed, and ends
    /// the threads. Returns the completions that no thread has taken.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] if that takes longer than `timeout`, and [`Error::DeviceGone`] and the
    /// like; then the threads end all the same, and what was in flight is harmless.
    pub fn stop(self, timeout: Duration) -> Result<Vec<Completion>> {
        let deadline = Deadline::after(timeout);
        let mut left = Vec::new();
        for queue in &self.queues {
            queue.qp.modify(QpAttr::to(QpState::Err))?;
        }
        for queue in &self.queues {
            loop {
                self.drain(&mut left);
                let info = queue.qp.query()?;
                if info.sends_in_flight == 0 && info.recvs_in_flight == 0 {
                    break;
                }
                self.rest(&deadline, "the requests of a queue to complete")?;
            }
        }
        self.control.0.stop.store(true, Ordering::Release);
        // The threads have what is left in the rings, and hand it over.
        for queue in &self.queues {
            loop {
                match queue.completions.from.recv_timeout(deadline.left()) {
                    Ok(done) => left.push(done),
                    Err(RecvTimeoutError::Disconnected) => break,
                    Err(RecvTimeoutError::Timeout) => {
                        return Err(deadline.timeout("the threads of the queues to end"));
                    }
                }
            }
        }
        match lock(&self.control.0.failure).take() {
            Some(error) => Err(error),
            None => Ok(left),
        }
    }

    fn drain(&self, left: &mut Vec<Completion>) {
        for queue in &self.queues {
            left.extend(queue.completions.from.try_iter());
        }
    }

    /// Waits a little.
    fn rest(&self, deadline: &Deadline, what: &'static str) -> Result<()> {
        let time = deadline.left().min(Duration::from_millis(1));
        if time.is_zero() {
            return Err(deadline.timeout(what));
        }
        thread::sleep(time);
        Ok(())
    }
}
